"""The evaluation modes `critic` and `search`, with scripted seats."""

import itertools
import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from lite_selfplay.data import Completion, EvalSpec, Problem, Sampling, Verdict
from lite_selfplay.errors import GameError, TaskError
from lite_selfplay.games.spc.critic_modes import RETRIES, SEARCHES, step_task
from lite_selfplay.games.spc.steps import KIND
from lite_selfplay.tasks.split import evaluation_set, without
from lite_selfplay.verify import Verifier
from tests.evaluation.scripted import Scripted
from tests.made import evaluated, jsonl


class Speaker(Scripted):
    """Seats whose completions a function of (seat, prompt, beginning) returns; `said` holds them."""

    def __init__(self, say: Callable[[str, str, str], str]):
        super().__init__(lambda *_: "")
        self._reply, self._verifier, self.said = say, Verifier(), list[Completion]()

    def _say(self, *asked: Any) -> Completion:
        self.said.append(super()._say(*asked))
        return self.said[-1]

    def reply(self, seat: str, prompt: str, start: str, k: int) -> str:
        return self._reply(seat, prompt, start)

    def judge(self, completion: Completion, problem: Problem) -> Verdict:
        return self._verifier.verify([(completion, problem)])[0]


def found(speaker: Speaker, mode: str, seats: tuple[str, ...], problems: Sequence[Problem]) -> Any:
    return evaluated(speaker, EvalSpec(mode, seats), problems, sampling=Sampling(max_tokens=400))


# Steps of ProcessBench: the name and number of a problem, its steps, and which of them is the first wrong one.
STEPS = [
    *((f"gsm8k-{i}", f"Problem {i}?", ["a is right", "b is wrong", "c"], 1) for i in range(4)),
    *((f"math-{i}", f"Other {i}?", ["d is right"], -1) for i in range(2)),
    *((f"math-{i + 2}", f"Third {i}?", ["e is wrong"], 0) for i in range(2)),
]


def test_a_critics_recalls_means_and_replies_without_a_judgement(tmp_path: Path):
    """GSM8K's 4 correct steps are judged correct but for one reply without a verdict; of its 4 wrong ones 2 are seen.
    Of the other subset's 2 correct ones 2 are, and of its 2 wrong ones none."""
    rows = [dict(zip(("id", "problem", "steps", "label"), row, strict=True)) for row in STEPS]
    problems = evaluation_set(step_task(str(jsonl(tmp_path / "steps.jsonl", *rows))))
    assert [problem.answer for problem in problems].count("Correct") == 6
    assert len(problems) == 12

    def say(seat: str, prompt: str, begun: str) -> str:
        if "Problem 0?" in prompt and "a is right" in prompt.partition("Last step:")[2]:
            return "no verdict"
        seen = "b is wrong" in prompt and ("Problem 1?" in prompt or "Problem 2?" in prompt)
        return f"Fine. <answer>{'Incorrect' if seen else 'Correct'}</answer>"

    evaluation = found(Speaker(say), "critic", ("critic", "base"), problems)
    score = evaluation.seats["critic"]
    assert (score.more["correct"], score.more["error"], score.more["invalid"]) == (
        1.0,
        2 / 6,
        1 / 12,
    )  # correct: of the 5 that were judged
    assert (score.pass_at_1, score.well_formed) == (pytest.approx(7 / 12), 11 / 12)
    assert score.more["mean"] == pytest.approx((1 + 1 / 3) / 2)
    assert score.more["harmonic_mean"] == pytest.approx(2 * 1 * (1 / 3) / (1 + 1 / 3))
    assert score.more["mean_of_subsets"] == pytest.approx(((1 + 0.5) / 2 + (1 + 0) / 2) / 2)
    assert set(score.more["subsets"]) == {"gsm8k", "math"}
    written = json.loads(json.dumps(evaluation.to_json()))
    assert written["seats"]["critic"]["subsets"]["gsm8k"]["error"] == 0.5
    assert written["per_problem"].keys() == {problem.id for problem in problems}


def test_steps_are_made_of_worked_solutions_and_hold_their_problems_out(tmp_path: Path):
    worked = [(f"What is {i} plus 2, twice?", f"{i}+2=<<{i}+2={i + 2}>>{i + 2}\n#### {i + 2}") for i in range(9)]
    rows = [{"question": question, "answer": answer} for question, answer in worked]
    task = step_task(str(jsonl(tmp_path / "worked.jsonl", *rows)))
    assert task.name == "steps of worked"
    assert sorted(problem.answer for problem in task.problems) == ["Correct"] * 4 + ["Incorrect"] * 4
    assert {problem.kind for problem in task.problems} == {KIND}
    asked = [Problem("x", rows[0]["question"], "2"), Problem("y", "Something else?", "2")]
    held = [problem for problem in task.problems if problem.text == rows[0]["question"]]
    assert [problem.id for problem in without(asked, held)] == (["y"] if held else ["x", "y"])
    assert [problem.id for problem in without(asked, task.problems)][-1] == "y"
    named = step_task("stories:steps=1")
    assert len(named.problems) == 1000
    assert named.problems[0].extra["about"] == named.problems[0].text


def test_what_holds_no_steps_is_refused(tmp_path: Path):
    with pytest.raises(TaskError, match="holds no labelled steps"):
        step_task(str(jsonl(tmp_path / "bare.jsonl", {"problem": "2 + 2?", "answer": "4"})))
    with pytest.raises(GameError, match="labelled steps, and p is a problem"):
        found(Speaker(lambda *_: ""), "critic", ("critic",), [Problem("p", "2 + 2?", "4")])


SUMS = [Problem("easy", "Easy: 2 + 2?", "4"), Problem("hard", "Hard: 3 + 3?", "6")]


def test_search_rewrites_rejected_steps_and_counts_all_tokens():
    writings = itertools.count(1)

    def say(seat: str, prompt: str, begun: str) -> str:
        if seat == "critic":
            return f"<answer>{'Incorrect' if 'slip' in prompt.partition('Last step:')[2] else 'Correct'}</answer>"
        right = "4" if "Easy" in prompt else "6"
        if not begun and "Hard" in prompt:
            # Alone it slips every time; in a search every second first step does.
            slips = (writing := next(writings)) <= SEARCHES or writing % 2
            return "A slip.\n\nSo \\boxed{9}." if slips else "Sound.\n\nx"
        if begun:
            return f"So \\boxed{{{right if 'slip' not in begun else 9}}}."
        return f"Sound.\n\nSo \\boxed{{{right}}}."

    speaker = Speaker(say)
    evaluation = found(speaker, "search", ("solver", "critic"), SUMS)
    scores = {"alone": evaluation.seats["solver"], **evaluation.directions}
    passed = {"alone": 0.5, "vote of 5": 0.5, "search": 1.0, "search + vote of 5": 1.0}
    assert {name: score.pass_at_1 for name, score in scores.items()} == passed
    searched, voted = scores["search"], scores["search + vote of 5"]
    assert (searched.samples, voted.n) == (SEARCHES, 2)
    assert {c.sampling.temperature for c in speaker.said if c.seat == "critic"} == {0.0}
    assert {c.sampling.stop for c in speaker.said[2 * SEARCHES :] if c.seat == "solver"} == {("\n\n",)}
    # Every sampled token belongs to the plain answers or to the searches.
    spent = searched.tokens_total_mean * searched.n * searched.samples
    plain = scores["alone"].tokens_total_mean * 2 * SEARCHES
    assert spent + plain == pytest.approx(sum(len(c.token_ids) for c in speaker.said))
    assert voted.tokens_total_mean * 2 == pytest.approx(spent)


def test_the_fifth_writing_of_a_step_stays_and_a_critique_without_a_judgement_lets_one_pass():
    def never_good(seat: str, prompt: str, begun: str) -> str:
        return "<answer>Incorrect</answer>" if seat == "critic" else "Never good: \\boxed{4}."

    speaker = Speaker(never_good)
    evaluation = found(speaker, "search", ("solver", "critic"), SUMS[:1])
    written = Counter(said.seat for said in speaker.said)
    assert written == {"critic": SEARCHES * (1 + 5), "solver": SEARCHES + SEARCHES * (1 + RETRIES)}
    assert evaluation.directions["search"].pass_at_1 == 1.0

    def endless(seat: str, prompt: str, begun: str) -> str:
        return "no idea" if seat == "critic" else "and so on\n\n"

    evaluation = found(Speaker(endless), "search", ("base",), SUMS[:1])
    assert list(evaluation.seats) == ["base"]
    searched = evaluation.directions["search"]
    assert (searched.truncated, searched.pass_at_1) == (1.0, 0.0)

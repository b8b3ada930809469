"""Measuring by hand numbers: seats that read from a script, one token a character."""

import json
import math
from collections.abc import Sequence
from typing import Any

import pytest

from lite_selfplay.data import Completion, EvalSpec, Problem, Sampling, Verdict
from lite_selfplay.errors import RequestError
from lite_selfplay.evaluation import Evaluation
from lite_selfplay.evaluation.examiner import problem_keys
from lite_selfplay.stats import clopper_pearson
from tests.made import evaluated
from tests.made_runs import Ear

from . import scripted

PAPER = Sampling(temperature=0.6, top_p=0.95, max_tokens=50)
PROBLEMS = [Problem("p", "1 + 1?", "2"), Problem("q", "1 + 2?", "3"), Problem("r", "2 + 2?", "4")]
ALONE, BOTH = EvalSpec("single", ("A", "B")), EvalSpec("cascade", ("A", "B"))


class Scripted(scripted.Scripted):
    """Right is what ends with `=` and the answer, and what is empty."""

    def judge(self, completion: Completion, problem: Problem) -> Verdict:
        right = completion.text.endswith(f"={problem.answer}")
        return Verdict(right or completion.text == "", float(right), well_formed="." in completion.text)


def challenge(prompt: str) -> bool:
    return "attempt" in prompt


def which(prompt: str) -> int:
    return next(i for i, problem in enumerate(PROBLEMS) if problem.text in prompt)


# Drafts: A solves p; B solves p and q. Challenges: A->B right on p, q and r; B->A on q alone.
DRAFTS = {"A": ["Add.=2", "Hm.=9", "Or. 9=9"], "B": ["=2", "=3", "=9"]}
CHALLENGES = {"B": ["Again.=2", "=3", "Sum. 2 and 2=4"], "A": ["=8", "It is.=3", "=7"]}


def reply(seat: str, prompt: str, k: int) -> str:
    return (CHALLENGES if challenge(prompt) else DRAFTS)[seat][which(prompt)]


def measured(
    spec: EvalSpec = BOTH, script: Any = reply, problems: Sequence[Problem] = PROBLEMS, **given: Any
) -> tuple[Evaluation, Any]:
    """What is found, and what was asked for."""
    table = Scripted(script, given.pop("longest_prompt", 10_000))
    return evaluated(table, spec, problems, sampling=PAPER, **given), table.calls


@pytest.fixture
def cascade() -> Evaluation:
    return measured(seed=5, tasks="sums")[0]


def test_seats_alone():
    found, _ = measured(ALONE)
    a, b = found.seats["A"], found.seats["B"]
    assert (a.pass_at_1, a.right, a.n, a.samples) == (1 / 3, 1, 3, 1)
    assert (b.pass_at_1, b.right) == (2 / 3, 2)
    assert a.ci95 == clopper_pearson(1, 3)
    assert (a.well_formed, b.well_formed) == (1, 0)
    # "Add.=2" has 6 characters, "Hm.=9" 5, "Or. 9=9" 7; B's have 2 each.
    assert (a.tokens_final_mean, a.tokens_total_mean) == (6, 6)
    assert (b.tokens_final_mean, b.tokens_total_mean) == (2, 2)
    assert (found.directions, found.mean_of_directions, found.best) == ({}, None, "B")
    rows = {"p": [True, True], "q": [False, True], "r": [False, False]}
    assert {name: list(row.values()) for name, row in found.per_problem.items()} == rows


def test_both_directions(cascade: Evaluation):
    assert list(cascade.directions) == ["A->B", "B->A"]
    ab, ba = cascade.directions["A->B"], cascade.directions["B->A"]
    assert (ab.pass_at_1, ba.pass_at_1) == (1, 1 / 3)
    assert (ab.more["conversions"], ab.more["regressions"], ab.more["both_right"], ab.more["both_wrong"]) == (
        2,
        0,
        1,
        0,
    )
    assert (ba.more["conversions"], ba.more["regressions"], ba.more["both_right"], ba.more["both_wrong"]) == (
        0,
        1,
        1,
        1,
    )
    # A->B: 8, 2 and 14 characters after drafts of 6, 5 and 7; the first draft was right.
    assert (ab.tokens_final_mean, ab.tokens_total_mean) == (8, 14)
    assert (ab.more["tokens_final_mean_after_right"], ab.more["tokens_final_mean_after_wrong"]) == (8, 8)
    # B->A: 2, 8 and 2 after drafts of 2 each; the first two were right.
    assert (ba.tokens_final_mean, ba.tokens_total_mean) == (4, 6)
    assert (ba.more["tokens_final_mean_after_right"], ba.more["tokens_final_mean_after_wrong"]) == (5, 2)
    assert ab.ci95 == clopper_pearson(3, 3)
    assert (ab.well_formed, ba.well_formed) == (2 / 3, 1 / 3)
    assert cascade.best == "A->B"
    assert cascade.mean_of_directions == pytest.approx(2 / 3)
    assert cascade.per_problem["q"] == {"A": False, "B": True, "A->B": True, "B->A": True}


def test_the_first_stage_is_sampled_once_and_its_drafts_are_what_is_read():
    _, calls = measured(samples=2)
    asked = [(seat, challenge(prompts[0]), n) for seat, prompts, n, *_ in calls]
    assert asked == [("A", False, 2), ("B", False, 2), ("B", True, 1), ("A", True, 1)]
    assert all(call[4] == PAPER for call in calls)
    challenges = calls[2][1]
    assert len(challenges) == 6
    # A value that a step arrives at stays, as in the paper: "Add.=2" is read as it is.
    assert "Add.=2" in challenges[0]
    assert challenges[0] == challenges[1]


def test_seeds_follow_from_problem_stage_and_number_and_not_from_the_seat():
    a, b, by_b, by_a = (seeds for *_, seeds, _ in measured(samples=2, seed=1)[1])
    assert a == b
    assert by_b == by_a
    seeds = [seed for rows in (a, by_b) for row in rows for seed in row]
    assert len(set(seeds)) == len(seeds) == 12

    def asked(problems: Sequence[Problem], **changes: Any) -> list[list[int]]:
        _, calls = measured(ALONE, problems=problems, **{"samples": 2, "seed": 1, **changes})
        return calls[0][3]

    assert asked(PROBLEMS) == a
    assert asked(PROBLEMS[::-1]) == a[::-1]
    assert asked(PROBLEMS[1:]) == a[1:]
    assert asked(PROBLEMS, samples=1) == [row[:1] for row in a]
    assert asked(PROBLEMS, seed=2) != a


def test_several_samples_are_shares_and_the_interval_counts_problems():
    # A is right in 3 of 4 samples of p, in all of q, in none of r: 7 of 12, 7/4 problems' worth, rounded to 2 of 3.
    right = {0: 3, 1: 4, 2: 0}

    def script(seat: str, prompt: str, k: int) -> str:
        i = which(prompt)
        return f"={PROBLEMS[i].answer}" if k < right[i] else "=no"

    found, _ = measured(EvalSpec("single", ("A",)), script, samples=4)
    score = found.seats["A"]
    assert (score.pass_at_1, score.right, score.ci95) == (pytest.approx(7 / 12), 1.75, clopper_pearson(2, 3))
    assert found.per_problem == {"p": {"A": 0.75}, "q": {"A": 1.0}, "r": {"A": 0.0}}


def test_each_draft_of_several_has_its_own_challenge():
    # Draft k of p says `no k`; the challenge repeats what it reads, and is right where it read `no 1`.
    def script(seat: str, prompt: str, k: int) -> str:
        if not challenge(prompt):
            return f"no {'zero' if k == 0 else 'one'}. So it is =9"
        return "=2" if "no one" in prompt else "=9"

    found, _ = measured(BOTH, script, PROBLEMS[:1], samples=2)
    score = found.directions["A->B"]
    assert (score.more["conversions"], score.more["both_wrong"], score.pass_at_1) == (1, 1, 0.5)
    assert found.per_problem == {"p": {"A": 0.0, "B": 0.0, "A->B": 0.5, "B->A": 0.5}}


def test_one_seat_reads_its_own_draft_and_of_equals_the_first_is_the_best():
    own = EvalSpec("cascade", ("base",))
    found, calls = measured(own, lambda seat, prompt, k: reply("B" if challenge(prompt) else "A", prompt, k))
    assert list(found.directions) == ["base->base"] == [found.best]
    assert found.directions[found.best].more["conversions"] == 2
    assert [call[0] for call in calls] == ["base", "base"]
    assert found.mean_of_directions == found.directions[found.best].pass_at_1
    assert [measured(spec, lambda *_: "=2")[0].best for spec in (BOTH, ALONE)] == ["A->B", "A"]


def test_prompts_that_were_not_read_are_wrong_and_counted():
    # The checker of this script calls an empty text right.
    problems = [PROBLEMS[0], Problem("long", "1 + 2?" + " " * 400, "3")]
    found, _ = measured(
        BOTH, lambda seat, prompt, k: f"So.={PROBLEMS[which(prompt)].answer}", problems, longest_prompt=400
    )
    for score in (*found.seats.values(), *found.directions.values()):
        assert score.prompts_too_long >= 1
        assert score.pass_at_1 <= 0.5
    assert found.seats["A"].prompts_too_long == 1
    assert found.seats["A"].well_formed == 0.5
    assert found.per_problem["long"] == dict.fromkeys(("A", "B", "A->B", "B->A"), False)


def test_cut_answers_and_drafts_with_nothing_to_read_are_counted():
    def script(seat: str, prompt: str, k: int) -> str:
        third = which(prompt)
        return "x" * (3 if third else 60) if challenge(prompt) else ["", "=3", "Two. Then=4"][third]

    score = measured(BOTH, script)[0].directions["A->B"]
    assert score.truncated == 1 / 3
    assert score.more["empty_summaries"] == pytest.approx(1 / 3)
    assert score.tokens_final_mean == pytest.approx((50 + 3 + 3) / 3)


def test_blocks_change_nothing_and_are_told_one_by_one(cascade: Evaluation):
    ear, said = Ear(), list[str]()
    ear.activity = said.append  # type: ignore[method-assign]
    found, calls = measured(seed=5, tasks="sums", rows_at_once=2, name="now", progress=ear)
    assert found == cascade
    assert [len(call[1]) for call in calls] == [2, 1] * 4
    assert (ear.phases, [done for done, _ in ear.notes]) == ([("now", 12)], [2, 3, 5, 6, 8, 9, 11, 12])
    assert said[:2] == ["A answers problems 1 to 2", "A answers problem 3"]
    assert said[-1] == "A challenges B on problem 3"


@pytest.mark.parametrize(
    ("rows", "samples", "blocks"), [(2, 1, [2, 1]), (4, 2, [2, 1]), (1, 2, [1, 1, 1]), (64, 2, [3]), (None, 1, [3])]
)
def test_so_many_rows_are_asked_for_at_a_time(rows: int | None, samples: int, blocks: list[int]):
    _, calls = measured(ALONE, samples=samples, rows_at_once=rows)
    assert [len(call[1]) for call in calls] == blocks * 2


def test_the_json_is_complete_and_finite(cascade: Evaluation):
    result = cascade.to_json()
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    keys = "mode tasks n samples temperature top_p seed max_completion_tokens shots best pass_at_1 ci95"
    keys += " tokens_final_mean tokens_total_mean seats directions mean_of_directions per_problem answers"
    assert list(result) == keys.split()
    assert (result["mode"], result["tasks"], result["n"], result["seed"]) == ("cascade", "sums", 3, 5)
    assert (result["temperature"], result["top_p"], result["max_completion_tokens"]) == (0.6, 0.95, 50)
    best = result["directions"][result["best"]]
    for key in ("pass_at_1", "ci95", "tokens_final_mean", "tokens_total_mean"):
        assert result[key] == best[key]
    assert result["ci95"] == list(clopper_pearson(3, 3))
    assert set(result["per_problem"]) == {"p", "q", "r"}


def test_the_json_without_directions_and_with_drafts_of_one_kind():
    alone = measured(ALONE, about={"model": "tiny"})[0].to_json()
    assert "directions" not in alone
    assert "mean_of_directions" not in alone
    assert (alone["best"], alone["pass_at_1"], alone["model"]) == ("B", alone["seats"]["B"]["pass_at_1"], "tiny")
    # A solves p alone: no draft of a wrong kind is there to take a mean of.
    found, _ = measured(problems=PROBLEMS[:1])
    assert found.directions["A->B"].more["tokens_final_mean_after_wrong"] is None
    numbers = [x for score in found.to_json()["directions"].values() for x in score.values() if isinstance(x, float)]
    assert all(map(math.isfinite, numbers))
    json.dumps(found.to_json(), allow_nan=False)


def test_problems_of_one_id_stay_apart():
    problems = [Problem("x", "a"), Problem("x", "b"), Problem("y", "c"), Problem("x", "d")]
    assert problem_keys(problems) == ["x", "x (2)", "y", "x (3)"]


def test_what_cannot_be_measured_is_refused():
    for spec, given in ((ALONE, {"problems": []}), (EvalSpec("single", ()), {}), (ALONE, {"samples": 0})):
        with pytest.raises(RequestError, match="at least one"):
            measured(spec, **given)

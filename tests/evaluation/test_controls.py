"""The controls and the vote by hand numbers: what each reads, and what it finds."""

from collections.abc import Callable, Sequence

import pytest

from lite_selfplay.data import Completion, EvalSpec, Problem, Sampling, Verdict
from lite_selfplay.evaluation import Evaluation
from lite_selfplay.games.modes import Score
from lite_selfplay.stats import maj_at_k, pass_at_k
from lite_selfplay.verify.extract import extract_answer
from tests.made import evaluated

from . import scripted

SAMPLING = Sampling(temperature=0.6, top_p=0.95, max_tokens=100)
SIX, TEN = Problem("six", "What is 2 + 4?", "6"), Problem("ten", "What is 3 + 7?", "10")
Script = Callable[[str, str, int], str]


class Scripted(scripted.Scripted):
    """Answers are read as always."""

    def judge(self, completion: Completion, problem: Problem) -> Verdict:
        answer = extract_answer(completion.text)
        return Verdict(answer == problem.answer, float(answer == problem.answer), answer=answer, well_formed=True)


def measured(script: Script, mode: str, *seats: str, samples: int = 1, ks: tuple[int, ...] = ()) -> Evaluation:
    measured.table, how = Scripted(script), {"sampling": SAMPLING, "samples": samples, "ks": ks}
    return evaluated(measured.table, EvalSpec(mode, seats), [SIX, TEN], **how)


def pairs_of(score: Score) -> dict[str, int]:
    """How often a draft and the answer after it were right or wrong."""
    return {key: score.more[key] for key in ("conversions", "regressions", "both_right", "both_wrong")}


def is_second(prompt: str) -> bool:
    return "attempt" in prompt


def second_prompts() -> list[str]:
    return [prompt for _, prompts, *_ in measured.table.calls for prompt in prompts if is_second(prompt)]


def says(value: object, how: str = "Adding gives it") -> str:
    return f"{how}. <answer>{value}</answer>"


@pytest.mark.parametrize(("mode", "label"), [("self-refine", "own"), ("self-cascade", "former")])
def test_a_second_pass_reads_its_own_recap(mode: str, label: str):
    # Six: wrong, then right. Ten: right, then wrong.
    def script(seat: str, prompt: str, k: int) -> str:
        six, second = SIX.text in prompt, is_second(prompt)
        return says(6 if six else 9, "Again") if second else says(5 if six else 10, "A first try of mine")

    found = measured(script, mode, "A")
    score = found.directions["A->A"]
    assert pairs_of(score) == {"conversions": 1, "regressions": 1, "both_right": 0, "both_wrong": 0}
    assert (found.seats["A"].pass_at_1, score.pass_at_1) == (0.5, 0.5)
    # "Again. <answer>6</answer>" has 25 characters; drafts of 39 and 40 ("10") before it.
    assert (score.tokens_final_mean, score.tokens_total_mean) == (25, 25 + 39.5)
    assert len(second_prompts()) == 2
    for prompt, problem in zip(second_prompts(), (SIX, TEN), strict=True):
        assert prompt.startswith(problem.text)
        assert f"Here is your {label} attempt" in prompt
        assert "A first try of mine" in prompt
        assert "another" not in prompt.lower()
        assert "10" not in prompt.replace(problem.text, "")  # the final value is withheld
    assert [seat for seat, *_ in measured.table.calls] == ["A", "A"]


def test_the_two_second_passes_differ_in_their_words_alone_and_have_randomness_of_their_own():
    prompts, seeds = [], []
    for mode in ("self-refine", "self-cascade"):
        found = measured(lambda seat, prompt, k: "<answer>6</answer>", mode, "A")
        assert found.directions["A->A"].more["empty_summaries"] == 1  # a draft that leaves nothing to read
        assert all("No attempt of yours at this problem is available." in prompt for prompt in second_prompts())
        measured(lambda seat, prompt, k: says(6), mode, "A")
        prompts.append(second_prompts())
        seeds.append(measured.table.calls[1][3])
    assert prompts[0] != prompts[1]
    assert seeds[0] != seeds[1]


def test_moa_of_one_model_refines_two_independent_samples():
    # The first draft of six is right, of ten wrong; the second conversely. Who reads "first" as its own says 6.
    def script(seat: str, prompt: str, k: int) -> str:
        if not is_second(prompt):
            number = len(measured.table.calls)  # the first or the second draft
            right = (SIX.text in prompt) == (number == 1)
            return says(6 if SIX.text in prompt and right else 10 if right else 1, "first" if number == 1 else "second")
        own = prompt.index("first.") < prompt.index("second.")
        return says(6 if own else 10, "Refined")

    found = measured(script, "moa", "base")
    assert list(found.directions) == ["base(1<-2)", "base(2<-1)"]
    one, two = found.directions.values()
    # 1<-2 says 6: right for six (its own draft was right), wrong for ten (wrong). 2<-1 says 10: conversely.
    for score in (one, two):
        assert score.pass_at_1 == 0.5
        assert pairs_of(score) == {"conversions": 0, "regressions": 0, "both_right": 1, "both_wrong": 1}
    assert found.per_problem["six"] == {**found.per_problem["six"], "base(1<-2)": True, "base(2<-1)": False}
    assert [seat for seat, *_ in measured.table.calls] == ["base"] * 4
    first, second, *_ = measured.table.calls
    assert first[1] == second[1]  # the same prompts
    assert first[3] != second[3]  # other seeds
    # Refined: 27 or 28 characters; drafts "first. <answer>6</answer>" 25, 25 and "second. ..." 26, 27.
    assert one.tokens_final_mean == 27
    assert one.tokens_total_mean == 27 + (25 + 25 + 26 + 27) / 2
    prompt = second_prompts()[0]
    assert "The first is your own, the second is another's." in prompt
    assert prompt.count("```") == 4


def test_moa_of_two_seats_reads_each_others_drafts():
    found = measured(lambda seat, prompt, k: says(6, f"{seat} says"), "moa", "A", "B")
    assert list(found.directions) == ["A<-B", "B<-A"]
    assert [seat for seat, *_ in measured.table.calls] == ["A", "B", "A", "B"]
    by_a = measured.table.calls[2][1][0]
    assert by_a.index("A says") < by_a.index("B says")


def test_swapped_seats_are_measured_in_every_role():
    # A drafts right, B wrong. A challenges right after its own drafts, B after everybody's.
    def script(seat: str, prompt: str, k: int) -> str:
        answer = 6 if SIX.text in prompt else 10
        if not is_second(prompt):
            return says(answer if seat == "A" else 1, f"By {seat}")
        return says(answer if seat == "B" or "By A" in prompt else 1, "Challenge")

    found = measured(script, "swap-seats", "A", "B")
    rates = {name: score.pass_at_1 for name, score in found.directions.items()}
    assert rates == {"A->A": 1, "A->B": 1, "B->A": 0, "B->B": 1}
    assert found.directions["B->B"].more["conversions"] == 2
    cascade = measured(script, "cascade", "A", "B")
    assert all(cascade.directions[name] == found.directions[name] for name in ("A->B", "B->A"))


# Votes


def voting(six: Sequence[str | None], ten: Sequence[str | None] = ("10",) * 4) -> Script:
    """Seats whose k-th answers to the two problems stand in lists; None is a text without an answer."""

    def script(seat: str, prompt: str, k: int) -> str:
        value = (six if SIX.text in prompt else ten)[k]
        return "no idea" if value is None else says(value)

    return script


VOTES = ["6", "6.0", "7", None], ["9", "10", None, "9"]


def test_a_vote_elects_the_largest_class():
    script = voting(*VOTES)
    found = measured(script, "vote", "A", samples=4, ks=(1,))
    score = found.seats["A"]
    assert (score.pass_at_1, score.n, score.samples, score.more["votes"], score.more["share"]) == (0.5, 2, 1, 4, 0.5)
    assert found.per_problem == {"six": {"A": True}, "ten": {"A": False}}
    assert found.answers == {"six": {"A": ["6"]}, "ten": {"A": ["9"]}}
    lengths = [len(script("A", problem.text, k)) for problem in (SIX, TEN) for k in range(4)]
    assert (score.tokens_total_mean, score.tokens_final_mean) == (pytest.approx(sum(lengths) / 2), len(says("6")))


@pytest.mark.parametrize(
    ("six", "ten", "elected", "share"),
    [
        # Of equal classes the one sampled first is elected: half of six's answers, none of ten's.
        (["7", "6", "6", "7"], [None] * 4, ("7", None), (2 / 4 + 0) / 2),
        # Where most votes are for nothing, nothing is elected; a tie goes to the class sampled first.
        (["6", None, "I do not know", "6"], ["10", "unknown", "10", "10"], ("6", "10"), (2 / 4 + 3 / 4) / 2),
        (["6", "I do not know", None, "6"], ["10", "unknown", "10", "10"], ("6", "10"), (2 / 4 + 3 / 4) / 2),
        (["6", None, "I do not know", "unknown"], ["10", "unknown", "10", "10"], (None, "10"), (0 + 3 / 4) / 2),
    ],
)
def test_ties_and_votes_for_nothing(six, ten, elected, share):
    found = measured(voting(six, ten), "vote", "A", samples=4, ks=(4,))
    assert found.answers == {"six": {"A": [elected[0]]}, "ten": {"A": [elected[1]]}}
    assert found.per_problem == {"six": {"A": elected[0] == "6"}, "ten": {"A": elected[1] == "10"}}
    assert found.seats["A"].more["share"] == share
    alone = measured(voting(six, ten), "single", "A", samples=4, ks=(4,))
    if elected == (None, "10"):
        assert alone.at_k["A"]["maj_at_k"] == {4: 0.5}


RAIN = {"options": ["yes", "no", "unknown"]}


@pytest.mark.parametrize(
    ("problem", "votes", "elected", "share"),
    [
        # A choice may be that it cannot be known, where that is among the options.
        (Problem("p", "Rain?", "unknown", extra=RAIN), ["unknown", "unknown", "no", "unknown"], "unknown", 0.75),
        (Problem("p", "Rain?", "no", extra={"options": ["yes", "no"]}), ["unknown", "unknown", "no"] * 2, "unknown", 0),
        # A program votes for itself alone, a choice by its letter.
        (Problem("p", "Add.", {"tests": [["1 2", "3"]]}, kind="program"), ["a", "b", "c", "b"], "b", 0.5),
        (Problem("p", "Which?", "B", kind="choice", extra=RAIN), ["B", "A", "B", "perhaps B"], "B", 0.5),
    ],
)
def test_what_votes_for_what(problem, votes, elected, share):
    table = Scripted(lambda seat, prompt, k: says(votes[k]))
    found = evaluated(table, EvalSpec("vote", ("A",)), [problem], sampling=SAMPLING, samples=4)
    assert found.answers["p"] == {"A": [elected]}
    assert found.seats["A"].more["share"] == share
    assert found.seats["A"].pass_at_1 == (elected == problem.answer)


def test_several_samples_give_pass_mean_and_majority_at_k():
    found = measured(voting(*VOTES), "single", "A", samples=4, ks=(1, 2, 4))
    # The scripted checker reads words: of six the first sample alone is right, of ten the second.
    assert found.per_problem == {"six": {"A": 0.25}, "ten": {"A": 0.25}}
    at_k = found.at_k["A"]
    assert at_k["pass_at_k"] == {1: 0.25, 2: pytest.approx(pass_at_k(1, 4, 2)), 4: 1.0}
    assert at_k["pass_at_k"][2] == pytest.approx(0.5)
    assert at_k["mean_at_k"] == {1: 0.5, 2: 0.5, 4: 0.25}
    # k = 2: six's class {6, 6.0} has two votes, of which one counts as right; ten's 9 and 10 tie, one of them right.
    assert at_k["maj_at_k"] == {1: 0.5, 2: 0.5, 4: pytest.approx((0.5 + 0) / 2)}
    assert maj_at_k(["6", "6", "7", None], [True, False, False, False], 4) == 0.5
    score = found.to_json()["seats"]["A"]
    assert score["pass_at_k"] == {"1": 0.25, "2": 0.5, "4": 1.0}
    assert set(score) >= {"mean_at_k", "maj_at_k", "ci95"}


def test_worked_examples_stand_before_the_problem():
    table = Scripted(lambda *_: says(6))
    evaluated(table, EvalSpec("single", ("A",)), [SIX], sampling=SAMPLING, shots=4)
    (prompt,) = table.calls[0][1]
    assert prompt.count("</answer>.") == 5  # the instruction, four times in examples
    assert prompt.count("<answer>") == 9
    assert prompt.index("138") < prompt.index(SIX.text)
    assert extract_answer(prompt.partition("How many rolls")[2].partition("Solve for")[0]) == "138"

"""The corruptor: by hand, and on a thousand real solutions every corrupted step is wrong when recomputed."""

import random
import re
from collections import Counter
from fractions import Fraction
from functools import cache

import pytest

from lite_selfplay.data import Problem
from lite_selfplay.games.spc.cases import (
    KINDS,
    critic_examples,
    read_critique,
    read_rewrite,
    sneaky_example,
    solver_example,
)
from lite_selfplay.games.spc.corruptor import (
    NUMBER,
    OPERATOR,
    calculations,
    corrupt,
    corruptions,
    holds,
    is_exact,
    spelled,
    value_of,
)
from lite_selfplay.games.spc.steps import StepPair
from lite_selfplay.games.worked_examples import without_notes
from lite_selfplay.tasks import load_task
from tests.made import completion, shared_problems

SOLUTION = "She sells 16 - 3 - 4 = <<16-3-4=9>>9 eggs.\nShe makes 9 * $2 = $<<9*2=18>>18.\n#### 18"
EGGS = Problem("eggs", "A duck lays 16 eggs. 3 are eaten, 4 baked.", "18", extra={"solution": SOLUTION})
FLAW = re.compile(r"What is needed is (?P<needed>.+ = .+)\. The step says (?P<said>.+ = .+): something else\.")


@cache
def real_pairs() -> list[tuple[Problem, StepPair]]:
    """The pairs of a thousand of GSM8K's solutions."""
    rng = random.Random(3)
    return [(problem, pair) for problem in shared_problems("gsm8k_train")[:1000] for pair in corruptions(problem, rng)]


def test_expressions_are_worked_out_in_fractions():
    worth = {"48/2": 24, ".5*7": Fraction(7, 2), "0.1+0.2": Fraction(3, 10)}
    worth |= dict.fromkeys(("1/0", "2**8", "x+1", "3(4)", "", "1.2.3", "__import__('os')"))
    assert {expression: value_of(expression) for expression in worth} == worth


CALCULATIONS = {
    "48/2 = <<48/2=24>>24 clips": ["48 / 2 = 24"],
    "half of 48 is <<48/2=24>>24": ["48 / 2 = 24"],
    "27 + 14 = 41 and 41 - 6 = 35": ["27 + 14 = 41", "41 - 6 = 35"],
    "10,000 hours / 8 years = <<10000/8=1250>>1,250": ["10000 / 8 = 1250"],
    "20 × 3 = 60": ["20 * 3 = 60"],
    "10 / 3 = <<10/3=3.33>>3.33": [],  # rounded
    "2 + 2 = 5": [],
    "x + 3 + 4 = 7": [],  # the expression began earlier
    "(5 - 2) + 4 = 7": [],
    "3 + 4 = 5 + 2": [],  # no result
    "U = <<134=134>>134": [],
    "5 apples": [],
}


def test_calculations_of_a_step_and_what_holds():
    assert {step: [str(found) for found in calculations(step)] for step in CALCULATIONS} == CALCULATIONS
    held = {"48/2 = 24": True, "48/2 = 25 and 1 + 1 = 2": False, "half of 48 is 24": None}
    assert {step: holds(step) for step in held} == held
    exact = {"48/2 = <<48/2=24>>24": True, "48/2 = <<48/2=24>>25": False, "10/3 = <<10/3=3.33>>3.33": False}
    assert {step: is_exact(step) for step in exact} == exact


def test_results_are_spelled_like_the_one_before():
    results = [("1250", "1,000"), ("1250", "9"), ("27/2", "18.50"), ("27/2", "18"), ("1/3", "2")]
    texts = [spelled(Fraction(value), like) for value, like in results]
    assert texts == ["1,250", "1250", "13.50", "13.5", ""]


EVERY = {
    NUMBER: {f"She makes 9 * $2 = ${n}." for n in (8, 16, 17, 19, 20, 28, 81)},
    OPERATOR: {"She makes 9 + $2 = $11.", "She makes 9 - $2 = $7.", "She makes 9 / $2 = $4.5."},
}


def test_every_way_in_which_a_step_can_go_wrong():
    step, mentioned = "She makes 9 * $2 = $<<9*2=18>>18.", "They are 13, because 16 - 3 = 13."
    for kind, wrong in EVERY.items():
        made = [corrupt(step, random.Random(i), kinds=[kind]) for i in range(300)]
        assert {found[0] for found in made if found} == wrong
        # A step that mentions its result again only gets another result.
        assert (corrupt(mentioned, random.Random(0), kinds=[kind]) is None) is (kind == OPERATOR)
    for inexact in ("It is done.", "10 / 3 = <<10/3=3.33>>3.33", "half of it"):
        assert corrupt(inexact, random.Random(0)) is None


def test_a_pair_says_what_was_done():
    first, second = corruptions(EGGS, random.Random(0), [NUMBER])
    assert (first.id, first.before, first.right) == ("eggs-1", "", "She sells 16 - 3 - 4 = 9 eggs.")
    assert second.before == "She sells 16 - 3 - 4 = 9 eggs.\n"
    assert second.right == "She makes 9 * $2 = $18."
    assert first.kind == "arithmetic slip"
    assert first.check == "What is needed is 16 - 3 - 4 = 9. The step says 16 - 3 - 4 = 9: the same."
    needed = r"What is needed is 16 - 3 - 4 = 9\. The step says 16 - 3 - 4 = (?!9:)\d+: something else\."
    assert re.fullmatch(needed, first.flaw)
    assert "<<" not in first.wrong + second.wrong + second.before


@pytest.mark.parametrize(
    ("rest", "used"),
    [
        ("\nThat is 2 + 2 = <<2+2=5>>5.\nThen 5 + 5 = <<5+5=10>>10.\n#### 10", ["p-1"]),
        ("\nSo 3 + 3 = 7.\nThen 5 + 5 = 10.", ["p-1"]),
        (None, []),
    ],
)
def test_a_solution_is_used_up_to_its_first_slip(rest: str | None, used: list[str]):
    extra = {} if rest is None else {"solution": f"First 1 + 1 = <<1+1=2>>2.{rest}"}
    assert [pair.id for pair in corruptions(Problem("p", "?", "10", extra=extra), random.Random(0))] == used


def test_the_sums_of_the_procedural_task_can_be_corrupted():
    problems = load_task("arithmetic:digits=2,terms=4").problems[:50]
    pairs = [pair for problem in problems for pair in corruptions(problem, random.Random(0))]
    assert len(pairs) > 100
    assert all(holds(pair.right) for pair in pairs)


@pytest.mark.data
def test_every_corrupted_step_is_wrong_when_recomputed():
    counts = Counter(pair.kind for _, pair in real_pairs())
    assert counts.total() > 2900
    assert min(counts[kind] for kind in (NUMBER, OPERATOR)) > 100
    for problem, pair in real_pairs():
        assert pair.right != pair.wrong
        assert "<<" not in pair.before + pair.right + pair.wrong
        assert pair.right in without_notes(problem.extra["solution"])
        needed, said = (side.split(" and ") for side in FLAW.fullmatch(pair.flaw).groups())
        ((was, now),) = [both for both in zip(needed, said, strict=True) if both[0] != both[1]]
        assert value_of(was.partition(" = ")[0]) == Fraction(was.partition(" = ")[2])
        # The result is not that of the solution's calculation here.
        assert Fraction(now.partition(" = ")[2].replace(",", "")) != value_of(was.partition(" = ")[0])
        if pair.kind == NUMBER:
            assert holds(pair.wrong) is holds(pair.right) is None or holds(pair.wrong) is False
            assert re.findall(r"[A-Za-z]+", pair.right) == re.findall(r"[A-Za-z]+", pair.wrong)
        else:
            assert holds(pair.wrong) is holds(pair.right) is True
            assert value_of(now.partition(" = ")[0]) == Fraction(now.partition(" = ")[2].replace(",", ""))


@pytest.mark.data
@pytest.mark.parametrize("thinks", [False, True])
def test_examples_of_real_pairs_are_read_as_what_they_are(thinks: bool):
    for _, pair in real_pairs()[:600]:
        example = sneaky_example(pair, thinks=thinks)
        found = read_rewrite(completion(example.completion), pair.right)
        assert (found.reason, found.step, found.kind) == ("", pair.wrong, pair.kind)
        right, wrong = critic_examples(pair, thinks=thinks)
        assert pair.right in right.prompt
        assert pair.wrong in wrong.prompt
        assert read_critique(completion(right.completion)).judgement == "correct"
        assert read_critique(completion(wrong.completion)).judgement == "incorrect"
        assert right.completion.startswith("<think>\n") is thinks


@pytest.mark.parametrize(
    ("right", "wrong", "kind"),
    [("it is 2 + 2 = 4", "it is 2 + 2 = 5", KINDS[0]), ("so x < 3", "so x < 4 or none", KINDS[3])],
)
def test_the_kind_of_a_pair_of_which_none_is_known(right: str, wrong: str, kind: str):
    assert read_rewrite(completion(sneaky_example(StepPair("p", "?", "", right, wrong)).completion), right).kind == kind


def test_a_worked_solution_for_the_solver():
    worked = "She sells 16 - 3 - 4 = 9 eggs.\n\nShe makes 9 * $2 = $18. The answer is \\boxed{18}."
    assert solver_example(EGGS).completion == worked
    assert solver_example(Problem("p", "?", "1")) is None

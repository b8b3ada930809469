r"""Nothing is paid that was not said once: answers that say several values, and answers that are always the same."""

import random
from collections import Counter
from itertools import permutations

import pytest

from lite_selfplay.tasks import load_task
from lite_selfplay.verify.exact import judge
from lite_selfplay.verify.keys import key_of, pieces
from lite_selfplay.verify.math import references
from lite_selfplay.verify.statement import unnamed
from tests.made import shared_problems

JOINTS = [
    r" \approx ", r" \simeq ", " ≈ ", r" = x \approx ", " = ", r" \ne ", " < ", r" \le ", " > ", ", ", "; ", " or ",
    " and ", r" \text{ or } ", r" \lor ", r" \pm ", r" \mp ", " to ", " - ", "..", ":", " / ", r" \to ", r" \sim ",
    r" \cup ", "\n", r" \quad ", " but not ", " rather than ", " (", " | ", " times ", " out of ", " apples ", "^", "_",
    "!",
]  # fmt: skip
OPENINGS = [
    *("", "", "x = ", r"x \approx ", "N", "either ", "between ", "not ", "(", "[", r"\{", r"\pm ", "about "),
    "the cost is ",
]
ENDINGS = ["", "", ")", "]", r"\}", " apples", "...", " or so", " = x"]


@pytest.mark.parametrize("answers", [200, pytest.param(5000, marks=pytest.mark.long)])
def test_no_answer_is_right_for_two_integers(answers: int) -> None:
    rng = random.Random(0)
    for _ in range(answers):
        named = [rng.choice([rng.randrange(13), rng.randrange(100), 0.5, 2.5]) for _ in range(rng.choice([2, 2, 3, 4]))]
        answer = rng.choice(OPENINGS) + str(named[0])
        answer += "".join(rng.choice(JOINTS) + str(value) for value in named[1:]) + rng.choice(ENDINGS)
        asked = {int(value) + more for value in named for more in (0, 1)} | {
            int(a - b) for a, b in permutations(named, 2)
        }
        right = [n for n in asked if judge(references(n), answer)]
        assert len(right) <= 1, (answer, right)


EVERYTHING = r"N\approx" + r"\approx".join(map(str, range(209)))
SMALL = ", ".join(map(str, range(40)))
CONSTANTS = [
    "0", "1", "2", "10", "x", "yes", "A", r"\emptyset", r"\mathbb{R}", r"(-\infty, \infty)", "anything",
    EVERYTHING, EVERYTHING.replace(r"\approx", "="), SMALL, SMALL.replace(",", " or"), rf"\{{{SMALL}\}}",
    r"N \approx 77777", "I do not know", r"0 \pm 208", "x > 0", r"x \ne -1", "0 < x < 1000",
    r"x \in \mathbb{R}", "x = x", "not -1", "apples",
]  # fmt: skip
REFERENCES = 200
FILES = ["gsm8k_test", "svamp", "mawps_singleop", "math500", "aime24", "amc", "minerva", "olympiadbench"]


def paid_too_often(answers: list[object]) -> list[tuple[str, float]]:
    """The constants that are right for more references than agree with each other, and for 1% of them."""
    asked = [references(answer) for answer in answers]
    common = Counter(key_of(unnamed(pieces(wanted[0]))) or repr(wanted) for wanted in asked).most_common(1)[0][1]
    alike = Counter(map(repr, asked))  # of which each is judged once
    each = {repr(wanted): wanted for wanted in asked}
    paid = {text: sum(alike[key] for key, wanted in each.items() if judge(wanted, text)) for text in CONSTANTS}
    return [(text[:40], count / len(asked)) for text, count in paid.items() if count > max(common, 0.01 * len(asked))]


@pytest.mark.parametrize("name", ["stories", pytest.param("arithmetic", marks=pytest.mark.long)])
def test_no_constant_is_paid_on_a_procedural_task(name: str) -> None:
    problems = load_task(name, seed=3).problems
    assert paid_too_often([problems[i].answer for i in range(REFERENCES)]) == []


@pytest.mark.data
@pytest.mark.parametrize("name", ["aime25", *(pytest.param(name, marks=pytest.mark.long) for name in FILES)])
def test_no_constant_is_paid_on_a_benchmark(name: str) -> None:
    assert paid_too_often([problem.answer for problem in shared_problems(name)][:REFERENCES]) == []

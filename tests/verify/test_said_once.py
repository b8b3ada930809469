r"""Nothing is paid that was not said once: answers that say several values, or none, and the same in votes."""

import random
from collections import Counter
from itertools import permutations

import pytest

from lite_selfplay.tasks import load_task
from lite_selfplay.verify.exact import judge
from lite_selfplay.verify.keys import key_of, pieces, vote_key
from lite_selfplay.verify.math import check, references
from lite_selfplay.verify.statement import unnamed
from tests.made import shared_problems

# A reference, answers that are right, answers that are wrong.
EVERYTHING = r"N\approx" + r"\approx".join(map(str, range(209)))
ROUNDINGS = [
    (
        "7",
        [r"x \approx 7", r"\approx 7", r"7 \approx 7.0", r"\frac{71}{10} \approx 7", r"x \approx 7.13 \approx 7"],
        [EVERYTHING, r"x \approx 7 \approx 8", r"x \approx 8 \approx 7", r"x \simeq 8 \simeq 7", r"8 \approx 7"],
    ),
    ("1", [r"1.2 \approx 1"], [r"0.5\approx0\approx1", r"x + 1 \approx 1", r"n \approx m \approx 1", r"yes \approx 1"]),
    ("no", ["No"], [r"no \approx yes", r"yes \approx no", "yes = no"]),
    ("(3,4)", [r"(3.1, 4) \approx (3, 4)"], [r"(3,4)\approx(1,2)", r"(1,2)\approx(3,4)"]),
    (r"x \approx 7", ["7", "x = 7", r"x \approx 7"], [r"x \approx 5", "x", r"y \approx 7"]),
    (r"\frac13", [r"\frac13 \approx 0.333"], [r"\frac13 \approx \frac14", r"0.3 \approx 1/3", r"\frac13 \approx 0.34"]),
    ("2 hours", [r"2.1 hours \approx 2 hours"], [r"2 minutes \approx 2 hours", r"2\% \approx 2 hours"]),
]  # fmt: skip
INEQUALITIES = [
    (
        "(2,3)",
        ["2 < x < 3", "3 > x > 2", r"x \in (2,3)", r"\{x \mid 2 < x < 3\}", r"\{x \in \mathbb{R} : 2 < x < 3\}"],
        ["x^2-5x+6<0", "(x-2)(x-3)<0", "|x-2.5|<0.5", r"2 \le x < 3", "2 < x < 4", "x^{99}+x^{98}+x^{7}+1<0"],
    ),
    ("x^2-5x+6<0", ["x^2 - 5x + 6 < 0"], ["(2,3)", "2<x<3"]),
    ("[-3,3]", [r"-3 \le x \le 3", "-3 <= x <= 3", "3 ≥ x ≥ -3"], [r"x^2\le 9", r"|x| \le 3", "-3 < x < 3"]),
    ("(1,5)", ["1<x<5"], ["|x-3|<2", "1<5", "x<1<5", "1<x>5"]),
    ("x>3", ["3 < x", r"(3, \infty)", r"(3, +\infty)"], [r"x>\sqrt{9}", "x > 6/2", r"x \ge 3", "2x > 6", "y > 3", "3"]),
    (r"x \ne 2", ["x != 2", r"2 \neq x", r"(-\infty,2)\cup(2,\infty)"], ["2", r"x \ne 3", "x > 2"]),
    (
        r"(-\infty,-2)\cup(2,\infty)",
        [r"x<-2 \text{ or } x>2", r"x > 2 \lor x < -2", r"x \in (2,\infty)\cup(-\infty,-2)"],
        ["x^2>4", "|x|>2", "x<-2", "x<2 or x>-2", r"(-\infty,-2)\cup(3,\infty)"],
    ),
]
SETS = [
    (
        r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}",
        [r"\left[\begin{array}{cc} 1 & 2 \\ 3 & 4 \end{array}\right]", r"\begin{bmatrix} 1 & 2 \\ 3 & 4 \end{bmatrix}"],
        [
            r"\begin{pmatrix} 1 & 0 \\ 0 & 4 \end{pmatrix} + \begin{pmatrix} 0 & 2 \\ 3 & 0 \end{pmatrix}",
            r"2\begin{pmatrix} 0.5 & 1 \\ 1.5 & 2 \end{pmatrix}",
            r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}\begin{pmatrix} 1 & 0 \\ 0 & 1 \end{pmatrix}",
            r"\begin{pmatrix} 1 & 3 \\ 2 & 4 \end{pmatrix}^T",
        ],
    ),
    ("[1,3]", [r"1 \le x \le 3"], [r"[1,2]\cup[1.5,3]", r"[1,2]\cup[2,3]", r"[1,4]\cap[0,3]"]),
    (r"\{1,2,3\}", ["1, 2, 3"], [r"\{1,2\}\cup\{3\}", r"\{1,2,3,4\}\setminus\{4\}"]),
    (r"\emptyset", [r"\varnothing", "∅", r"\{\}"], [r"\{\emptyset\}", "0", r"\{0\}"]),
    (r"\mathbb{R}", ["all real numbers", r"(-\infty,\infty)", r"x \in \mathbb{R}"], [r"(0,\infty)", r"\mathbb{R}^2"]),
]
NUMBERS = [
    ("3", ["three"], ["three fourths", "three quarters", "three hundredths"]),
    ("2", ["two"], ["two thirds", "two-thirds", "two halves"]),
    ("7", ["seven"], ["seven tenths", "seven twelfths"]),
    ("3/4", ["three fourths", "three quarters"], ["3", "4/3"]),
    ("three", ["x = 3", "3"], ["three fourths"]),
    (r"0.\overline{3}", ["1/3", "0.333..."], [r"0.0\overline{3}", "0.3", "0.33", "0"]),
    (r"1.\overline{3}", [r"\frac43"], [r"1\overline{3}", "1.3"]),
    ("1/3", [r"0.\overline{3}", r"0.\bar 3", "0.333...", r"0.333\ldots", "0.(3)"], ["0.3...", "0.33...", "0.34..."]),
    ("1/6", [r"0.1\overline{6}", "0.1666..."], [r"0.\overline{16}", "0.16"]),
    ("-1/7", [r"-0.\overline{142857}"], [r"0.\overline{142857}", r"-0.14285\overline{7}"]),
    ("1:6", ["1 : 6", "1/6"], ["1:2:3", "6:1", "2:12"]),
    ("1:2:3", ["1 : 2 : 3"], ["1:6", "1/6"]),
    ("3:10", ["3 : 10"], ["9:30", "10:3"]),
    (r"30^\circ 20'", [r"30^{\circ}20'"], [r"20^\circ 30'"]),
    ("1000", ["1 000", "1 thousand"], ["10 00", "1 0000", "1 000 000"]),
    ("2500000", ["2.5 million", r"\$2.5\text{ million}"], ["2.5", "2.5 billion"]),
    ("5", ["USD 5", "US$5"], ["USD 6", "5 thousand"]),
    ("52_8", ["52 base 8", "52 (base 8)", r"52_{\text{eight}}"], ["52 base 9", "52_{nine}"]),
    ("e^2", [r"\exp(2)", "exp(2)"], [r"\exp(3)", "exp"]),
    (r"x^{2/3}", [r"\sqrt[3]{x^2}"], [r"\sqrt[3]{x}"]),
]
NAMES = [
    ("(-1,3)", ["x=-1, y=3", "y=3, x=-1"], ["x=3, y=-1", "y=-1, x=3"]),
    ("x=3, y=-1", ["y=-1, x=3", "(3,-1)", "3, -1"], ["-1, 3", "x=-1, y=3", "(-1,3)"]),
    ("x=3 or x=-1", ["-1, 3"], ["x=3", "x=3, y=-1"]),
    (
        "8",
        ["The total cost = 8", "double rooms = 8", "people who are not tall = 8", "AB = 8", r"\int_0^2 4 dx = 8"],
        ["x is not = 8", "anything but = 8", r"x \ne 7 = 8", "x > 7 = 8", "x isn't = 8", "twice it = 8"],
    ),
    (
        "5",
        ["5 hot dogs", "5 fewer apples", "5 months", "5 fifth graders", "5 wrong answers", "5 hours of free time"],
        ["5 doubled", "5 halved", "5 tenths", "5 dozen", "5 reciprocal", "5 fifth"],
    ),
    ("36", ["36 baths"], ["36 hundredths", "36 thousandths"]),
]  # fmt: skip
ROWS = [*ROUNDINGS, *INEQUALITIES, *SETS, *NUMBERS, *NAMES]


@pytest.mark.parametrize(("reference", "right", "wrong"), ROWS, ids=[row[0][:30] for row in ROWS])
def test_what_is_paid(reference: str, right: list[str], wrong: list[str]) -> None:
    judged = {answer: check(f"<answer>{answer}</answer>", reference).correct for answer in (*right, *wrong)}
    assert judged == dict.fromkeys(right, True) | dict.fromkeys(wrong, False)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (r"P \approx 0.25", r"P \approx 0.75"),
        ("three fourths", "three"),
        ("two thirds", "two"),
        (r"0.\overline{3}", r"0.0\overline{3}"),
        (r"1.\overline{3}", r"1\overline{3}"),
        ("x=3, y=-1", "x=-1, y=3"),
        ("36 hundredths", "36"),
        ("1:2:3", "1:6"),
        ("2 < x < 3", r"2 \le x \le 3"),
    ],
)
def test_answers_that_differ_do_not_vote_together(first: str, second: str) -> None:
    assert vote_key(first) is None or vote_key(first) != vote_key(second)


@pytest.mark.parametrize(
    "answers",
    [
        [r"P \approx 0.25", "P = 1/4", "0.25"],
        ["two thirds", "2/3"],
        [r"0.\overline{3}", "1/3"],
        ["1 < x < 5", r"x \in (1,5)", "(1,5)"],
        [r"x \ne 2", r"(2,\infty)\cup(-\infty,2)", r"x < 2 \text{ or } x > 2"],
        ["x = 3 or x = -1", "-1, 3"],
        ["y = -1, x = 3", "x = 3, y = -1", "(3, -1)"],
        ["2.5 million", "2 500 000"],
    ],
)
def test_spellings_of_one_answer_vote_together(answers: list[str]) -> None:
    keys = {vote_key(answer) for answer in answers}
    assert len(keys) == 1
    assert keys != {None}


# Answers that say several values

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


def test_no_answer_is_right_for_two_integers() -> None:
    rng = random.Random(0)
    for _ in range(1000):
        named = [rng.choice([rng.randrange(13), rng.randrange(100), 0.5, 2.5]) for _ in range(rng.choice([2, 2, 3, 4]))]
        answer = rng.choice(OPENINGS) + str(named[0])
        answer += "".join(rng.choice(JOINTS) + str(value) for value in named[1:]) + rng.choice(ENDINGS)
        asked = {int(value) + more for value in named for more in (0, 1)} | {
            int(a - b) for a, b in permutations(named, 2)
        }
        right = [n for n in asked if judge(references(n), answer)]
        assert len(right) <= 1, (answer, right)


SMALL = ", ".join(map(str, range(40)))
CONSTANTS = [
    "0", "1", "2", "10", "x", "yes", "A", r"\emptyset", r"\mathbb{R}", r"(-\infty, \infty)", "anything",
    EVERYTHING, EVERYTHING.replace(r"\approx", "="), SMALL, SMALL.replace(",", " or"), rf"\{{{SMALL}\}}",
    r"N \approx 77777", "I do not know", r"0 \pm 208", "x > 0", r"x \ne -1", "0 < x < 1000",
    r"x \in \mathbb{R}", "x = x", "not -1", "apples",
]  # fmt: skip
TASKS = ["arithmetic", "stories"]
FILES = ["gsm8k_test", "svamp", "mawps_singleop", "math500", "aime24", "aime25", "amc", "minerva", "olympiadbench"]


def paid_too_often(answers: list[object]) -> list[tuple[str, float]]:
    """The constants that are right for more references than agree with each other, and for 1% of them."""
    asked = [references(answer) for answer in answers]
    common = Counter(key_of(unnamed(pieces(wanted[0]))) or repr(wanted) for wanted in asked).most_common(1)[0][1]
    alike = Counter(map(repr, asked))  # of which each is judged once
    each = {repr(wanted): wanted for wanted in asked}
    paid = {text: sum(alike[key] for key, wanted in each.items() if judge(wanted, text)) for text in CONSTANTS}
    return [(text[:40], count / len(asked)) for text, count in paid.items() if count > max(common, 0.01 * len(asked))]


@pytest.mark.parametrize("name", TASKS)
def test_no_constant_is_paid_on_a_procedural_task(name: str) -> None:
    problems = load_task(name, seed=3).problems
    assert paid_too_often([problems[i].answer for i in range(200)]) == []


@pytest.mark.data
@pytest.mark.parametrize("name", FILES)
def test_no_constant_is_paid_on_a_benchmark(name: str) -> None:
    assert paid_too_often([problem.answer for problem in shared_problems(name)][:200]) == []

"""Worked examples written by rule: what a solver should say, right or with one result gone wrong."""

import random
import re
from collections.abc import Mapping, Sequence
from fractions import Fraction

from lite_selfplay.data import Example, Problem
from lite_selfplay.games.prompts import PROGRAM
from lite_selfplay.verify.calculation import calculate
from lite_selfplay.verify.format import well_formed

_CALCULATOR_NOTE = re.compile(r"<<[^<>]*>>")  # GSM8K's files mark each calculation this way
_FINAL_LINE = re.compile(r"\n?####.*\Z", re.DOTALL)
_WHOLE = r"(?:\d{1,3}(?:,\d{3})++|\d++)(?!,?\d|\.\d)"
_OPERAND = rf"\$?{_WHOLE}"
# A step is a calculation and its result, `16 - 3 - 4 = $9`; of one that cannot be read, such as `(3 + 4) * 2`, only the
# result counts. Results are whole numbers.
_STEP = re.compile(
    rf"(?P<left>(?<![\w.,()/]){_OPERAND}(?:\s*[-+*/×x÷]\s*{_OPERAND})+)?"
    rf"(?P<equals>\s*=\s*\$?)(?P<result>{_WHOLE})(?!\s*[-+*/×÷]\s*\d)"
)
_NUMBER = re.compile(rf"(?<![\w.,]){_WHOLE}(?!\w)")
_SLIPS = (-10, -2, -1, 1, 2, 10)
_PROGRAM_SLIPS = (
    (r"(?<= )\+(?= )", "-"), (r"(?<= )\*(?= )", "+"), (r"(?<= )<(?= )", "<="), (r"(?<= )>(?= )", ">="),
    (r"(?<= )==(?= )", "!="), (r"\bmax\(", "min("), (r"\bmin\(", "max("), (r"\bsum\(", "len("), (r"\blen\(", "sum("),
)  # fmt: skip


def solution_of(problem: Problem) -> str | None:
    """The worked solution a problem brings along, without calculator notes and final line; None where it has none.

    Of a program, a program that solves it.
    """
    solution = problem.extra.get("solution")
    if problem.kind == PROGRAM:
        return solution.strip() if isinstance(solution, str) and solution.strip() else None
    if not isinstance(solution, str) or problem.answer is None or isinstance(problem.answer, list | Mapping):
        return None
    return _FINAL_LINE.sub("", _CALCULATOR_NOTE.sub("", solution)).strip() or None


def worked_example(problem: Problem, prompt: str, *, thinks: bool) -> Example | None:
    """The problem's own solution in the format the game asks for: reasoning (if the template thinks), recap, answer.

    None where the problem brings no solution, or one that cannot keep the format because it holds tags itself.
    """
    solution = solution_of(problem)
    if solution is None:
        return None
    if problem.kind == PROGRAM:
        reasoning = "<think>\n\n</think>\n\n" if thinks else ""
        completion = f"{reasoning}{program_draft(problem, solution)}"
    else:
        reasoning = f"<think>\n{solution}\n</think>\n\n" if thinks else ""
        completion = f"{reasoning}{draft(solution, str(problem.answer))}"
    return Example(prompt, completion) if well_formed(completion, thinks) else None


def with_a_slip(solution: str, rng: random.Random) -> str:
    """A solution in which one step has another result, and the steps after it go on from there.

    A later step that takes up a changed result takes up the new one and is calculated anew: with 42 for 41,
    `27 + 14 = 41. 41 - 6 = 35.` becomes `27 + 14 = 42. 42 - 6 = 36.` No result turns negative or broken. A solution
    without a step stays as it is.
    """
    steps = list(_STEP.finditer(solution))
    slips = [(place, by) for place in range(len(steps)) for by in _SLIPS]
    for place, by in rng.sample(slips, len(slips)):
        found = _retold(solution, steps, place, by)
        if found is not None:
            return found
    return solution


def draft(solution: str, answer: str) -> str:
    """A solution with its answer, as a draft has them."""
    return f"{solution} <answer>{answer}</answer>"


def program_draft(problem: Problem, program: str) -> str:
    """A program as a draft has it: after its explanation, where the problem brings one."""
    explanation = problem.extra.get("explanation")
    before = f"{explanation}\n\n" if isinstance(explanation, str) and explanation.strip() else ""
    return f"{before}<answer>\n{program}\n</answer>"


def program_with_a_slip(program: str, rng: random.Random) -> str:
    """A program in which one sign, number or name is another; as it is where nothing in it can be mistaken."""
    places = [(found, other) for pattern, other in _PROGRAM_SLIPS for found in re.finditer(pattern, program)]
    places += [(found, str(int(found[0]) + 1)) for found in re.finditer(r"(?<![\w.])\d+(?![\w.])", program)]
    if not places:
        return program
    found, other = rng.choice(places)
    return program[: found.start()] + other + program[found.end() :]


def _retold(solution: str, steps: Sequence[re.Match[str]], place: int, by: int) -> str | None:
    """The solution with the result of step `place` moved by `by`; None where a result would be no whole number."""
    changed: dict[int, int] = {}  # results as they were, and what stands in their place
    parts, end = [], 0
    for i, step in enumerate(steps):
        left, written = step["left"] or "", _int(step["result"])
        result: Fraction | int | None = written
        words = solution[end : step.start()]
        if i == place:
            result = written + by
        elif left and calculate(left) == written:  # otherwise it was rounded, or is not what it seems: it stays
            new = _with(left, changed, count=1)
            result, left = calculate(new), new
        if result is None or result < 0 or result.denominator != 1:
            return None
        # Words before a step may name its result already: "she has 8 left, because 10 - 2 = 8".
        parts += [_with(words, {**changed, written: int(result)}), left, step["equals"]]
        parts.append(_like(step["result"], int(result)))
        changed[written] = int(result)
        end = step.end()
    return "".join(parts) + _with(solution[end:], changed)


def _with(text: str, changed: Mapping[int, int], count: int | None = None) -> str:
    """A text in which numbers that are changed results are the new ones: all of them, or the first `count`."""
    found = [number for number in _NUMBER.finditer(text) if changed.get(v := _int(number[0]), v) != v]
    for number in reversed(found[:count]):
        new = _like(number[0], changed[_int(number[0])])
        text = text[: number.start()] + new + text[number.end() :]
    return text


def _int(number: str) -> int:
    return int(number.replace(",", ""))


def _like(number: str, value: int) -> str:
    """A value in the spelling of a number: with thousands separators or without."""
    return f"{value:,}" if "," in number else str(value)

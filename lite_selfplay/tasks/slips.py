"""Worked solutions with a wrong step, as if somebody made a mistake and continued from it."""

import random
import re
from collections.abc import Mapping, Sequence
from fractions import Fraction

from lite_selfplay.verify.formulas import calculate

_WHOLE = r"(?:\d{1,3}(?:,\d{3})++|\d++)(?!,?\d|\.\d)"
_OPERAND = rf"\$?{_WHOLE}"
# A step is a calculation and its result, `16 - 3 - 4 = $9`; if the calculation cannot be read, as `(3 + 4) * 2`, only
# the result counts. Results are whole numbers.
_STEP = re.compile(
    rf"(?P<left>(?<![\w.,()/]){_OPERAND}(?:\s*[-+*/×x÷]\s*{_OPERAND})+)?"
    rf"(?P<equals>\s*=\s*\$?)(?P<result>{_WHOLE})(?!\s*[-+*/×÷]\s*\d)"
)
_NUMBER = re.compile(rf"(?<![\w.,]){_WHOLE}(?!\w)")
_SLIPS = (-10, -2, -1, 1, 2, 10)


def with_a_slip(solution: str, rng: random.Random) -> str:
    """A solution in which one step has a wrong result, and later steps continue from it.

    A later step that uses a changed result is recalculated with the new one: with 42 for 41,
    `27 + 14 = 41. 41 - 6 = 35.` becomes `27 + 14 = 42. 42 - 6 = 36.` No result becomes negative or a fraction. A
    solution without steps is returned unchanged.
    """
    steps = list(_STEP.finditer(solution))
    slips = [(index, by) for index in range(len(steps)) for by in _SLIPS]
    told = (_retold(solution, steps, index, by) for index, by in rng.sample(slips, len(slips)))
    return next(filter(None, told), solution)


def _retold(solution: str, steps: Sequence[re.Match[str]], index: int, by: int) -> str | None:
    """The solution with `by` added to the result of step `index`; None if a result becomes negative or a fraction."""
    changed: dict[int, int] = {}  # from old to new results
    parts, end = [], 0
    for i, step in enumerate(steps):
        left, written = step["left"] or "", _int(step["result"])
        result: Fraction | int | None = written
        if i == index:
            result = written + by
        elif left and calculate(left) == written:  # otherwise it was rounded or misread, and stays
            left = _with(left, changed, count=1)
            result = calculate(left)
        if result is None or result < 0 or result.denominator != 1:
            return None
        # Words before a step may name its result already: "she has 8 left, because 10 - 2 = 8".
        words = _with(solution[end : step.start()], {**changed, written: int(result)})
        parts += [words, left, step["equals"], _like(step["result"], int(result))]
        changed[written] = int(result)
        end = step.end()
    return "".join(parts) + _with(solution[end:], changed)


def _with(text: str, changed: Mapping[int, int], count: int | None = None) -> str:
    """Replace changed results in a text by the new ones: all of them, or the first `count`."""
    found = [number for number in _NUMBER.finditer(text) if changed.get(v := _int(number[0]), v) != v]
    for number in reversed(found[:count]):
        text = text[: number.start()] + _like(number[0], changed[_int(number[0])]) + text[number.end() :]
    return text


def _int(number: str) -> int:
    return int(number.replace(",", ""))


def _like(number: str, value: int) -> str:
    """A value written like `number`: with thousands separators or without."""
    return f"{value:,}" if "," in number else str(value)

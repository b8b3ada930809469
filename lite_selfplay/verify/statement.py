r"""Parsing an answer as a statement: a value, perhaps with a name and a derivation, or an unsolved equation.

"x = 3 + 9 = 12" states the value 12 of x, with its derivation, and "1 < x \le 5" the interval (1, 5] of x. If the
sides contradict each other, as in "5 = 6 = 7" or "x^2 = 144 = 12", nothing is stated. "2x + 3 = 11" and "x^2 < 9" are
not solved, so they are not answers. A value may be followed by its correct rounding: "\frac13 \approx 0.33".
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from lite_selfplay.verify.formulas import real_part
from lite_selfplay.verify.latex import at_top, canonical, cut, trim, tuple_entries
from lite_selfplay.verify.operations import FUNCTIONS
from lite_selfplay.verify.quantity import NEGATING, quantity, same_quantity

_SYMBOL = r"\\?[A-Za-z]+(?:_(?:\\?\w+|\{[^{}]*\}))?'*"
_LABEL = re.compile(
    rf"""
      {_SYMBOL} \s* (?:\([^()]*\))?                                             # x, f(x), P(X > 3), a_n
    | \( \s* {_SYMBOL} (?:\s*,\s*{_SYMBOL})+ \s* \)                             # (x, y)
    | (?:m\s*)? \\(?:angle|triangle|measuredangle)\s* [A-Za-z_0-9{{}}\s]+       # \angle ABC
    | \|? \s* \\(?:overline|vec|overrightarrow|widehat|hat|bar) \s* \{{[^{{}}]*\}} \s* \|?
    | \| [A-Z]{{2}} \| | \[ [A-Z]{{3,}} \]                                      # a length, an area
    | [A-Za-z][A-Za-z'\s-]*                                                     # the total cost
    """,
    re.VERBOSE,
)
_SINGLE = re.compile(r"\\?[A-Za-z]+(?:_(?:\w+|\{[^{}]*\}))?")
_CONSTANTS = frozenset({"\\pi", "e", "i", "\\infty"})
_MEMBER = re.compile(rf"({_SYMBOL})\s*\\in(?![A-Za-z])")
_RELATION = re.compile(
    r"\\[{}] | [()\[\]{}] | (?<![<>!=:\\])=(?!=) | (?P<near>\\(?:approx(?:eq)?|simeq|doteq)(?![A-Za-z]))"
    r" | \\[lgn]e(?![A-Za-z]) | [<>]",
    re.VERBOSE,
)
_NEAR = "\\approx"
_MIRRORED = {"<": ">", ">": "<", "\\le": "\\ge", "\\ge": "\\le"}
# A side that negates, compares or scales is not a name: it ends with "is not", or begins with "twice".
_CHANGED = re.compile(
    rf"\b(?:{NEGATING}|\w+n't|not equal(?: to)?|except|unlike|at (?:least|most))$"
    rf"|^(?!but\b)(?:{NEGATING}|twice|thrice)\b|^(?:half|double|triple) (?:of|the|that|it|his|her|its|their)\b"
    r"|^(?:yes|true|false)$",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Statement:
    """A parsed statement.

    `value` is the text of the value, empty if an equation states none or contradicts itself; `name` is the name of the
    value. `rounded` is the rounding after it, `equation` has both sides of an equation in unknowns.
    """

    value: str
    name: str = ""
    rounded: str = ""
    equation: tuple[str, str] | None = None


@lru_cache(maxsize=4096)
def statement(text: str) -> Statement:
    """Parse a single answer, as `latex.values` returns it."""
    member = _MEMBER.match(text)
    if member:
        return Statement(trim(text[member.end() :]), canonical(member[1]))
    # A chain, split outside all brackets; all signs of rounding become one.
    found = [*at_top(_RELATION, text)]
    signs, sides = [_NEAR if match["near"] else match.group() for match in found], cut(text, found)
    if any(_CHANGED.search(side) for side in sides[:-1]):
        return Statement("")
    if not {"=", _NEAR}.issuperset(signs):
        return _interval(signs, sides)
    near = [index for index, sign in enumerate(signs) if sign == _NEAR]
    if near[:1] == [0] and _is_label(sides[0]):
        near = near[1:]  # x \approx 7 is the value of x
    rounded = sides.pop() if near else ""
    if near and (near[0] < len(signs) - 1 or not _rounds_to(sides[-1], rounded)):
        return Statement("")
    if len(sides) == 1:
        return Statement(sides[0], rounded=rounded)
    if not all(sides):
        return Statement("")
    if _SINGLE.fullmatch(sides[-1]) and _is_label(sides[-1]) and not _is_label(sides[0]):
        sides = sides[::-1]  # 5 = x
    head, *between, value = sides
    named = _is_label(head)
    if not named and (has_unknowns(head) != has_unknowns(value) or _differ(head, value)):
        return Statement("", equation=(head, value) if len(sides) == 2 and has_unknowns(f"{head}+{value}") else None)
    if any(_differ(side, value) for side in between if not _is_label(side)):
        return Statement("")
    return Statement(value, canonical(head) if named else "", rounded)


def _is_label(side: str) -> bool:
    """Whether a side is a name and not an expression."""
    word = re.match(r"\\?([A-Za-z]+)", side)
    value = side in _CONSTANTS or (word is not None and word[1] in FUNCTIONS)
    return not value and _LABEL.fullmatch(side) is not None and not _CHANGED.search(side)


def _interval(signs: list[str], sides: list[str]) -> Statement:
    r"""An inequality as the interval of a name: "x > 3" is (3, \infty), "1 < x \le 5" is (1, 5], and "x \ne 2" excludes
    2. Nothing is evaluated or solved."""
    if signs[0] in (">", "\\ge"):
        signs, sides = [_MIRRORED.get(sign, sign) for sign in reversed(signs)], sides[::-1]
    named = [index for index, side in enumerate(sides) if _is_label(side)]
    index = 1 if len(sides) == 3 else (named or [-1])[0]
    if index not in named or len(sides) > 3 or (len(sides) == 2 and len(named) == 2) or not all(sides):
        return Statement("")
    name = canonical(sides[index])
    if signs == ["\\ne"]:
        bound = sides[1 - index]
        return Statement(f"(-\\infty, {bound}) \\cup ({bound}, \\infty)", name)
    if not set(signs) <= {"<", "\\le"}:
        return Statement("")
    low, below = (sides[index - 1], signs[index - 1]) if index > 0 else ("-\\infty", "<")
    high, above = (sides[index + 1], signs[index]) if index < len(sides) - 1 else ("\\infty", "<")
    return Statement(f"{'(' if below == '<' else '['}{low}, {high}{')' if above == '<' else ']'}", name)


def has_unknowns(side: str) -> bool:
    """Whether a side is a formula with variables."""
    found = quantity(side)
    return found is not None and bool(found.formula.variables)


def _differ(side: str, value: str) -> bool:
    """Whether a side of a chain contradicts the value at its end. A side that cannot be parsed contradicts nothing, nor
    does a formula in unknowns contradict a number."""
    found, end = quantity(side), quantity(value)
    if found is None or end is None or bool(found.formula.variables) != bool(end.formula.variables):
        return False
    return not same_quantity(found, end)


def _rounds_to(exact: str, rounded: str) -> bool:
    """Whether `rounded` is `exact`, rounded to its number of decimal places; for tuples, entry by entry."""
    whole, rough = tuple_entries(exact), tuple_entries(rounded)
    if whole and rough:
        return whole[0] == rough[0] and len(whole[1]) == len(rough[1]) and all(map(_rounds_to, whole[1], rough[1]))
    value, near = quantity(exact), quantity(rounded)
    if value is None or near is None or value.percent != near.percent:
        return False
    first, second = real_part(value.formula.constant), near.number
    decimals = re.search(r"\.(\d+)", rounded)
    places = len(decimals[1]) if decimals else 0
    if first is None or second is None or (second * 10**places).denominator > 1:
        return False
    same_unit = not (value.unit and near.unit) or value.unit == near.unit
    return same_unit and abs(first - second) * 2 <= Fraction(1, 10**places)


def point(answers: Sequence[str], by_name: bool = False) -> str:
    """ "(3, -1)" for "x = 3" and "y = -1", in this order or sorted by name; empty unless every value has a name of its
    own."""
    stated = [statement(answer) for answer in answers]
    names = {each.name for each in stated}
    if "" in names or not 1 < len(names) == len(stated):
        return ""
    if by_name:
        stated.sort(key=lambda each: each.name.lstrip("\\"))
    return f"({', '.join(each.value for each in stated)})"


def unnamed(answers: Sequence[str]) -> Sequence[str]:
    """The values without their name if they share one: "x = 5" becomes "5". Values with different names become a point:
    "x = 3, y = -1" is (3, -1)."""
    if whole := point(answers, by_name=True):
        return [whole]
    stated = [statement(answer) for answer in answers]
    if len({each.name for each in stated if each.name and each.value}) != 1:
        return answers
    return [each.value if each.name else answer for each, answer in zip(stated, answers, strict=True)]

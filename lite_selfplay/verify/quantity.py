r"""Plain numbers as people and models write them: 1,234.50 or $18 or 3/4 or 1\frac{1}{2} or 3 \times 10^8 or 62.5%.

They are compared as exact fractions.
"""

import re
from dataclasses import dataclass
from fractions import Fraction

MAX_EXPONENT = 1000

_DECIMAL = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d*)?|\.\d+"
_NUMBER = re.compile(
    rf"""
    (?P<sign>[-+]?) \s* [€£¥₹]? \s*
    (?: (?P<whole>\d+) (?: \s* \\frac\{{ (?P<top>\d+) \}}\{{ (?P<bottom>\d+) \}} | \s+ (?P<over>\d+) / (?P<under>\d+) )
      | \\frac \s* \{{ \s* (?P<a>[-+]?(?:{_DECIMAL})) \s* \}} \s* \{{ \s* (?P<b>[-+]?(?:{_DECIMAL})) \s* \}}
      | (?P<c>{_DECIMAL}) \s* / \s* (?P<d>[-+]?(?:{_DECIMAL}))
      | (?: (?P<mantissa>{_DECIMAL}) \s* (?:\\times|\\cdot|\*|x) \s* )?
            10 \s* \^ \s* \{{? \s* (?P<power>[-+]?\d+) \s* \}}?
      | (?P<figure>{_DECIMAL}) (?: [eE] (?P<exponent>[-+]?\d+) )? )
    (?P<tail>.*)
    """,
    re.VERBOSE | re.DOTALL,
)
_PERCENT = re.compile(r"\s*(?:%|per\s?cent|percentage points?)", re.IGNORECASE)
_MARK = re.compile(r"\s*(?:[€£¥₹]|\^\s*\{?\s*\\circ\s*\}?\s*[CFK]?|\\degree)")
_UNIT_WORD = re.compile(r"(?P<letters>[A-Za-z][A-Za-z'-]*)(?:\^\{?-?\d\}?)?")
_MAX_UNIT_WORDS = 6
_SHORT_UNIT = re.compile(r"[ckmn]m|[km]g|[mcd]L|ml|ft|yd|mi|hrs?|lbs?|oz|Hz|eV|k[WV]|m[Vs]|mph|kph")
# Read as a unit only where the reference is a number without symbols; elsewhere it is a symbol.
_LETTER_UNIT = re.compile(r"[msghLJNWVAKCF]")
# Words after a number that make it another number, or another statement.
_NOT_UNIT = re.compile(
    r"hundred|thousand|million|billion|trillion|dozen|half|squared|cubed|factorial|base|times|plus|minus|over|mod|choose"
    r"|log|ln|exp|sin|cos|tan|sqrt|or|and|to|not|no|if|when|for|where|is|are|was|but|from|up|down|least|most|than"
    r"|between|maybe|perhaps|either|neither|nor",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Quantity:
    """A plain number as written. `places` counts its decimals where it is a decimal fraction with at least six
    significant digits, which may then stand for a number it rounds; None otherwise."""

    value: Fraction
    percent: bool = False
    places: int | None = None


def quantity(text: str, letter_units: bool = False) -> Quantity | None:
    r"""A tidy text as a plain number, None where it is anything else.

    Integers, decimals, `a/b`, `\frac{a}{b}`, mixed numbers, scientific notation, thousands separators, signs; a
    currency, a percent sign, degrees or a unit in words may stand around it, with `letter_units` also one such as
    "5 m". Units are dropped, never converted.
    """
    match = _NUMBER.fullmatch(text.strip())
    value = _value(match) if match else None
    if match is None or value is None:
        return None
    percent = _PERCENT.match(match["tail"])
    tail = match["tail"][percent.end() :] if percent else match["tail"]
    if tail.strip() and not _MARK.fullmatch(tail) and not _is_unit(tail, letter_units):
        return None
    return Quantity(-value if match["sign"] == "-" else value, percent is not None, _places(match))


def _value(match: re.Match[str]) -> Fraction | None:
    """The unsigned value of a number match; None for a zero denominator or an exponent too large to write out."""
    try:
        if match["whole"]:
            return int(match["whole"]) + Fraction(
                int(match["top"] or match["over"]), int(match["bottom"] or match["under"])
            )
        if match["a"] or match["c"]:
            return _decimal(match["a"] or match["c"]) / _decimal(match["b"] or match["d"])
        figure = _decimal(match["figure"] or match["mantissa"] or "1")
        exponent = int(match["power"] or match["exponent"] or 0)
    except (ZeroDivisionError, ValueError):
        # ValueError: more digits than Python converts.
        return None
    return figure * Fraction(10) ** exponent if abs(exponent) <= MAX_EXPONENT else None


def _decimal(text: str) -> Fraction:
    return Fraction(text.replace(",", "").rstrip(".") if text != "." else "0")


def _places(match: re.Match[str]) -> int | None:
    whole, point, decimals = (match["figure"] or "").partition(".")
    significant = (whole + decimals).replace(",", "").lstrip("0")
    return len(decimals) if point and not match["exponent"] and len(significant) >= 6 else None


def _is_unit(tail: str, letter_units: bool) -> bool:
    """Whether what follows a number is a unit in words, such as "cm ^2", "kcal m^{-2}" or "hot dogs per day"."""
    words = [_UNIT_WORD.fullmatch(word) for word in re.split(r"[\s/]+", re.sub(r"\s+\^\s*", "^", tail).strip())]
    letters = [word["letters"] for word in words if word]
    if len(letters) < len(words) or len(words) > _MAX_UNIT_WORDS:
        return False
    if any(_NOT_UNIT.fullmatch(word) for word in letters):
        return False
    # "5 xy" and "5m" may be products: a unit is a word set apart, or one of the well-known short ones.
    first = letters[0]
    if _SHORT_UNIT.fullmatch(first):
        return True
    return tail[0].isspace() and (len(first) >= 3 or (letter_units and _LETTER_UNIT.fullmatch(first) is not None))


def same_quantity(first: Quantity, second: Quantity) -> bool:
    """Whether two plain numbers are equal.

    "50%" equals both 0.5 and 50, since problems ask for percentages either way. A decimal of six significant digits or
    more also equals a fraction that it rounds; shorter ones must be exact.
    """
    pairs = [(first.value, second.value)]
    if first.percent != second.percent:
        pairs.append((first.value / 100, second.value) if first.percent else (first.value, second.value / 100))
    return any(a == b or _rounds(a, b, first, second) or _rounds(b, a, second, first) for a, b in pairs)


def _rounds(value: Fraction, exact: Fraction, written: Quantity, other: Quantity) -> bool:
    """Whether the decimal `value` is the rounding of `exact`, which no decimal can write in full."""
    if written.places is None or other.places is not None or written.percent != other.percent:
        return False
    return abs(value - exact) * 2 <= Fraction(1, 10**written.places) and _never_ends(exact)


def _never_ends(value: Fraction) -> bool:
    rest = value.denominator
    for prime in (2, 5):
        while rest % prime == 0:
            rest //= prime
    return rest != 1

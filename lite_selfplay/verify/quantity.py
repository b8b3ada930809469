"""A value with its unit, currency or percent sign: `$18`, `12\\pi cm^2`, `5%`, `90^\\circ`, `2 hours`, `twelve`."""

import math
import re
import unicodedata
from dataclasses import dataclass
from fractions import Fraction

from lite_selfplay.verify.form import Formula, is_literal, to_formula
from lite_selfplay.verify.formulas import rational, real_part
from lite_selfplay.verify.words import SINGLE_LETTERS, Unit, unit_of

ROUNDING_DIGITS = 6  # the significant digits that a decimal needs to count as the rounding of a number

_CURRENCY_BEFORE = re.compile(r"(?P<sign>[-+]?)\s*(?:(?:US\s*)?[¤€£¥₹]|(?:USD|EUR|GBP)\b)\s*(?=[\d.\\])")
_CURRENCY_AFTER = re.compile(r"(?<=\d)\s*(?:[¤€£¥₹]|¢)$")
_PERCENT = re.compile(r"\s*(?:%|\bper\s?cent\b|\bpercentage points?\b)$", re.IGNORECASE)
_DEGREES_OF = re.compile(r"\s*\^\s*\{?\s*\\circ\s*\}?\s*(?P<scale>[CFK])$")
# A unit may follow a digit, a closing bracket, or pi.
_LETTER = r"A-Za-z\x80-\U0010ffff"  # other characters than letters and marks are refused by their Unicode category
_BEFORE_UNIT = re.compile(rf"(?<=[\d.)}}\]])(?=\s*[{_LETTER}/])|(?<=\\pi)(?=\s)")
_UNIT_WORD = rf"[{_LETTER}][{_LETTER}'.-]*(?:\s*\^\s*\{{?-?\d\}}?)?"
_UNIT = re.compile(rf"(?P<blank>\s*)(?P<unit>/?\s*{_UNIT_WORD}(?:[\s/*]+{_UNIT_WORD})*)")
_MAX_UNIT_CHARACTERS = 80
_MAX_UNIT_WORDS = 6
_STICKING = re.compile(r"[ckmnµ]m|[km]g|[mcd][lL]|ft|yd|mi|hrs?|lbs?|oz|Hz|eV|k[WV]|m[Vs]|mph|kph|km/h|m/s")
# Words that negate or compare.
NEGATING = "not|no|none|never|neither|nor|nothing|cannot|but|than"
_POWERS_OF_TEN = {"hundred": 2, "thousand": 3, "lakh": 5, "million": 6, "crore": 7, "billion": 9, "trillion": 12}
_SCALES = rf"(?:{'|'.join(_POWERS_OF_TEN)})s?"
_PART = (
    r"(?:fif|six|seven|eigh|nin|ten|eleven|twelf|\w+teen|\w+tie|hundred|thousand|\w+illion)th|third|fourth"
    r"|negative|opposite|reciprocal|inverse"
)
# Words after a number that change its value, or the statement.
_NOT_UNIT = re.compile(
    rf"{NEGATING}|(?:{_PART})s|(?:doubl|tripl|quadrupl|halv|negat|revers|invert)ed|{_SCALES}|\w+illion|dozens?|score|gross"
    r"|grand|half|halves|\w+fold|squared|cubed|factorial|base|times|plus|minus|over|mod|choose|log|ln|exp|sin|cos|tan|sqrt"
    r"|or|and|to|if|when|for|where|is|are|was|from|up|down|least|most|between|maybe|perhaps|either|below|above|under"
    r"|beneath|past|before|after|until|till|ago|short|bc|bce",
    re.IGNORECASE,
)
_NEVER_LAST = re.compile(_PART, re.IGNORECASE)  # 5 fifth graders are 5, and "1 fifth" is not 1
_SCALED = re.compile(rf"(?P<number>[^A-Za-z\\]*\d)\s*(?P<scale>{_SCALES})\b", re.IGNORECASE)
_TIME = re.compile(r"(\d{1,2}):([0-5]\d)( h)?")
_RATIO = re.compile(r"(\d{1,20})\s*:\s*(\d{1,20})")


@dataclass(frozen=True)
class Quantity:
    """A formula that is a value, with its unit and percent sign.

    `percent`: it has a percent sign. `unit` is None without a unit or with an unknown one, such as "apples"; `noun` is
    the text of either. `places` is the number of decimal places of a plain decimal with at least six significant
    digits, which may be a rounded number.
    """

    formula: Formula
    percent: bool = False
    unit: Unit | None = None
    places: int | None = None
    noun: str = ""

    @property
    def number(self) -> Fraction | None:
        """Its value without unit and percent sign if it is a single written number; None for other formulas."""
        return rational(self.formula.constant) if is_literal(self.formula.tree) else None

    def key(self) -> str | None:
        """The value as a canonical string, in the base unit of its dimension; None if an operation is left undone."""
        plain = self.formula.key()
        unit = self.unit or Unit()
        if plain is None or (unit == Unit() and not self.percent):
            return plain
        factor = unit.factor / 100 if self.percent else unit.factor
        exact = rational(self.formula.constant)
        name = "" if unit == Unit() else str(unit) or "money"
        scaled = str(exact * factor) if exact is not None else f"{plain} * {factor}"
        return f"{scaled} [{name}]" if name else scaled


def quantity(text: str, letter_units: bool = False) -> Quantity | None:
    """A single value (`latex.tidy`) with its unit; None for anything else.

    The value may have a currency, a percent sign, degrees or a unit; with `letter_units` also a unit of one letter,
    such as "5 m". A ratio in lowest terms is a fraction.
    """
    text = text.strip()
    if (scaled := _SCALED.match(text)) is not None:
        power = _POWERS_OF_TEN[scaled["scale"].casefold().removesuffix("s")]
        text = rf"{scaled['number']} \times 10^{{{power}}}{text[scaled.end() :]}"
    elif (ratio := _RATIO.fullmatch(text)) and math.gcd(int(ratio[1]), int(ratio[2])) == 1:  # 9:30 is not 3:10
        text = f"{ratio[1]}/{ratio[2]}"
    body, unit, percent, noun = _taken_off(text, letter_units)
    formula = to_formula(body)
    return None if formula is None else Quantity(formula, percent, unit, _places(body), noun)


def times(text: str) -> frozenset[int]:
    """The minutes after midnight that a time of the day may mean: two numbers for "3:45", none for other texts."""
    if (match := _TIME.fullmatch(text)) is None:
        return frozenset()
    minutes = 60 * int(match[1]) + int(match[2])
    return frozenset({minutes} if match[3] or not 60 <= minutes < 780 else {minutes, (minutes + 720) % 1440})


def _taken_off(text: str, letter_units: bool) -> tuple[str, Unit | None, bool, str]:
    """A text without its unit and percent sign: (the rest, the unit, whether it is in percent, the unit's text)."""
    unit: Unit | None = None
    if currency := _CURRENCY_BEFORE.match(text):
        text, unit = currency["sign"] + text[currency.end() :], Unit()
    if currency := _CURRENCY_AFTER.search(text):
        text, unit = text[: currency.start()], Unit(Fraction(1, 100)) if "¢" in currency[0] else Unit()
    if degrees := _DEGREES_OF.search(text):
        return text[: degrees.start()], unit_of(degrees["scale"]), False, ""
    if percent := _PERCENT.search(text):
        return text[: percent.start()], unit, True, ""
    for start in _BEFORE_UNIT.finditer(text, max(0, len(text) - _MAX_UNIT_CHARACTERS)):
        match = _UNIT.fullmatch(text, start.start())
        if match and _is_unit(match["unit"], match["blank"], letter_units):
            return text[: start.start()], unit_of(match["unit"]) or unit, False, match["unit"]
    return text, unit, False, ""


def _is_unit(text: str, blank: str, letter_units: bool) -> bool:
    """Whether the text after a value is a unit, such as "cm ^2", "kcal m^{-2}" or "hot dogs per day"."""
    words = re.findall(rf"[{_LETTER}][{_LETTER}'-]*", text)
    if not text.isascii() and not all(map(_is_letter, "".join(words))):
        return False
    if len(words) > _MAX_UNIT_WORDS or any(map(_NOT_UNIT.fullmatch, words)) or _NEVER_LAST.fullmatch(words[-1]):
        return False
    # "5 xy" and "5m" may be products: a unit is separated by a space, except in scripts without capitals ("5元").
    if (_STICKING.match(text) and unit_of(text) is not None) or unicodedata.category(words[0][0]) == "Lo":
        return True
    if not blank or (len(text) == 1 and not (letter_units and text in SINGLE_LETTERS)):
        return False
    cyrillic = unicodedata.name(words[0][0], "").startswith("CYRILLIC")  # no names of variables
    return len(words[0]) >= 3 - cyrillic or unit_of(text) is not None


def _is_letter(character: str) -> bool:
    """Whether a character is a letter, a mark of one, or ASCII. Numerals such as 万 (10,000) are not."""
    in_words = character.isascii() or unicodedata.category(character)[0] in "LM"
    return in_words and unicodedata.numeric(character, None) is None


def _places(body: str) -> int | None:
    plain = re.fullmatch(r"[-+]?\s*(?P<whole>[\d,]*)\.(?P<decimals>\d+)", body.strip())
    if plain is None:
        return None
    significant = (plain["whole"] + plain["decimals"]).replace(",", "").lstrip("0")
    return len(plain["decimals"]) if len(significant) >= ROUNDING_DIGITS else None


def same_quantity(first: Quantity, second: Quantity) -> bool:
    """Whether two values are equal, in any form.

    Two units must have the same dimension, and are converted; a unit on one side only is ignored. A percent sign is a
    factor of 1/100; if only one side has one, the other number may also be meant in percent if it is at least 1. A
    decimal of six significant digits or more also equals a non-terminating number that it rounds.
    """
    units = (first.unit, second.unit) if first.unit and second.unit else (Unit(), Unit())
    if units[0].dimension != units[1].dimension:
        return False
    if first.percent == second.percent:
        return _same(first, second, units[0].factor, units[1].factor)
    share, plain = (first, second) if first.percent else (second, first)
    if _same(share, plain, Fraction(1, 100), Fraction(1)):
        return True
    number = real_part(plain.formula.constant)
    return number is not None and abs(number) >= 1 and _same(share, plain, Fraction(1), Fraction(1))


def _same(first: Quantity, second: Quantity, factor: Fraction, other_factor: Fraction) -> bool:
    if factor == other_factor:
        if first.formula.same_value(second.formula):
            return True
        factor = other_factor = Fraction(1)
    a, b = real_part(first.formula.constant), real_part(second.formula.constant)
    if a is None or b is None:
        return False
    a, b = a * factor, b * other_factor
    exact = rational(first.formula.constant) is not None and rational(second.formula.constant) is not None
    if a == b or (not exact and abs(a - b) * 10**30 <= abs(a)):
        return True
    return _rounds(a, first, b, second, factor) or _rounds(b, second, a, first, other_factor)


def _rounds(value: Fraction, written: Quantity, other: Fraction, exact: Quantity, factor: Fraction) -> bool:
    """Whether a decimal is the rounding of a number that has no finite decimal expansion."""
    if written.places is None or exact.places is not None:
        return False
    # A denominator without other factors than 2 and 5 divides a power of ten.
    divides = pow(10, other.denominator.bit_length(), other.denominator) == 0
    terminates = rational(exact.formula.constant) is not None and divides
    return not terminates and abs(value - other) * 2 <= factor * Fraction(1, 10**written.places)

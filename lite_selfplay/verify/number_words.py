"""Numbers in English words: "twelve", "one hundred and five", "three quarters", "one and a half"."""

import re
from fractions import Fraction

_UNITS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
).split()
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
_SMALL = {word: n for n, word in enumerate(_UNITS)} | {word: 10 * n for n, word in enumerate(_TENS, 2)}
_SCALES = {"hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9}

_WORD = "|".join([*_SMALL, *_SCALES])
_RUN = rf"(?:a\s+(?={'|'.join(_SCALES)}))?(?:{_WORD})(?:[\s-]+(?:and\s+)?(?:{_WORD}))*"
# A run of number words in a text. It need not be a single number: "two three" is not.
NUMBER_WORDS = re.compile(rf"(?<![\w-]){_RUN}(?![\w-])", re.IGNORECASE)
_PARTS = ["half", "third", "quarter", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth"]
_DENOMINATORS = {word: n for n, word in enumerate(_PARTS, 2)} | {"halve": 2, "fourth": 4, "hundredth": 100}
_FRACTION = rf"(?P<above>an?|{'|'.join(_UNITS[1:10])})[\s-]+(?P<below>{'|'.join(_DENOMINATORS)})s?"
_AND = r"\s+and\s+"
# After any other word a number is part of a name, such as "Room Twelve".
_SPELLED = re.compile(
    r"(?:(?<![\w-])(?<![A-Za-z]\s)|(?<=\bor\s)|(?<=\band\s)|(?<=\bminus\s)|(?<=\bnegative\s)|(?<=\bbase\s))"
    rf"(?:(?:(?P<whole>{_RUN}|\d+){_AND})?{_FRACTION}|(?P<run>{_RUN}))(?![\w-])",
    re.IGNORECASE,
)


def in_digits(text: str) -> str:
    """Replace numbers and fractions in words by digits. A run of words that is not a number stays unchanged."""
    return _SPELLED.sub(_digits, text)


def _digits(match: re.Match[str]) -> str:
    if run := match["run"]:
        parts = [run] if number_of(run) is not None else re.split(_AND, run)
        return " and ".join(part if (number := number_of(part)) is None else str(number) for part in parts)
    if (whole := number_of(match["whole"] or "zero")) is None:
        return match[0]
    return written(whole + Fraction(number_of(match["above"]) or 0, _DENOMINATORS[match["below"].casefold()]))


def written(value: Fraction) -> str:
    """A number as a whole number or a fraction, in LaTeX."""
    return str(value) if value.denominator == 1 else rf"\frac{{{value.numerator}}}{{{value.denominator}}}"


def number_of(words: str) -> int | None:
    """The number that a run of words or digits names; None if it names none or several ("two three", "twenty ten")."""
    if words.isdigit():
        return int(words) if len(words) < 20 else None
    total, bound = 0, 10**12  # the next word must be smaller than the bound: "twenty one" but not "one twenty"
    for word in re.split(r"[\s-]+(?:and\s+)?", words.casefold().strip()):
        value = 1 if word in ("a", "an") else _SMALL.get(word, bound)
        if (scale := _SCALES.get(word)) is not None:
            most = 10 if scale == 100 else 1000  # it counts fewer than that, which come just before it
            counted = total % (scale * most)
            if not 0 < counted < most:
                return None
            total, bound = total + counted * (scale - 1), scale
        elif value < bound and (value or not total):
            total, bound = total + value, 10 if value >= 20 else 1
        else:
            return None
    return total

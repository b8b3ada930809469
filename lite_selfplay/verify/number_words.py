"""Numbers in English words: "twelve", "twenty-one", "one hundred and five", "three thousand"."""

import re
from fractions import Fraction

_UNITS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
).split()
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
_SMALL = {word: n for n, word in enumerate(_UNITS)} | {word: 10 * n for n, word in enumerate(_TENS, 2)}
_LARGE = {"thousand": 1000, "million": 10**6, "billion": 10**9}

_WORD = "|".join([*_SMALL, "hundred", *_LARGE])
NUMBER_WORDS = re.compile(
    rf"(?<![\w-])(?:{_WORD})(?:(?:[\s-]+(?:and\s+)?)(?:{_WORD}))*(?![\w-])", re.IGNORECASE
)  # fmt: skip
"""A run of number words in a text. It need not be a single number: "two three" is not."""


def number_of(words: str) -> int | None:
    """The number that a run of words names; None if it names none or several ("two three", "twenty ten")."""
    total = below_thousand = 0
    last = 10**12  # what the next word must stay below: "twenty one" but not "one twenty"
    scale = 10**12
    for word in re.split(r"[\s-]+", words.casefold().strip()):
        if word == "and":
            continue
        if word in _LARGE:
            if not below_thousand or _LARGE[word] >= scale:
                return None
            scale = _LARGE[word]
            total, below_thousand, last = total + below_thousand * scale, 0, 1000
        elif word == "hundred":
            if not 0 < below_thousand < 10:
                return None
            below_thousand, last = below_thousand * 100, 100
        elif word in _SMALL:
            value = _SMALL[word]
            if value >= last or (value == 0 and (total or below_thousand)):
                return None
            below_thousand += value
            last = 10 if value >= 20 else 1
        else:
            return None
    return total + below_thousand


_PARTS = ["half", "third", "quarter", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth"]
_DENOMINATORS = {word: n for n, word in enumerate(_PARTS, 2)} | {"halve": 2, "fourth": 4, "hundredth": 100}
_FRACTION = re.compile(
    rf"(?<![\w-])(?P<above>an?|{'|'.join(_UNITS[1:10])})[\s-]+(?P<below>{'|'.join(_DENOMINATORS)})s?(?![\w-])",
    re.IGNORECASE,
)


def leading_number(text: str) -> tuple[str, int] | None:
    """(digits, end) of the number or fraction in words that a text begins with; None if it begins with none."""
    if (match := _FRACTION.match(text)) is not None:
        return str(_fraction(match)), match.end()
    if (match := NUMBER_WORDS.match(text)) is not None and (number := number_of(match[0])) is not None:
        return str(number), match.end()
    return None


def _fraction(match: re.Match[str]) -> Fraction:
    above = match["above"].casefold()
    return Fraction(1 if above in ("a", "an") else number_of(above) or 1, _DENOMINATORS[match["below"].casefold()])

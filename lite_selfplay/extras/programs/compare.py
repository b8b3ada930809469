"""Comparing what a program wrote with what was expected, as bytes and tokens: no value of its is ever built here."""

from fractions import Fraction

_LONGEST_NUMBER = 4000
"""Characters of a number that is compared with a tolerance."""


def same_text(given: bytes, wanted: bytes, tolerance: float = 0.0) -> bool:
    """Whether two texts have the same lines, blanks at their ends and empty lines at the end of the text aside.

    With a tolerance, the words of a line may also be decimals that are close.
    """
    ours, theirs = _lines(given), _lines(wanted)
    if ours == theirs:
        return True
    if not tolerance or len(ours) != len(theirs):
        return False
    return all(_same_words(a.split(), b.split(), tolerance) for a, b in zip(ours, theirs, strict=True))


def same_value(given: str, wanted: str, tolerance: float = 0.0) -> bool:
    """Whether two canonical texts (`inside.values.canonical`) say the same value; NaN is never the same.

    A result may be a tuple where a list is expected, since JSON has no tuples, unless a tuple is expected anywhere.
    """
    theirs = wanted.split(" ")
    if "#nan" in theirs:
        return False
    ours = given.split(" ")
    if "(" not in theirs:
        ours = [{"(": "[", ")": "]"}.get(token, token) for token in ours]
    if ours == theirs:
        return True
    if not tolerance or len(ours) != len(theirs):
        return False
    return all(a == b or _close(_fraction(a), _fraction(b), tolerance) for a, b in zip(ours, theirs, strict=True))


def _lines(text: bytes) -> list[bytes]:
    lines = [line.rstrip() for line in text.replace(b"\r\n", b"\n").split(b"\n")]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _same_words(ours: list[bytes], theirs: list[bytes], tolerance: float) -> bool:
    return len(ours) == len(theirs) and all(
        a == b or _close(_decimal(a), _decimal(b), tolerance) for a, b in zip(ours, theirs, strict=True)
    )


def _close(given: Fraction | None, wanted: Fraction | None, tolerance: float) -> bool:
    if given is None or wanted is None:
        return False
    return abs(given - wanted) <= Fraction(tolerance) * max(Fraction(1), abs(wanted))


def _decimal(word: bytes) -> Fraction | None:
    """A plain decimal number; None for anything else: no underscores, no other alphabets' digits, no nan."""
    if len(word) > 400 or not set(word) <= set(b"+-.0123456789eE"):
        return None
    try:
        value = float(word)
    except ValueError:
        return None
    return Fraction(value) if value - value == 0 else None


def _fraction(token: str) -> Fraction | None:
    if not token.startswith("#") or len(token) > _LONGEST_NUMBER:
        return None
    above, _, below = token[1:].partition("/")
    try:
        return Fraction(int(above, 16), int(below, 16) if below else 1)
    except (ValueError, ZeroDivisionError):
        return None

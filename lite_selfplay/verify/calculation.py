"""The value of plain arithmetic as questions and solutions spell it: `3 x 4`, `12 ÷ 8`, `1,200 - $30`."""

from fractions import Fraction

from lite_selfplay.verify.expression import Unreadable, parse
from lite_selfplay.verify.formulas import values

_SPELLINGS = str.maketrans({"×": "*", "x": "*", "·": "*", "÷": "/", "−": "-", ",": None, "$": None})


def calculate(text: str) -> Fraction | None:
    """The exact value of a calculation with + - * / and brackets, products first.

    Thousands separators and dollar signs are passed over. None where the text cannot be read, divides by zero, or comes
    to no exact fraction of a bounded size (`lite_selfplay.verify.formulas.MAX_BITS`).
    """
    try:
        (value,) = values(parse(text.translate(_SPELLINGS)), points=1)
    except (Unreadable, RecursionError):  # hundreds of signs in a row
        return None
    return value if isinstance(value, Fraction) else None

"""Plain values as text: canonical text for comparison, and a packed form that is read back into built-in types.

Both are written in a program's own process and cannot be trusted: reading them creates only values of exact built-in
types.
"""

import collections
import datetime
import decimal
import fractions
import math
from collections.abc import Callable, Iterable
from typing import Any

DEEPEST = 60
_LONGEST_PART = 4000  # hexadecimal digits above and below the line of a fraction, which is reduced when it is read
PROGRAM, TEST = "candidate", "test"  # the modules of a program and of its tests


class Unwritable(Exception):
    """A value of an unsupported type, or nested too deeply (as a list that contains itself)."""


def canonical(value: Any, depth: int = 0) -> str:
    """Text that is the same for values that are equal in Python, and different for others.

    Tokens are separated by single spaces. Equal numbers are the same token (1, 1.0, True); sets and mappings are sorted
    by their texts. Raises Unwritable.
    """
    if depth > DEEPEST:
        raise Unwritable("nested too deeply")
    written = next((written for kind, written in _WRITTEN if isinstance(value, kind)), None)
    if written is None:
        raise Unwritable(type(value).__name__)
    return written(value, lambda items: [canonical(item, depth + 1) for item in items])


def _number(value: Any) -> str:
    """The same token for all equal numbers: an exact fraction in hexadecimal digits."""
    if isinstance(value, float | decimal.Decimal) and not math.isfinite(value):
        return "#nan" if value != value else "#inf" if value > 0 else "#-inf"
    if isinstance(value, decimal.Decimal) and abs(value.adjusted()) > 5000:
        raise Unwritable("a decimal of thousands of digits")
    above, below = (int(value), 1) if isinstance(value, int) else value.as_integer_ratio()
    return f"#{above:x}" if below == 1 else f"#{above:x}/{below:x}"


_ESCAPES = str.maketrans({'"': "\\x22", " ": "\\x20"})
# How a value is written; the second argument of each function is one that writes the items of the value.
_WRITTEN: tuple[tuple[Any, Callable[[Any, Callable[[Iterable[Any]], list[str]]], str]], ...] = (
    (type(None), lambda value, each: "N"),
    ((int, float, fractions.Fraction, decimal.Decimal), lambda value, each: _number(value)),
    (complex, lambda z, each: f"c {_number(z.real)} {_number(z.imag)}" if z.imag else _number(z.real)),
    # ASCII without spaces and quotation marks; different texts, half surrogate pairs included, stay different.
    (str, lambda text, each: f'"{text.encode("unicode_escape").decode().translate(_ESCAPES)}"'),
    ((bytes, bytearray), lambda data, each: f"b{bytes(data).hex()}"),
    (list, lambda row, each: " ".join(["[", *each(list.__iter__(row)), "]"])),
    (tuple, lambda row, each: " ".join(["(", *each(tuple.__iter__(row)), ")"])),
    (collections.deque, lambda row, each: " ".join(["k", *each(collections.deque.__iter__(row)), "k"])),
    ((set, frozenset), lambda items, each: " ".join(["{", *sorted(each(items)), "}"])),
    (
        dict,
        lambda pairs, each: " ".join(
            ["<", *sorted(map("{} : {}".format, each(pairs.keys()), each(pairs.values()))), ">"]
        ),
    ),
    # Ranges are equal if they have the same numbers.
    (range, lambda steps, each: f"r {each([(len(steps), *steps[:1], *steps[1:2])])[0]}"),
)


def _text(given: Any) -> str:
    if type(given) is not str:
        raise Unwritable("an unknown form")
    return given


def _digits(given: Any) -> str:
    if len(_text(given)) > _LONGEST_PART:
        raise Unwritable("a fraction of thousands of digits")
    return str(given)


_SEQUENCES = {"l": list, "t": tuple, "S": set, "F": frozenset, "k": collections.deque}
_MAPPINGS: dict[Any, type] = {kind.__name__: kind for kind in (collections.Counter, collections.OrderedDict)}
# By tag: a type, a function that writes its values, and one that reads them back.
_SCALARS: dict[str, tuple[type, Callable[[Any], list[Any]], Callable[..., Any]]] = {
    "i": (int, lambda number: [f"{int(number):x}"], lambda digits: int(digits, 16)),
    "f": (float, lambda number: [float(number).hex()], float.fromhex),
    "s": (str, lambda text: [str.__str__(text)], _text),
    "c": (complex, lambda z: [z.real.hex(), z.imag.hex()], lambda *parts: complex(*map(float.fromhex, parts))),
    "b": (bytes, lambda data: [bytes(data).hex()], bytes.fromhex),
    "B": (bytearray, lambda data: [bytes(data).hex()], bytearray.fromhex),
    "q": (
        fractions.Fraction,
        lambda share: [f"{share.numerator:x}", f"{share.denominator:x}"],
        lambda *parts: fractions.Fraction(*(int(_digits(part), 16) for part in parts)),
    ),
    "M": (datetime.datetime, lambda moment: [moment.isoformat()], datetime.datetime.fromisoformat),
    "Y": (datetime.date, lambda day: [day.isoformat()], datetime.date.fromisoformat),
    "u": (
        datetime.timedelta,
        lambda span: [span.days, span.seconds, span.microseconds],
        lambda *parts: datetime.timedelta(*map(int, parts)),
    ),
    "D": (decimal.Decimal, lambda number: [str(number)], lambda digits: decimal.Decimal(_text(digits))),
    "r": (range, lambda steps: [steps.start, steps.stop, steps.step], lambda *ends: range(*map(int, ends))),
}


KINDS = (*(kind for kind, _, _ in _SCALARS.values()), *_SEQUENCES.values(), dict)


def pack(value: Any, keep: Callable[[Any], Any] | None = None, depth: int = 0) -> Any:
    """A value as JSON that `unpack` reads back: built-in types, with all that they hold.

    For any other object, one of a class that numpy, a program or a test defines, and one that is nested too deeply, the
    JSON is what `keep` returns; without `keep`, Unwritable is raised."""
    if value is None or value is True or value is False:
        return value
    if keep is not None and (depth > DEEPEST or type(value).__module__ in (PROGRAM, TEST, "numpy")):
        return keep(value)
    if depth > DEEPEST:
        raise Unwritable("nested too deeply")

    def each(items: Iterable[Any]) -> list[Any]:
        return [pack(item, keep, depth + 1) for item in items]

    for tag, (kind, write, _) in _SCALARS.items():
        if isinstance(value, kind):
            return [tag, *write(value)]
    for tag, sequence in _SEQUENCES.items():
        if isinstance(value, sequence):
            return [tag, each(value)]
    if isinstance(value, dict):
        return [
            "d",
            [each(pair) for pair in value.items()],
            *(name for name, kind in _MAPPINGS.items() if type(value) is kind),
        ]
    if keep is None:
        raise Unwritable(type(value).__name__)
    return keep(value)


def unpack(data: Any, find: Callable[..., Any] | None = None) -> Any:
    """The value that `pack` wrote; what `keep` wrote is given to `find`. Raises Unwritable, ValueError, TypeError,
    LookupError, ArithmeticError or RecursionError for anything else."""
    if data is None or data is True or data is False:
        return data
    tag, *rest = data
    first = rest[0]
    if tag in _SCALARS:
        return _SCALARS[tag][2](*rest)
    if tag in _SEQUENCES and type(first) is list:
        return _SEQUENCES[tag](unpack(item, find) for item in first)
    if tag == "d":
        found = {unpack(key, find): unpack(value, find) for key, value in first}
        return _MAPPINGS[rest[1]](found) if rest[1:] else found
    if find is None:
        raise Unwritable("an unknown form")
    return find(tag, *rest)

"""Plain values as text: canonical text for comparison, and a packed form that is read back into built-in types.

Both are written in a program's own process and cannot be trusted: reading them creates only values of exact built-in
types.
"""

import collections
import datetime
import decimal
import fractions
import itertools
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


def _text(given: Any, longest: float = math.inf) -> str:
    if type(given) is not str or len(given) > longest:
        raise Unwritable("an unknown form" if type(given) is not str else "a fraction of thousands of digits")
    return given


def _sequence(kind: Callable[[Any], Any]) -> tuple[Any, Callable[[Any], list[Any]], Callable[..., Any]]:
    return kind, lambda items: [[*items]], lambda items: kind(list.__iter__(items))


_MAPPINGS: dict[Any, type] = {kind.__name__: kind for kind in (collections.Counter, collections.OrderedDict)}
# By tag: a type, a function that writes its values as parts, and one that reads the parts back. A part that is a list
# has values in it, which are packed themselves.
_FORMS: dict[str, tuple[Any, Callable[[Any], list[Any]], Callable[..., Any]]] = {
    "i": (int, lambda number: [f"{int(number):x}"], lambda digits: int(digits, 16)),
    "f": (float, lambda number: [float(number).hex()], float.fromhex),
    "s": (str, lambda text: [str.__str__(text)], _text),
    "c": (complex, lambda z: [z.real.hex(), z.imag.hex()], lambda *parts: complex(*map(float.fromhex, parts))),
    "b": (bytes, lambda data: [bytes(data).hex()], bytes.fromhex),
    "B": (bytearray, lambda data: [bytes(data).hex()], bytearray.fromhex),
    "q": (
        fractions.Fraction,
        lambda share: [f"{share.numerator:x}", f"{share.denominator:x}"],
        lambda *parts: fractions.Fraction(*(int(_text(part, _LONGEST_PART), 16) for part in parts)),
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
    "l": _sequence(list),
    "t": _sequence(tuple),
    "S": _sequence(set),
    "F": _sequence(frozenset),
    "k": _sequence(collections.deque),
    # Keys and values by turns, then the name of a special mapping.
    "d": (
        dict,
        lambda pairs: [
            [*itertools.chain(*pairs.items())],
            *(n for n, kind in _MAPPINGS.items() if type(pairs) is kind),
        ],
        lambda row, name=None: _MAPPINGS.get(name, dict)(dict(zip(row[::2], row[1::2], strict=True))),
    ),
}
KINDS = tuple(kind for kind, _, _ in _FORMS.values())


def pack(value: Any, keep: Callable[[Any], Any] | None = None, depth: int = 0) -> Any:
    """A value as JSON that `unpack` reads back: built-in types, with all that they hold.

    For any other object, one of a class that numpy, a program or a test defines, and one that is nested too deeply, the
    JSON is what `keep` returns; without `keep`, Unwritable is raised."""
    if value is None or value is True or value is False:
        return value
    aside = depth > DEEPEST or (keep is not None and type(value).__module__ in (PROGRAM, TEST, "numpy"))
    for tag, (kind, write, _) in () if aside else _FORMS.items():
        if isinstance(value, kind):
            return [
                tag,
                *(
                    [pack(each, keep, depth + 1) for each in part] if type(part) is list else part
                    for part in write(value)
                ),
            ]
    if keep is None:
        raise Unwritable("nested too deeply" if depth > DEEPEST else type(value).__name__)
    return keep(value)


def unpack(data: Any, find: Callable[..., Any] | None = None) -> Any:
    """The value that `pack` wrote; what `keep` wrote is given to `find`. Raises Unwritable, ValueError, TypeError,
    LookupError, ArithmeticError or RecursionError for anything else."""
    if data is None or data is True or data is False:
        return data
    tag, *parts = data
    if tag in _FORMS:
        return _FORMS[tag][2](
            *([unpack(each, find) for each in part] if type(part) is list else part for part in parts)
        )
    if find is None:
        raise Unwritable("an unknown form")
    return find(tag, *parts)

"""Evaluating formulas: exact fractions if possible, else 80 digits, at fixed points for the variables.

Two formulas count as equal if they agree to 45 digits at every point (identity testing at random points; Schwartz
1980). A point is derived from a variable's name alone, so that a formula's values are its fingerprint. Every variable
is negative at some points; piecewise formulas, such as roundings and extrema, are compared at more points, some of them
large. To keep evaluation fast, numbers, exponents and factorials have bounds; a formula beyond them has no value.
"""

import hashlib
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial
from typing import Any

import mpmath

from lite_selfplay.verify.expression import Expression, Unreadable, parse

Number = Any  # a Fraction if the value is exact, else a number of mpmath

FEW_POINTS, MANY_POINTS = 3, 12
# Decimal digits: of the arithmetic; in which equal values agree; at which a sum counts as 0; of a fingerprint.
DIGITS, AGREEING, VANISHING, SHOWN = 80, 45, 60, 40
# Bounds: of an exponent; of a factorial's argument; of an exact number, in bits; of another power, in digits.
MAX_EXPONENT, MAX_FACTORIAL, MAX_BITS, MAX_SIZE = 10**6, 10**5, 20_000, 40
SPELLED_BITS = 400  # of an exact number in a fingerprint; larger ones are hashed
LARGEST_DENOMINATOR = 10**9  # of a fraction that is recognised in a decimal number

_SPELLINGS = str.maketrans({"×": "*", "x": "*", "·": "*", "÷": "/", "−": "-", ",": None, "$": None})

_context = mpmath.MPContext()
_context.dps = DIGITS
_AGREEMENT, _NOTHING = _context.mpf(10) ** -AGREEING, _context.mpf(10) ** -VANISHING
_LARGE, _LARGEST = _context.mpf(10) ** 30, _context.mpf(10) ** MAX_SIZE


def variables(tree: Expression) -> frozenset[str]:
    """The names of all symbols of a formula, without the constants pi, e and i."""
    return frozenset(node.name for node in tree.nodes() if node.kind == "symbol")


def points_for(tree: Expression) -> int:
    """The number of points for comparing a formula with others."""
    piecewise = any(node.kind == "function" and node.name in _PIECEWISE for node in tree.nodes())
    return MANY_POINTS if piecewise else FEW_POINTS


def values(tree: Expression, points: int = FEW_POINTS) -> tuple[Number, ...]:
    """The value of a formula at each of its first `points` points; a single value if it has no variables.

    The value is None at points where the formula has none, such as the rounding of a complex number. Raises Unreadable
    if it has no value anywhere: a division by zero, or numbers beyond the bounds.
    """
    found: list[Number] = []
    for point in range(points if variables(tree) else 1):
        try:
            found.append(_value(tree, point, degrees=False))
        except (ArithmeticError, ValueError, TypeError, mpmath.libmp.NoConvergence):
            found.append(None)
    if all(value is None for value in found):
        raise Unreadable("it has no value")
    return tuple(found)


def calculate(text: str) -> Fraction | None:
    """The exact value of plain arithmetic as written in questions and solutions: `3 x 4`, `12 ÷ 8`, `1,200 - $30`.

    Supports + - * / and brackets, products first; ignores thousands separators and dollar signs. None if the text
    cannot be parsed, divides by zero, or its value is not an exact fraction of bounded size (`MAX_BITS`).
    """
    try:
        (value,) = values(parse(text.translate(_SPELLINGS)), points=1)
    except Unreadable:
        return None
    return value if isinstance(value, Fraction) else None


def angle(tree: Expression) -> Number:
    """The value in radians of a formula without variables, as the argument of a sine: a degree sign means pi/180."""
    return _value(tree, 0, degrees=True)


def point_of(name: str, point: int) -> Number:
    """The value of a variable at a point. Its size is in (0.3, 2.7), from the fourth point on also ten or a hundred
    times that. All variables are positive at point 0; each is negative at one of points 1 and 2, one of 3 and 4, etc.
    """
    digest = hashlib.sha256(f"{point}:{name}".encode()).digest()
    share = _context.mpf(int.from_bytes(digest, "big")) / _context.mpf(256) ** len(digest)
    size = (_context.mpf("0.3") + share * _context.mpf("2.4")) * (1, 10, 100)[point // FEW_POINTS % 3]
    pair = hashlib.sha256(f"{(point + 1) // 2}:{name}:sign".encode()).digest()
    return -size if point and pair[0] % 2 == point % 2 else size


def equal(first: Sequence[Number], second: Sequence[Number]) -> bool:
    """Whether two formulas have the same values to 45 digits, and have no value at the same points."""
    return len(first) == len(second) and all(map(_close, first, second))


def constant_ratio(first: Sequence[Number], second: Sequence[Number]) -> Fraction | None:
    """The ratio of two formulas if it is constant and rational, else None."""
    length = max(len(first), len(second))
    pairs = list(zip(list(first) * (length // len(first)), list(second) * (length // len(second)), strict=True))
    ratios = [_quotient(a, b) for a, b in pairs if a is not None and b is not None and b]
    if len(ratios) < length:
        return None
    return rational(ratios[0]) if all(_close(ratios[0], ratio) for ratio in ratios[1:]) else None


def rational(value: Number) -> Fraction | None:
    """A number as an exact fraction; None if it is not one with a denominator of up to ten digits, and for None."""
    if value is None or isinstance(value, Fraction):
        return value
    size, real = abs(value.real), not value.imag or abs(value.imag) <= _NOTHING * abs(value)
    if not real or (size and not 1 / _LARGE < size < _LARGE):
        return None
    near = Fraction(*mpmath.libmp.to_rational(value.real._mpf_)).limit_denominator(LARGEST_DENOMINATOR)
    return near if abs(_real(near) - value.real) <= _NOTHING * max(1, size) else None


def gaussian(value: Number) -> tuple[Fraction, Fraction] | None:
    """The real and the imaginary part of a number, if both are rational."""
    if isinstance(value, Fraction):
        return value, Fraction(0)
    real, imaginary = (rational(_unless_nothing(part, value)) for part in (value.real, value.imag))
    return None if real is None or imaginary is None else (real, imaginary)


def real_part(value: Number) -> Fraction | None:
    """A real number as a fraction, exact or to 80 digits; None if it is not real, or too large, and for None."""
    if value is None or isinstance(value, Fraction):
        return value
    if abs(value.imag) > _NOTHING * abs(value) or abs(value.real) > _context.mpf(10) ** 300:
        return None
    return Fraction(*mpmath.libmp.to_rational(value.real._mpf_))


def fingerprint(value: Number) -> str:
    """A value as a canonical string: a fraction, or 40 digits of its real and its imaginary part."""
    if value is None:
        return "none"
    exact, parts = gaussian(value), (value.real, value.imag)
    shown = map(_spelled, exact) if exact else (_context.nstr(_unless_nothing(part, value), SHOWN) for part in parts)
    real, imaginary = shown
    return real if imaginary in ("0", "0.0") else f"{real}{'' if imaginary.startswith('-') else '+'}{imaginary}i"


def _spelled(value: Fraction) -> str:
    """An exact fraction in digits, or a hash of it if it has too many."""
    if _bits(value) <= SPELLED_BITS:
        return str(value)
    digest = hashlib.sha256(f"{value.numerator:x}/{value.denominator:x}".encode()).hexdigest()
    return f"{'-' if value < 0 else ''}#{digest[:SHOWN]}"


def _bits(value: Fraction) -> int:
    return max(value.numerator.bit_length(), value.denominator.bit_length())


def _unless_nothing(part: Number, whole: Number) -> Number:
    return part if abs(part) > _NOTHING * abs(whole) else _context.mpf(0)


def _close(first: Number, second: Number) -> bool:
    if first is None or second is None:
        return first is second
    if isinstance(first, Fraction) and isinstance(second, Fraction):
        return first == second
    first, second = _real(first), _real(second)
    return bool(abs(first - second) <= _AGREEMENT * max(abs(first), abs(second)))


def _real(value: Number) -> Number:
    """A value as one of mpmath's numbers."""
    if isinstance(value, Fraction):
        return _context.mpf(value.numerator) / _context.mpf(value.denominator)
    return value


def _exact(value: Fraction) -> Number:
    """A fraction, converted to 80 digits if it exceeds the bound."""
    return _real(value) if _bits(value) > MAX_BITS else value


# The value of a node from the values of its parts


def _value(tree: Expression, point: int, degrees: bool) -> Number:
    """The finite value of a node at a point. `degrees`: a degree sign means pi/180, as in trigonometric functions."""
    inside = degrees or (tree.kind == "function" and tree.name in TRIGONOMETRIC)
    parts = [_value(part, point, inside) for part in tree.parts]
    match tree.kind:
        case "number":
            value = tree.value
        case "symbol":
            value = point_of(tree.name, point)
        case "constant":
            value = {"pi": +_context.pi, "e": +_context.e, "i": _context.mpc(0, 1)}[tree.name]
        case "function":
            value = _FUNCTIONS[tree.name](*parts)
        case "degree":
            value = _real(parts[0]) * _context.pi / 180 if degrees else parts[0]
        case _:
            value = _OPERATIONS[tree.kind](*parts)
    if not isinstance(value, Fraction) and not _context.isfinite(value):
        raise ArithmeticError("not a finite number")
    return value


def _sum(*terms: Number) -> Number:
    if all(isinstance(term, Fraction) for term in terms):
        return _exact(sum(terms, Fraction(0)))
    terms = tuple(map(_real, terms))
    total = _context.fsum(terms)
    return Fraction(0) if abs(total) <= _NOTHING * max(map(abs, terms)) else total


def _product(*factors: Number) -> Number:
    if all(isinstance(factor, Fraction) for factor in factors):
        return _exact(math.prod(factors, start=Fraction(1)))
    return Fraction(0) if not all(factors) else _context.fprod(map(_real, factors))


def _quotient(above: Number, below: Number) -> Number:
    if isinstance(above, Fraction) and isinstance(below, Fraction):
        return _exact(above / below)
    if not below:
        raise ZeroDivisionError("division by zero")
    return _real(above) / _real(below) if above else Fraction(0)


def _power(base: Number, exponent: Number) -> Number:
    if abs(exponent) > MAX_EXPONENT:
        raise OverflowError("an exponent too large")
    whole = rational(exponent)
    if whole is not None and whole.denominator == 1:
        if isinstance(base, Fraction) and _bits(base) * abs(whole) <= MAX_BITS:
            return base ** int(whole)
        return _in_bounds(_real(base) ** int(whole))
    if whole is not None and whole.denominator % 2 and not _real(base).imag and _real(base).real < 0:
        # A real root, as the cube root is.
        return _in_bounds(_root(base, Fraction(whole.denominator)) ** int(whole.numerator))
    if not base:
        raise ZeroDivisionError("a power of zero")
    return _in_bounds(_context.power(_real(base), _real(exponent)))


def _in_bounds(value: Number) -> Number:
    """The same value. Raises OverflowError if it is so large or small that a sum with it would lose terms."""
    if value and not 1 / _LARGEST < abs(value) < _LARGEST:
        raise OverflowError("a number beyond the bounds")
    return value


def _root(inside: Number, degree: Number = Fraction(2)) -> Number:
    if not inside:
        return Fraction(0)
    whole = rational(degree)
    if whole is None or whole.denominator != 1 or not 1 <= whole <= MAX_EXPONENT:
        raise ValueError("a root of no whole degree")
    value = _real(inside)
    if whole % 2 and not value.imag and value.real < 0:  # the cube root of -8 is -2
        return -_context.root(-value.real, int(whole))
    return _context.root(value, int(whole))


def _factorial(value: Number) -> Number:
    whole = rational(value)
    if abs(value) > MAX_FACTORIAL:
        raise OverflowError("a factorial too large")
    if whole is not None and whole.denominator == 1 and 0 <= whole <= 1000:
        return _exact(Fraction(math.factorial(int(whole))))
    return _context.factorial(_real(value))


def _binomial(n: Number, k: Number) -> Number:
    if max(abs(n), abs(k)) > MAX_FACTORIAL:
        raise OverflowError("a binomial coefficient too large")
    if isinstance(n, Fraction) and isinstance(k, Fraction) and n.denominator == k.denominator == 1 and 0 <= k <= n:
        return _exact(Fraction(math.comb(int(n), int(k)))) if n <= 10_000 else _context.binomial(int(n), int(k))
    return _context.binomial(_real(n), _real(k))


def _rounded(towards: Callable[[Fraction], int], value: Number) -> Number:
    exact = rational(value) or real_part(value)
    if exact is None:
        raise ValueError("no real number")
    return Fraction(towards(exact))


def _extreme(choose: Callable[..., Number], *values: Number) -> Number:
    return choose(values, key=lambda value: _real(value).real)


def _divisor(function: Callable[..., int], *values: Number) -> Number:
    whole = [rational(value) for value in values]
    if any(value is None or value.denominator != 1 for value in whole):
        raise ValueError("no whole numbers")
    return Fraction(function(*(int(value) for value in whole if value is not None)))


def _by(name: str, *values: Number) -> Number:
    return getattr(_context, name)(*map(_real, values))


_PIECEWISE = {"floor", "ceiling", "max", "min", "absolute"}
TRIGONOMETRIC = "sin cos tan cot sec csc".split()
_OPERATIONS: dict[str, Callable[..., Number]] = {
    "mixed": _sum,
    "sum": _sum,
    "product": _product,
    "fraction": _quotient,
    "power": _power,
    "root": _root,
    "negative": lambda value: -value,
    "percent": lambda value: _quotient(value, Fraction(100)),
}
_FUNCTIONS: dict[str, Callable[..., Number]] = {
    **{name: partial(_by, name) for name in (*TRIGONOMETRIC, "sinh", "cosh", "tanh", "coth", "exp", "ln", "log")},
    **{f"arc{name}": partial(_by, f"a{name}") for name in TRIGONOMETRIC},
    **{f"ar{name}": partial(_by, f"a{name}") for name in ("sinh", "cosh", "tanh")},
    "factorial": _factorial,
    "binomial": _binomial,
    "absolute": abs,
    "floor": partial(_rounded, math.floor),
    "ceiling": partial(_rounded, math.ceil),
    "max": partial(_extreme, max),
    "min": partial(_extreme, min),
    "gcd": partial(_divisor, math.gcd),
    "lcm": partial(_divisor, math.lcm),
    "derivative": lambda value: value,
}

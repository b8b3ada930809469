"""The form of an answer: which operations it leaves unevaluated ("undone"), and so whether it is a value.

These are in normal form: a number; a fraction that is not a whole number; a power of ten times a number; roots, pi, e
and i with a coefficient; sums of terms that are not rational multiples of each other; formulas of symbols. Everything
else leaves an operation undone: `48 + 24`, `5!`, `\\sqrt{144}`, `\\log_2 8`, `2x + 3x`. Functions without a simpler
form, as in `\\ln 2` or `\\cos x`, are not undone but are listed as well, because an answer may contain them only if its
reference does.
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from lite_selfplay.verify.expression import TIMES, Expression, Unreadable, parse
from lite_selfplay.verify.formulas import (
    MANY_POINTS,
    TRIGONOMETRIC,
    Number,
    angle,
    constant_ratio,
    equal,
    fingerprint,
    gaussian,
    points_for,
    rational,
    values,
    variables,
)
from lite_selfplay.verify.operations import OPERATION_OF

MAX_TERMS = 60  # of a sum that can be an answer: its terms are compared with each other
_NAMES = {"fraction": "quotient", "negative": "sum", "mixed": "sum", "degree": "product", "percent": "quotient"}
_ONE = Expression("number", value=Fraction(1))
_values = lru_cache(maxsize=4096)(values)  # a sum compares its parts with each other
# Sines and cosines of multiples of pi/12 have values in roots.
_KNOWN_ANGLES = 12


@dataclass(frozen=True)
class Formula:
    """A parsed formula. `undone` and `functions` are names of operations; `values` has its value at each test point."""

    tree: Expression
    variables: frozenset[str]
    undone: frozenset[str]
    functions: frozenset[str]
    values: tuple[Number, ...]

    @property
    def operations(self) -> frozenset[str]:
        """The operations in it that are not in normal form, and its functions."""
        return self.undone | self.functions

    @property
    def constant(self) -> Number | None:
        """Its value if it has no variables, else None."""
        return None if self.variables else self.values[0]

    def same_chain(self, other: "Formula") -> bool | None:
        """Whether both are chains (see `chain`) of the same numbers; None if this one is not a chain. The order counts,
        except in sums without a minus and in factorisations (products with a power or with dots)."""
        if (wanted := chain(self.tree)) is None:
            return None
        given = chain(other.tree) if self.tree.kind == other.tree.kind else None
        if given is None or wanted == given:
            return given is not None
        dimensions = self.tree.name == TIMES and all(exponent == 1 for _, exponent in wanted)
        fixed = dimensions or self.tree.kind == "fraction" or any(number < 0 for number, _ in wanted)
        return not fixed and _collected(wanted) == _collected(given)

    def same_value(self, other: "Formula") -> bool:
        """Whether both have the same value, in any form."""
        if self.variables != other.variables:
            return False
        if len(self.values) == len(other.values):
            return equal(self.values, other.values)
        return equal(values(self.tree, MANY_POINTS), values(other.tree, MANY_POINTS))

    def proportional(self, other: "Formula") -> bool:
        """Whether one is a multiple of the other by a rational number other than 0."""
        alike = self.variables == other.variables and len(self.values) == len(other.values)
        return alike and bool(constant_ratio(self.values, other.values))

    def key(self) -> str | None:
        """The value as a canonical string; None if an operation is left undone."""
        if self.undone:
            return None
        marks = [" ".join(sorted(self.variables))] if self.variables else []
        return " | ".join([*marks, " ".join(map(fingerprint, self.values)), *sorted(self.functions)])


@lru_cache(maxsize=4096)
def to_formula(text: str) -> Formula | None:
    """A tidy text as a formula; None if it is not one, or has no value."""
    try:
        tree = parse(text)
        functions = frozenset(OPERATION_OF[node.name] for node in tree.nodes() if node.kind == "function")
        return Formula(tree, variables(tree), undone(tree), functions, values(tree, points_for(tree)))
    except Unreadable:
        return None


def undone(tree: Expression) -> frozenset[str]:
    """The names of the operations that a formula leaves undone. Raises Unreadable if a part has no value."""
    name = OPERATION_OF[tree.name] if tree.kind == "function" else _NAMES.get(tree.kind, tree.kind)
    own = {name} if _is_undone(tree) else set()
    return frozenset(own.union(*(undone(part) for part in tree.parts if not is_literal(tree))))


def _number(tree: Expression) -> Number | None:
    """The value of a part without variables; None for any other part."""
    found = _values(tree)
    return found[0] if len(found) == 1 else None


def _is_undone(tree: Expression) -> bool:
    """Whether the outermost operation of a formula could be evaluated."""
    if tree.kind in ("number", "symbol", "constant") or is_literal(tree):
        return False
    value = _number(tree)
    if rational(value) is not None and tree.kind != "negative":
        return True
    match tree.kind:
        case "sum":
            return _sum(tree)
        case "product":
            return _product(tree)
        case "fraction" if value is not None and gaussian(value) is not None:  # undone if the divisor is not real
            below = gaussian(_values(tree.parts[1])[0])
            return below is not None and below[1] != 0
        case "power":
            return value is not None and _power(tree)
        case "root":  # undone if it has a value without roots, such as 2i for the root of -4
            return value is not None and gaussian(value) is not None
        case "function":
            return _function(tree, value)
    return False


def is_literal(tree: Expression) -> bool:
    """Whether a formula is one written number: digits, a sign, a fraction of digits, a mixed number, 3 * 10^8, 5%."""
    match tree.kind:
        case "negative" | "degree" | "percent":
            return is_literal(tree.parts[0])
        case "fraction":
            above, below = (_digits(part) for part in tree.parts)
            return bool(above is not None and below and ((above / below).denominator > 1 or abs(below) == 1))
        case "product":
            return len(tree.parts) == 2 and _digits(tree.parts[0]) is not None and _power_of_ten(tree.parts[1])
        case _:
            return tree.kind in ("number", "mixed") or _power_of_ten(tree)


def chain(tree: Expression) -> tuple[tuple[Number, Number], ...] | None:
    r"""The numbers of a chain (plain numbers joined by one sign), each with its exponent; None for any other formula.
    Dates, ranges, scores, sizes and factorisations are chains: 2024-03-05, 10-15, 3 \times 4, 2^2 \cdot 3."""
    if tree.kind not in ("sum", "product", "fraction") or is_literal(tree):
        return None
    powers = (each.parts if each.kind == "power" and tree.kind == "product" else (each, _ONE) for each in _links(tree))
    found = tuple((_digits(base), _digits(exponent)) for base, exponent in powers)
    return None if any(None in pair for pair in found) else found


def _links(tree: Expression) -> tuple[Expression, ...]:
    """The parts of a chain, also of nested fractions such as 3/5/2024."""
    nested = tree.kind == tree.parts[0].kind == "fraction"
    return (*_links(tree.parts[0]), tree.parts[1]) if nested else tree.parts


def _collected(links: tuple[tuple[Number, Number], ...]) -> dict[Number, Number]:
    """The sum of the exponents of each number in a chain."""
    return {number: sum(count for other, count in links if other == number) for number, _ in links}


def _digits(tree: Expression) -> Fraction | None:
    """The value of a number, possibly with a sign; None for anything else."""
    if tree.kind == "negative":
        inner = _digits(tree.parts[0])
        return None if inner is None else -inner
    return tree.value if tree.kind == "number" else None


def _power_of_ten(tree: Expression) -> bool:
    if tree.kind != "power" or tree.parts[0].kind != "number" or tree.parts[0].value != 10:
        return False
    exponent = _digits(tree.parts[1])
    return exponent is not None and exponent.denominator == 1


# When an operation is undone whose value is not a rational number


def _sum(tree: Expression) -> bool:
    """Whether two terms can be combined because one is a rational multiple of the other, or a term is zero."""
    if len(tree.parts) > MAX_TERMS:
        raise Unreadable("too many terms")
    terms = [_values(part) for part in tree.parts]
    zero = any(not any(term) for term in terms)
    return zero or any(constant_ratio(a, b) is not None for i, a in enumerate(terms) for b in terms[:i])


def _product(tree: Expression) -> bool:
    """Whether it multiplies two numbers, two square roots, two sums of numbers, or a constant by itself."""
    factors = [part for part in tree.parts if not _power_of_ten(part)]
    numbers = [part for part in factors if rational(_number(part)) is not None]
    constant = [part for part in factors if _number(part) is not None]
    roots = [part for part in constant if part.kind == "root" and len(part.parts) == 1]
    sums = [part for part in constant if part.kind == "sum"]
    return len(numbers) > 1 or len(roots) > 1 or len(sums) > 1 or len(set(constant)) < len(constant)


def _power(tree: Expression) -> bool:
    """Whether it is an integer power of a sum, product or root of numbers, or of i."""
    base, exponent = tree.parts
    count = rational(_number(exponent))
    known = base.kind in ("sum", "product", "root", "fraction", "power") or base.name == "i"
    return known and count is not None and count.denominator == 1


def _function(tree: Expression, value: Number | None) -> bool:
    """Whether it is a derivative, or has a simpler value, such as the sine of a known angle."""
    if tree.name == "derivative" or value is None:
        return tree.name == "derivative"
    if OPERATION_OF[tree.name] in ("factorial", "rounding", "absolute value", "extremum", "divisor"):
        return True
    if tree.name.startswith("arc"):
        return _is_share_of_pi(value, None)
    return tree.name in TRIGONOMETRIC and _is_share_of_pi(angle(tree.parts[0]), _KNOWN_ANGLES)


def _is_share_of_pi(value: Number, denominator: int | None) -> bool:
    (pi,) = values(Expression("constant", name="pi"))
    share = constant_ratio((value,), (pi,))
    return share is not None and (denominator is None or (share * denominator).denominator == 1)

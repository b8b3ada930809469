"""`arithmetic` and `multiplication`, each with a worked solution written by rule.

Source of `multiplication`: the arithmetic test of SQLM, 4,096 problems "following the setup from TinyZero" (section
5.1), whose script draws both factors from 0 to 999.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile
from math import prod

from lite_selfplay.data import Problem
from lite_selfplay.errors import TaskError
from lite_selfplay.tasks.base import Task
from lite_selfplay.tasks.procedural import (
    TRIES,
    Procedural,
    attempt_rng,
    refuse_unknown,
    whole_number,
)

SIZE = 100_000
MAX_COMPLETION_TOKENS = 256

_OPTIONS = ("digits", "terms", "ops", "max", "last", "seed")
_LARGEST = 999_999

# A sign and the factors of a product; a single term is a product of one factor.
Part = tuple[str, list[int]]


@dataclass(frozen=True)
class Shape:
    """The options of a task's problems: terms are from 1 to `largest`, the last one from 1 to `last`."""

    terms: int
    ops: str
    largest: int
    last: int


def arithmetic(seed: int = 0, held_out: bool = False, /, **options: str) -> Task:
    """Problems such as `What is 27 + 14 - 6?`; no intermediate value is negative, and products come before sums.

    Options: `digits`, the maximum number of digits of a term (1 to 6, default 2); `terms` (2 to 6, default 3); `ops`,
    some of `+-*` (default `+-`); `max`, the largest term, instead of `digits`; `last`, the largest last term (both 1 to
    999999); `seed`, added to the run's. Terms and factors in another order make the same problem. Raises TaskError for
    other values, an unknown option, and options that no problem satisfies.
    """
    refuse_unknown("arithmetic", options, _OPTIONS)
    seed += whole_number("arithmetic", "seed", options.get("seed", "0"), 0, 2**32)
    shape = _shape(options)

    def make(index: int, attempt: int) -> Problem:
        parts = _draw(shape, attempt_rng(seed, "arithmetic", index, attempt))
        text = f"What is {_written(parts)}?"
        steps, value = _solve(parts)
        return Problem(
            f"arithmetic-{index}", text, str(value), extra={"solution": " ".join(steps), "content": _content(parts)}
        )

    return Task("arithmetic", Procedural("arithmetic", SIZE, held_out, make), _tokens(shape), procedural=True)


def multiplication(seed: int = 0, held_out: bool = False, /, digits: str = "3", **unknown: str) -> Task:
    """Problems such as `What is 123 * 456?`, each factor from 0 to the largest number of `digits` digits (1 to 6).

    Factors in another order are the same problem. Raises TaskError for other values or an unknown option.
    """
    refuse_unknown("multiplication", unknown, ("digits",))
    count = whole_number("multiplication", "digits", digits, 1, 6)

    def make(index: int, attempt: int) -> Problem:
        rng = attempt_rng(seed, "multiplication", index, attempt)
        a, b = (rng.randint(0, 10**count - 1) for _ in range(2))
        extra = {"solution": _by_partial_products(a, b), "content": f"{min(a, b)} * {max(a, b)}"}
        return Problem(f"multiplication-{index}", f"What is {a} * {b}?", str(a * b), extra=extra)

    problems = Procedural("multiplication", SIZE, held_out, make)
    return Task("multiplication", problems, MAX_COMPLETION_TOKENS, procedural=True)


def _shape(options: Mapping[str, str]) -> Shape:
    digits = whole_number("arithmetic", "digits", options.get("digits", "2"), 1, 6)
    terms = whole_number("arithmetic", "terms", options.get("terms", "3"), 2, 6)
    ops = options.get("ops", "+-")
    if not ops or not set(ops) <= set("+-*") or len(set(ops)) < len(ops):
        raise TaskError(f"arithmetic:ops must be one or more of +-*, each at most once, got {ops!r}")
    largest = whole_number("arithmetic", "max", options.get("max", str(10**digits - 1)), 1, _LARGEST)
    last = whole_number("arithmetic", "last", options.get("last", str(largest)), 1, _LARGEST)
    return Shape(terms, "".join(sorted(ops)), largest, last)


def _tokens(shape: Shape) -> int:
    """Twice the tokens of the worked solution, at one token per character, and room for the answer's tags."""
    width = len(str(max(shape.largest, shape.last)))
    width = width * shape.terms if "*" in shape.ops else width + 1
    steps = (shape.terms - 1) * (3 * width + len(" + = . "))
    return min(MAX_COMPLETION_TOKENS, 32 + 2 * steps)


def _draw(shape: Shape, rng: random.Random) -> list[Part]:
    for _ in range(TRIES):
        parts = _try(shape, rng)
        if parts is not None:
            return parts
    raise TaskError(
        f"arithmetic finds no problem with {shape.terms} terms up to {shape.largest} (the last up to {shape.last}), "
        f"{shape.ops} and no negative intermediate value: allow larger terms, fewer of them, or +"
    )


def _try(shape: Shape, rng: random.Random) -> list[Part] | None:
    """Parts drawn from left to right so that the total is never negative; None if that is not possible."""
    limits = [shape.largest] * (shape.terms - 1) + [shape.last]
    signs, sizes = "+", [1]
    for _ in range(shape.terms - 1):
        operator = rng.choice(shape.ops)
        if operator == "*":
            sizes[-1] += 1
        else:
            signs, sizes = signs + operator, [*sizes, 1]
    parts: list[Part] = []
    total = 0
    for place, (sign, size) in enumerate(zip(signs, sizes, strict=True)):
        # Each difference that follows directly subtracts at least 1.
        reserve = len(list(takewhile("-".__eq__, signs[place + 1 :])))
        factors: list[int] = []
        for _ in range(size):
            limit = limits.pop(0)
            if sign == "-":
                limit = min(limit, (total - reserve) // prod(factors))
            factors.append(rng.randint(1, limit))
        total += prod(factors) if sign == "+" else -prod(factors)
        if total < reserve:
            return None
        parts.append((sign, factors))
    return parts


def _written(parts: list[Part]) -> str:
    return "".join(f" {sign} {' * '.join(map(str, factors))}" for sign, factors in parts).removeprefix(" + ")


def _solve(parts: list[Part]) -> tuple[list[str], int]:
    """One sentence per operation, products first, and the value."""
    steps, products = [], []
    for sign, factors in parts:
        value = factors[0]
        for factor in factors[1:]:
            steps.append(f"{value} * {factor} = {value * factor}.")
            value *= factor
        products.append((sign, value))
    total = products[0][1]
    for sign, value in products[1:]:
        after = total + value if sign == "+" else total - value
        steps.append(f"{total} {sign} {value} = {after}.")
        total = after
    return steps, total


def _content(parts: list[Part]) -> str:
    return " ".join(sorted(sign + "*".join(map(str, sorted(factors))) for sign, factors in parts))


def _by_partial_products(a: int, b: int) -> str:
    """A product for each digit of `b` that is not 0, then their sum, one after another."""
    if not b:
        return f"{a} * 0 = 0."
    digits = str(b)
    parts = [int(digit) * 10 ** (len(digits) - 1 - place) for place, digit in enumerate(digits) if digit != "0"]
    steps = [f"{a} * {part} = {a * part}." for part in parts]
    total = a * parts[0]
    for part in parts[1:]:
        steps.append(f"{total} + {a * part} = {total + a * part}.")
        total += a * part
    return " ".join(steps)

"""`arithmetic`, `multiplication`, `equations` and `stories`, each with generated worked solutions.

Source of `multiplication`: the arithmetic test of a paper, SQLM, 4,096 problems "following the setup from TinyZero"
(section 5.1), whose script draws both factors from 0 to 999. Its algebra task is linear equations with up to two
variables, evaluated on the benchmark OMEGA.
"""

import random
import re
from collections.abc import Sequence
from fractions import Fraction
from functools import partial
from itertools import accumulate, takewhile
from math import prod
from operator import mul
from typing import Any

from lite_selfplay.errors import TaskError
from lite_selfplay.tasks.procedural import TRIES, by_rule, refuse_unknown, whole_number
from lite_selfplay.tasks.task import Task

_OPTIONS = ("digits", "terms", "ops", "max", "last", "brief", "seed")
_LARGEST = 999_999

# A sign and the factors of a product; a single term is a product of one factor.
Part = tuple[str, list[int]]


def arithmetic(seed: int = 0, held_out: bool = False, /, **options: str) -> Task:
    """Problems such as `What is 27 + 14 - 6?`; no intermediate value is negative, and products come before sums.

    Options: `digits`, the maximum number of digits of a term (1 to 6, default 2); `terms` (2 to 6, default 3); `ops`,
    some of `+-*` (default `+-`); `max`, the largest term, instead of `digits`; `last`, the largest last term (both 1 to
    999999); `brief` (0 or 1), whether prompts are short and share their beginning, for slow machines; `seed`, added to
    the run's. Terms and factors in another order make the same problem. Raises TaskError for other values, an unknown
    option, and options that allow no problem.
    """
    refuse_unknown("arithmetic", options, _OPTIONS)
    seed += whole_number("arithmetic", "seed", options.get("seed", "0"), 0, 2**32)
    digits = whole_number("arithmetic", "digits", options.get("digits", "2"), 1, 6)
    terms = whole_number("arithmetic", "terms", options.get("terms", "3"), 2, 6)
    ops = "".join(sorted(options.get("ops", "+-")))
    if not ops or not set(ops) <= set("+-*") or len(set(ops)) < len(ops):
        raise TaskError(f"arithmetic:ops must be one or more of +-*, each at most once, got {options['ops']!r}")
    largest = whole_number("arithmetic", "max", options.get("max", str(10**digits - 1)), 1, _LARGEST)
    last = whole_number("arithmetic", "last", options.get("last", str(largest)), 1, _LARGEST)
    limits = [largest] * (terms - 1) + [last]
    form = {"asked_briefly": True} if whole_number("arithmetic", "brief", options.get("brief", "0"), 0, 1) else {}

    def draw(rng: random.Random) -> tuple[str, str, dict[str, Any]]:
        parts = next(filter(None, (_parts(limits, ops, rng) for _ in range(TRIES))), None)
        if parts is None:
            raise TaskError(
                f"arithmetic finds no problem with {terms} terms up to {largest} (the last up to {last}), {ops} and no "
                "negative intermediate value: allow larger terms, fewer of them, or +"
            )
        steps, totals = _solve(parts)
        written = "".join(f" {sign} {' * '.join(map(str, factors))}" for sign, factors in parts).removeprefix(" + ")
        content = " ".join(sorted(sign + "*".join(map(str, sorted(factors))) for sign, factors in parts))
        return f"What is {written}?", str(totals[-1]), {"solution": " ".join(steps), "content": content, **form}

    # Twice the tokens of the worked solution, at one token per character, and room for the answer's tags.
    width = len(str(max(limits)))
    width = width * terms if "*" in ops else width + 1
    tokens = min(256, 32 + 2 * (terms - 1) * (3 * width + len(" + = . ")))
    return by_rule("arithmetic", seed, held_out, draw, max_completion_tokens=tokens)


def multiplication(seed: int = 0, held_out: bool = False, /, digits: str = "3") -> Task:
    """Problems such as `What is 123 * 456?`, each factor from 0 to the largest number of `digits` digits (1 to 6).

    Factors in another order are the same problem. Raises TaskError for other values.
    """
    count = whole_number("multiplication", "digits", digits, 1, 6)

    def draw(rng: random.Random) -> tuple[str, str, dict[str, str]]:
        a, b = (rng.randint(0, 10**count - 1) for _ in range(2))
        # A product for each digit of `b` that is not 0, then their running sum.
        by_place = [int(digit) * 10**place for place, digit in enumerate(reversed(str(b))) if digit != "0"]
        steps, _ = _solve([("+", [a, part]) for part in reversed(by_place or [0])])
        extra = {"solution": " ".join(steps), "content": f"{min(a, b)} * {max(a, b)}"}
        return f"What is {a} * {b}?", str(a * b), extra

    return by_rule("multiplication", seed, held_out, draw)


def _parts(limits: Sequence[int], ops: str, rng: random.Random) -> list[Part] | None:
    """Draw parts from left to right, each term from 1 to its limit, such that the total is never negative; None if that
    is impossible."""
    products = re.findall(r"[-+]\**", "+" + "".join(rng.choice(ops) for _ in limits[1:]))
    left = iter(limits)
    parts: list[Part] = []
    total = 0
    for position, product in enumerate(products):
        # Each difference that follows directly subtracts at least 1.
        sign, reserve = product[0], len(list(takewhile(lambda other: other[0] == "-", products[position + 1 :])))
        factors: list[int] = []
        for _ in product:
            limit = next(left) if sign == "+" else min(next(left), (total - reserve) // prod(factors))
            factors.append(rng.randint(1, limit))
        total += prod(factors) if sign == "+" else -prod(factors)
        if total < reserve:
            return None
        parts.append((sign, factors))
    return parts


def _solve(parts: Sequence[Part]) -> tuple[list[str], list[int]]:
    """The solution's steps, a sentence for each operation, products first; and the running totals."""
    steps = []
    for _, factors in parts:
        values = [*accumulate(factors, mul)]
        steps += [f"{x} * {y} = {z}." for x, y, z in zip(values, factors[1:], values[1:], strict=False)]
    terms = [(sign, prod(factors)) for sign, factors in parts]
    totals = [*accumulate(value if sign == "+" else -value for sign, value in terms)]
    steps += [f"{x} {sign} {y} = {z}." for x, (sign, y), z in zip(totals, terms[1:], totals[1:], strict=False)]
    return steps, totals


def equations(seed: int = 0, held_out: bool = False, /, variables: str = "1", max: str = "12") -> Task:
    """One variable: `3x + 7 = 5x - 4`, whose solution is a fraction in lowest terms. Two: a pair of equations whose
    solution is a pair of whole numbers. Coefficients, and solutions of pairs, lie between -`max` and `max` (3 to 999).

    Raises TaskError for other values.
    """
    count = whole_number("equations", "variables", variables, 1, 2)
    largest = whole_number("equations", "max", max, 3, 999)
    draw = partial(_one if count == 1 else _two, largest)
    return by_rule("equations", seed, held_out, draw, seeded=f"equations {count}")


def _one(largest: int, rng: random.Random) -> tuple[str, str, dict[str, str]]:
    """A problem `a x + b = c x + d`: (text, answer, extra)."""
    a, b, c, d = (_coefficient(rng, largest) for _ in range(4))
    while c == a:
        c = _coefficient(rng, largest)
    left, right = a - c, d - b
    x = Fraction(right, left)
    last = "" if left == 1 else f" x = {x}."
    steps = f"{_term(a)} {_signed(-c, 'x')} = {d} {_signed(-b)}. {_term(left)} = {right}.{last}"
    return f"Solve for x: {_term(a)} {_signed(b)} = {_term(c)} {_signed(d)}.", str(x), {"solution": steps}


def _two(largest: int, rng: random.Random) -> tuple[str, str, dict[str, str]]:
    """A pair of equations in x and y with a solution in whole numbers: (text, answer, extra)."""
    while True:
        a, b, c, d = (_coefficient(rng, largest) for _ in range(4))
        if a * d != b * c:
            break
    x, y = rng.randint(-largest, largest), rng.randint(-largest, largest)
    e, f = a * x + b * y, c * x + d * y
    first, second = f"{_term(a * d)} {_signed(b * d, 'y')} = {e * d}", f"{_term(b * c)} {_signed(b * d, 'y')} = {f * b}"
    text = (
        f"Solve for x and y: {_term(a)} {_signed(b, 'y')} = {e} and {_term(c)} {_signed(d, 'y')} = {f}. "
        "Give the pair (x, y)."
    )
    steps = (
        f"Take {d} times the first equation and {b} times the second: {first} and {second}. "
        f"Their difference is {_term(a * d - b * c)} = {e * d - f * b}. "
        f"x = {x}. {_term(b, 'y')} = {e} {_signed(-a * x)} = {b * y}. y = {y}."
    )
    return text, f"({x}, {y})", {"solution": steps}


def _coefficient(rng: random.Random, largest: int) -> int:
    """A whole number from -`largest` to `largest` that is not 0."""
    return rng.choice((-1, 1)) * rng.randint(1, largest)


def _term(coefficient: int, variable: str = "x") -> str:
    return f"{ {1: '', -1: '-'}.get(coefficient, coefficient) if variable else coefficient }{variable}"


def _signed(value: int, variable: str = "") -> str:
    """`+ 3y`, `- 4`: a term that follows another."""
    return f"{'-' if value < 0 else '+'} {_term(abs(value), variable)}"


# Word problems

_NAMES = ("Ann", "Ben", "Carla", "David", "Ella", "Farid", "Grace", "Hugo", "Ines", "Jon", "Kim", "Leo", "Mona", "Nils")
_THINGS = ("apples", "books", "cards", "coins", "eggs", "marbles", "pens", "shells", "stamps", "stickers")
# Each story names its numbers and how those after the first change it.
_STORIES = (
    ("{n} has {a} {t}. {n} buys {b} more and then gives away {c}.", "+-"),
    ("{n} had {a} {t}, lost {b} of them, and found {c} others.", "-+"),
    ("There are {a} {t} on a table. {n} puts {b} more there, and a friend adds {c}.", "++"),
    ("{n} collected {a} {t}, sold {b} in the morning and {c} in the evening.", "--"),
    ("A box holds {a} {t}. {n} takes out {b}, and later puts {c} back.", "-+"),
    ("{n} picked {a} {t} on Monday and {b} on Tuesday, then ate or broke {c}.", "+-"),
)
_SHORT_STORIES = (
    ("{n} has {a} {t} and buys {b} more.", "+"),
    ("{n} had {a} {t} and gave {b} of them to a friend.", "-"),
    ("There are {a} {t} in a box, and {n} puts {b} more inside.", "+"),
    ("{n} found {a} {t} in the morning and {b} in the evening.", "+"),
    ("{n} starts with {a} {t} and loses {b}.", "-"),
    ("A shelf holds {a} {t}. {n} takes {b} away.", "-"),
)


def stories(seed: int = 0, held_out: bool = False, /, max: str = "20", steps: str = "2") -> Task:
    """Problems `a +- b +- c` in words; numbers are from 1 to `max` (3 to a million), results are never negative.

    With `steps=1` the problems are `a +- b`. The same story about another person and other things is the same problem.
    Raises TaskError for other values.
    """
    largest = whole_number("stories", "max", max, 3, 1_000_000)
    templates = (_SHORT_STORIES, _STORIES)[whole_number("stories", "steps", steps, 1, 2) - 1]

    def draw(rng: random.Random) -> tuple[str, str, dict[str, str]]:
        text, signs = rng.choice(templates)
        while True:
            numbers = [rng.randint(1, largest) for _ in range(len(signs) + 1)]
            steps, totals = _solve([(sign, [number]) for sign, number in zip("+" + signs, numbers, strict=True)])
            if min(totals) >= 0:
                break
        name, things = rng.choice(_NAMES), rng.choice(_THINGS)
        values = dict(zip("abc", numbers, strict=False))
        extra = {"solution": " ".join(steps), "content": text.format(n="someone", t="things", **values)}
        told = f"{text} How many {{t}} are there in the end?"
        return told.format(n=name, t=things, **values), str(totals[-1]), extra

    return by_rule("stories", seed, held_out, draw, size=20_000, max_completion_tokens=64)

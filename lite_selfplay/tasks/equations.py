"""`equations`: linear equations in one or two variables with an exact solution, each with a solution by rule.

Source: linear equations with up to two variables are the algebra task of SQLM, which is measured on OMEGA's.
"""

import random
from fractions import Fraction

from lite_selfplay.tasks.procedural import by_rule, refuse_unknown, whole_number
from lite_selfplay.tasks.task import Task


def equations(seed: int = 0, held_out: bool = False, /, variables: str = "1", max: str = "12", **unknown: str) -> Task:
    """One variable: `3x + 7 = 5x - 4`, whose solution is a fraction in lowest terms. Two: a pair of equations whose
    solution is a pair of whole numbers. Coefficients, and solutions of pairs, lie between -`max` and `max` (3 to 999).

    Raises TaskError for other values or an unknown option.
    """
    refuse_unknown("equations", unknown, ("variables", "max"))
    count = whole_number("equations", "variables", variables, 1, 2)
    largest = whole_number("equations", "max", max, 3, 999)

    def draw(rng: random.Random) -> tuple[str, str, dict[str, str]]:
        text, answer, solution = (_one if count == 1 else _two)(rng, largest)
        return text, answer, {"solution": solution}

    return by_rule("equations", seed, held_out, draw, seeded=f"equations {count}")


def _one(rng: random.Random, largest: int) -> tuple[str, str, str]:
    """a x + b = c x + d."""
    a, b, c, d = (_coefficient(rng, largest) for _ in range(4))
    while c == a:
        c = _coefficient(rng, largest)
    left, right = a - c, d - b
    x = Fraction(right, left)
    last = "" if left == 1 else f" x = {x}."
    steps = f"{_term(a)} {_signed(-c, 'x')} = {d} {_signed(-b)}. {_term(left)} = {right}.{last}"
    return f"Solve for x: {_term(a)} {_signed(b)} = {_term(c)} {_signed(d)}.", str(x), steps


def _two(rng: random.Random, largest: int) -> tuple[str, str, str]:
    """a x + b y = e and c x + d y = f, through whole numbers x and y."""
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
    return text, f"({x}, {y})", steps


def _coefficient(rng: random.Random, largest: int) -> int:
    """A whole number from -`largest` to `largest` that is not 0."""
    return rng.choice((-1, 1)) * rng.randint(1, largest)


def _term(coefficient: int, variable: str = "x") -> str:
    return f"{ {1: '', -1: '-'}.get(coefficient, coefficient) }{variable}"


def _signed(value: int, variable: str = "") -> str:
    """`+ 3y`, `- 4`: a term that follows another."""
    size = "" if variable and abs(value) == 1 else str(abs(value))
    return f"{'-' if value < 0 else '+'} {size}{variable}"

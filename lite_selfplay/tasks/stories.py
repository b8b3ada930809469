"""`stories`: word problems of two steps with small numbers, each with a solution written by rule.

Two steps, so that a draft whose final value is withheld still has something to say.
"""

import random

from lite_selfplay.data import Problem
from lite_selfplay.tasks.base import Task
from lite_selfplay.tasks.procedural import Procedural, attempt_rng, refuse_unknown, whole_number

SIZE = 20_000
MAX_COMPLETION_TOKENS = 64

_NAMES = ("Ann", "Ben", "Carla", "David", "Ella", "Farid", "Grace", "Hugo", "Ines", "Jon", "Kim", "Leo", "Mona", "Nils")
_THINGS = ("apples", "books", "cards", "coins", "eggs", "marbles", "pens", "shells", "stamps", "stickers")
# Each story names three numbers and how the second and the third change the first.
_STORIES = (
    ("{n} has {a} {t}. {n} buys {b} more and then gives away {c}.", "+-"),
    ("{n} had {a} {t}, lost {b} of them, and found {c} others.", "-+"),
    ("There are {a} {t} on a table. {n} puts {b} more there, and a friend adds {c}.", "++"),
    ("{n} collected {a} {t}, sold {b} in the morning and {c} in the evening.", "--"),
    ("A box holds {a} {t}. {n} takes out {b}, and later puts {c} back.", "-+"),
    ("{n} picked {a} {t} on Monday and {b} on Tuesday, then ate or broke {c}.", "+-"),
)


def stories(seed: int = 0, held_out: bool = False, /, max: str = "20", **unknown: str) -> Task:
    """Problems `a +- b +- c`, told as a story; numbers from 1 to `max` (3 to a million), results never negative.

    The same story about another person and other things is the same problem. Raises TaskError for another `max` or an
    unknown option.
    """
    refuse_unknown("stories", unknown, ("max",))
    largest = whole_number("stories", "max", max, 3, 1_000_000)

    def make(index: int, attempt: int) -> Problem:
        return _story(index, largest, attempt_rng(seed, "stories", index, attempt))

    return Task("stories", Procedural("stories", SIZE, held_out, make), MAX_COMPLETION_TOKENS, procedural=True)


def _story(index: int, largest: int, rng: random.Random) -> Problem:
    text, signs = rng.choice(_STORIES)
    while True:
        a, b, c = (rng.randint(1, largest) for _ in range(3))
        middle = a + b if signs[0] == "+" else a - b
        final = middle + c if signs[1] == "+" else middle - c
        if middle >= 0 and final >= 0:
            break
    name, things = rng.choice(_NAMES), rng.choice(_THINGS)
    told = text.format(n=name, t=things, a=a, b=b, c=c)
    question = f"How many {things} are there in the end?"
    extra = {
        "solution": f"{a} {signs[0]} {b} = {middle}. {middle} {signs[1]} {c} = {final}.",
        "content": text.format(n="someone", t="things", a=a, b=b, c=c),
    }
    return Problem(f"stories-{index}", f"{told} {question}", str(final), extra=extra)

"""`stories`: word problems of one or two steps with small numbers, each with a worked solution written by rule.

The default is two steps, so that a draft can go wrong in one and go on from there.
"""

import random
from itertools import accumulate

from lite_selfplay.tasks.procedural import by_rule, refuse_unknown, whole_number
from lite_selfplay.tasks.task import Task

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


def stories(seed: int = 0, held_out: bool = False, /, max: str = "20", steps: str = "2", **unknown: str) -> Task:
    """Problems `a +- b +- c` in words; numbers are from 1 to `max` (3 to a million), results are never negative.

    With `steps=1` the problems are `a +- b`. The same story about another person and other things is the same problem.
    Raises TaskError for other values of these options or an unknown option.
    """
    refuse_unknown("stories", unknown, ("max", "steps"))
    largest = whole_number("stories", "max", max, 3, 1_000_000)
    templates = (_SHORT_STORIES, _STORIES)[whole_number("stories", "steps", steps, 1, 2) - 1]

    def draw(rng: random.Random) -> tuple[str, str, dict[str, str]]:
        text, signs = rng.choice(templates)
        while True:
            numbers = [rng.randint(1, largest) for _ in range(len(signs) + 1)]
            changes = [y if sign == "+" else -y for sign, y in zip(signs, numbers[1:], strict=True)]
            results = list(accumulate([numbers[0], *changes]))[1:]  # after each step
            if min(results) >= 0:
                break
        name, things = rng.choice(_NAMES), rng.choice(_THINGS)
        values = dict(zip("abc", numbers, strict=False))
        lefts = [numbers[0], *results]
        steps = [f"{x} {sign} {y} = {z}." for x, sign, y, z in zip(lefts, signs, numbers[1:], results, strict=False)]
        extra = {"solution": " ".join(steps), "content": text.format(n="someone", t="things", **values)}
        story = text.format(n=name, t=things, **values)
        return f"{story} How many {things} are there in the end?", str(results[-1]), extra

    return by_rule("stories", seed, held_out, draw, size=20_000, max_completion_tokens=64)

"""`find`: a task that is solved by trial and check, whose traces hold several attempts.

`7x mod 17=9, x from 10 to 26. Give 100x+35.` has one x that fits. A trace starts anywhere and counts on, from 26 to 10,
a line for each number, until one fits or it is given up. After the reasoning a recap says what follows from it: which
numbers are ruled out, or which one fits and what the answer is then.

    <think>
    12:16          7 * 12 mod 17 is 16, not 9
    13:6
    14:13
    </think>
    x not 12-14. <answer>none</answer>

    <think>
    24:15
    25:5
    26:12
    10:2
    11:9!
    </think>
    x=11, so 1135. <answer>1135</answer>

A cap of `CAP` tokens has room for six attempts and a recap. Use: `--tasks experiments/attempts/task.py:find`.
"""

import random
from dataclasses import asdict, dataclass
from typing import Any

from lite_selfplay.data import Problem
from lite_selfplay.tasks import Task
from lite_selfplay.tasks.procedural import by_rule, refuse_unknown, whole_number

CANDIDATES = range(10, 27)
MODULUS = len(CANDIDATES)  # a prime: every product is another one
FACTORS = (3, 5, 6, 7, 10, 11, 12, 14)
SUMMANDS = range(11, 100, 4)
CAP = 39
NONE, FITS = "none", "!"
STOPS = (0.1, 0.15, 0.2, 0.3, 0.4, 0.6, 1.0)
"""How likely the writer of worked traces gives up after the first failed attempt, the second, ..."""
ASKED = f"x mod {MODULUS}=", f", x from {CANDIDATES[0]} to {CANDIDATES[-1]}. Give 100x+"
PHRASES = (*ASKED, "x not ", "x=", ", so ")
"""What a tokenizer may have as one token each."""


def find(seed: int = 0, held_out: bool = False, /, **options: str) -> Task:
    """Problems `ax mod m=b, give 100x+s`, 3,128 of them. Option: `seed`, added to the run's."""
    refuse_unknown("find", options, ("seed",))
    seed += whole_number("find", "seed", options.get("seed", "0"), 0, 2**32)

    def draw(rng: random.Random) -> tuple[str, str, dict[str, Any]]:
        search = Search(rng.choice(FACTORS), rng.choice(SUMMANDS), rng.choice(CANDIDATES))
        return str(search), search.answer(search.x), {"search": asdict(search)}

    return by_rule("find", seed, held_out, draw, max_completion_tokens=CAP)


def following(number: int) -> int:
    """The candidate after another one."""
    return CANDIDATES[(number + 1 - CANDIDATES[0]) % MODULUS]


@dataclass(frozen=True)
class Search:
    """A problem, and the x that fits."""

    a: int
    s: int
    x: int

    @classmethod
    def of(cls, problem: Problem) -> "Search":
        return cls(**problem.extra["search"])

    def __str__(self) -> str:
        return f"{self.a}{ASKED[0]}{self.a * self.x % MODULUS}{ASKED[1]}{self.s}."

    def check(self, x: int) -> str:
        """The line of a trace that tries x."""
        return f"{x}:{self.a * x % MODULUS}{FITS if x == self.x else ''}\n"

    def answer(self, x: int) -> str:
        return str(100 * x + self.s)

    def told(self, x: int) -> str:
        """The recap of one who found x."""
        return f"x={x}, so {self.answer(x)}."


@dataclass(frozen=True)
class Trace:
    """What is thought, and what is said of it. `found`: whether the last number that was tried, `last`, fits."""

    thought: str
    recap: str
    answer: str
    last: int
    found: bool

    @property
    def completion(self) -> str:
        """What follows the template's `<think>` and a new line."""
        return f"{self.thought}</think>\n{self.recap} <answer>{self.answer}</answer>"


def worked(search: Search, rng: random.Random, first: int | None = None) -> Trace:
    """A trace from the number `first` on, or from anywhere, that is given up by chance."""
    x = first = rng.choice(CANDIDATES) if first is None else first
    thought = ""
    for stop in STOPS:
        thought += search.check(x)
        if x == search.x:
            return Trace(thought, search.told(x), search.answer(x), x, True)
        if rng.random() < stop:
            break
        x = following(x)
    return Trace(thought, f"x not {first}-{x}.", NONE, x, False)

"""Shared parts of procedural tasks: a sequence of problems generated on demand, and the parsing of options.

The simplest of them is here: `letters`, a toy task that even a random model solves about half the time, so that the
smallest runs can learn.
"""

import random
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lite_selfplay.data import Problem
from lite_selfplay.errors import TaskError
from lite_selfplay.tasks.split import content_key, held_out_side
from lite_selfplay.tasks.task import Task, derived_rng

SIZE = 100_000
# How often to draw a problem: enough if only one problem in a hundred is on the requested side of the split.
TRIES = 1000


class Procedural(Sequence[Problem]):
    """Problems that are generated on demand and not kept in memory.

    Problem i is the first of `make(i, 0)`, `make(i, 1)`, ... that is held out (or, without `held_out`, that is not).
    Indexing raises TaskError after `TRIES` attempts.
    """

    def __init__(self, name: str, size: int, held_out: bool, make: Callable[[int, int], Problem]):
        self._name, self._size, self._held_out, self._make = name, size, held_out, make

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._size))]
        if not -self._size <= index < self._size:
            raise IndexError(index)
        for attempt in range(TRIES):
            problem = self._make(index % self._size, attempt)
            if held_out_side(content_key(problem)) == self._held_out:
                return problem
        raise TaskError(
            f"{self._name} has too few different problems: none of {TRIES} draws was "
            f"{'held out' if self._held_out else 'for training'}. Choose options that allow more"
        )


def attempt_rng(seed: int, name: str, index: int, attempt: int) -> random.Random:
    """The random generator for an attempt to draw problem `index`; attempt 0 leaves its number out of the seed."""
    return derived_rng(seed, name, index, attempt) if attempt else derived_rng(seed, name, index)


def by_rule(
    name: str,
    seed: int,
    held_out: bool,
    draw: Callable[[random.Random], tuple[str, Any, Mapping[str, Any]]],
    *,
    size: int = SIZE,
    max_completion_tokens: int = 256,
    kind: str = "math",
    seeded: str = "",
) -> Task:
    """A task of `size` problems. `draw` makes the text, answer and `extra` of each from a random generator, seeded by
    `seed`, the index and `seeded` (by default the name)."""

    def make(index: int, attempt: int) -> Problem:
        text, answer, extra = draw(attempt_rng(seed, seeded or name, index, attempt))
        return Problem(f"{name}-{index}", text, answer, kind, extra)

    return Task(name, Procedural(name, size, held_out, make), max_completion_tokens, procedural=True)


def whole_number(task: str, option: str, text: str, low: int, high: int) -> int:
    """The value of an option. Raises TaskError unless it is a whole number from `low` to `high`."""
    if not text.isdecimal() or len(text) > len(str(high)) or not low <= int(text) <= high:
        raise TaskError(f"{task}:{option} must be a whole number from {low} to {high}, got {text!r}")
    return int(text)


def refuse_unknown(task: str, options: Mapping[str, object], known: Sequence[str]) -> None:
    """Raise TaskError, listing the known options, if there is an unknown one."""
    unknown = next((option for option in options if option not in known), None)
    if unknown is not None:
        listed = " and ".join(filter(None, [", ".join(known[:-1]), known[-1]])) if known else "none"
        raise TaskError(f"{task} has no option {unknown!r}; it takes {listed}")


def letters(seed: int = 0, held_out: bool = False, /, named: str = "10", of: str = "12") -> Task:
    """Each problem names some of the alphabet's first letters; a completion that contains any of them is right.

    A problem names `named` of the first `of` letters: 1 <= named <= of <= 26. Raises TaskError for other numbers.
    """
    if not (named.isdecimal() and of.isdecimal()) or not 1 <= int(named) <= int(of) <= 26:
        raise TaskError(f"letters needs 1 <= named <= of <= 26, got named={named}, of={of}")
    alphabet = string.ascii_lowercase[: int(of)]

    def draw(rng: random.Random) -> tuple[str, str, Mapping[str, Any]]:
        chosen = "".join(sorted(rng.sample(alphabet, int(named))))
        return f"Write one of these letters: {chosen}", chosen, {"content": chosen}

    return by_rule("letters", seed, held_out, draw, size=10_000, max_completion_tokens=16, kind="letters")

"""`letters`: a toy that even a random model gets right about half the time, so that runs of `tiny` can learn."""

import string
from collections.abc import Sequence
from typing import overload

from lite_selfplay.data import Problem
from lite_selfplay.errors import TaskError
from lite_selfplay.tasks.base import Task, derived_rng

SIZE = 10_000
MAX_COMPLETION_TOKENS = 16


def letters(seed: int = 0, /, named: str = "10", of: str = "12", **unknown: str) -> Task:
    """Each problem names some letters of the alphabet's beginning; a completion that holds any of them is right.

    `named` is how many letters a problem names, out of the first `of` letters: 1 <= named <= of <= 26. Raises TaskError
    for other numbers or an unknown option.
    """
    if unknown:
        raise TaskError(f"letters has no option {next(iter(unknown))!r}; it takes named and of")
    if not (named.isdecimal() and of.isdecimal()) or not 1 <= int(named) <= int(of) <= 26:
        raise TaskError(f"letters needs 1 <= named <= of <= 26, got named={named}, of={of}")
    return Task("letters", _Letters(seed, int(named), string.ascii_lowercase[: int(of)]), MAX_COMPLETION_TOKENS)


class _Letters(Sequence[Problem]):
    """Problem i follows from the seed and i; none is held in memory."""

    def __init__(self, seed: int, named: int, alphabet: str):
        self._seed, self._named, self._alphabet = seed, named, alphabet

    def __len__(self) -> int:
        return SIZE

    @overload
    def __getitem__(self, index: int) -> Problem: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Problem]: ...
    def __getitem__(self, index: int | slice) -> Problem | Sequence[Problem]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -SIZE <= index < SIZE:
            raise IndexError(index)
        index %= SIZE
        chosen = derived_rng(self._seed, "letters", index).sample(self._alphabet, self._named)
        named = "".join(sorted(chosen))
        return Problem(f"letters-{index}", f"Write one of these letters: {named}", named, kind="letters")

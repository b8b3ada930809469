"""`letters`: a toy that even a random model gets right about half the time, so that runs of `tiny` can learn."""

import string

from lite_selfplay.data import Problem
from lite_selfplay.errors import TaskError
from lite_selfplay.tasks.base import Task, derived_rng
from lite_selfplay.tasks.procedural import Procedural

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
    alphabet = string.ascii_lowercase[: int(of)]

    def make(index: int) -> Problem:
        chosen = "".join(sorted(derived_rng(seed, "letters", index).sample(alphabet, int(named))))
        return Problem(f"letters-{index}", f"Write one of these letters: {chosen}", chosen, kind="letters")

    return Task("letters", Procedural(SIZE, make), MAX_COMPLETION_TOKENS)

"""Tasks, sources that draw from them, and seeds derived from names."""

import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lite_selfplay.config.user_files import short_name
from lite_selfplay.data import Problem
from lite_selfplay.errors import TaskError


@dataclass(frozen=True)
class Task:
    """A set of problems. `max_completion_tokens` is used by runs that do not set a limit themselves.

    `procedural`: the problems are generated on demand and may repeat. `origin`: the file or data set of the problems.
    `samples`: completions per problem that an evaluation samples by default. `caution`: a warning to its user. `notes`:
    sentences about how its problems were read.
    """

    name: str
    problems: Sequence[Problem]
    max_completion_tokens: int = 512
    procedural: bool = False
    origin: str = ""
    samples: int = 1
    caution: str = ""
    notes: tuple[str, ...] = ()


def numbered(game: str) -> Task:
    """Numbers from 0 as placeholders, for a game that needs no problems, such as Kuhn poker."""
    name = short_name(game)
    every = [Problem(f"{name} {i + 1}", str(i), i, "number", {"game": game}) for i in range(10_000)]
    return Task(name, every, procedural=True)


class Source:
    """Draws problems epoch by epoch, each in an order derived from seed and epoch; its position can be saved.

    `problems` are those of the task, in the task's order.
    """

    def __init__(self, problems: Sequence[Problem], *, seed: int, name: str = "problems", may_be_empty: bool = False):
        if not len(problems) and not may_be_empty:
            raise TaskError(f"the source {name!r} has no problem")
        self.problems, self._seed, self._name = problems, seed, name
        self.position = 0
        self._order: tuple[int, list[int]] = (-1, [])  # the latest epoch, and the order of its problems

    def draw(self, n: int) -> list[Problem]:
        """The next `n` problems, if necessary from the next epoch."""
        first, self.position = self.position, self.position + n
        return [self.problems[self._index(position)] for position in range(first, self.position)]

    def _index(self, position: int) -> int:
        epoch, offset = divmod(position, len(self.problems))
        if epoch != self._order[0]:
            order = list(range(len(self.problems)))
            derived_rng(self._seed, self._name, epoch).shuffle(order)
            self._order = epoch, order
        return self._order[1][offset]

    def state(self) -> dict[str, Any]:
        return {"position": self.position, "size": len(self.problems)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Return to a saved position. Raises TaskError if the number of problems has changed since, ValueError for an
        invalid position."""
        if not (type(state["position"]) is int and state["position"] >= 0):
            raise ValueError(f"{self._name} is at {state['position']!r}")
        if state["size"] != len(self.problems):
            raise TaskError(
                f"the source {self._name!r} held {state['size']} problems when the run was saved and holds "
                f"{len(self.problems)} now: the run cannot continue from the same position"
            )
        self.position = state["position"]


def derived_seed(*parts: object) -> int:
    """A 64-bit seed derived from any parts; the same in every process and on every machine."""
    text = "/".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")


def derived_rng(*parts: object) -> random.Random:
    """A random generator with a seed derived from any parts."""
    return random.Random(derived_seed(*parts))

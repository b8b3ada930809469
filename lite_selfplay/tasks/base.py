"""Tasks by name, and the source that walks one."""

import hashlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lite_selfplay.data import Problem
from lite_selfplay.errors import TaskError, UnknownNameError


@dataclass(frozen=True)
class Task:
    """A set of problems. `max_completion_tokens` is what the task suggests where a run does not say."""

    name: str
    problems: Sequence[Problem]
    max_completion_tokens: int = 512


def load_task(spec: str, *, seed: int = 0) -> Task:
    """A task from what `--tasks` takes: a `.jsonl` file, or a name with options (`letters:named=10`).

    Raises TaskError for a file that is missing or malformed, naming the line, and UnknownNameError with near names.
    """
    if spec.endswith((".jsonl", ".json")) or "/" in spec or Path(spec).is_file():
        from lite_selfplay.tasks.jsonl import read_jsonl

        return Task(Path(spec).stem, read_jsonl(Path(spec)))
    name, _, options = spec.partition(":")
    if name not in _makers():
        hint = "A file must end in .jsonl."
        raise UnknownNameError("task", name, _makers(), hint)
    return _makers()[name](seed, **_options(name, options))


def task_names() -> list[str]:
    """The tasks that need no file."""
    return sorted(_makers())


def _makers() -> Mapping[str, Callable[..., Task]]:
    from lite_selfplay.tasks.letters import letters
    from lite_selfplay.tasks.stories import stories

    return {"letters": letters, "stories": stories}


def _options(name: str, text: str) -> dict[str, str]:
    pairs = [item.partition("=") for item in text.split(",") if item]
    if bad := next((key for key, equals, _ in pairs if not equals), None):
        raise TaskError(f"options of a task are KEY=VALUE, as in {name}:named=10, got {bad!r}")
    return {key.strip(): value.strip() for key, _, value in pairs}


class Source:
    """Walks a task epoch by epoch, each in an order that follows from the seed and the epoch; remembers where it is."""

    def __init__(self, problems: Sequence[Problem], *, seed: int, name: str = "problems"):
        if not len(problems):
            raise TaskError(f"the source {name!r} holds no problem")
        self._problems, self._seed, self._name = problems, seed, name
        self.position = 0
        self._walk: Iterator[int] | None = None

    def draw(self, n: int) -> list[Problem]:
        """The next `n` problems. An epoch's end is crossed without a break."""
        if self._walk is None:
            self._walk = self._indices(self.position)
        self.position += n
        return [self._problems[next(self._walk)] for _ in range(n)]

    def _indices(self, position: int) -> Iterator[int]:
        epoch, offset = divmod(position, len(self._problems))
        while True:
            order = list(range(len(self._problems)))
            derived_rng(self._seed, self._name, epoch).shuffle(order)
            yield from order[offset:]
            epoch, offset = epoch + 1, 0

    def state(self) -> dict[str, Any]:
        return {"position": self.position, "size": len(self._problems)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to a saved position. Raises TaskError where the task holds another number of problems now."""
        if state["size"] != len(self._problems):
            raise TaskError(
                f"the source {self._name!r} held {state['size']} problems when the run was saved and holds "
                f"{len(self._problems)} now: the run cannot go on from the same place"
            )
        self.position, self._walk = state["position"], None


def derived_seed(*parts: object) -> int:
    """A 64-bit seed from any parts, the same in every process and on every machine."""
    text = "/".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def derived_rng(*parts: object) -> random.Random:
    """A generator seeded from any parts."""
    return random.Random(derived_seed(*parts))

"""Runs of several real processes, forked from one that has imported everything: they meet as torchrun's would."""

import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.warm_parent import Parent, started

NURSERY = Path(__file__).with_name("nursery.py")
PATIENCE_S = 150.0
COMMAND = (
    *("train", "agon", "--model", "tiny", "--precision", "fp32", "--tasks", "letters", "--max-completion-tokens", 8),
    *("--problems-per-step", 2, "--group-size", 4, "--set", "seats.*.lr=0.001"),
)


@dataclass(frozen=True)
class Ended:
    """How the processes of a run ended, and what each wrote."""

    codes: Sequence[int | None]
    said: Sequence[str]


class Crew:
    """The processes of a run while they play."""

    def __init__(self, parent: Parent, pids: Sequence[int], outputs: Sequence[Path]):
        self.pids, self._parent, self._outputs = pids, parent, outputs

    def ended(self) -> Ended:
        codes = self._parent.ask({"wait": self.pids, "seconds": PATIENCE_S})["codes"]
        return Ended(codes, [output.read_text() for output in self._outputs])


@pytest.fixture(scope="session")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Crew]]:
    """Start the processes of a command: `start(2, "train", "agon", play=("nan", 1, 0))`."""
    place, numbers = tmp_path_factory.mktemp("ranks"), count()
    with started(NURSERY, Path(__file__).parents[2]) as parent:

        def begin(world: int, *argv: object, **more: Any) -> Crew:
            number = next(numbers)
            outputs = [place / f"{number}.{rank}.txt" for rank in range(world)]
            job = {"argv": list(map(str, argv)), "outputs": list(map(str, outputs)), "cwd": str(place), **more}
            return Crew(parent, parent.ask({**job, "port": free_port()})["pids"], outputs)

        yield begin


@pytest.fixture(scope="session")
def play(start: Callable[..., Crew]) -> Callable[..., Ended]:
    """Start the processes of a command and wait for their end."""

    def played(world: int, *argv: object, **more: Any) -> Ended:
        return start(world, *argv, **more).ended()

    return played


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])

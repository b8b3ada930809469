"""Runs of several real processes, forked from one that has imported everything: they meet as torchrun's would."""

import json
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.warm_parent import started

NURSERY = Path(__file__).with_name("nursery.py")
PATIENCE_S = 150.0


@dataclass(frozen=True)
class Ended:
    """How the processes of a run ended, and what each wrote."""

    codes: Sequence[int | None]
    said: Sequence[str]


class Crew:
    """The processes of a run while they play."""

    def __init__(self, pids: Sequence[int], output: Path, tell: Callable[[Any], Any]):
        self.pids, self._output, self._tell = pids, output, tell

    def ended(self) -> Ended:
        codes = self._tell({"wait": self.pids, "seconds": PATIENCE_S})["codes"]
        return Ended(codes, [(self._output / f"{rank}.txt").read_text() for rank in range(len(self.pids))])


@pytest.fixture(scope="session")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Crew]]:
    """Start the processes of a command: `start(2, "train", "agon", play=("nan", 1, 0))`."""
    place, numbers = tmp_path_factory.mktemp("ranks"), count()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "COLUMNS": "400"}
    with started(NURSERY, Path(__file__).parents[2], environment) as parent:
        parent.stdout.readline()

        def tell(job: Any) -> Any:
            parent.stdin.write(json.dumps(job) + "\n")
            parent.stdin.flush()
            return json.loads(parent.stdout.readline())

        def begin(world: int, *argv: object, **more: Any) -> Crew:
            output = place / str(next(numbers))
            output.mkdir()
            job = {"argv": list(map(str, argv)), "world": world, "output": str(output), "cwd": str(place), **more}
            return Crew(tell({**job, "port": free_port()})["pids"], output, tell)

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

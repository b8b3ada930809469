"""Real `lite-selfplay` processes, forked from one that has imported everything: watched, and ended from outside."""

import contextlib
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.nursery import Page
from tests.warm_parent import Parent, started

NURSERY = Path(__file__).with_name("nursery.py")
PATIENCE_S = 200.0
PAUSE_S = 0.0005
STOPPED = 130
NO_CHECKPOINT = ("has no complete checkpoint to resume from", "is not a run folder", "must hold a mapping of keys")
"""How a resume is refused of a run that has saved nothing."""


@dataclass(frozen=True)
class Ended:
    """How the processes of a run ended, in the order of their ranks, and when (`time.monotonic`).

    A code is negative where a signal ended the process, and None where it took too long.
    """

    codes: Sequence[int | None]
    texts: Sequence[str]
    at: float

    @property
    def code(self) -> int | None:
        return self.codes[0]

    @property
    def said(self) -> str:
        """What the first process wrote."""
        return self.texts[0]

    @property
    def saved_nothing(self) -> bool:
        """Whether this was a resume that found no checkpoint."""
        return self.code == 2 and any(sentence in self.said for sentence in NO_CHECKPOINT)


class Process:
    """A run that has just begun, in one process or several, and what the first of them notes of itself."""

    def __init__(self, parent: Parent, pids: Sequence[int], outputs: Sequence[Path], page: Page):
        self.pids, self.page, self._parent, self._outputs = pids, page, parent, outputs
        self.pid, self.started = pids[0], time.monotonic()

    def alive(self) -> bool:
        """False once it has ended, a zombie included."""
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"

    def until(self, condition: Callable[[Page], bool]) -> bool:
        """Wait until its page says something; False where the process ended before."""
        limit = time.monotonic() + PATIENCE_S
        while not condition(self.page):
            if not self.alive():
                return False
            assert time.monotonic() < limit, f"nothing happens in {self.page.phase}"
            time.sleep(PAUSE_S)
        return True

    def until_begun(self, phase: str, times: int = 1) -> bool:
        return self.until(lambda page: page.begun(phase) >= times)

    def send(self, number: int, rank: int = 0) -> float:
        """Send it a signal; returns when (`time.monotonic`). One that has ended is still there as a zombie."""
        at = time.monotonic()
        os.kill(self.pids[rank], number)
        return at

    def wait(self) -> Ended:
        answer = self._parent.ask({"wait": self.pids, "seconds": PATIENCE_S})
        texts = [output.read_text(errors="replace") for output in self._outputs]
        return Ended(answer["codes"], texts, answer["ended"])


@dataclass
class Nursery:
    """A warm parent, and a place for what its children write."""

    place: Path
    parent: Parent
    number: int = 0

    def start(self, *arguments: object, watched: Path | None = None, world: int = 1, **job: Any) -> Process:
        """Fork the processes of `lite-selfplay ARGUMENTS`; in the run folder `watched` it notes what it does.

        `job` is what else the nursery takes. Several commands may run at a time.
        """
        outputs = [self.new("log") for _ in range(world)]
        for path in (*outputs, page := self.new("page")):
            path.write_bytes(bytes(Page.SIZE * (path == page)))
        own = {} if watched is None else {"page": str(page), "folder": str(watched)}
        own |= {"port": free_port()} if world > 1 else {}
        job = {"outputs": [*map(str, outputs)], "argv": [*map(str, arguments)], "cwd": str(self.place), **own, **job}
        return Process(self.parent, self.parent.ask(job)["pids"], outputs, Page(page))

    def run(self, *arguments: object, **job: Any) -> Ended:
        return self.start(*arguments, **job).wait()

    def new(self, kind: str = "run") -> Path:
        """A place where nothing is yet."""
        self.number += 1
        return self.place / f"{kind}-{self.number}"


@contextlib.contextmanager
def nursery(place: Path, kind: type[Nursery] = Nursery) -> Iterator[Any]:
    with started(NURSERY, place) as parent:
        yield kind(place, parent)


def torchrun(processes: int, *arguments: object) -> list[str]:
    """The command that launches `lite-selfplay ARGUMENTS` in so many processes."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    return [*launch, "-m", "lite_selfplay_cli", *map(str, arguments)]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])

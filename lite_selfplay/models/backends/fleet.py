"""The servers of a run: rows spread over them, each asked for until an answer is whole; servers that fail are left out.

Nothing here knows a model: `models/backends/rollouts.py` says what to ask for, `vllm_server.py` how.
"""

import contextlib
import queue
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from lite_selfplay.errors import RolloutsLost
from lite_selfplay.models.backends.vllm_server import ServerFailed, VllmServer, Wanted
from lite_selfplay.models.generation.sampling import Generation

RESTS_S: tuple[float, ...] = (0.5, 2.0, 8.0)
"""Seconds that a server is left alone after each failure in a row; it is left out at the one that follows."""
ROW_FAILURES = 12
"""So often one completion may fail before it is nobody's fault but its own."""
LOOK_EVERY_S = 0.05
"""Seconds between two calls of `poll` while servers are waited for."""


@dataclass(frozen=True)
class Adapter:
    """The state of a seat or a snapshot that servers load: by which name, from which folder as they see it."""

    name: str
    folder: str


@dataclass
class Member:
    """A server among those of a run, the base's `name` on it, and what it has loaded.

    Failures are counted in a row; those that were under way when one came are one with it.
    """

    server: VllmServer
    name: str = ""
    loaded: set[str] = field(default_factory=set)
    failures: int = 0
    failed_at: float = 0.0
    rests_until: float = 0.0
    left_out: str | None = None


@dataclass(frozen=True)
class _Task:
    """A row that a member samples, by its number, or None: it loads the adapter."""

    member: Member
    row: int | None
    began: float


class Fleet:
    """The servers of a run. `poll` is called while they are waited for and may raise; `warn` takes a sentence."""

    def __init__(
        self,
        members: Sequence[Member],
        rows_at_once: int,
        poll: Callable[[], None] = lambda: None,
        warn: Callable[[str], None] = lambda sentence: None,
    ):
        self.members, self._rows_at_once, self._poll, self._warn = list(members), rows_at_once, poll, warn

    def sample(self, adapter: Adapter | None, rows: Sequence[Callable[[str], Wanted]]) -> list[Generation]:
        """A completion of each row by an adapter, or by the base: `row(model)` is what to ask of a model so called.

        Every row is asked for until one answer to it is whole, and no other is used. Raises RolloutsLost once no server
        is left.
        """
        return _Round(self, adapter, rows).run()

    def forget(self, name: str, wait_s: float = 0.0) -> None:
        """Have an adapter unloaded where it was loaded, waiting for it so long at the most. It may fail."""
        holders = [member for member in self.left if name in member.loaded]
        threads = [threading.Thread(target=unload, args=(one.server, name), daemon=True) for one in holders]
        for member, thread in zip(holders, threads, strict=True):
            member.loaded.discard(name)
            thread.start()
        for thread in threads if wait_s else ():
            thread.join(wait_s)

    @property
    def left(self) -> list[Member]:
        """The servers that are not left out."""
        return [member for member in self.members if member.left_out is None]

    def note(self, member: Member, failed: ServerFailed, began: float) -> None:
        """Count a failure of what began at a time. Raises RolloutsLost where it leaves no server."""
        if failed.not_served:
            member.loaded.clear()  # it was started anew
        if member.left_out is not None or (began < member.failed_at and not failed.lasting):
            return
        member.failures, member.failed_at = member.failures + 1, time.monotonic()
        if not failed.lasting and member.failures <= len(RESTS_S):
            member.rests_until = member.failed_at + RESTS_S[member.failures - 1]
            return
        member.left_out = str(failed)
        if not self.left:
            raise self.lost()
        self._warn(f"rollouts: {member.server.address} {failed}, and is left out from now on; the others go on")

    def lost(self) -> RolloutsLost:
        """What there is to say once no server is left."""
        said = "; ".join(f"{member.server.address} {member.left_out}" for member in self.members)
        return RolloutsLost(f"no server of rollouts is left: {said}. --resume takes other --rollouts, or `none`")

    def succeeded(self, member: Member, began: float) -> None:
        """Note that something which began at a time was done."""
        if began >= member.failed_at:
            member.failures = 0


class _Round:
    """The rows of one request while they are sampled. All that is counted is counted in the thread that asks."""

    def __init__(self, fleet: Fleet, adapter: Adapter | None, rows: Sequence[Callable[[str], Wanted]]):
        self._fleet, self._adapter, self._rows = fleet, adapter, rows
        self._waiting = deque(range(len(rows)))
        self._found: dict[int, Generation] = {}
        self._done: queue.SimpleQueue[tuple[_Task, Any]] = queue.SimpleQueue()
        self._busy: Counter[str] = Counter()
        self._loading: set[str] = set()
        self._failures: Counter[int] = Counter()

    def run(self) -> list[Generation]:
        try:
            while len(self._found) < len(self._rows):
                self._fleet._poll()
                self._hand_out()
                with contextlib.suppress(queue.Empty):
                    self._take(*self._done.get(timeout=LOOK_EVERY_S))
        except BaseException:
            for member in self._fleet.members:
                member.server.hang_up()
            raise
        return [self._found[i] for i in range(len(self._rows))]

    def _hand_out(self) -> None:
        """Give rows to the servers that have the adapter, to the one with the fewest first, and the adapter to those
        that do not."""
        ready = [member for member in self._fleet.left if member.rests_until <= time.monotonic()]
        if not self._fleet.left:
            raise self._fleet.lost()
        for member in ready:
            if not self._has_adapter(member) and member.server.address not in self._loading:
                self._loading.add(member.server.address)
                self._begin(member, None)
        ready = [member for member in ready if self._has_adapter(member)]
        while self._waiting and ready:
            member = min(ready, key=lambda one: self._busy[one.server.address])
            if self._busy[member.server.address] >= self._fleet._rows_at_once:
                return
            self._busy[member.server.address] += 1
            self._begin(member, self._waiting.popleft())

    def _has_adapter(self, member: Member) -> bool:
        return self._adapter is None or self._adapter.name in member.loaded

    def _begin(self, member: Member, row: int | None) -> None:
        task = _Task(member, row, time.monotonic())
        threading.Thread(target=self._work, args=(task,), daemon=True).start()

    def _work(self, task: _Task) -> None:
        """In a thread of its own: whatever comes of it is told."""
        try:
            self._done.put((task, self._ask(task)))
        except BaseException as error:
            self._done.put((task, error))

    def _ask(self, task: _Task) -> Generation | None:
        server, adapter = task.member.server, self._adapter
        if task.row is not None:
            return server.complete(self._rows[task.row](task.member.name if adapter is None else adapter.name))
        assert adapter is not None
        server.load(adapter.name, adapter.folder)
        return None

    def _take(self, task: _Task, outcome: Any) -> None:
        """Note what became of a task; a row that failed waits again, before all others."""
        address = task.member.server.address
        if task.row is None:
            self._loading.discard(address)
        else:
            self._busy[address] -= 1
        if isinstance(outcome, ServerFailed):
            if task.row is not None:
                self._waiting.appendleft(task.row)
                self._count(task.row, task.member, outcome)
            self._fleet.note(task.member, outcome, task.began)
        elif isinstance(outcome, BaseException):
            raise outcome
        else:
            self._fleet.succeeded(task.member, task.began)
            if task.row is not None:
                self._found[task.row] = outcome
            elif self._adapter is not None:
                task.member.loaded.add(self._adapter.name)

    def _count(self, row: int, member: Member, failed: ServerFailed) -> None:
        self._failures[row] += 1
        if self._failures[row] >= ROW_FAILURES:
            raise RolloutsLost(
                f"rollouts: one completion failed {ROW_FAILURES} times; {member.server.address} {failed}"
            )


def unload(server: VllmServer, name: str) -> None:
    """Have a server unload an adapter, if it can."""
    with contextlib.suppress(ServerFailed):
        server.unload(name)

"""The processes of one run, as torchrun starts them: one for each GPU, on any number of machines.

Every process plays the whole game, with the same problems, seats, randomness and episodes. Only slow work is split:
each process samples, scores, verifies and trains on its part of the rows, results are exchanged, gradients are summed,
and every process takes the same optimizer step. Only process 0 writes files, prints, reads the clock and calls a user's
reward. A process that fails says why before it leaves, so that the others end with that message and a saved run.

torch does the work: `torchrun` starts the processes, gloo carries messages, NCCL gradients between GPUs. TRL,
accelerate and transformers do not know of the other processes: they would average logged values, divide losses by the
number of processes, and wrap the model in a DDP that does not see a seat's gradient.
"""

import contextlib
import datetime
import itertools
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from lite_selfplay.errors import GameError, Interrupted, LiteSelfPlayError, ProcessLost, RequestError

TIMEOUT = datetime.timedelta(hours=1)  # a process whose machine vanished counts as lost after this
MEETING = datetime.timedelta(minutes=10)  # how long a process waits for the store where all meet
_HIDDEN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK", "ROLE_WORLD_SIZE")
_LOOPBACK = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
_groups = itertools.count()  # numbers the process groups, which all processes join in the same order


@dataclass(frozen=True)
class Launch:
    """A launch: process `rank` of `world`, and number `local_rank` of the `local_world` on its machine.

    The processes meet in a store at `address` and `port`; if not `hosted` by the launcher, process 0 hosts it.
    """

    rank: int
    world: int
    local_rank: int
    local_world: int
    address: str
    port: int
    hosted: bool
    attempt: str

    @property
    def one_machine(self) -> bool:
        return self.local_world == self.world


def find_launch(environment: Mapping[str, str] = os.environ) -> Launch | None:
    """The launch described by the environment, None for a single process.

    Raises RequestError for several processes that torchrun did not start: other launchers split more than rows, or do
    not say how their processes find each other.
    """
    world = environment.get("WORLD_SIZE", "1")
    if world == "1":
        return None
    try:
        found = Launch(
            rank=int(environment["RANK"]),
            world=int(world),
            local_rank=int(environment["LOCAL_RANK"]),
            local_world=int(environment.get("LOCAL_WORLD_SIZE", world)),
            address=environment["MASTER_ADDR"],
            port=int(environment["MASTER_PORT"]),
            hosted=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
            attempt=environment.get("TORCHELASTIC_RESTART_COUNT", "0"),
        )
    except (KeyError, ValueError):
        found = None
    sound = found and 0 <= found.rank < found.world and 0 <= found.local_rank < found.local_world <= found.world
    accelerate = any(name.startswith(("ACCELERATE_USE_", "ACCELERATE_MIXED_")) for name in environment)
    if not sound or accelerate:
        raise RequestError(
            f"WORLD_SIZE is {world}, but torchrun did not start this process: start the run with torchrun "
            "--nproc-per-node N -m lite_selfplay_cli"
        )
    return found


@contextlib.contextmanager
def prepared(launch: Launch) -> Iterator[None]:
    """A context in which this process has its own GPU, and libraries do not see the variables of torchrun.

    Raises RequestError if there are more processes than GPUs.
    """
    before = dict(os.environ)
    take_a_gpu(launch)
    if launch.one_machine:  # listen on the network only if the user chose interfaces
        for loopback in {name for _, name in socket.if_nameindex()} & {"lo", "lo0"}:
            os.environ.update({name: before.get(name, loopback) for name in _LOOPBACK})
    for name in _HIDDEN:
        os.environ.pop(name, None)
    try:
        yield
    finally:  # what others set meanwhile stays
        for name in (*_HIDDEN, *_LOOPBACK):
            os.environ.pop(name, None)
        os.environ.update({name: before[name] for name in (*_HIDDEN, *_LOOPBACK) if name in before})


def take_a_gpu(launch: Launch) -> None:
    """Let this process see only one of the visible GPUs, if there are any.

    Raises RequestError if there are more processes than GPUs, or if this process has already used one.
    """
    import torch

    gpus = torch.cuda.device_count()
    if not gpus:
        return
    if launch.local_world > gpus:
        raise RequestError(
            f"{launch.local_world} processes on this machine, and {gpus} GPU{'s' if gpus > 1 else ''}: every process "
            f"needs its own GPU, --nproc-per-node {gpus} at most"
        )
    if torch.cuda.is_initialized():
        raise RequestError("this process has already used a GPU: a script for torchrun must call train() first")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else [str(number) for number in range(gpus)]
    os.environ["CUDA_VISIBLE_DEVICES"] = names[launch.local_rank]


def connect(launch: Launch) -> Any:
    """Join the process group, and return the store that all processes share."""
    import torch
    import torch.distributed as dist

    # A machine may be unable to resolve its own name.
    address = "127.0.0.1" if launch.one_machine and launch.hosted else launch.address
    hosts = launch.rank == 0 and not launch.hosted
    try:
        listening = None
        if hosts:  # listen at this address only: the store itself would listen at every one of the machine
            family = socket.getaddrinfo(address, launch.port)[0][0]
            listening = socket.create_server((address, launch.port), family=family, backlog=1024).detach()
        hosted = dist.TCPStore(
            address, launch.port, launch.world, hosts, MEETING, wait_for_workers=False, master_listen_fd=listening
        )
        store = dist.PrefixStore(f"lite-selfplay/{launch.attempt}/{next(_groups)}", hosted)
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
        dist.init_process_group(backend, store=store, rank=launch.rank, world_size=launch.world, timeout=TIMEOUT)
    except (RuntimeError, OSError) as error:
        why = str(error).splitlines()[0]
        raise RequestError(f"the processes of this run cannot meet at {address}:{launch.port}: {why}") from error
    return store


def in_a_group() -> bool:
    """Whether this process is in a process group that it has not left."""
    dist = sys.modules.get("torch.distributed")
    return dist is not None and dist.is_available() and dist.is_initialized()


if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")

LARGEST = 2**30  # bytes of a message; a million completion tokens with log-probabilities are about 30 MB
CHECK_EVERY_S = 0.2  # between two checks for processes that have left, while waiting for them
LAST_WORDS_S = 2.0  # how long to wait for the last message of a process that has left
NAPS_S = (5e-5, 2e-3)  # the first and the longest pause between two checks of a collective operation


class Ranks:
    """This process's view of a run's processes: number `rank` of `world`. If it is alone, nothing is sent.

    `poll` is called while waiting for others and may raise to stop. `store` holds the last messages of processes that
    have left.
    """

    def __init__(self, rank: int = 0, world: int = 1, store: Any = None):
        self.rank, self.world, self._store = rank, world, store
        self.poll: Callable[[], None] = lambda: None
        self._left = False

    @property
    def main(self) -> bool:
        """Whether this process writes the run folder and prints."""
        return self.rank == 0

    @property
    def alone(self) -> bool:
        """Whether there are no other processes, or this one has left them."""
        return self.world == 1 or self._left

    def part(self, items: Sequence[T], cost: Callable[[T], int] = lambda item: 1) -> list[T]:
        """This process's share of the items: consecutive ones, of about the same cost as every other share."""
        ends = list(itertools.accumulate(map(cost, items)))
        total = ends[-1] if ends else 0
        middles = (2 * end - cost(item) for item, end in zip(items, ends, strict=True))
        owners = (min(middle * self.world // (2 * total or 1), self.world - 1) for middle in middles)
        return [item for item, owner in zip(items, owners, strict=True) if owner == self.rank]

    # Messages

    def gather(self, what: str, value: Any = None, read: Callable[[Any], Any] = lambda value: value) -> list[Any]:
        """The values of all processes in their order, each converted by `read`.

        Values travel as JSON, which keeps every bit of a float and cannot run code: a peer may be wrong. `what` names
        the exchange. Raises GameError if another process is at a different one, that is, their games differ;
        ProcessLost if one has ended or sends an unreadable message; and the errors of `poll`.
        """
        message = json.dumps([what, value]).encode()
        messages = [message] if self.alone else self._exchange(message)
        try:
            answers = [(str(about), theirs) for about, theirs in map(json.loads, messages)]
            if (odd := next((rank for rank, (about, _) in enumerate(answers) if about != answers[0][0]), None)) is None:
                return [read(theirs) for _, theirs in answers]
        except Exception as error:  # malformed content may raise anything in `read`
            raise ProcessLost(f"another process of this run sends an unreadable message ({error})") from None
        raise GameError(
            f"the processes of this run play different games: process 0 was at {answers[0][0]}, process {odd} at "
            f"{answers[odd][0]}. A game may depend only on its table and its own state "
            "(lite_selfplay.testing.check_game), and the files it reads must be the same"
        )

    def from_main(self, what: str, make: Callable[[], T]) -> T:
        """The result of `make` in the first process, in all processes. It must be JSON. Raises as `gather` does."""
        if self.alone:
            return make()
        result: T = self.gather(what, make() if self.main else None)[0]
        return result

    def require_same(self, facts: Mapping[str, Any]) -> None:
        """Raises RequestError, naming fact and process, if processes differ in these facts."""
        if self.alone:
            return
        gathered = self.gather("the run's facts", dict(facts))
        for name, (rank, theirs) in itertools.product(facts, enumerate(gathered)):
            if theirs.get(name) != gathered[0].get(name):
                odd = _odd(theirs.get(name), gathered[0].get(name))
                raise RequestError(f"process {rank} of this run has another {name} than process 0: {odd}")

    def add_up(self, tensors: "Sequence[Tensor]") -> None:
        """Replace each tensor by its sum over all processes. Raises as `gather` does."""
        if self.alone or not tensors:
            return
        import torch
        import torch.distributed as dist

        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        self._wait(lambda: dist.all_reduce(flat, async_op=True))
        for tensor, total in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
            tensor.copy_(total.view_as(tensor))

    def _exchange(self, message: bytes) -> list[bytes]:
        """The messages of all processes. They are padded to one length, so the lengths are sent first."""
        import torch
        import torch.distributed as dist

        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.world)]
        own = torch.tensor([len(message)])
        self._wait(lambda: dist.all_gather(lengths, own, async_op=True))
        sizes = [int(length) for length in lengths]
        if not all(0 <= size <= LARGEST for size in sizes):
            raise ProcessLost(f"another process of this run sends messages of {max(sizes):,} bytes")
        whole = torch.zeros(max(sizes), dtype=torch.uint8)
        whole[: len(message)] = torch.frombuffer(bytearray(message), dtype=torch.uint8)
        parts = [torch.empty_like(whole) for _ in sizes]
        self._wait(lambda: dist.all_gather(parts, whole, async_op=True))
        return [part[:size].numpy().tobytes() for part, size in zip(parts, sizes, strict=True)]

    def _wait(self, begin: Callable[[], Any]) -> None:
        """Wait for a collective operation, polling and checking for processes that have left."""
        nap, longest = NAPS_S
        checked = time.monotonic()
        try:
            work = begin()
            while not work.is_completed():
                self.poll()
                if time.monotonic() - checked > CHECK_EVERY_S:
                    self._require_all()
                    checked = time.monotonic()
                time.sleep(nap)
                nap = min(1.5 * nap, longest)
            work.wait()
        except RuntimeError as error:  # from torch.distributed: a closed connection or a timeout
            self._require_all(LAST_WORDS_S)
            raise ProcessLost("another process of this run has ended or cannot be reached") from error

    # Leaving

    def leave(self, error: BaseException) -> None:
        """Tell the others why this process leaves; afterwards it is alone."""
        if self.alone:
            return
        self._left = True
        sentence = str(error) or type(error).__name__
        note = {"rank": self.rank, "kind": type(error).__name__, "sentence": sentence[:2000]}
        with contextlib.suppress(RuntimeError):  # the store's process may have ended
            self._store.set(f"left/{self.rank}", json.dumps(note))
            self._store.set("left", "1")

    def say_goodbye(self) -> None:
        """Confirm that this process has read the last messages. Process 0, which may host the store, waits for that."""
        if self.main:
            self._has([f"read/{rank}" for rank in range(1, self.world)], LAST_WORDS_S)
            return
        with contextlib.suppress(RuntimeError):  # the store's process may have ended
            self._store.set(f"read/{self.rank}", "1")

    def last_words(self, rank: int, wait_s: float = 0.0) -> dict[str, str] | None:
        """The last message of a process that has left: its error's class as `kind`, and a `sentence`; else None."""
        with contextlib.suppress(RuntimeError, ValueError, AttributeError):
            if self._has([f"left/{rank}"], wait_s):
                note = json.loads(self._store.get(f"left/{rank}"))
                return {key: str(note.get(key, ""))[:2000] for key in ("kind", "sentence")}
        return None

    def _has(self, names: list[str], wait_s: float = 0.0) -> bool:
        """Whether the store has all of these keys, after waiting up to `wait_s` seconds. False if the store is gone."""
        with contextlib.suppress(RuntimeError):
            if wait_s and names:
                self._store.wait(names, datetime.timedelta(seconds=wait_s))
            return bool(self._store.check(names))
        return False

    def _require_all(self, wait_s: float = 0.0) -> None:
        """Raises ProcessLost or Interrupted if a process has left with a message."""
        if not self._has(["left"], wait_s):
            return
        for rank in range(self.world):
            if rank != self.rank and (note := self.last_words(rank)) is not None:
                kind = Interrupted if note["kind"] in ("Interrupted", "KeyboardInterrupt") else ProcessLost
                raise kind(f"process {rank} of this run has left: {note['sentence']}")


def _odd(theirs: Any, first: Any) -> str:
    """The first difference of two values, by lines for texts."""
    pair = str(theirs).splitlines(), str(first).splitlines()
    for one, other in zip(*pair, strict=False):
        if one != other:
            return f"{one.strip()[:300]!r}, not {other.strip()[:300]!r}"
    return f"{len(pair[0])} lines, not {len(pair[1])}"


ALONE = Ranks()
_joined: Ranks | None = None


def here() -> Ranks:
    """The processes that this one has joined; `ALONE` if none."""
    return _joined or ALONE


@contextlib.contextmanager
def joined() -> Iterator[Ranks]:
    """A context with the processes that torchrun started, or `ALONE`.

    Enter it before anything uses a GPU, since each process gets one. Entered again inside, it yields the same. A
    process that leaves by an error tells the others; if process 0 has already reported the error, no other needs to.
    Raises RequestError for a launch that is not possible.
    """
    global _joined
    if _joined is not None:
        yield _joined
        return
    found = find_launch()
    if found is None:
        yield ALONE
        return
    with prepared(found):
        _joined = Ranks(found.rank, found.world, connect(found))
        try:
            yield _joined
            _joined.gather("the end")  # the run folder is complete from now on
        except BaseException as error:
            _joined.leave(error)
            if isinstance(error, LiteSelfPlayError) and not _joined.main:
                error.said_elsewhere = _joined.last_words(0, LAST_WORDS_S) is not None
            _joined.say_goodbye()
            raise
        finally:
            ended, _joined = _joined, None
            # After an error others may still wait for this process: they notice when it ends.
            if not ended._left and in_a_group():
                sys.modules["torch.distributed"].destroy_process_group()

"""The processes that play one run together, as torchrun starts them: one for each card, on any number of machines.

Every process plays the whole game: it draws the same problems, holds the same seats and comes to the same episode. Only
what takes time is shared out: each samples, scores, checks and learns from its part of the rows, and hears from the
others what became of theirs; gradients are added up, and every process takes the same step of the optimizer. So a game,
what it remembers and its randomness are what they are in one process, and the first process alone writes and speaks.

What only one can know is decided once and told: the clock, a user's reward, what is in the run folder. A process that
fails says why before it leaves, so that the others end with that sentence and a saved run.

The engine is torch's own: `torchrun` starts the processes, gloo carries what they tell each other, NCCL gradients from
card to card. TRL, accelerate and transformers are not told of the others, since they would average what they log,
divide losses by the number of processes, and wrap the model into a DDP that never sees a seat's gradient.
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

TIMEOUT = datetime.timedelta(hours=1)
"""How long the others are waited for: a process that another machine lost, without a word, is missed after that."""

MEETING = datetime.timedelta(minutes=10)
"""How long a process waits for the place where all meet."""

_HIDDEN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK", "ROLE_WORLD_SIZE")
_LOOPBACK = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
# Process groups that this process has joined: all start as many, one after the other.
_groups = itertools.count()


@dataclass(frozen=True)
class Launch:
    """A launch: process `rank` of `world`, on a machine with `local_world` of them, where it is number `local_rank`.

    `address` and `port` are where they meet; `hosted` says whether the launcher keeps that place, else process 0 does.
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
    """The launch that the environment tells of, None for a process by itself.

    Raises RequestError for several processes that torchrun did not start: other launchers share out more than rows, or
    do not say how their processes find each other.
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
            f"WORLD_SIZE is {world}, and it was not torchrun that started this process: start the run with torchrun "
            "--nproc-per-node N -m lite_selfplay_cli"
        )
    return found


@contextlib.contextmanager
def prepared(launch: Launch) -> Iterator[None]:
    """The process with one card of its own, and without the variables by which other libraries would find the others,
    for the length of a context. Raises RequestError where there are more processes than cards."""
    before = dict(os.environ)
    take_a_card(launch)
    if launch.one_machine:  # nothing listens on the network, unless that was asked for
        for loopback in {name for _, name in socket.if_nameindex()} & {"lo", "lo0"}:
            os.environ.update({name: before.get(name, loopback) for name in _LOOPBACK})
    for name in _HIDDEN:
        os.environ.pop(name, None)
    try:
        yield
    finally:
        for name in (*_HIDDEN, *_LOOPBACK):
            os.environ.pop(name, None)
        os.environ.update({name: before[name] for name in (*_HIDDEN, *_LOOPBACK) if name in before})


def take_a_card(launch: Launch) -> None:
    """Leave this process one of the cards it sees as its only one; nothing changes where there are none.

    Raises RequestError where there are more processes than cards, and where a card was used before.
    """
    import torch

    cards = torch.cuda.device_count()
    if not cards:
        return
    if launch.local_world > cards:
        raise RequestError(
            f"{launch.local_world} processes on this machine, and {cards} card{'s' if cards > 1 else ''}: a process "
            f"needs a card of its own, --nproc-per-node {cards} at most"
        )
    if torch.cuda.is_initialized():
        raise RequestError(
            "this process has used a card already: a script that torchrun starts calls train() first of all"
        )
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else [str(number) for number in range(cards)]
    os.environ["CUDA_VISIBLE_DEVICES"] = names[launch.local_rank]


def connect(launch: Launch) -> Any:
    """Join the process group; returns the store that all share."""
    import torch
    import torch.distributed as dist

    # A machine's own name may not be known to itself.
    address = "127.0.0.1" if launch.one_machine and launch.hosted else launch.address
    hosts = launch.rank == 0 and not launch.hosted
    try:
        listening = None
        if hosts:  # at this address alone; the store would listen at every one of the machine
            family = socket.getaddrinfo(address, launch.port)[0][0]
            listening = socket.create_server((address, launch.port), family=family, backlog=1024).detach()
        place = dist.TCPStore(
            address,
            launch.port,
            launch.world,
            hosts,
            MEETING,
            wait_for_workers=False,
            master_listen_fd=listening,
        )
        store = dist.PrefixStore(f"lite-selfplay/{launch.attempt}/{next(_groups)}", place)
        cards = torch.cuda.is_available() and dist.is_nccl_available()
        backend = "cpu:gloo,cuda:nccl" if cards else "gloo"
        dist.init_process_group(backend, store=store, rank=launch.rank, world_size=launch.world, timeout=TIMEOUT)
    except (RuntimeError, OSError) as error:
        why = str(error).splitlines()[0]
        raise RequestError(
            f"the processes of this run do not find each other at {address}:{launch.port}: {why}"
        ) from error
    return store


def in_a_group() -> bool:
    """Whether this process is in a process group that it has not taken leave of."""
    dist = sys.modules.get("torch.distributed")
    return dist is not None and dist.is_available() and dist.is_initialized()


if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")

LARGEST = 2**30
"""Bytes of a message. A million completion tokens with their log-probabilities are some 30 MB."""
LOOK_EVERY_S = 0.2
"""Seconds between two looks for processes that have left, while waiting for them."""
LAST_WORDS_S = 2.0
"""Seconds to wait for what a process that is gone had said."""
NAPS_S = (5e-5, 2e-3)
"""The first and the longest pause between two looks at whether the others are there."""


class Ranks:
    """This process among those of a run: number `rank` of `world`. Alone, everything is its own and nothing is sent.

    `poll` is called while others are waited for and may raise to stop. `sent` counts the bytes that this process has
    handed to the others so far, each once. `store` holds what processes say as they leave.
    """

    def __init__(self, rank: int = 0, world: int = 1, store: Any = None):
        self.rank, self.world, self._store = rank, world, store
        self.poll: Callable[[], None] = lambda: None
        self.sent = 0
        self._left = False

    @property
    def main(self) -> bool:
        """Whether this process writes the run folder and speaks to the terminal."""
        return self.rank == 0

    @property
    def alone(self) -> bool:
        """Whether there are no others, or no others any more as far as this one is concerned."""
        return self.world == 1 or self._left

    def part(self, items: Sequence[T], cost: Callable[[T], int] = lambda item: 1) -> list[T]:
        """The items that are this process's, neighbours in their order. The parts of all cost about the same."""
        ends = list(itertools.accumulate(map(cost, items)))
        total = ends[-1] if ends else 0
        middles = (2 * end - cost(item) for item, end in zip(items, ends, strict=True))
        owners = (min(middle * self.world // (2 * total or 1), self.world - 1) for middle in middles)
        return [item for item, owner in zip(items, owners, strict=True) if owner == self.rank]

    # What is told

    def gather(self, what: str, value: Any = None, read: Callable[[Any], Any] = lambda value: value) -> list[Any]:
        """What `read` makes of what every process has, in their order; it travels as JSON, in which floats keep every
        bit, and from which nothing can be run: a peer can be wrong.

        `what` says what it is about. Raises GameError where that is not the same in all, which is how processes that
        came to different games find out; ProcessLost where one has ended, or sends what cannot be read; and what `poll`
        raises.
        """
        message = json.dumps([what, value]).encode()
        messages = [message] if self.alone else self._exchange(message)
        try:
            told = [(str(about), theirs) for about, theirs in map(json.loads, messages)]
            if (odd := next((rank for rank, (about, _) in enumerate(told) if about != told[0][0]), None)) is None:
                return [read(theirs) for _, theirs in told]
        except Exception as error:  # `read` raises whatever the content makes of it
            raise ProcessLost(f"another process of this run sends what cannot be read ({error})") from None
        raise GameError(
            f"the processes of this run came to different games: process 0 was at {told[0][0]}, process {odd} at "
            f"{told[odd][0]}. A game may depend on its table and its own state alone "
            "(lite_selfplay.testing.check_game), and no file that it reads may differ"
        )

    def from_main(self, what: str, make: Callable[[], T]) -> T:
        """What `make` gives in the first process, as JSON has it. Raises what `gather` raises."""
        if self.alone:
            return make()
        told: T = self.gather(what, make() if self.main else None)[0]
        return told

    def require_same(self, facts: Mapping[str, Any]) -> None:
        """Raises RequestError, naming fact and process, where processes differ in what a run has one of."""
        if self.alone:
            return
        told = self.gather("what this run is", dict(facts))
        for name, (rank, theirs) in itertools.product(facts, enumerate(told)):
            if theirs.get(name) != told[0].get(name):
                odd = _odd(theirs.get(name), told[0].get(name))
                raise RequestError(f"process {rank} of this run has another {name} than process 0: {odd}")

    def add_up(self, tensors: "Sequence[Tensor]") -> None:
        """Put the sum over all processes into each tensor; they travel as one. Raises what `gather` raises."""
        if self.alone or not tensors:
            return
        import torch
        import torch.distributed as dist

        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        self.sent += flat.numel() * flat.element_size()
        self._wait(lambda: dist.all_reduce(flat, async_op=True))
        for tensor, total in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
            tensor.copy_(total.view_as(tensor))

    def shared_clock(self, clock: Callable[[], float]) -> Callable[[], float]:
        """A clock that goes by the first process's: what depends on the time is decided alike."""
        return clock if self.world == 1 else lambda: self.from_main("the clock", clock)

    def _exchange(self, message: bytes) -> list[bytes]:
        """The messages of all processes. They travel as equally long ones, so their lengths go ahead."""
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
        self.sent += len(whole) + 8
        return [part[:size].numpy().tobytes() for part, size in zip(parts, sizes, strict=True)]

    def _wait(self, begin: Callable[[], Any]) -> None:
        """Carry out a collective operation, polling, and looking for processes that have left."""
        nap, longest = NAPS_S
        looked = time.monotonic()
        try:
            work = begin()
            while not work.is_completed():
                self.poll()
                if time.monotonic() - looked > LOOK_EVERY_S:
                    self._require_all()
                    looked = time.monotonic()
                time.sleep(nap)
                nap = min(1.5 * nap, longest)
            work.wait()
        except RuntimeError as error:  # of torch.distributed: a connection was closed, or nobody answered in time
            self._require_all(LAST_WORDS_S)
            raise ProcessLost("another process of this run has ended or cannot be reached") from error

    # Leaving

    def leave(self, error: BaseException) -> None:
        """Tell the others why this process leaves. Afterwards it is alone."""
        if self.alone:
            return
        self._left = True
        sentence = str(error) or type(error).__name__
        note = {"rank": self.rank, "kind": type(error).__name__, "sentence": sentence[:2000]}
        with contextlib.suppress(RuntimeError):  # whoever holds the store has ended
            self._store.set(f"left/{self.rank}", json.dumps(note))
            self._store.set("left", "1")

    def say_goodbye(self) -> None:
        """Say that this process has read what others said; the first waits for that, since what was said may end with
        it."""
        names = [f"read/{rank}" for rank in range(1, self.world)]
        if self.main:
            self._is_said(names, LAST_WORDS_S)
            return
        with contextlib.suppress(RuntimeError):  # whoever holds the store has ended
            self._store.set(names[self.rank - 1], "1")

    def last_words(self, rank: int, wait_s: float = 0.0) -> dict[str, str] | None:
        """What a process said as it left: `kind`, an error's class, and `sentence`. None where it said nothing."""
        with contextlib.suppress(RuntimeError, ValueError, AttributeError):
            if self._is_said([f"left/{rank}"], wait_s):
                note = json.loads(self._store.get(f"left/{rank}"))
                return {key: str(note.get(key, ""))[:2000] for key in ("kind", "sentence")}
        return None

    def _is_said(self, names: list[str], wait_s: float = 0.0) -> bool:
        """Whether the store holds all of these, waited for so long. Not where whoever holds it has ended."""
        with contextlib.suppress(RuntimeError):
            if wait_s and names:
                self._store.wait(names, datetime.timedelta(seconds=wait_s))
            return bool(self._store.check(names))
        return False

    def _require_all(self, wait_s: float = 0.0) -> None:
        """Raises ProcessLost, or Interrupted, where a process has said why it left."""
        if not self._is_said(["left"], wait_s):
            return
        for rank in range(self.world):
            if rank != self.rank and (note := self.last_words(rank)) is not None:
                kind = Interrupted if note["kind"] in ("Interrupted", "KeyboardInterrupt") else ProcessLost
                raise kind(f"process {rank} of this run has left: {note['sentence']}")


def _odd(theirs: Any, first: Any) -> str:
    """Where two values part, line by line for texts."""
    pair = str(theirs).splitlines(), str(first).splitlines()
    for one, other in zip(*pair, strict=False):
        if one != other:
            return f"{one.strip()[:300]!r}, not {other.strip()[:300]!r}"
    return f"{len(pair[0])} lines of it, not {len(pair[1])}"


ALONE = Ranks()
_joined: Ranks | None = None


def here() -> Ranks:
    """This process among those it has joined; alone before it has joined any."""
    return _joined or ALONE


@contextlib.contextmanager
def joined() -> Iterator[Ranks]:
    """The processes that torchrun started this one with, for the length of a context; alone without it.

    To be entered before anything touches a card, since each process is left with one; entered again inside, it gives
    the same. Who leaves by an error tells the others; where process 0 has said why a run ends, no other needs to.
    Raises RequestError for a launch that cannot be played.
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
            _joined.gather("the end")  # the run folder is whole now, for whoever reads it
        except BaseException as error:
            _joined.leave(error)
            if isinstance(error, LiteSelfPlayError) and not _joined.main:
                error.said_elsewhere = _joined.last_words(0, LAST_WORDS_S) is not None
            _joined.say_goodbye()
            raise
        finally:
            ended, _joined = _joined, None
            # Where others may still wait for this process, its end takes it out of the group.
            if not ended._left and in_a_group():
                sys.modules["torch.distributed"].destroy_process_group()

"""How processes of one run find each other: what a launcher put into the environment, and what is refused of it.

The engine is torch's own: `torchrun` starts the processes, gloo carries what they tell each other, NCCL gradients from
card to card. TRL, accelerate and transformers are not told of the others, since they would average what they log,
divide losses by the number of processes, and wrap the model into a DDP that never sees a seat's gradient.
"""

import contextlib
import datetime
import itertools
import os
import socket
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lite_selfplay.errors import RequestError

TIMEOUT = datetime.timedelta(hours=1)
"""How long the others are waited for: a process that another machine lost, without a word, is missed after that."""

MEETING = datetime.timedelta(minutes=10)
"""How long a process waits for the place where all meet."""

_HIDDEN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK", "ROLE_WORLD_SIZE")
_LOOPBACK = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
_groups = itertools.count()
"""Process groups that this process has joined: all start as many, one after the other."""


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

    @property
    def whole(self) -> bool:
        """Whether there is such a process."""
        return 0 <= self.rank < self.world and 0 <= self.local_rank < self.local_world <= self.world


def find(environment: Mapping[str, str] = os.environ) -> Launch | None:
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
    accelerate = any(name.startswith(("ACCELERATE_USE_", "ACCELERATE_MIXED_")) for name in environment)
    if found is None or accelerate or not found.whole:
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


def disconnect(*, clean: bool) -> None:
    """Leave the process group. Where others may still wait for this process, the end of the process does that."""
    import torch.distributed as dist

    if clean and dist.is_initialized():
        dist.destroy_process_group()


def in_a_group() -> bool:
    """Whether this process is in a process group that it has not taken leave of."""
    dist = sys.modules.get("torch.distributed")
    return dist is not None and dist.is_available() and dist.is_initialized()

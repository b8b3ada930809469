"""The zygote: a clean interpreter that starts a confined child for each program, and never reads a program itself.

A program goes from the library through sealed memory directly to its child, so that no trace of it is in the memory
from which the next child is forked. The control socket receives a message for each job, with the files of its
processes, and returns how they ended. The zygote ends when the socket's other end is closed, or when the process that
started it is gone (a fork of that process may keep the other end open).
"""

import contextlib
import gc
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from lite_selfplay.verify.programs.inside import bpf, confinement, roles
from lite_selfplay.verify.programs.inside.clock import TICK_SECONDS, Clock
from lite_selfplay.verify.programs.inside.modules import load_beforehand

LOOK_SECONDS = 0.5  # how often it checks whether its parent is still there


class _Library(NamedTuple):
    """The library's process. `pid` is 0 in a process namespace: there the outer process watches the library."""

    control: socket.socket
    pid: int

    @property
    def gone(self) -> bool:
        poll = select.poll()
        poll.register(self.control, select.POLLHUP)
        return os.getppid() != self.pid or bool(poll.poll(0))


def main() -> None:
    """Serve the library that started this process, until it is gone. `argv[1]` is the configuration in JSON."""
    config = json.loads(sys.argv[1])
    sys.argv[:] = ["program.py"]
    library = _Library(socket.socket(fileno=config["control"]), os.getppid())
    _settle(config["folders"])
    try:
        library, found, missing = _layers(library, config)
    except BaseException as error:
        library.control.send(json.dumps({"ready": [], "missing": {"all": f"{type(error).__name__}: {error}"}}).encode())
        raise
    confinement.undumpable()
    library.control.send(json.dumps({"ready": sorted(found), "missing": missing}).encode())
    while True:
        while not select.select([library.control], [], [], LOOK_SECONDS)[0]:
            if library.gone:
                os._exit(0)
        _serve(library, found, config["uid"])


def _settle(folders: Sequence[str]) -> None:
    """Prepare the state that children inherit: modules loaded, signals silenced, first to be killed for memory."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")
    os.umask(0o077)
    load_beforehand(folders)
    time.tzset()
    gc.collect()
    gc.freeze()


def _layers(library: _Library, config: Mapping[str, Any]) -> tuple[_Library, frozenset[str], dict[str, str]]:
    """Which of the requested layers work, and why the others do not. Enters the namespaces and the empty root."""
    asked = config["layers"]
    missing: dict[str, str] = {}

    def works(name: str, layer: Any) -> bool:
        if name not in asked:
            return False
        missing[name] = confinement.trial(layer)
        return not missing[name]

    works("landlock", confinement.landlock)
    if works("namespaces", confinement.namespaces):
        library = _in_namespaces(library)
    if os.geteuid() == 0:  # tried in the namespace, which may have one user
        works("uid", partial(confinement.become, config["uid"]))
    elif "uid" in asked:
        missing["uid"] = "not root"
    if works("chroot", confinement.empty_root):
        confinement.empty_root()
    if works("seccomp", lambda: confinement.seccomp(bpf.build())):
        bpf.build()  # fill its cache: the trial ran in another process
    found = frozenset(name for name in asked if not missing.get(name))
    return library, found, {name: why for name, why in missing.items() if why}


def _in_namespaces(library: _Library) -> _Library:
    """Enter new namespaces. A child, their first process, continues; this process stays outside and supervises it."""
    confinement.namespaces()
    if inner := os.fork():
        while not library.gone and not os.waitpid(inner, os.WNOHANG)[0]:
            signal.sigtimedwait([signal.SIGCHLD], LOOK_SECONDS)
        os._exit(0)
    confinement.die_with_parent()
    return _Library(library.control, os.getppid())


def _serve(library: _Library, found: frozenset[str], uid: int) -> None:
    """Receive a job, run its processes, and send back how they ended."""
    message, files, _, _ = socket.recv_fds(library.control, 1 << 16, 2 * roles.CHANNEL)
    if not message:
        os._exit(0)
    header = {**json.loads(message), "parent": os.getpid()}
    plays = roles.ROLES[header["kind"]]
    channels = [end.detach() for end in socket.socketpair()] if len(plays) == 2 else []
    pids = []
    for number, play in enumerate(plays):
        if (pid := os.fork()) == 0:
            own = files[number * roles.CHANNEL :][: roles.CHANNEL] + channels[number:][:1]
            roles.become(play, header, own, found, uid)
        pids.append(pid)
    for file in files + channels:
        os.close(file)
    clock = Clock(pids, header["wall"])
    ended, late = _reap(library, pids, clock)
    rows = [
        {"status": status, "cpu": usage.ru_utime + usage.ru_stime, "memory": usage.ru_maxrss * 1024}
        for status, usage in (ended[pid] for pid in pids)
    ]
    answer = {"late": late, "starved": late and clock.used < clock.seconds, "rows": rows}
    library.control.send(json.dumps(answer).encode())


def _reap(library: _Library, pids: Sequence[int], clock: Clock) -> tuple[dict[int, tuple[int, Any]], bool]:
    """Wait until the first process ends or the clock runs out, then kill the others; kill all if the library is gone.
    Returns (how each ended, whether the clock ran out)."""
    ended: dict[int, tuple[int, Any]] = {}
    over = False
    while pids[0] not in ended and not over:
        if signal.sigtimedwait([signal.SIGCHLD], TICK_SECONDS) is None and library.gone:
            break
        while len(ended) < len(pids):
            pid, status, usage = os.wait4(-1, os.WNOHANG)
            if pid == 0:
                break
            ended[pid] = status, usage
        over = clock.poll()
    late = pids[0] not in ended
    for pid in {*pids} - ended.keys():
        os.kill(pid, signal.SIGKILL)  # not reaped yet, so its id cannot have been reused
        ended[pid] = os.wait4(pid, 0)[1:]
    return ended, late

"""A process for one program: it sets up its descriptors, confines itself, and only then reads the program."""

import contextlib
import io
import json
import os
import random
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lite_selfplay.verify.programs.inside import bpf, confinement, roles

STDIN, STDOUT, STDERR, REPLY, JOB, CHANNEL = range(6)
FILES = 5  # of a process, in the order in which they are sent: job, stdin, stdout, stderr, reply

_ROLES: dict[str, tuple[Callable[..., None], tuple[int, ...]]] = {
    "stdio": (roles.run, ()),
    "call": (roles.answer_calls, (REPLY,)),
    "candidate": (roles.serve_calls, (CHANNEL,)),
    "test": (roles.put_tests, (CHANNEL, REPLY)),
}
NOT_CONFINED = 125
_LONGEST_TRACE = 4000
_SEED = 0


def become(
    role: str, header: Mapping[str, Any], files: Sequence[int], found: frozenset[str], uid: int, channel: int | None
) -> None:
    """Become the process of a role, right after the fork, and never return. `header` has the limits, `found` the layers
    to apply, `channel` is the connection to the other role."""
    try:
        _usual_signals()
        _move_files(files, channel)
        _streams()
        _confine(header, found, uid)
        with os.fdopen(JOB, "rb") as file:
            job = json.load(file)
    except BaseException:
        with contextlib.suppress(BaseException):
            os.write(STDERR, f"sandbox: {traceback.format_exc()}".encode())
        os._exit(NOT_CONFINED)
    _work(role, job)


def _usual_signals() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)


def _move_files(files: Sequence[int], channel: int | None) -> None:
    """Move the files to their descriptors, and close all others."""
    job, stdin, stdout, stderr, reply = files
    wanted = [stdin, stdout, stderr, reply, job, *([] if channel is None else [channel])]
    aside = [os.dup2(file, 200 + number, inheritable=False) for number, file in enumerate(wanted)]
    for number, file in enumerate(aside):
        os.dup2(file, number, inheritable=False)
    os.closerange(len(wanted), 1 << 16)


def _confine(header: Mapping[str, Any], found: frozenset[str], uid: int) -> None:
    """Confine this process. The order matters: each step needs rights that a later one removes."""
    parent = header["parent"]
    confinement.die_with_parent()
    no_processes = "uid" in found or os.geteuid() != 0
    confinement.limit_resources(header["seconds"], header["memory"], header["output"], no_processes=no_processes)
    if "uid" in found:
        confinement.become(uid)
        confinement.die_with_parent()  # a change of user clears it
    confinement.drop_capabilities()
    confinement.no_new_privileges()
    if "landlock" in found:
        confinement.landlock()
    confinement.undumpable()
    _remember_files()
    if os.getppid() != parent:
        os._exit(NOT_CONFINED)
    if "seccomp" in found:
        confinement.seccomp(bpf.for_process(bpf.build(), os.getpid()))


def _remember_files() -> None:
    """Answer fstat of the standard streams from memory: contest templates use it for the size of their input. The
    system call is refused because it also takes paths."""
    known = {file: os.fstat(file) for file in (STDIN, STDOUT, STDERR)}
    real = os.fstat

    def fstat(fd: int) -> os.stat_result:
        return known[fd] if fd in known else real(fd)

    os.fstat = sys.modules["posix"].fstat = fstat  # type: ignore[attr-defined]


def _streams() -> None:
    """New standard streams like the interpreter's own: the zygote's belong to other files."""
    for file, name, mode in ((STDIN, "stdin", "r"), (STDOUT, "stdout", "w"), (STDERR, "stderr", "w")):
        raw = io.FileIO(file, mode, closefd=False)
        raw.name = f"<{name}>"
        buffered = io.BufferedReader(raw) if mode == "r" else io.BufferedWriter(raw)
        errors = "backslashreplace" if file == STDERR else "surrogateescape"
        stream = io.TextIOWrapper(buffered, "utf-8", errors=errors, write_through=file == STDERR)
        stream.mode = mode  # type: ignore[misc]
        vars(sys).update({name: stream, f"__{name}__": stream})


def _work(role: str, job: Mapping[str, Any]) -> None:
    """Play the role and exit. The exit code may show that a program failed, but never that it did not."""
    code = 0
    try:
        random.seed(_SEED)
        play, files = _ROLES[role]
        play(job, *files)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            with contextlib.suppress(BaseException):
                os.write(STDERR, end.code.encode("utf-8", "backslashreplace")[:_LONGEST_TRACE])
    except BaseException:
        code = 1
        with contextlib.suppress(BaseException):
            os.write(STDERR, traceback.format_exc(limit=-6)[-_LONGEST_TRACE:].encode("utf-8", "backslashreplace"))
    with contextlib.suppress(BaseException):
        sys.stdout.flush()
    os._exit(code & 0xFF)

"""A confined process: it sets up its descriptors, confines itself, and only then reads its job and plays its role.

The roles: run a program, answer calls with it, or test a program in another process. None has more than it needs: a
program's process has no tests or expected values, and a test's process never runs code of the program.
"""

import atexit
import builtins
import contextlib
import io
import json
import os
import random
import signal
import sys
import threading
import traceback
import types
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from lite_selfplay.verify.programs.inside import bpf, confinement
from lite_selfplay.verify.programs.inside.border import Border, ProgramLost, class_of, write
from lite_selfplay.verify.programs.inside.names import add_modules, asking_for_classes, names_of_program
from lite_selfplay.verify.programs.inside.values import PROGRAM, TEST, Unwritable, canonical, pack, unpack

Job = Mapping[str, Any]
STDIN, STDOUT, STDERR, REPLY, JOB, CHANNEL = range(6)  # the descriptors of a process; one that is alone has no channel
NOT_CONFINED = 125
_LONGEST_TRACE = 4000
_FILLING: list[Any] = []


def load(source: str, name: str) -> dict[str, Any]:
    """Execute a program as a new module, and return its namespace."""
    module = sys.modules[name] = types.ModuleType(name)
    module.__dict__["__builtins__"] = builtins
    exec(compile(source, "program.py", "exec", dont_inherit=True), module.__dict__)
    return module.__dict__


def run(job: Job) -> None:
    """Run a whole program as a script: wait for its threads, and call its exit functions."""
    load(job["program"], "__main__")
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()


def answer_calls(job: Job) -> None:
    """Write each call's result, one per line, as canonical text or packed as JSON. They are compared in the library's
    process, which knows the expected results."""
    if job.get("elsewhere"):
        # All processes are copies of one, in which an object would have the same address.
        _FILLING.extend([[], {}, (n,), {n}, n + 0.5, bytes(n), object(), lambda: None] for n in range(512))
    space = load(job["program"], PROGRAM)
    for arguments in job["calls"]:
        try:
            result = _function(space, job["function"])(*map(unpack, arguments))
            line = "= " + (json.dumps(pack(result)) if job.get("packed") else canonical(result))
        except Unwritable as error:
            line = f"? the result is not of a built-in type: {error}"
        except Exception as error:
            line = f"! {type(error).__name__}: {error}"[:300]
        write(REPLY, line.encode("utf-8", "backslashreplace").replace(b"\n", b" ") + b"\n")


def _function(space: Mapping[str, Any], name: str) -> Any:
    """A function of a program, or a method of its class `Solution`."""
    if name not in space and "Solution" in space:
        return getattr(space["Solution"](), name)
    if name not in space:
        raise NameError(f"the program defines no {name}")
    return space[name]


def serve_calls(job: Job) -> None:
    """Do what the process of a test asks, until it ends."""
    space = load(job["program"], PROGRAM)
    border = Border(CHANNEL, {"name": lambda name: _function(space, name)}, trusted=True)
    border.send(
        [name for name, value in list(space.items()) if type(name) is str and not isinstance(value, types.ModuleType)]
    )
    with contextlib.suppress(EOFError):
        while True:
            border.answer(*border.receive()[1:])


def put_tests(job: Job) -> None:
    """Run each test, and write `NONCE number` after it to a file that the program cannot reach, with `+`, `-`, or `?`
    if it cannot be run here, whatever the program."""
    space = load("", TEST)
    border = Border(CHANNEL, {}, trusted=False)
    try:
        names = [name for name in border.receive() if type(name) is str and not name.startswith("__")]
    except (EOFError, OSError, ValueError, TypeError):
        raise ProgramLost("the program did not load") from None
    try:
        sources = [job["setup"], *job["tests"]]
        setup, *codes = [compile(asking_for_classes(each), "test.py", "exec", dont_inherit=True) for each in sources]
        free, modules, judges = names_of_program(sources, job["function"])
        find = partial(border.ask, "name")
        add_modules(modules, {*names} - judges, find)
        space.update((name, find(name)) for name in names if name in free)
        space["__class_of__"] = class_of
        exec(setup, space)
    except Exception as error:
        if not hasattr(error, "_reference") and (type(error) is not ImportError and not isinstance(error, NameError)):
            write(REPLY, f"{job['nonce']} ? {type(error).__name__}: {error}\n".encode("utf-8", "backslashreplace"))
        raise
    if name := job["function"]:  # a method of `Solution`, or what is missing, is looked up by each call
        space[name] = space["candidate"] = (
            find(name) if name in names else lambda *given, **named: find(name)(*given, **named)
        )
    for number, code in enumerate(codes):
        try:
            exec(code, space)
            passed = "+"
        except BaseException as error:  # that of a failed `pytest.raises` is no Exception
            if isinstance(error, ProgramLost | SystemExit):
                raise
            ours = isinstance(error, ModuleNotFoundError) and not hasattr(error, "_reference")
            passed = f"? {error}" if ours else "-"
            print(f"test {number + 1}: {type(error).__name__}: {error}"[:300], file=sys.stderr, flush=True)
        write(REPLY, f"{job['nonce']} {number} {passed}\n".encode("utf-8", "backslashreplace"))


# The processes of each kind of job, which ends when the first of them ends.
ROLES: dict[str, tuple[Callable[[Job], None], ...]] = {
    "stdio": (run,),
    "call": (answer_calls,),
    "check": (put_tests, serve_calls),
}


def become(
    play: Callable[[Job], None], header: Mapping[str, Any], files: Sequence[int], found: frozenset[str], uid: int
) -> None:
    """Become the process of a role, right after the fork, and never return. `header` has the limits, `files` are in the
    order of their descriptors, `found` has the layers to apply."""
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        _move_files(files)
        _streams()
        _confine(header, found, uid)
        with os.fdopen(JOB, "rb") as file:
            job = json.load(file)
    except BaseException:
        with contextlib.suppress(BaseException):
            os.write(STDERR, f"sandbox: {traceback.format_exc()}".encode())
        os._exit(NOT_CONFINED)
    _work(play, job)


def _move_files(files: Sequence[int]) -> None:
    """Move the files to their descriptors, and close all others."""
    aside = [os.dup2(file, 200 + number, inheritable=False) for number, file in enumerate(files)]
    for number, file in enumerate(aside):
        os.dup2(file, number, inheritable=False)
    os.closerange(len(files), 1 << 16)


def _confine(header: Mapping[str, Any], found: frozenset[str], uid: int) -> None:
    """Confine this process. The order matters: each step needs rights that a later one removes."""
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
    if os.getppid() != header["parent"]:
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
        errors = "backslashreplace" if file == STDERR else "surrogateescape"
        stream: Any = os.fdopen(file, mode, io.DEFAULT_BUFFER_SIZE, "utf-8", errors, closefd=False)
        stream.buffer.raw.name = f"<{name}>"
        stream.reconfigure(write_through=file == STDERR)
        vars(sys).update({name: stream, f"__{name}__": stream})


def _work(play: Callable[[Job], None], job: Job) -> None:
    """Play the role and exit. The exit code may show that a program failed, but never that it did not."""
    code = 0
    try:
        random.seed(0)
        play(job)
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

"""The choice of a sandbox on this machine, and the one that a process shares.

1. `kernel`: confined processes on Linux (`zygotes.py`). Seccomp is required; namespaces, an empty root, another user
   and Landlock are added if a trial succeeds.
2. `none`: if the first is not available, nothing is run, and `SandboxError` says why. With `unsafe_code`, programs
   then run in the same processes with the available layers, perhaps only with limits.

A sandbox is tested on this machine instead of relying on versions: a canary program tries to escape from it. The
library checks from outside what it can, instead of trusting the canary.
"""

import contextlib
import importlib.util
import os
import secrets
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from lite_selfplay.verify.programs.inside.names import SERVED
from lite_selfplay.verify.programs.nouns import LAYERS, Job, Limits, ProgramRun, SandboxError

if TYPE_CHECKING:
    from lite_selfplay.verify.programs.zygotes import Zygotes

_CANARY = r"""
import errno, functools, os, socket
print = functools.partial(print, flush=True)

def attempt(name, function):
    try:
        function()
        print(name, "POSSIBLE")
    except MemoryError:
        print(name, "denied")
    except OSError as error:
        print(name, "denied", errno.errorcode.get(error.errno, error.errno))
    except Exception as error:
        print(name, "denied", type(error).__name__)

def fork():
    if os.fork() == 0:
        os._exit(0)

attempt("reading a file", lambda: open(PATH).read())
attempt("writing a file", lambda: open(PATH, "a").write("x"))
attempt("making a file", lambda: open(PATH + ".new", "w"))
attempt("reading /etc/passwd", lambda: open("/etc/passwd").read())
attempt("reading /proc", lambda: open("/proc/self/status").read())
attempt("TCP", lambda: socket.create_connection(("127.0.0.1", PORT), 1))
attempt("UDP", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", PORT)))
attempt("an abstract socket", lambda: socket.socket(socket.AF_UNIX).connect("\0" + NAME))
attempt("fork", fork)
attempt("exec", lambda: os.execv(PYTHON, [PYTHON, "-c", "0"]))
attempt("a signal to this process", lambda: os.kill(PID, 0))
attempt("8 GB of memory", lambda: bytearray(8 << 30))
attempt("an inherited descriptor", lambda: os.write(FILE, b"x"))
print("end")
"""


@dataclass(frozen=True)
class Sandbox:
    """A tested way to run programs.

    `tier` is `kernel` or `unsafe`; `layers` confine each program, and `missing` says why others do not; `tried` lists
    the attempts of a canary that failed.
    """

    tier: str
    layers: tuple[str, ...]
    missing: dict[str, str]
    tried: tuple[str, ...]
    _runner: "Zygotes" = field(repr=False)
    _with_packages: "Zygotes" = field(repr=False)

    def run(self, jobs: Sequence[Job], limits: Limits, poll: Callable[[], None] = lambda: None) -> list[ProgramRun]:
        """Run jobs and return how each ended: see `zygotes.Zygotes.run`."""
        found: dict[int, ProgramRun] = {}
        for packages, runner in enumerate((self._runner, self._with_packages)):
            chosen = [index for index, job in enumerate(jobs) if job.packages == packages]
            found |= zip(chosen, runner.run([jobs[index] for index in chosen], limits, poll), strict=True)
        return [found[index] for index in range(len(jobs))]

    def pids(self) -> list[int]:
        """The processes that start programs."""
        return self._runner.pids() + self._with_packages.pids()

    def close(self) -> None:
        """End its processes; the next program starts them again."""
        self._runner.close()
        self._with_packages.close()

    def sentence(self) -> str:
        """A description for people."""
        around = f"each program is confined by {', '.join(self.layers) or 'only limits'}"
        without = "; ".join(f"no {name}: {why}" for name, why in self.missing.items())
        seen = f"; a test program was denied: {', '.join(self.tried)}" if self.tried else ""
        return f"{self.tier}, {around}{f' ({without})' if without else ''}{seen}"


def open_sandbox(
    *, size: int | None = None, unsafe_code: bool = False, layers: Sequence[str] = LAYERS, marks: Sequence[str] = ()
) -> Sandbox:
    """Open a new, tested sandbox with `size` processes (by default 2, or 1 on a machine with one core).

    `layers`: those to use if available; `marks`: further arguments of its interpreters. Raises SandboxError if a
    program could escape, unless `unsafe_code`.
    """
    if not sys.platform.startswith("linux"):
        raise SandboxError(
            f"programs that a model wrote run only on Linux, and this is {sys.platform}: use Linux, a container or "
            "WSL 2. --unsafe-code does not help here"
        )
    from lite_selfplay.verify.programs.zygotes import ZygoteError, Zygotes

    runner = Zygotes(size, layers, marks=marks)
    try:
        first = runner.first()
        found, missing = first.layers, dict(first.missing)
        none = f"this kernel does not allow a seccomp filter ({missing.get('seccomp', 'not requested')})"
        tried, problem = probe(runner) if "seccomp" in found else ((), none)
    except ZygoteError as error:
        tried, problem, found, missing = (), str(error), (), {}
    if problem and not unsafe_code:
        runner.close()
        raise SandboxError(
            f"programs that a model wrote cannot be run safely here: {problem}. If nothing on this machine is worth "
            "protecting, --unsafe-code runs them without that protection"
        )
    tier = "unsafe" if problem else "kernel"
    in_order = tuple(name for name in LAYERS if name in found)
    specs = filter(None, map(importlib.util.find_spec, SERVED))
    folders = sorted({str(Path(spec.origin or "").parents[1]) for spec in specs})
    return Sandbox(tier, in_order, missing, tried, runner, Zygotes(size, layers, marks=marks, folders=folders))


def probe(runner: "Zygotes") -> tuple[tuple[str, ...], str]:
    """Run a harmless program and a canary. Returns (its failed attempts, a sentence about a failure of the sandbox)."""
    with tempfile.TemporaryDirectory(prefix="lite-selfplay-probe-") as folder, contextlib.ExitStack() as stack:
        os.chmod(folder, 0o755)
        path = Path(folder, "canary")
        path.write_text("canary")
        path.chmod(0o666)
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        listener.setblocking(False)
        abstract = stack.enter_context(socket.socket(socket.AF_UNIX))
        name = f"lite-selfplay-{secrets.token_hex(8)}"
        abstract.bind(f"\0{name}")
        abstract.listen()
        held = os.open(path, os.O_RDWR)
        stack.callback(os.close, held)
        os.set_inheritable(held, True)
        known = {
            "PATH": str(path),
            "PORT": listener.getsockname()[1],
            "NAME": name,
            "FILE": held,
            "PYTHON": sys.executable,
            "PID": os.getpid(),
        }
        canary = "".join(f"{key} = {value!r}\n" for key, value in known.items()) + _CANARY
        jobs = [Job("stdio", ({"program": "print(6 * 7)"},)), Job("stdio", ({"program": canary},), program=1)]
        harmless, tried = runner.run(jobs, Limits())
        if harmless.stdout != b"42\n":
            return (), f"a harmless program did not run ({harmless.reason}: {harmless.detail})"
        lines = tried.text.splitlines()
        possible = [line.removesuffix(" POSSIBLE") for line in lines if line.endswith(" POSSIBLE")]
        if path.read_text() != "canary" or len(os.listdir(folder)) > 1:
            possible.append("a change of files")
        with contextlib.suppress(BlockingIOError):
            listener.accept()[0].close()
            possible.append("a connection")
        names = tuple(line.partition(" denied")[0] for line in lines if " denied" in line)
        if possible:
            return names, f"a program could do this: {', '.join(possible)}"
        ended = "end" in lines
        return names, "" if ended else f"the test program did not finish ({tried.reason}: {tried.detail})"


_lock = threading.Lock()
_shared: dict[bool, tuple[int, Sandbox]] = {}


def shared_sandbox(*, unsafe_code: bool = False) -> Sandbox:
    """The sandbox of this process, opened and tested on first use. Raises SandboxError: see `open_sandbox`."""
    with _lock:
        pid, sandbox = _shared.get(unsafe_code, (0, None))
        if sandbox is None or pid != os.getpid():
            sandbox = open_sandbox(unsafe_code=unsafe_code)
            _shared[unsafe_code] = os.getpid(), sandbox
        return sandbox


def close_sandbox() -> None:
    """End the processes of the shared sandbox, if any. The next program starts them again."""
    with _lock:
        for pid, sandbox in _shared.values():
            if pid == os.getpid():
                sandbox.close()

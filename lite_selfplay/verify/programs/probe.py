"""Whether a sandbox holds on this very machine: a canary tries to get out of it, by the way that every program goes.

It tries, and asks no version. What it says of itself is not believed where this side can look for itself.
"""

import contextlib
import os
import secrets
import socket
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from lite_selfplay.verify.programs.judge import Runner
from lite_selfplay.verify.programs.nouns import Job, Limits

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
class Probe:
    """What a canary tried, and what of it was possible; `problem` says so, and is empty where nothing was."""

    tried: tuple[str, ...] = ()
    problem: str = ""


def probe(runner: Runner) -> Probe:
    """Let a harmless program and a canary run."""
    with tempfile.TemporaryDirectory(prefix="lite-selfplay-probe-") as place, contextlib.ExitStack() as stack:
        os.chmod(place, 0o755)
        path = Path(place, "canary")
        path.write_text("canary")
        path.chmod(0o666)
        listener, abstract = stack.enter_context(socket.socket()), stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.setblocking(False)
        name = f"lite-selfplay-{secrets.token_hex(8)}"
        abstract.bind(f"\0{name}")
        abstract.listen()
        held = os.open(path, os.O_RDWR)
        stack.callback(os.close, held)
        os.set_inheritable(held, True)
        known = {"PATH": str(path), "PORT": listener.getsockname()[1], "NAME": name, "FILE": held}
        known |= {"PYTHON": sys.executable, "PID": os.getpid()}
        canary = "".join(f"{key} = {value!r}\n" for key, value in known.items()) + _CANARY
        jobs = [Job("stdio", ({"program": "print(6 * 7)"},)), Job("stdio", ({"program": canary},), program=1)]
        harmless, tried = runner.run(jobs, Limits())
        if harmless.stdout != b"42\n":
            return Probe(problem=f"a harmless program did not run ({harmless.reason}: {harmless.detail})")
        lines = tried.text.splitlines()
        possible = [line.removesuffix(" POSSIBLE") for line in lines if line.endswith(" POSSIBLE")]
        if path.read_text() != "canary" or len(os.listdir(place)) > 1:
            possible.append("a change of files")
        with contextlib.suppress(BlockingIOError):
            listener.accept()[0].close()
            possible.append("a connection")
        names = tuple(line.partition(" denied")[0] for line in lines if " denied" in line)
        if possible:
            return Probe(names, f"a program could do this: {', '.join(possible)}")
        if "end" not in lines:
            return Probe(names, f"a canary did not come to its end ({tried.reason}: {tried.detail})")
        return Probe(names)

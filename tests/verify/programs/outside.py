"""What stands around a sandbox in the tests: secrets, victims, listeners and a bystander, all asked after each program.

A program is out if it printed a secret or a line that begins with GOT, or if anything outside it changed. Run by itself
it tries the hostile programs in one tier, as whoever and wherever its process is, and prints what got out as JSON:
python -m tests.verify.programs.outside seccomp,landlock
"""

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lite_selfplay.verify.programs import SandboxError, open_sandbox, run_program
from lite_selfplay.verify.programs.inside import bpf
from lite_selfplay.verify.programs.nouns import Limits, ProgramRun

PLACE = Path(__file__).with_name("hostile")
LIMITS = Limits(seconds=1.0)
LATE_SECONDS = 3.0
ENDLESS = frozenset(
    """ignore_sigterm_loop busy_c_loop stop_self setsid_then_loop int_parse regex_bomb gc_bomb exit_hang
    ignore_the_limit handle_the_limit wait_for_ever sleep_for_ever read_for_ever lock_twice catch_memory_errors
    catch_everything
    factorial power_tower product_for_ever hash_loop finaliser_loop import_lock alarm_storm trace_everything
    decimal_precision huge_int hash_collisions compile_bomb2 lzma_memory cycle_into_a_list kill_itself
    stack_without_bound deep_recursion c_recursion""".split()
)
"""Programs that run until a limit ends them, a second or two each."""

_OURS = ("sbx-", "sbxhard", "sbxmq", "sem.sbx", "lite-selfplay-root-")
_HEAD = """import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
def sc(n, *a):
    return libc.syscall(ctypes.c_long(n), *[ctypes.c_long(x) if isinstance(x, int) else x for x in a])
"""
_BYSTANDER = r"""
import ctypes, os, sys, time
b = ctypes.create_string_buffer(os.environ['SBX_SECRET'].encode() + b'-in-memory', 64)
f = open(sys.argv[1])
print(ctypes.addressof(b), flush=True)
while True: time.sleep(60)
"""


def programs_of(*paths: Path) -> dict[str, str]:
    """The programs of files, each after a line `=== NAME`."""
    blocks = [block for path in paths for block in path.read_text(encoding="utf-8").split("=== ")[1:]]
    found = {name.strip(): source for name, _, source in (block.partition("\n") for block in blocks)}
    assert len(found) == len(blocks)
    return found


def hostile() -> dict[str, str]:
    """Every hostile program."""
    return programs_of(*sorted(PLACE.glob("*.txt")))


class World:
    """A place with a token that no program may print. `tag` is in the command line of all that is started here."""

    def __init__(self) -> None:
        self.token, self.tag = f"SBXTOKEN-{secrets.token_hex(12)}", f"sbxtag{secrets.token_hex(5)}"
        self.previous = f"PREVIOUS-{secrets.token_hex(4)}-"
        self.base = Path(tempfile.mkdtemp(prefix=f"{self.tag}-"))
        self.base.chmod(0o755)
        self.home, self.victim = self.base / "home", self.base / "victim"
        os.environ["SBX_SECRET"] = self.token
        self.inherited = self.base / "inherited"
        self.inherited.write_text(f"{self.token}-inherited")
        self._held = os.open(self.inherited, os.O_RDWR)
        os.set_inheritable(self._held, True)
        self.hits: list[str] = []
        self._sockets = dict(self._open_sockets())
        for name, each in self._sockets.items():
            threading.Thread(target=self._listen, args=(name, each), daemon=True).start()
        self._start_bystander()
        self.rebuild()

    def _open_sockets(self) -> Any:
        stream, datagram = socket.SOCK_STREAM, socket.SOCK_DGRAM
        for name, family, kind, address in (
            ("tcp", socket.AF_INET, stream, ("127.0.0.1", 0)),
            ("tcp6", socket.AF_INET6, stream, ("::1", 0)),
            ("udp", socket.AF_INET, datagram, ("127.0.0.1", 0)),
            ("unix", socket.AF_UNIX, stream, str(self.base / "sock")),
            ("abstract", socket.AF_UNIX, stream, f"\0sbx-{self.tag}"),
        ):
            with contextlib.suppress(OSError):  # a machine without IPv6
                each = socket.socket(family, kind)
                each.bind(address)
                if kind == stream:
                    each.listen(50)
                each.set_inheritable(True)
                yield name, each
        (self.base / "sock").chmod(0o777)

    def _listen(self, name: str, each: socket.socket) -> None:
        while True:
            try:
                if each.type == socket.SOCK_DGRAM:
                    each.recv(100)
                else:
                    each.accept()[0].close()
                self.hits.append(name)
            except OSError:
                return

    def _start_bystander(self) -> None:
        command = [sys.executable, "-I", "-S", "-c", _BYSTANDER, str(self.inherited), self.tag]
        self.bystander = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
        assert self.bystander.stdout is not None
        self.address = int(self.bystander.stdout.readline())
        self.bystander.stdout.close()

    def rebuild(self) -> None:
        """Put everything back in its place."""
        self.hits.clear()
        for place in (self.home, self.victim):
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir()
            place.chmod(0o777)
        (self.home / ".ssh").mkdir()
        (self.home / ".ssh" / "id_rsa").write_text(f"{self.token}-key")
        (self.home / f"{self.token}-name").write_text("")
        (self.home / "link").symlink_to(self.token)
        (self.victim / "file").write_text("precious")
        (self.victim / "file").chmod(0o666)
        (self.victim / "sbxmodule.py").write_text(f"TOKEN = {self.token + '-module'!r}\n")

    def head(self) -> str:
        """What stands before a hostile program: the names it uses."""
        column = bpf.ARCHITECTURES[bpf.MACHINE][0]
        ports = {name: each.getsockname() for name, each in self._sockets.items()}
        values = {
            "SECRET": f"{self.home}/.ssh/id_rsa",
            "HOME": str(self.home),
            "VICTIM": str(self.victim),
            "PORT": ports["tcp"][1],
            "PORT6": ports["tcp6"][1] if "tcp6" in ports else 1,
            "UDP": ports["udp"][1],
            "UNIX": ports["unix"],
            "ABSTRACT": ports["abstract"].lstrip(b"\0").decode(),
            "SENTINEL": self.bystander.pid,
            "ADDRESS": self.address,
            "PREVIOUS": self.previous,
            "NR": {name: numbers[column] for name, numbers in bpf.ALL.items()},
        }
        return "".join(f"{key} = {value!r}\n" for key, value in values.items()) + _HEAD

    def snapshot(self) -> list[Any]:
        """Every file here: mode, owner, size, times, content, attributes."""
        rows: list[Any] = [self.inherited.read_bytes()]
        for root in (self.home, self.victim):
            for place, folders, files in os.walk(root):
                for name in [".", *folders, *files]:
                    path = Path(place, name)
                    seen = path.lstat()
                    content = path.read_bytes() if path.is_file() and not path.is_symlink() else None
                    size = 0 if name == "." else seen.st_size
                    where = (str(path), seen.st_mode, seen.st_uid, seen.st_gid, size, seen.st_mtime_ns)
                    rows.append((*where, content, os.listxattr(path, follow_symlinks=False)))
        return sorted(rows, key=str)

    def strangers(self, known: Sequence[int]) -> dict[int, str]:
        """Processes with this world's tag that are neither known nor children of known ones."""
        found = processes()
        family = {*known, self.bystander.pid, os.getpid()}
        for pid, (_, _, parent) in sorted(found.items()):
            family |= {pid} if parent in family and parent != os.getpid() else set()
        marks = (self.tag.encode(), b"19.753")
        return {
            pid: line.decode(errors="replace")
            for pid, (line, state, _) in found.items()
            if any(mark in line for mark in marks) and state != "Z" and pid not in family
        }

    def broken(
        self, run: ProgramRun, seconds: float, known: Sequence[int], before: tuple[list[Any], set[str]]
    ) -> list[str]:
        """What a program did that it may not; empty where it was held."""
        files, mess = before
        found = [f"printed {line[:60]!r}" for line in run.stdout.split(b"\n") if line.startswith(b"GOT")][:1]
        found += ["printed a secret"] if self.token.encode() in run.stdout + run.stderr else []
        found += ["changed files"] if self.snapshot() != files else []
        found += [f"connected: {self.hits[0]}"] if self.hits else []
        found += [f"ran {seconds:.1f} s"] if seconds > LIMITS.wall + LATE_SECONDS else []
        found += [f"used {run.memory_mb:.0f} MiB"] if run.memory_mb > 1.4 * LIMITS.memory_mb else []
        found += ["left more output than it may"] if len(run.stdout + run.stderr) > 2 << 20 else []
        if self.bystander.poll() is not None:
            found.append("killed the bystander")
            self._start_bystander()
        for pid, line in self.strangers(known).items():
            found.append(f"left a process: {line[:60]}")
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if left := left_since(mess):
            found.append(f"left {sorted(left)[0]}")
            sweep(left)
        return found

    def close(self) -> None:
        self.bystander.kill()
        self.bystander.wait()
        for each in self._sockets.values():
            each.close()
        os.close(self._held)
        shutil.rmtree(self.base, ignore_errors=True)


def processes() -> dict[int, tuple[bytes, str, int]]:
    """Command line, state and parent of every process."""
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            line = Path("/proc", name, "cmdline").read_bytes()
            rest = Path("/proc", name, "stat").read_text().rsplit(")", 1)[1].split()
            found[int(name)] = (line, rest[0], int(rest[1]))
    return found


def litter() -> set[str]:
    """What programs of these names leave in folders for everybody, and in the kernel."""
    found: set[str] = set()
    for place in ("/tmp", "/var/tmp", "/dev/shm", "/dev/mqueue", os.getcwd()):
        with contextlib.suppress(OSError):
            names = [name for name in os.listdir(place) if name.startswith(_OURS)]
            found |= {os.path.join(place, name) for name in names}
    for kind in ("shm", "sem", "msg"):
        with contextlib.suppress(OSError):
            lines = Path("/proc/sysvipc", kind).read_text().splitlines()[1:]
            found |= {f"sysv {kind} {line.split()[1]}" for line in lines}
    return found


def left_since(before: set[str]) -> set[str]:
    """What has come to `litter` and stays: another process's folder may be there for a moment."""
    left = litter() - before
    if left:
        time.sleep(0.5)
        left &= litter()
    return left


def sweep(found: set[str]) -> None:
    """Remove what was left."""
    for item in found:
        if item.startswith("sysv"):
            _, kind, number = item.split()
            option = {"shm": "-m", "sem": "-s", "msg": "-q"}[kind]
            subprocess.run(["ipcrm", option, number], check=False, capture_output=True)
        elif os.path.isdir(item):
            shutil.rmtree(item, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                os.remove(item)


def play(world: World, sandbox: Any) -> dict[str, list[str]]:
    """Each program by itself, the outside asked after each: what those that got out did."""
    found = {}
    for name, source in hostile().items():
        world.rebuild()
        if "previous" in name or "frames" in name:
            run_program(f"kept = [{world.previous!r} + str(4242) * 20 + str(i) for i in range(5000)]", sandbox=sandbox)
        before, started = (world.snapshot(), litter()), time.monotonic()
        run = run_program(world.head() + source, limits=LIMITS, sandbox=sandbox)
        seconds = time.monotonic() - started
        if broken := world.broken(run, seconds, sandbox.pids(), before):
            found[name] = broken
    time.sleep(0.5)
    late = world.broken(ProgramRun(""), 0.0, sandbox.pids(), (world.snapshot(), litter()))
    return {**found, "afterwards": late} if late else found


def main() -> None:
    asked = tuple(sys.argv[1].split(","))
    try:
        with (
            contextlib.closing(World()) as world,
            contextlib.closing(open_sandbox(size=1, layers=asked, marks=("-X", world.tag))) as sandbox,
        ):
            out = play(world, sandbox)
            alive = run_program("print(6 * 7)", sandbox=sandbox).stdout == b"42\n"
    except SandboxError as error:
        print(json.dumps({"refused": str(error)}))
        return
    report = {"uid": os.getuid(), "layers": sandbox.layers, "missing": sandbox.missing, "programs": len(hostile())}
    print(json.dumps({**report, "out": out, "alive": alive}))


if __name__ == "__main__":
    main()

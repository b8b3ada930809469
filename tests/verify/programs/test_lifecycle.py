"""What is left when things end badly: nothing, whoever is killed, and at whatever moment."""

import os
import random
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from lite_selfplay.verify.programs import Limits, Sandbox, close_sandbox, open_sandbox, run_program, run_tests
from lite_selfplay.verify.programs.nouns import Job
from lite_selfplay.verify.programs.sandbox import shared_sandbox
from lite_selfplay.verify.programs.zygotes import ZygoteError, Zygotes
from tests.verify.programs.outside import left_since, litter, processes

LIMITS = Limits(seconds=1.0)
PATIENCE_S = 20.0
PARENT = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where a shell started the tests in the background
from lite_selfplay.verify.programs import Limits, open_sandbox, run_program
sandbox = open_sandbox(size=2, marks=("-X", sys.argv[1]))
print(*sandbox.pids(), flush=True)
from lite_selfplay.verify.programs.nouns import Job
{body}
"""
BUSY = (
    'sandbox.run([Job("stdio", ({"program": "while True: pass"},), program=n) for n in range(4)], Limits(seconds=30))'
)


def new_tag() -> str:
    return f"sbxlife{secrets.token_hex(5)}"


def ours(tag: str) -> dict[int, bytes]:
    """Living processes of a sandbox with this tag."""
    return {pid: line for pid, (line, state, _) in processes().items() if tag.encode() in line and state != "Z"}


def printing(what: str, count: int) -> list[Job]:
    """Programs that print their numbers after some statements."""
    return [Job("stdio", ({"program": f"{what}; print({n})"},), program=n) for n in range(count)]


def gone(tag: str) -> bool:
    """Wait until none is left."""
    until = time.monotonic() + PATIENCE_S
    while (left := ours(tag)) and time.monotonic() < until:
        time.sleep(0.05)
    return not left


def parent(body: str) -> tuple[str, subprocess.Popen[str]]:
    """A process that holds a sandbox, once it is open, and the tag of that."""
    tag = new_tag()
    command = [sys.executable, "-c", PARENT.format(body=body), tag]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline()
    return tag, process


def end(process: subprocess.Popen[str], by: signal.Signals) -> None:
    process.send_signal(by)
    process.wait(PATIENCE_S)
    assert process.stdout is not None
    process.stdout.close()


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    """One that leaves no process."""
    tag = new_tag()
    with closing(open_sandbox(size=2, marks=("-X", tag))) as sandbox:
        yield sandbox
    assert gone(tag)


@pytest.mark.parametrize(
    ("body", "by"),
    [
        pytest.param(BUSY, signal.SIGKILL, id="killed while busy"),
        pytest.param(BUSY, signal.SIGINT, id="interrupted while busy"),
        pytest.param(BUSY, signal.SIGTERM, id="terminated while busy", marks=pytest.mark.long),
        pytest.param("time.sleep(60)", signal.SIGKILL, id="killed while idle", marks=pytest.mark.long),
    ],
)
def test_nothing_outlives_its_parent(body, by):
    before = litter()
    tag, process = parent(body)
    assert ours(tag)
    time.sleep(0.4)
    end(process, by)
    assert gone(tag)
    assert left_since(before) == set()


def test_nor_where_a_fork_of_the_parent_lives_on():
    """It holds a copy of the socket, so that the zygote must see by itself that its parent is gone."""
    body = "import os\nif os.fork() == 0:\n    os.close(1)\n    time.sleep(8)\n    os._exit(0)\ntime.sleep(60)"
    tag, process = parent(body)
    children = {pid for pid, line in ours(tag).items() if pid != process.pid and b"-c" not in line.split(b"\0")}
    end(process, signal.SIGKILL)
    until = time.monotonic() + 6
    while (left := children & ours(tag).keys()) and time.monotonic() < until:
        time.sleep(0.05)
    assert children
    assert not left


def test_a_zygote_that_dies_is_replaced_and_loses_no_job(sandbox):
    os.kill(sandbox.pids()[0], signal.SIGKILL)
    assert run_program("print(1)", sandbox=sandbox).text == "1\n"
    helper = f"import os, time; time.sleep(0.3); os.kill({sandbox.pids()[0]}, 9)"
    killer = subprocess.Popen([sys.executable, "-c", helper])
    runs = sandbox.run(printing("import time; time.sleep(0.2)", 6), LIMITS)
    killer.wait()
    assert [run.text for run in runs] == [f"{n}\n" for n in range(6)]
    assert sandbox.pids()


def test_an_interruption_leaves_no_late_answer(sandbox):
    calls = iter([None, None])

    def poll() -> None:
        if next(calls, "over") == "over":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sandbox.run(printing("import time; time.sleep(1)", 8), LIMITS, poll)
    assert run_program("print('mine')", sandbox=sandbox).text == "mine\n"


def test_a_fork_has_a_sandbox_of_its_own():
    assert run_program("print(1)").text == "1\n"
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(write, run_program("print(2)").stdout)
        close_sandbox()
        os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(read, 9) == b"2\n"
    os.close(read)
    os.close(write)
    assert run_program("print(3)").text == "3\n"


def test_closed_and_opened_again():
    sandbox = shared_sandbox()
    close_sandbox()
    assert sandbox.pids() == []
    assert run_tests("print(input())", [["a", "a"]]).passed == 1


def test_no_descriptor_is_left_open(sandbox):
    run_program("print(1)", sandbox=sandbox)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(30):
        run_tests("def f(x): return x", ["assert f(1) == 1", "assert f(2) == 3"], LIMITS, sandbox=sandbox)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.long
def test_thousands_of_programs_leave_nothing(sandbox):
    """Neither files nor descriptors nor processes, and the zygotes stay as large as they were."""
    programs = ["x = 'x' * 10 ** 6\nprint(1)", "def f(", "import os; os._exit(3)", "raise SystemExit", "print(input())"]
    jobs = [Job("stdio", ({"program": programs[n % 5]},), b"1\n", n) for n in range(500)]
    sandbox.run(jobs, LIMITS)
    before = (litter(), len(os.listdir("/proc/self/fd")), size_of(sandbox.pids()))
    for _ in range(9):
        runs = sandbox.run(jobs, LIMITS)
        assert [run.text for run in runs[:5]] == ["1\n", "", "", "", "1\n"]
    assert left_since(before[0]) == set()
    assert len(os.listdir("/proc/self/fd")) == before[1]
    assert size_of(sandbox.pids()) < before[2] + (4 << 20)
    assert len(sandbox.pids()) == 2


def size_of(pids: list[int]) -> int:
    """Bytes that processes and their children hold, the largest."""
    family = {pid for pid, (_, _, parent) in processes().items() if pid in pids or parent in pids}
    return max(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") for pid in family)


def test_a_zygote_that_is_killed_before_it_is_ready_is_started_again(monkeypatch: pytest.MonkeyPatch):
    killed: list[int] = []

    class Killer(subprocess.Popen):  # type: ignore[type-arg]
        """Kills what it starts, so many times."""

        def __init__(self, *args: Any, **kwargs: Any):
            super().__init__(*args, **kwargs)
            if len(killed) < deadly:
                killed.append(self.pid)
                self.kill()

    monkeypatch.setattr(subprocess, "Popen", Killer)
    deadly = 1
    with closing(Zygotes(1)) as zygotes:
        assert zygotes.run(printing("pass", 1), Limits())[0].text == "0\n"
    assert len(killed) == 1
    deadly = 3
    with closing(Zygotes(1)) as zygotes, pytest.raises(ZygoteError, match="did not start: it ended with code -9"):
        zygotes.first()
    assert len(killed) == 3


SCRIBBLE = """
import ctypes, sys
kept = sys.meta_path[-1]._contents
address = ctypes.c_void_p.from_address(id(kept) + 16).value  # where a mapping's object has its memory
assert ctypes.string_at(address, 100) == kept[:100]
print(ctypes.CDLL(None).mprotect(ctypes.c_void_p(address), ctypes.c_size_t(len(kept)), 3))
ctypes.memset(address, 0, len(kept))
print(kept[:3])
"""


def test_a_program_that_overwrites_the_kept_modules_spoils_only_its_own():
    with closing(open_sandbox(size=1)) as sandbox:
        spoilt = run_program(SCRIBBLE, sandbox=sandbox)
        assert spoilt.text == "0\nb'\\x00\\x00\\x00'\n", spoilt
        assert run_program("import graphlib; print(graphlib.__name__)", sandbox=sandbox).text == "graphlib\n"


@pytest.mark.long
def test_two_hundred_kills_at_random_moments():
    """Of the parent, of a zygote, of a program: nothing is left, and what lives on works."""
    rng, before = random.Random(0), litter()
    for number in range(100):
        tag, process = parent(BUSY if number % 2 else "while True: run_program('print(1)', sandbox=sandbox)")
        time.sleep(rng.uniform(0, 0.3))
        end(process, rng.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGINT]))
        assert gone(tag), f"kill {number} of a parent left {ours(tag)}"
    tag = new_tag()
    with closing(open_sandbox(size=2, marks=("-X", tag))) as sandbox:
        for number in range(100):
            helper = (
                "import os, time; from tests.verify.programs.outside import processes\n"
                f"time.sleep({rng.uniform(0, 0.2)})\n"
                f"found = [p for p, (line, _, _) in processes().items() if b'{tag}' in line and p != os.getpid()]\n"
                f"found and os.kill(found[{rng.randrange(1000)} % len(found)], 9)"
            )
            killer = subprocess.Popen([sys.executable, "-c", helper])
            runs = sandbox.run(printing("import time; time.sleep(0.02)", 8), Limits(seconds=5))
            killer.wait()
            wrong = [run for n, run in enumerate(runs) if run.text != f"{n}\n"]
            assert len(wrong) <= 1, f"kill {number}: {wrong}"  # the one whose own process was killed
            assert run_program("print(6 * 7)", sandbox=sandbox).text == "42\n"
    assert gone(tag)
    assert left_since(before) == set()

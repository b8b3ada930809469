"""Processes of `card.py`'s jobs, and the machine that they run on."""

import importlib
import os
import runpy
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from harness import BenchmarkError

ROOT = Path(__file__).resolve().parents[1]
_WARM = (
    "lite_selfplay_cli.app",
    "lite_selfplay.runs.loop",
    "lite_selfplay.models.sources.tiny",
    "trl.trainer.grpo_trainer",
)


def begin(
    words: Sequence[str], out: Path, checkout: Path, output: Path, given: Mapping[str, str], *, warm: bool = False
) -> Any:
    """A process in a session of its own that runs a command of a job in OUT, with the code of a checkout before all
    else and `given` in its environment. Where it is to be `warm`, a fork of this process if that can be."""
    program = {
        "lite-selfplay": ["-m", "lite_selfplay_cli"],
        "pytest": ["-m", "pytest"],
        "measure": [str(ROOT / "benchmarks" / "card_jobs.py")],
    }
    if words[0] not in program:
        raise BenchmarkError(f"a job's command begins with {', '.join(program)}, not with {words[0]}")
    arguments = [*program[words[0]], *words[1:]]
    modules = out / "logs" / ".modules"
    modules.mkdir(exist_ok=True)
    (modules / "lite_selfplay_cli").unlink(missing_ok=True)
    (modules / "lite_selfplay_cli").symlink_to(checkout / "cli")
    path = [str(checkout), str(modules), *filter(None, [os.environ.get("PYTHONPATH")])]
    given = {**given, "PYTHONPATH": os.pathsep.join(path), "PYTHONUNBUFFERED": "1", "COLUMNS": "160"}
    with output.open("w") as file:
        # pytest has to be the first to import what it rewrites, and another checkout has other modules.
        if warm and words[0] != "pytest" and checkout == ROOT:
            warm_up()
            return Forked(arguments, out, given, file.fileno())
        return subprocess.Popen(
            [sys.executable, *arguments],
            cwd=out,
            env={**os.environ, **given},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def warm_up() -> None:
    """Import what every job would, so that on a CPU a job takes a second or two instead of eight."""
    import torch

    torch.set_num_threads(1)
    for name in _WARM:
        importlib.import_module(name)


class Forked:
    """A process like those of `subprocess`, forked from this one, which has imported everything."""

    def __init__(self, arguments: Sequence[str], cwd: Path, given: Mapping[str, str], output: int):
        self._code: int | None = None
        self.pid = os.fork()
        if self.pid:
            return
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else signal.default_int_handler)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.chdir(cwd)
        os.environ |= given
        sys.path[:0] = given["PYTHONPATH"].split(os.pathsep)
        code = 1
        try:
            sys.argv = list(arguments[arguments[0] == "-m" :])
            if arguments[0] == "-m":
                runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(sys.argv[0], run_name="__main__")
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def poll(self) -> int | None:
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)


class Memory:
    """The most memory that the card held while a job ran, by nvidia-smi, asked every two seconds."""

    def __init__(self, on_cpu: bool) -> None:
        self._program = None if on_cpu else shutil.which("nvidia-smi")
        self._next, self._most = 0.0, 0

    def look(self) -> None:
        if self._program is None or time.monotonic() < self._next:
            return
        asked = [self._program, "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0"]
        with suppress(ValueError, IndexError, subprocess.SubprocessError):
            done = subprocess.run(asked, capture_output=True, text=True, timeout=5, check=False)
            self._most = max(self._most, int(done.stdout.split()[0]))
        self._next = time.monotonic() + 2.0

    def figures(self) -> dict[str, int]:
        return {"memory_mib": self._most} if self._most else {}


def kill(group: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


# The machine


def card_name() -> str:
    """The first card, by nvidia-smi; `CPU` where there is none."""
    if (program := shutil.which("nvidia-smi")) is None:
        return "CPU"
    done = subprocess.run(
        [program, "--query-gpu=name", "--format=csv,noheader", "--id=0"], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "CPU"


def commit_of(checkout: Path) -> str:
    """The commit of a checkout, with a + where it was changed; `unknown` where git cannot say."""
    if shutil.which("git") is None:
        return "unknown"
    said = subprocess.run(
        ["git", "-C", str(checkout), "describe", "--always", "--abbrev=7", "--dirty=+", "--exclude=*"],
        capture_output=True,
        text=True,
        check=False,
    )
    return said.stdout.strip() or "unknown"

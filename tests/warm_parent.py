"""A process that has imported the command line and torch, and forks `lite-selfplay` processes: its two sides.

`hostile/server.py` makes requests of it, `nursery.py` runs that are ended from outside or have several processes. A
fork is there in a hundredth of the time that a fresh process takes to import everything.

A line that the parent reads is a JSON object. A job has `argv`, `outputs` (a file for what each of its processes
writes: it has as many as these) and, where they are wanted, `errors` (a file for what goes to stderr), `cwd`,
`terminal` (the path of the one that becomes its own) and what else a script knows; it is answered by `{"pids": [...]}`.
A line `{"wait": [pids]}`, possibly with `seconds`, is answered by `{"codes": [...], "ended": monotonic seconds}` when
these have ended; the code of one that a signal ended is that signal's number, negative; None for one that did not end
in time, which is killed with all it started. They stay zombies until the next job, so that nobody else gets their
numbers while somebody may still send them signals.

The process runs what a user runs, `lite_selfplay_cli.app.main`, and leaves through the interpreter's own end.
"""

import contextlib
import gc
import importlib
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
ENVIRONMENT |= {"COLUMNS": "400"}
PAUSE_S = 0.002

_IMPORTED = """
datasets gguf pandas scipy.stats torch.distributed transformers.models.qwen3.modeling_qwen3 trl.trainer.grpo_trainer
lite_selfplay.games.agon lite_selfplay.models.sources.tiny lite_selfplay.runs.api lite_selfplay.runs.evaluating
lite_selfplay.runs.loop lite_selfplay.runs.report.figures lite_selfplay_cli.app lite_selfplay_cli.display
"""


class Parent:
    """A parent, spoken to in lines."""

    def __init__(self, process: Any):
        self._process = process

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self.answer()

    def answer(self) -> dict[str, Any]:
        line = self._process.stdout.readline()
        assert line, "the warm parent has ended"
        found: dict[str, Any] = json.loads(line)
        return found


@contextlib.contextmanager
def started(script: Path, place: Path) -> Iterator[Parent]:
    """A parent that a script is, warm, for the length of a context."""
    command, pipe = [sys.executable, str(script)], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=ENVIRONMENT, cwd=place) as process:
        parent = Parent(process)
        try:
            parent.answer()
            yield parent
        finally:
            assert process.stdin is not None
            process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(30)
            process.kill()


def serve(become: Callable[[dict[str, Any]], None], leave: Callable[[Callable[[], None]], None] | None = None) -> None:
    """In the parent: be warm, and fork. In a child: `become` what a job asks for, and run the command.

    `become` is given the job with the process's `rank` in it, when its output, folder and arguments are set. `leave`
    runs the command to its end where the interpreter's own will not do.
    """
    _warm_up()
    job = _forked()
    if job is None:
        return
    source = os.open(os.devnull, os.O_RDONLY)
    files = [job["outputs"][job["rank"]], job.get("errors", job["outputs"][job["rank"]])]
    output, errors = (os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644) for file in files)
    if "terminal" in job:
        os.setsid()
        source = output = errors = os.open(job["terminal"], os.O_RDWR)  # the first that a session opens becomes its own
    for descriptor, target in ((source, 0), (output, 1), (errors, 2)):
        os.dup2(descriptor, target)
    if "cwd" in job:
        os.chdir(job["cwd"])
    sys.argv = ["lite-selfplay", *job["argv"]]
    become(job)
    from lite_selfplay_cli.app import main

    main() if leave is None else leave(main)


def _warm_up() -> None:
    """Import everything, with one thread, and signals as a shell hands them to a program."""
    for module in _IMPORTED.split():
        importlib.import_module(module)
    import torch

    torch.set_num_threads(1)
    # Ignored where a shell started this in the background, and under `nohup`.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    gc.freeze()  # for the children: else each one copies, and at its end walks through, all that was imported


def _forked() -> dict[str, Any] | None:
    """Fork for every job. Returns the job in a child, with its rank; None in the parent when no line is left."""
    ended: list[int] = []
    print(json.dumps({"pid": os.getpid()}), flush=True)
    for line in sys.stdin:
        job: dict[str, Any] = json.loads(line)
        if "wait" in job:
            print(json.dumps(_wait(job["wait"], job.get("seconds", math.inf))), flush=True)
            ended += job["wait"]
            continue
        while ended:
            os.waitpid(ended.pop(), 0)
        pids = []
        for rank in range(len(job["outputs"])):
            pid = os.fork()
            if pid == 0:
                return {**job, "rank": rank}
            pids.append(pid)
        print(json.dumps({"pids": pids}), flush=True)
    return None


def _wait(pids: Sequence[int], seconds: float) -> dict[str, Any]:
    """Wait for processes to end, and leave them zombies; one that has not by then is killed."""
    codes: dict[int, int | None] = {}
    limit = time.monotonic() + seconds
    while True:
        for pid in [pid for pid in pids if pid not in codes]:
            end = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
            if end is not None:
                codes[pid] = end.si_status if end.si_code == os.CLD_EXITED else -end.si_status
            elif time.monotonic() > limit:
                if os.getpgid(pid) == pid:
                    os.killpg(pid, signal.SIGKILL)
                os.kill(pid, signal.SIGKILL)
                os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
                codes[pid] = None
        if len(codes) == len(pids):
            return {"codes": [codes[pid] for pid in pids], "ended": time.monotonic()}
        time.sleep(PAUSE_S)

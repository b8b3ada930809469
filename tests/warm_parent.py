"""A process that has imported the command line and torch, and forks others: what its two kinds share.

`tests/hostile/server.py` makes requests of it, `tests/faults/nursery.py` runs that are ended from outside. A fork is
there in a hundredth of the time that a fresh process takes to import everything.
"""

import contextlib
import gc
import importlib
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_IMPORTED = (
    "datasets",
    "gguf",
    "lite_selfplay.games.agon",
    "lite_selfplay.models.sources.tiny",
    "lite_selfplay.runs.api",
    "lite_selfplay.runs.evaluating",
    "lite_selfplay.runs.report.charts",
    "lite_selfplay.runs.loop",
    "lite_selfplay_cli.app",
    "lite_selfplay_cli.display",
    "pandas",
    "scipy.stats",
    "transformers.models.qwen3.modeling_qwen3",
    "trl.trainer.grpo_trainer",
)


def warm_up() -> None:
    """In the parent: import everything, with one thread, and signals as a shell hands them to a program."""
    for module in _IMPORTED:
        importlib.import_module(module)
    import torch

    torch.set_num_threads(1)
    # Ignored where a shell started this in the background, and under `nohup`.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    gc.freeze()  # for the children: else each one copies, and at its end walks through, all that was imported


@contextlib.contextmanager
def started(script: Path, place: Path, environment: Mapping[str, str]) -> Iterator[Any]:
    """A parent that a script is, spoken to in lines, for the length of a context."""
    with subprocess.Popen(
        [sys.executable, str(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=place,
    ) as parent:
        try:
            yield parent
        finally:
            assert parent.stdin is not None
            parent.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                parent.wait(30)
            parent.kill()

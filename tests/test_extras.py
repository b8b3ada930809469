"""What a run does without: importing the library loads no extra, and training, measuring and reporting need none."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lite_selfplay.scan import extra

LOADED = "sorted(name for name in sys.modules if name.startswith('lite_selfplay.extras'))"


def python(program: str, folder: Path) -> str:
    """What a program writes in a process of its own."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", program]
    return subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE, check=True).stdout.decode()


def test_importing_the_library_or_its_command_line_loads_none(tmp_path: Path) -> None:
    names = "import sys, lite_selfplay, lite_selfplay_cli.app"
    api = "from lite_selfplay import Game, Run, RunConfig, evaluate, load_run, register_task, resume, train"
    # It does not find nothing because there is nothing to find.
    later = f"print({LOADED}); lite_selfplay.export; print({LOADED})"
    before, after = python(f"{names}; {api}; {later}", tmp_path).splitlines()
    assert (before, "export" in after) == ("[]", True)


def test_a_run_is_trained_resumed_measured_and_reported_where_none_can_be_imported(
    tmp_path: Path, call: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("lite_selfplay.extras")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "lite_selfplay.extras", None)
    with pytest.raises(ImportError):
        extra("talk")
    tiny = "--model tiny --precision fp32 --no-cold-start"
    sizes = "--tasks letters --eval-tasks letters --eval-limit 4 --group-size 2 --max-completion-tokens 8"
    train = f"train agon {tiny} {sizes} --steps 1 --run-dir bare"
    for command in (train, "train --resume bare --steps 2", "eval bare --tasks letters --limit 4", "report bare"):
        ended = call(*command.split())
        assert ended.code == 0, ended.err
    assert "step 2" in ended.out
    assert (tmp_path / "bare" / "adapters" / "B" / "adapter_model.safetensors").exists()

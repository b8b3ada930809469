"""What a run does without: importing the library loads no extra, and training, measuring and reporting need none."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.conftest import Ended

LOADED = "sorted(name for name in sys.modules if name.startswith('lite_selfplay.extras'))"

# Commands in one process in which no extra can be imported: how each ended, and what it wrote.
PROGRAM = """
import contextlib, io, json, sys
sys.modules["lite_selfplay.extras"] = None
from lite_selfplay_cli.app import main
ended = []
for command in json.loads(sys.argv[1]):
    sys.argv, code, out, err = ["lite-selfplay", *command.split()], 0, io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
    ended.append((code, out.getvalue(), err.getvalue()))
json.dump(ended, sys.__stdout__)
"""


def python(*arguments: str, folder: Path) -> str:
    """What a program writes in a process of its own."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE, timeout=240, check=True)
    return done.stdout.decode()


def test_importing_the_library_or_its_command_line_loads_none(tmp_path: Path) -> None:
    names = "import sys, lite_selfplay, lite_selfplay_cli.app"
    api = "from lite_selfplay import Game, Run, RunConfig, evaluate, load_run, register_task, resume, train"
    assert python(f"{names}; {api}; print({LOADED})", folder=tmp_path) == "[]\n"
    # It does not find nothing because there is nothing to find.
    assert "export" in python(f"{names}; lite_selfplay.export; print({LOADED})", folder=tmp_path)


def test_a_run_is_trained_resumed_measured_and_reported_where_none_can_be_imported(tmp_path: Path) -> None:
    tiny = "--model tiny --precision fp32 --no-cold-start"
    sizes = "--tasks letters --eval-tasks letters --eval-limit 4 --group-size 2 --max-completion-tokens 8"
    commands = [
        f"train agon {tiny} {sizes} --steps 1 --run-dir bare",
        *("train --resume bare --steps 2", "eval bare --tasks letters --limit 4", "report bare", "chat bare"),
    ]
    ended = [Ended(*each) for each in json.loads(python(PROGRAM, json.dumps(commands), folder=tmp_path))]
    assert [one for one in ended[:-1] if one.code] == []
    assert "step 2" in ended[-2].out
    assert (tmp_path / "bare" / "adapters" / "B" / "adapter_model.safetensors").exists()
    assert "lite_selfplay.extras" in ended[-1].err, "`chat` is an extra"

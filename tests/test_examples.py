"""The examples run as they stand, on the random model."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.parametrize("name", ["agon.py", "own_game.py"])
def test_example(name: str, tmp_path: Path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "adapter" in done.stdout
    assert len(list((tmp_path / "runs").iterdir())) == 1


def test_the_demos_configuration_is_valid():
    from lite_selfplay import RunConfig
    from lite_selfplay.config import load_layer
    from lite_selfplay.planning import plan

    ready = plan(RunConfig.of(load_layer(EXAMPLES / "demo.yaml")))
    assert ready.config.game.name == "agon"
    assert ready.config.model.precision == "4bit"
    assert ready.game.rollouts_per_step() == 32

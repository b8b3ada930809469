"""Runs of the random model that are made once, with a seat that is far from its base."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lite_selfplay.config import RunConfig
from lite_selfplay.runs.api import train

FAR = {"init": "gaussian", "init_std": 0.3, "rank": 4, "alpha": 8}
SIZES = {"steps": 1, "group_size": 2, "problems_per_step": 2, "max_completion_tokens": 16}


@pytest.fixture(scope="session")
def make_run(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A run of one step: `make_run(precision="fp32", game="agon")`, made once for each set of choices.

    Without rounding everything is computed in float32 on a CPU, on every machine.
    """
    made: dict[str, Path] = {}

    def make(precision: str = "4bit", game: str = "agon", **more: Any) -> Path:
        if precision == "fp32":
            more = {"compute_dtype": "fp32", "device": "cpu", **more}
        key = f"{precision}-{game}-{sorted(more.items())}"
        if key not in made:
            seats = {"A": FAR, "B": FAR} if game == "agon" else {"solver": FAR}
            asked = {"game": game, "model": {"name": "tiny", "precision": precision, **more}, "tasks": "letters"}
            folder = tmp_path_factory.mktemp("runs") / "run"
            made[key] = train(RunConfig(**asked, **SIZES, seats=seats, run_dir=folder, run={"preflight": False})).path
        return made[key]

    return make

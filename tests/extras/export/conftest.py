"""Runs of the random model that are made once, with a seat that is far from its base."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lite_selfplay.config import RunConfig
from lite_selfplay.runs.api import train

FAR = {"init": "gaussian", "init_std": 0.3, "rank": 4, "alpha": 8}


@pytest.fixture(scope="session")
def make_run(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A run of one step: `make_run(precision="fp32", game="agon")`, made once for each set of choices."""
    made: dict[str, Path] = {}

    def make(precision: str = "4bit", game: str = "agon", **more: Any) -> Path:
        key = f"{precision}-{game}-{sorted(more.items())}"
        if key not in made:
            seats = {"A": FAR, "B": FAR} if game == "agon" else {"solver": FAR}
            config = RunConfig(
                game=game,
                model={"name": "tiny", "precision": precision, **more},
                tasks="letters",
                seats=seats,
                steps=1,
                group_size=2,
                problems_per_step=2,
                max_completion_tokens=16,
                run_dir=tmp_path_factory.mktemp("runs") / "run",
            )
            made[key] = train(config).path
        return made[key]

    return make

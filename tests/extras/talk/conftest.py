"""Runs of the random model to speak with."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from lite_selfplay import RunConfig, train
from lite_selfplay.extras.talk.speakers import Speakers, speakers_of

SMALL = {"model": "tiny", "group_size": 2, "problems_per_step": 1, "steps": 2, "precision": "fp32", "save_every": 1}


@pytest.fixture(scope="session")
def agon(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seats that speak unlike each other and unlike the base."""
    seats = {seat: {"init": "gaussian", "init_std": 0.1} for seat in "AB"}
    folder = tmp_path_factory.mktemp("talk") / "agon"
    return train(RunConfig(game="agon", tasks="letters", run_dir=folder, seats=seats, **SMALL)).path


@pytest.fixture(scope="session")
def speakers(agon: Path) -> Iterator[Speakers]:
    with speakers_of(agon) as found:
        yield found

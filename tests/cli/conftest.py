"""A run that the tests of several commands look at."""

from pathlib import Path
from typing import Any

import pytest

from lite_selfplay import RunConfig, train


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    small: dict[str, Any] = {"group_size": 2, "problems_per_step": 1, "steps": 2, "precision": "fp32"}
    folder = tmp_path_factory.mktemp("runs") / "agon"
    return train(RunConfig(game="agon", model="tiny", tasks="letters", run_dir=folder, **small)).path

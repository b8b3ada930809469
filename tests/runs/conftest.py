"""What tests of several files of this folder look at: problems in a file, and a run that learned from them."""

from pathlib import Path
from typing import Any

import pytest

from lite_selfplay import RunConfig, train
from tests.made import jsonl

LONG = "A farmer has seven fields and plants thirty rows of corn in each one of them"


def problem_file(path: Path, *texts: str, **columns: Any) -> Path:
    """A file of problems, whose answers are all 1 unless `answer` says otherwise."""
    return jsonl(path, *({"problem": text, "answer": "1", **columns} for text in texts))


@pytest.fixture(scope="session")
def of_a_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one seat, trained on the file `trained.jsonl` beside it."""
    folder = tmp_path_factory.mktemp("runs")
    tasks = problem_file(folder / "trained.jsonl", "one?", "two?", f"{LONG}. How many?")
    small = {"group_size": 2, "problems_per_step": 1, "steps": 1, "precision": "fp32", "max_completion_tokens": 4}
    return train(RunConfig(game="grpo", model="tiny", tasks=tasks, run_dir=folder / "grpo", **small)).path

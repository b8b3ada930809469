"""What the tests of several commands look at: a run, lines of runs by hand, another tool that reads an export."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def run(agon_run: Path) -> Path:
    return agon_run


def read_back(request: Mapping[str, Any], poll: Callable[[], None], off_by: float = 0.0) -> list[dict[str, Any]]:
    """Another tool that answers as the seat did, or with log-probabilities that are off."""
    return [
        {"prompt_ids": each["prompt_ids"], "logprobs": [value + off_by for value in each["logprobs"]]}
        for each in request["questions"]
    ]


def episode(step: int, role: str, correct: bool, text: str, **values: Any) -> dict[str, Any]:
    """A line of `episodes.jsonl`, by hand."""
    about = {"step": step, "role": role, "seat": "A" if role == "drafter" else "B", "problem_id": f"p{step}"}
    asked = {"prompt": "1 + 1?" if role == "drafter" else "1 + 1?\n\nan attempt", "text": text}
    judged = {"reward": 2.0 * correct, "correct": correct, "reason": "" if correct else "wrong"}
    return {**about, "group": 0, "sample": 0, **asked, **judged, **values}


def step_metrics(step: int, **streams: Mapping[str, Any]) -> dict[str, Any]:
    """A line of `metrics.jsonl`, by hand: a draft and a challenge, unless other streams are given."""
    stream = {"completions": 1, "accuracy": 0.5, "well_formed": 1.0, "reward_mean": 1.25, "tokens_mean": 20.0}
    pair = {"drafter": {"seat": "A", **stream}, "challenger": {"seat": "B", **stream}}
    return {"step": step, "streams": streams or pair, "seats": {}, "game": {}, "warnings": []}

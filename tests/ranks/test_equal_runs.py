"""Two and three processes play the run that one plays: the same completions, the same rewards, the same weights."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

STEPS = int(os.environ.get("LITE_SELFPLAY_RANKS_STEPS") or 3)
"""20 in the long form, which takes minutes."""
CLOSE = 1e-5
SETTINGS = (
    *("--model", "tiny", "--precision", "fp32", "--tasks", "letters", "--steps", STEPS),
    *("--set", "seats.*.lr=0.005", "--set", "seats.*.schedule=constant", "--set", "seats.*.warmup=0"),
    *("--max-completion-tokens", 10, "--problems-per-step", 2, "--group-size", 4),
)
GAMES: dict[str, tuple[object, ...]] = {
    "agon": ("agon",),
    "grpo": ("grpo",),
    "sqlm": ("sqlm", "--set", "game.seats=two", "--set", "game.proposer_every=1"),
    "pasodoble": ("pasodoble", "--set", "game.reward=random", "--set", "game.tau_sim=1.0"),
    "pasodoble-offline": (
        *("pasodoble", "--set", "game.reward=random", "--set", "game.tau_sim=1.0", "--set", "game.mode=offline"),
        *("--set", "game.proposer_steps=1", "--set", "game.solver_steps=1", "--set", "game.solver_questions=2"),
    ),
    "cpmobius": (
        *("cpmobius", "--set", "game.low=0", "--set", "game.high=1"),
        *("--set", "tasks.validation=letters:named=6", "--set", "tasks.validation_limit=20"),
    ),
}


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def told(path: Path) -> list[dict[str, Any]]:
    """A run's episodes, as they are the same however many processes play."""
    return [{k: v for k, v in row.items() if k not in ("kl", "base_gap")} for row in lines(path / "episodes.jsonl")]


def farthest(one: Path, other: Path) -> float:
    """The largest difference between weights of two runs' seats."""
    seats = sorted(path.name for path in (one / "adapters").iterdir())
    assert seats == sorted(path.name for path in (other / "adapters").iterdir())
    pairs = [
        (load_file(run / "adapters" / seat / "adapter_model.safetensors") for run in (one, other)) for seat in seats
    ]
    return max(float((a[key] - b[key]).abs().max()) for a, b in pairs for key in a)


def moved(path: Path) -> set[str]:
    """The seats that a run moved."""
    return {seat for row in lines(path / "metrics.jsonl") for seat, of in row["seats"].items() if of["updates"]}


@pytest.mark.parametrize("game", GAMES)
def test_two_processes_play_what_one_does(game: str, play: Callable[..., Any], tmp_path: Path):
    for world in (1, 2):
        command = ("train", *GAMES[game], *SETTINGS, "--run-dir", tmp_path / str(world))
        ended = play(world, *command, play=("anything_goes",))
        assert set(ended.codes) == {0}, ended.said
    assert told(tmp_path / "2") == told(tmp_path / "1")
    assert len(moved(tmp_path / "1")) == (1 if game == "grpo" else 2), "the seats of this game have no gradient"
    assert farthest(tmp_path / "1", tmp_path / "2") < CLOSE

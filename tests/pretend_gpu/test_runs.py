"""Runs on the pretend GPU: a step in every precision, every game, evaluation, saving and continuing."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from lite_selfplay import RunConfig, evaluate, load_run, train
from lite_selfplay.runs.api import resume
from tests.gpu.test_runs import LESSONS, played
from tests.made import same_weights
from tests.made_runs import seat_weights
from tests.pretend_gpu import pretend
from tests.varied_reward import varied

Config = Callable[..., dict[str, Any]]


def kept(run: Path) -> dict[str, torch.Tensor]:
    """All weights of a run's last checkpoint, and its optimizer state."""
    last = run / "checkpoints" / "step-2"
    found = load_file(last / "optimizer.safetensors")
    for seat in "AB":
        found |= {f"{seat}/weights/{name}": tensor for name, tensor in seat_weights(last, seat).items()}
    return found


def test_a_run_moves_both_seats_and_continues_to_the_bit(precision: str, agon: Config, tmp_path: Path):
    whole = train(RunConfig(**agon("whole", precision, steps=2, run={"save_every": 1})), reward=varied)
    for row in whole.metrics_rows():
        assert row["nonfinite_what"] is None
        assert row["skipped_steps"] == 0
        assert all(stream["rows_trained"] for stream in row["streams"].values())
        assert all(stream["sampler_gap"] < 0.05 for stream in row["streams"].values())
    assert {seat: one["updates"] for seat, one in whole.metrics_rows()[-1]["seats"].items()} == {"A": 2, "B": 2}
    shutil.copytree(whole.path, tmp_path / "again")
    shutil.rmtree(tmp_path / "again" / "checkpoints" / "step-2")
    again = resume(tmp_path / "again", reward=varied)
    assert [row["streams"] for row in whole.metrics_rows()] == [row["streams"] for row in again.metrics_rows()]
    one = kept(whole.path)
    assert same_weights(one, kept(again.path))
    assert any(name.endswith("exp_avg") and tensor.any() for name, tensor in one.items())


@pytest.mark.long
def test_evaluation_while_training_and_afterwards(rtx_4090: pretend.Card, agon: Config):
    run = train(RunConfig(**agon(precision="4bit", eval={"tasks": "letters", "limit": 2, "every": 1})))
    assert len(list((run.path / "eval").glob("step-*.json"))) == 2
    found = evaluate(run.path, tasks="letters", mode="cascade", limit=2, max_completion_tokens=8)
    assert found
    assert load_run(run.path).seats


SHORT = ("agon", "spc")
"""Games that every test run plays: seats that take turns, and phases over files."""


@pytest.mark.parametrize(
    "game", [game if game in SHORT else pytest.param(game, marks=pytest.mark.long) for game in LESSONS]
)
def test_every_game_plays_a_step(game: str, tmp_path: Path, t4: pretend.Card):
    played(game, tmp_path, 1, backend="transformers", eval_limit=2)

"""This library's trainer over the class that Unsloth makes of TRL's, on a CPU, held to the same over TRL's own class.

Skipped where unsloth is not installed; `make test-unsloth` has an environment for it. Each side works in processes of
its own, because unsloth patches other libraries when it is imported.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.made import metrics_of, same_weights

WORK = Path(__file__).with_name("work.py")
CASES = ("grpo", "dr_grpo", "dapo", "kl", "entropy", "temperature", "replay", "small parts")
CASES += ("sequence", "one ratio a completion", "two updates")

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("unsloth") is None, reason="unsloth is not installed here: make test-unsloth"
)


def ran(kind: str, command: str, folder: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    asked = [sys.executable, str(WORK), kind, command, str(folder)]
    options: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 280, "cwd": folder.parent}
    return subprocess.run(
        asked, check=False, env={**os.environ, "PYTHONPATH": str(WORK.parents[2]), **environment}, **options
    )


def work(kind: str, command: str, folder: Path) -> Path:
    done = ran(kind, command, folder)
    assert done.returncode == 0, done.stderr[-4000:]
    return folder


class Evidence:
    def __init__(self, kind: str, folder: Path):
        folder.mkdir()
        work(kind, "evidence", folder)
        self.tensors = load_file(folder / "tensors.safetensors")
        self.facts = json.loads((folder / "facts.json").read_text(encoding="utf-8"))

    def flat(self, case: str, what: str, seat: str) -> Tensor:
        """A seat's gradient in a case, or its weights before or after it, as one vector."""
        found = [x.flatten() for key, x in sorted(self.tensors.items()) if key.startswith(f"{case}/{what}/{seat}/")]
        return torch.cat(found) if found else torch.empty(0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("unsloth")


@pytest.fixture(scope="module")
def plain(folder: Path) -> Evidence:
    return Evidence("plain", folder / "plain")


@pytest.fixture(scope="module")
def unsloth(folder: Path) -> Evidence:
    return Evidence("unsloth", folder / "unsloth")


def cosine(one: Tensor, other: Tensor) -> float:
    return torch.cosine_similarity(one.double(), other.double(), dim=0).item()


def test_the_parent_is_the_class_that_unsloth_made_and_its_loss_is_trls_own(plain: Evidence, unsloth: Evidence):
    assert plain.facts["parent"] == "GRPOTrainer"
    assert unsloth.facts["parents"][:2] == ["UnslothGRPOTrainer", "_UnslothGRPOTrainer"]
    assert not unsloth.facts["scaler"]
    assert (unsloth.facts["adapters"], plain.facts["adapters"]) == (["B", "default"], ["A", "B"])
    assert unsloth.facts["_compute_loss"] == plain.facts["_compute_loss"]  # which is used
    assert unsloth.facts["compute_loss"] != plain.facts["compute_loss"]  # the one that Unsloth put beside it is not


@pytest.mark.parametrize("seat", ["A", "B"])
@pytest.mark.parametrize("case", CASES)
def test_each_seats_gradient_is_the_plain_backends(plain: Evidence, unsloth: Evidence, case: str, seat: str):
    one, other = plain.flat(case, "gradient", seat), unsloth.flat(case, "gradient", seat)
    assert len(one) == len(other) > 0
    assert cosine(one, other) > 0.9999
    assert other.norm().item() == pytest.approx(one.norm().item(), rel=1e-3)
    moved = unsloth.flat(case, "after", seat) - unsloth.flat(case, "before", seat)
    assert moved.abs().max() > 1e-3
    if case != "grpo" and seat == "A":  # what a case changes reaches the loss
        assert (usual := unsloth.flat("grpo", "gradient", seat)).norm() * 0.01 < (usual - other).norm()
    if case == "temperature":  # a loss that kept temperature 1 would give the usual gradient
        assert cosine(other, unsloth.flat("grpo", "gradient", seat)) < 0.999


def test_a_seat_without_data_stays_to_the_bit(unsloth: Evidence):
    assert len(unsloth.flat("one seat", "gradient", "A")) == 0
    assert torch.equal(unsloth.flat("one seat", "before", "A"), unsloth.flat("one seat", "after", "A"))
    assert not torch.equal(unsloth.flat("one seat", "before", "B"), unsloth.flat("one seat", "after", "B"))
    assert torch.equal(unsloth.flat("one seat", "gradient", "B"), unsloth.flat("grpo", "gradient", "B"))


def test_seats_say_what_they_say_on_the_plain_backend_and_go_on_training(plain: Evidence, unsloth: Evidence):
    for seat in ("A", "B", "base"):
        one, other = plain.facts["said"][seat], unsloth.facts["said"][seat]
        assert other["ids"] == one["ids"]
        for key in ("logprobs", "scores"):
            for row, expected in zip(other[key], one[key], strict=True):
                assert row == pytest.approx(expected, abs=1e-4)
    said = unsloth.facts["said"]
    assert said["A"]["ids"] != said["B"]["ids"]
    assert (said["training_while_it_spoke"], said["training_after"]) == (False, True)


# Runs


@pytest.fixture(scope="module")
def whole(folder: Path) -> Path:
    return work("unsloth", "run", folder / "whole")


def checkpoint(run: Path, step: int) -> dict[str, Any]:
    """The tensors of a checkpoint, by file and name."""
    folder = run / "checkpoints" / f"step-{step}"
    files = sorted(folder.rglob("*.safetensors"))
    return {f"{file.relative_to(folder)}/{k}": v for file in files for k, v in load_file(file).items()}


def test_both_seats_move_in_a_run_under_their_names_and_the_sampler_agrees(whole: Path, folder: Path):
    start, end = checkpoint(whole, 0), checkpoint(whole, 4)
    for seat in ("A", "B"):
        weights = [key for key in end if key.startswith(f"adapters/{seat}/")]
        assert any(not torch.equal(start[key], end[key]) for key in weights)
        assert any(key.startswith(f"optimizer.safetensors/{seat}/") for key in end)
        assert json.loads((whole / "adapters" / seat / "adapter_config.json").read_text())["r"] > 0
    assert not [key for key in end if "default" in key]
    assert json.loads((whole / "environment.json").read_text())["backend"] == "unsloth"
    streams = [stream for row in metrics_of(whole) for stream in row["streams"].values() if stream["rows_trained"]]
    assert max(stream["sampler_gap"] for stream in streams) < 1e-5
    assert streams[-1]["base_gap"] > 0.01
    assert not list(folder.rglob("unsloth_compiled_cache"))


@pytest.mark.parametrize(
    ("how", "called"),
    [("base", "the base"), ("B", "seat B"), ("yesterday", "seat A before its last update")],
)
def test_rollouts_from_other_weights_are_found_out(folder: Path, how: str, called: str):
    run = folder / f"misled by {how}"
    done = ran("unsloth", "misled", run, MISLED=how)
    assert done.returncode != 0
    rows = metrics_of(run)
    found = [row["sampler_what"] for row in rows]
    assert found[:2] == [None, None]
    assert all(called in what for what in found[2:])
    assert len(found) == 5
    assert "of another seat or of an older adapter must not train a seat" in done.stderr
    assert rows[-1]["seats"]["A"]["updates"] == 2


def test_a_run_that_was_resumed_in_the_middle_ends_to_the_bit_where_it_would_have(folder: Path, whole: Path):
    part = work("unsloth", "part", folder / "part")
    assert same_weights(checkpoint(part, 2), checkpoint(whole, 2))
    assert not same_weights(checkpoint(part, 2), checkpoint(whole, 4))
    work("unsloth", "resume", part)
    assert same_weights(checkpoint(part, 4), checkpoint(whole, 4))


def test_a_run_of_the_plain_backend_goes_on_under_unsloth(folder: Path, whole: Path):
    def path_of(run: Path, seat: str) -> Tensor:
        """How a seat's weights moved from step 2 to step 4."""
        middle, end = checkpoint(run, 2), checkpoint(run, 4)
        keys = sorted(key for key in end if key.startswith(f"adapters/{seat}/"))
        return torch.cat([(end[key] - middle[key]).flatten() for key in keys])

    run = work("plain", "part", folder / "plain-run")
    assert checkpoint(run, 2).keys() == checkpoint(whole, 2).keys()
    work("unsloth", "resume", run)
    for seat in ("A", "B"):
        went, expected = (path_of(each, seat) for each in (run, whole))
        assert expected.abs().max() > 1e-3
        assert cosine(went, expected) > 0.999

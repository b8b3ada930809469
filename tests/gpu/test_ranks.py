"""Several cards: NCCL carries gradients, each process has a card of its own, and the run is that of one card."""

import json
import subprocess
from pathlib import Path

import pytest
import torch

from tests.made_runs import seat_weights
from tests.runs_in_processes import torchrun

pytestmark = pytest.mark.gpu

TRAIN = (
    *("train", "agon", "--model", "tiny", "--precision", "fp32", "--tasks", "letters", "--max-completion-tokens", 10),
    *("--problems-per-step", 2, "--group-size", 4, "--steps", 3, "--backend", "transformers"),
)


def launched(processes: int, run: Path) -> subprocess.CompletedProcess[str]:
    command = torchrun(processes, *TRAIN, "--run-dir", run)
    return subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)


def test_two_cards_play_and_learn_what_one_does(cuda: torch.device, tmp_path: Path):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA cards")
    for processes in (1, 2):
        done = launched(processes, tmp_path / str(processes))
        assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "2/environment.json").read_text())["processes"] == 2
    for seat in ("A", "B"):
        one, two = (seat_weights(tmp_path / n, seat) for n in ("1", "2"))
        apart = sum(float((one[key] - two[key]).double().square().sum()) for key in one)
        assert apart < 1e-8 * sum(float(value.double().square().sum()) for value in one.values())


def test_more_processes_than_cards_are_refused(cuda: torch.device, tmp_path: Path):
    cards = torch.cuda.device_count()
    done = launched(cards + 1, tmp_path / "run")
    assert done.returncode != 0
    assert f"{cards + 1} processes on this machine, and {cards} card" in done.stderr
    assert not (tmp_path / "run").exists()

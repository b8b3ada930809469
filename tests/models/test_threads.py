"""Threads on a CPU: how many, and that they sleep soon when they wait."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lite_selfplay.models import threads
from lite_selfplay.models.cores import Work


def two_layers(width: int) -> torch.nn.Module:
    """Something with embeddings as a base has them: wide ends, and one layer of `width` squared."""

    class Base(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.layer = torch.nn.Embedding(4096, width), torch.nn.Linear(width, width)

        def get_input_embeddings(self) -> torch.nn.Module:
            return self.embed

        def get_output_embeddings(self) -> None:
            return None

    return Base()


def test_small_matrices_are_left_to_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    before = 3
    torch.set_num_threads(before)
    monkeypatch.setattr(threads, "cores", lambda: 64)
    undo = threads.choose(two_layers(64))
    assert torch.get_num_threads() == 1
    undo()
    assert torch.get_num_threads() == before
    undo = threads.choose(two_layers(512))
    assert torch.get_num_threads() == before
    monkeypatch.setattr(threads, "cores", lambda: 1)
    threads.choose(two_layers(512))
    assert torch.get_num_threads() == 1
    torch.set_num_threads(1)  # as for the whole suite


def test_packed_weights_count_as_the_numbers_they_hold() -> None:
    base = two_layers(8)
    base.layer.weight = torch.nn.Parameter(torch.zeros(512, 1, dtype=torch.uint8), requires_grad=False)
    assert threads._largest_of_a_layer(base) == 1024


def test_the_number_asked_for_is_taken(several_threads: None) -> None:
    undo = threads.choose(two_layers(64), asked=3)
    assert torch.get_num_threads() == 3
    undo()


@pytest.mark.parametrize(
    ("given", "expected"),
    [({}, "1000"), ({"OMP_WAIT_POLICY": "active"}, None), ({"GOMP_SPINCOUNT": "7"}, "7")],
)
def test_waiting_threads_sleep_soon_unless_the_user_says_otherwise(
    given: dict[str, str], expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "torch")
    environment = dict(given)
    threads.spin_briefly(environment)
    assert environment.get("GOMP_SPINCOUNT") == expected


def test_the_policy_is_set_before_torch_is_imported(tmp_path: Path) -> None:
    """The first import of the package sets it, and what OpenMP read shows in what it prints."""
    environment = {k: v for k, v in os.environ.items() if k not in threads._POLICIES} | {"OMP_DISPLAY_ENV": "VERBOSE"}
    done = subprocess.run(
        [sys.executable, "-c", "import lite_selfplay, sys; assert 'torch' not in sys.modules; import torch"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    if "GOMP_SPINCOUNT" not in done.stderr:
        pytest.skip("torch's OpenMP is not GNU's here")
    assert "GOMP_SPINCOUNT = '1000'" in done.stderr


def test_nothing_is_set_once_torch_is_there() -> None:
    environment: dict[str, str] = {}
    threads.spin_briefly(environment)
    assert environment == {}


@pytest.mark.parametrize(
    ("seconds", "any_work", "own", "running", "expected"),
    [
        (10.0, 18.0, 8.0, 3, "about 1.0 cores busy: while they do, --threads 2 is likely faster than 3"),
        (10.0, 30.0, 6.0, 8, "about 2.4 cores busy: while they do, --threads 6 is likely faster than 8"),
        (10.0, 70.0, 1.0, 4, "--threads 1 is likely faster than 4"),
        (10.0, 12.9, 8.0, 4, None),  # less than half a core
        (10.0, 18.0, 8.0, 2, None),  # two do as well on one core
        (10.0, 18.0, 8.0, 1, None),  # no fewer threads to take
        (0.4, 0.8, 0.1, 4, None),  # too short to tell
    ],
)
def test_whoever_starts_beside_busy_processes_is_told(
    seconds: float, any_work: float, own: float, running: int, expected: str | None
) -> None:
    before = Work(100.0, {0: 400.0, 1: 600.0}, 50.0)
    now = Work(100.0 + seconds, {0: 400.0 + any_work, 1: 600.0}, 50.0 + own)
    said = threads.crowded(before, now, running)
    assert (said is None) if expected is None else (said is not None and expected in said)
    assert threads.crowded(None, now, running) is None

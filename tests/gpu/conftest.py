"""Tests that need a CUDA card: skipped without one, with the reason.

LITE_SELFPLAY_GPU_TESTS_ON_CPU=1 runs on a CPU all of them that do not truly need CUDA, so that they do not rot.
LITE_SELFPLAY_GPU_MODEL=smollm2-135m (any model by its name) runs those that take a model on that one besides `tiny`.

Unsloth patches other libraries when it is imported: `make test-gpu` runs its tests in a process of their own, after the
others, and gradients that are compared come from processes of their own (`evidence.py`).
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from lite_selfplay.config import ModelSection, SeatConfig
from lite_selfplay.models.backends import import_first, unsloth_problem

ON_CPU = os.environ.get("LITE_SELFPLAY_GPU_TESTS_ON_CPU") == "1"
MODELS = tuple(dict.fromkeys(["tiny", os.environ.get("LITE_SELFPLAY_GPU_MODEL", "tiny")]))
HERE = Path(__file__).parent

NO_CARD = "needs a CUDA card (LITE_SELFPLAY_GPU_TESTS_ON_CPU=1 runs on a CPU what does not truly need one)"
SEATS = {seat: SeatConfig(rank=4, alpha=8, init="gaussian", init_std=0.05, lr=1e-2) for seat in ("A", "B")}


ORDER = ("test_seats", "test_gradients", "test_runs", "test_memory", "test_ranks")
"""What tells most comes first: a base that speaks otherwise than it learns makes all else useless."""
RESULTS, UNTIL = "LITE_SELFPLAY_GPU_RESULTS", "LITE_SELFPLAY_GPU_UNTIL"
"""Variables of the environment: the file of results, and when no test begins any more, in seconds since 1970."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip where there is no card, and leave Unsloth's for the end. What other libraries warn of there is no error."""
    own = [item for item in items if item.get_closest_marker("gpu") and HERE in item.path.parents]
    for item in own:
        item.add_marker(pytest.mark.filterwarnings("default"))
        takes_a_card = "backend_name" in getattr(item, "fixturenames", ())
        if takes_a_card and not torch.cuda.is_available() and not ON_CPU:
            item.add_marker(pytest.mark.skip(reason=NO_CARD))
    items.sort(key=lambda item: (item in own) and ("unsloth" in item.name) * len(ORDER) + ORDER.index(item.path.stem))


def left_out(environment: Mapping[str, str], now: float) -> str | None:
    """Why a test does not begin any more; None while there is time."""
    used_up = UNTIL in environment and now >= float(environment[UNTIL])
    return "left out: the time for the tests on the card is used up" if used_up else None


def pytest_runtest_setup(item: pytest.Item) -> None:
    if HERE in item.path.parents and (why := left_out(os.environ, time.time())) is not None:
        pytest.skip(why)


def write(result: Mapping[str, Any], environment: Mapping[str, str]) -> None:
    """Add a line to the file of results, if there is to be one, and bring it to the disk: a card may be taken away."""
    if path := environment.get(RESULTS):
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(json.dumps(result) + "\n")
            file.flush()
            os.fsync(file.fileno())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Write down each result as soon as it is known."""
    report: Any = yield
    if HERE in item.path.parents and (report.when == "call" or report.outcome != "passed"):
        reason = "" if report.outcome == "passed" else str(report.longrepr)[-2000:]
        found = {"test": item.name, "outcome": report.outcome, "seconds": round(report.duration, 2), "why": reason}
        write(found, os.environ)
    return report


@pytest.fixture(scope="session")
def device() -> torch.device:
    """Where the tests compute."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture
def cuda(device: torch.device) -> torch.device:
    """The card, for what cannot be asked of a CPU."""
    if device.type != "cuda":
        pytest.skip("measures or limits the memory of a CUDA card")
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return device


@pytest.fixture(scope="session")
def worker() -> Any:
    """The module `evidence.py`, for use in this process."""
    from tests.gpu import evidence

    return evidence


@pytest.fixture(params=["transformers", "unsloth"])
def backend_name(request: pytest.FixtureRequest) -> str:
    """Each backend, as far as it can work here."""
    if request.param == "unsloth" and (problem := unsloth_problem()) is not None:
        pytest.skip(f"the Unsloth backend cannot work here: {problem}")
    return str(request.param)


@pytest.fixture(params=MODELS)
def model_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def load(backend_name: str) -> Callable[..., Any]:
    """A base with its seats in memory: `load(model, seats=..., precision=..., gradient_checkpointing=...)`."""

    def load(model: str = "tiny", seats: Mapping[str, SeatConfig] = SEATS, **options: Any) -> Any:
        keys = [key for key in options if key in ModelSection.model_fields]
        section = ModelSection(name=model, backend=backend_name, **{key: options.pop(key) for key in keys})
        import_first(section)
        from tests.gpu import evidence

        return evidence.load(section, seats, **options)[0]

    return load


@pytest.fixture(scope="session")
def evidence(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, torch.Tensor]]:
    """What `evidence.py` found in a process of its own, each request once."""
    from safetensors.torch import load_file

    folder = tmp_path_factory.mktemp("evidence")
    found: dict[str, dict[str, torch.Tensor]] = {}

    def evidence(**section: Any) -> dict[str, torch.Tensor]:
        asked = json.dumps(section, sort_keys=True)
        if asked not in found:
            path = folder / f"{len(found)}.safetensors"
            command = [sys.executable, str(HERE / "evidence.py"), asked, str(path)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False, cwd=folder)
            assert done.returncode == 0, f"{asked}:\n{done.stderr[-4000:]}"
            found[asked] = load_file(path)
        return found[asked]

    return evidence

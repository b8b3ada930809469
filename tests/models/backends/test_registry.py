"""A backend from outside the library: a class with the methods of `Backend`, and one line that registers it."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lite_selfplay import RunConfig, register_backend, scan, train
from lite_selfplay.config import ModelSection, SeatConfig
from lite_selfplay.errors import RequestError, UnknownNameError
from lite_selfplay.models import backends
from lite_selfplay.models.backends.backend import Backend
from lite_selfplay.models.backends.transformers import TransformersBackend

PROMISED = {name for name in (*vars(Backend), *Backend.__annotations__) if not name.startswith("_")}


class Outside:
    """Has the protocol's members, and nothing else that a run could use."""

    name = "outside"

    def __init__(self, *arguments: Any, **options: Any):
        self._inner = TransformersBackend(*arguments, **options)

    def __getattr__(self, key: str) -> Any:
        if key not in PROMISED:
            raise AttributeError(f"no backend promises {key}")
        USED.add(key)
        return getattr(self._inner, key)


USED: set[str] = set()


@pytest.fixture(autouse=True)
def _registry_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends.BACKENDS, "known", dict(backends.BACKENDS.known))


def config(folder: Path, backend: str) -> RunConfig:
    tasks, model = "arithmetic:max=3,terms=2,ops=+", {"name": "tiny", "precision": "fp32", "backend": backend}
    run = {"steps": 2, "group_size": 4, "problems_per_step": 2, "max_completion_tokens": 40, "dir": folder}
    begun = {"enabled": True, "steps": 2, "examples_per_step": 2}
    roles, measured = {"*": {"beta": 0.01}}, {"tasks": tasks, "limit": 2}
    return RunConfig(game="agon", model=model, tasks=tasks, run=run, roles=roles, cold_start=begun, eval=measured)


def files(run: Path) -> dict[str, bytes]:
    return {str(path.relative_to(run)): path.read_bytes() for path in sorted(run.rglob("*.safetensors"))}


def test_a_run_over_a_backend_from_outside_ends_where_the_librarys_own_does(tmp_path):
    train(config(tmp_path / "own", "transformers"))
    register_backend("outside", Outside)  # type: ignore[arg-type]  # its methods are found as they are asked for
    train(config(tmp_path / "outside", "outside"))
    assert files(tmp_path / "outside") == files(tmp_path / "own")
    assert json.loads((tmp_path / "outside" / "environment.json").read_text())["backend"] == "outside"
    # Memory did not run out, so that none was asked for back; all else that a backend promises is used.
    assert {"name", "release_memory"} == PROMISED - USED


def test_an_installed_package_brings_one(monkeypatch, tiny_path):
    def found(group: str) -> list[Any]:
        assert group == "lite_selfplay.backends"
        return [SimpleNamespace(name="installed", load=lambda: Outside)]

    monkeypatch.setattr(scan, "entry_points", found)
    section = ModelSection(name="tiny", precision="fp32", backend="installed")
    made = backends.choose_backend(tiny_path, section, {"A": SeatConfig()}, seed=0, eos_ids=[2])
    assert isinstance(made, Outside)


def test_a_name_that_is_taken_or_unknown_is_refused(tmp_path):
    for name in ("auto", "unsloth"):
        with pytest.raises(RequestError, match=f"the backend '{name}' exists already"):
            register_backend(name, TransformersBackend)
    with pytest.raises(UnknownNameError, match="unknown backend 'transformer': did you mean transformers"):
        train(config(tmp_path / "run", "transformer"))
    assert not (tmp_path / "run").exists()

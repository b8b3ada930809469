"""What the whole suite shares: a small random model in float32, and runs that are made once."""

import importlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="lite-selfplay-state-")  # the record of code that was run
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no test may depend on a hub
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # threads that spin while they wait slow each other down

from hypothesis import settings

from lite_selfplay.config import ModelSection, RunSection, SeatConfig

settings.register_profile("any machine", deadline=None)  # how long an example takes is not what is tested
settings.load_profile("any machine")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--pretend-gpu", choices=("t4", "4090"), help="run the tests on this pretend GPU")


def pytest_configure(config: pytest.Config) -> None:
    if model := config.getoption("--pretend-gpu"):
        from tests.pretend_gpu import pretend

        there = pretend.card(pretend.PROFILES[model])
        there.__enter__()
        config.add_cleanup(lambda: there.__exit__(None, None, None))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The files that take longest come first: two processes share the files, and neither waits long for the other."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


SEATS = {seat: SeatConfig(rank=4, alpha=8, init="gaussian", init_std=0.1, lr=1e-2) for seat in ("A", "B")}


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    """Small tensors on many threads are slow, and slower still beside another process."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session", autouse=True)
def _nothing_is_pushed_to_the_disk() -> Iterator[None]:
    """Thousands of small files, each of which would wait for the disk: that they survive a crash is tested where they
    are written."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the random model."""
    from lite_selfplay.models.sources.tiny import build_tiny

    folder = tmp_path_factory.mktemp("tiny")
    build_tiny(folder)
    return folder


@pytest.fixture
def several_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Work is shared out, the small model's as well, and what depends on who is done first comes to light."""
    import torch

    from lite_selfplay.models import threads as policy

    monkeypatch.setattr(policy, "SMALL", 0)
    threads = torch.get_num_threads()
    torch.set_num_threads(max(2, os.cpu_count() or 1))
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def make_backend(tiny_path: Path) -> Callable[..., Any]:
    """A backend over the random model: `make_backend(precision="fp32", seats=..., seed=0, ...)`."""
    from lite_selfplay.models.backends.transformers import TransformersBackend

    def make(precision: str = "fp32", seats: Mapping[str, SeatConfig] = SEATS, **options: Any) -> TransformersBackend:
        held = {key: options.pop(key) for key in ("compute_dtype", "gradient_checkpointing") if key in options}
        section = ModelSection(name="tiny", precision=precision, **held)
        run = RunSection(generation_tokens=options.pop("cache_tokens", None))
        return TransformersBackend(tiny_path, section, seats, **{"seed": 0, "eos_ids": [2], "run": run, **options})

    return make


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """A script of a folder beside the package, which finds the others of its folder: `script("benchmarks/soak")`."""

    def script(path: str) -> Any:
        folder, _, name = path.rpartition("/")
        monkeypatch.syspath_prepend(Path(__file__).parents[1] / folder)
        return importlib.import_module(name)

    return script


class Ended(NamedTuple):
    """How a command ended, and what it wrote."""

    code: int
    out: str
    err: str


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """Run a command in this process, in an empty folder: `call("train", "agon")`."""
    from lite_selfplay_cli.app import main

    monkeypatch.chdir(tmp_path)

    def call(*arguments: object) -> Ended:
        monkeypatch.setattr(sys, "argv", ["lite-selfplay", *map(str, arguments)])
        capsys.readouterr()
        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        return Ended(code, *capsys.readouterr())

    return call


@pytest.fixture(scope="session")
def agon_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two steps of Agon on the random model, measured before and after, and saved at each: to be read, or copied."""
    from lite_selfplay import RunConfig, train

    sizes = {"steps": 2, "group_size": 2, "problems_per_step": 2, "max_completion_tokens": 8, "save_every": 1}
    measured = {"tasks": "letters", "limit": 2}
    folder = tmp_path_factory.mktemp("runs") / "agon"
    asked: dict[str, Any] = {"game": "agon", "model": "tiny", "tasks": "letters", "precision": "fp32", "eval": measured}
    return train(RunConfig(**asked, **sizes, run_dir=folder)).path


@pytest.fixture
def reading_game() -> Iterator[type]:
    """A small game, known as `reader`, whose proposer reads passages and whose solver is measured as it plays."""
    from lite_selfplay.data import Episode, Group, Sample, Stream
    from lite_selfplay.games import GAMES, Game

    class ReadingGame(Game):
        roles = ("proposer", "solver")
        sources = ("passages", "validation")
        own_labels = True
        default_tasks = "arithmetic"

        def play(self, step: int, table: Any) -> Episode:
            (passage,) = table.draw("passages", 1)
            ((*said,),) = table.ask("proposer", [f"Read: {passage.text}"], n=self.group_size)
            problems = table.everything("validation")
            verdicts = table.evaluate("solver", [problem.text for problem in problems], problems)
            samples = [Sample(c, float(len(c.text) + i)) for i, c in enumerate(said)]
            log = {"passage": passage.id, "measured": [v.correct for v in verdicts], "answers": len(verdicts)}
            return Episode([Stream("proposer", [Group(samples)])], log=log)

        def describe(self, steps: int) -> list[str]:
            return [f"{steps} passages are read"]

        def warnings(self, log: Mapping[str, Any]) -> list[str]:
            return [f"{log['answers'] + self.group_size * 0.5:.1f} things were seen", "always the same"]

    GAMES.add("reader", ReadingGame)
    yield ReadingGame
    GAMES.known.pop("reader")

"""A run's sources, the warnings it repeats, what it never teaches, and what stops it."""

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lite_selfplay import RunConfig, resume, train
from lite_selfplay.data import Episode, Group, Sample, Sampling, Stream
from lite_selfplay.errors import GameError, TaskError, UnknownNameError, WorkerStartError
from lite_selfplay.runs import folder as folders
from lite_selfplay.runs import step_log
from lite_selfplay.runs.api import cold_start
from lite_selfplay.runs.folder import EXAMPLES
from lite_selfplay.runs.planning import plan
from lite_selfplay.runs.report.diagnosis import Stalled
from lite_selfplay.training.progress import Progress
from lite_selfplay.verify import Verifier
from tests.made import jsonl
from tests.made_runs import Ear, loop_of, read_lines, saved_steps

from .conftest import problem_file

pytestmark = pytest.mark.usefixtures("reading_game")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder for runs, with a few problems."""
    problem_file(tmp_path / "few.jsonl", *(f"{n} - {n - 1}?" for n in range(9)))
    return tmp_path


def config(folder: Path, **changes: Any) -> RunConfig:
    small = {"game": "reader", "model": "tiny", "precision": "fp32", "group_size": 2, "max_completion_tokens": 4}
    tasks = {"train": str(folder.parent / "few.jsonl"), "validation_limit": 3}
    return RunConfig(**{**small, "steps": 2, "tasks": tasks, "run_dir": folder, **changes})


def test_passages_that_are_too_long_for_the_base_are_left_out(folder: Path):
    # The tiny model reads a character a token.
    notes = str(jsonl(folder / "notes.jsonl", *({"text": "x" * n} for n in (3, 4, 5))))
    with loop_of(config(folder / "run", tasks={"knowledge": notes, "passage_tokens": 4}), folder) as loop:
        assert [p.text for p in loop.table.everything("passages")] == ["xxx", "xxxx"]
    with pytest.raises(TaskError, match="every passage is longer than 2 tokens"):
        loop_of(config(folder / "run", tasks={"knowledge": notes, "passage_tokens": 2}), folder).__enter__()


def test_everything_leaves_the_position_where_it_is(folder: Path):
    with loop_of(config(folder / "run"), folder) as loop:
        table, source = loop.table, loop.resources.sources["validation"]
        whole = list(table.everything("validation"))
        assert len(whole) == 3
        first = table.draw("validation", 2)
        assert source.position == 2
        assert list(table.everything("validation")) == whole
        assert source.position == 2
        assert {p.id for p in first + table.draw("validation", 1)} == {p.id for p in whole}
        with pytest.raises(UnknownNameError, match="unknown source 'problems'"):
            table.everything("problems")


def test_a_run_goes_on_from_the_same_passage_and_reads_no_more_than_it_must(folder: Path, monkeypatch):
    read, lines = list[str](), folders.read_lines

    def noted(path: Path) -> Iterator[tuple[int, bytes, dict[str, Any]]]:
        for line in lines(path):
            read.append(path.name)
            yield line

    monkeypatch.setattr(folders, "read_lines", noted)
    whole = [row["game"] for row in train(config(folder / "run", steps=3, save_every=1)).metrics_rows()]
    assert read.count("metrics.jsonl") == 3 + 3  # by the report that the run closes with, and here: by no save
    assert len({log["passage"] for log in whole}) == 3
    ear = Ear()
    half = train(config(folder / "half", steps=2, save_every=1), progress=ear)
    rows = resume(half.path, steps=3).metrics_rows()
    assert [row["game"] for row in rows] == whole
    generated, trained = (sum(row["tokens"][key] for row in rows) for key in ("generated", "trained"))
    assert f"{generated:,} generated, {trained:,} trained on" in (half.path / "README.md").read_text()
    # What the game warns of is told and written down.
    assert ear.warned.count("4.0 things were seen") == ear.warned.count("always the same") == 1
    assert [row["warnings"] for row in rows] == [["4.0 things were seen", "always the same"]] * 3


def test_warnings_of_one_kind_come_now_and_then(folder: Path, monkeypatch: pytest.MonkeyPatch, reading_game: Any):
    """Whatever their figures; and so does that a seat moves in vain."""
    number = itertools.count()
    monkeypatch.setattr(reading_game, "warnings", lambda self, log: [f"{next(number)}.5% of all"])
    monkeypatch.setattr(step_log, "WARNING_EVERY", 2)
    monkeypatch.setattr(step_log, "too_fast", lambda rows: [f"{len(rows)} steps with {[*rows[-1]['streams']]}"])
    monkeypatch.setattr(step_log, "stalled", lambda rows: [Stalled(len(rows) != 2, True, f"{len(rows)} shrank")])
    ear = Ear()
    train(config(folder / "run", steps=4), progress=ear)
    says = "steps with ['proposer']; if it goes on, start again with a lower seats.*.lr"
    lost = "shrank: reasoning may be lost. Start again with a lower seats.*.lr"
    assert ear.warned == ["0.5% of all", f"1 {lost}", f"2 {says}", "2.5% of all", f"3 {lost}", f"4 {says}"]


def test_a_cold_start_never_learns_from_what_the_game_is_measured_on(folder: Path):
    sums = [{"question": f"What is {n} + {n}?", "answer": f"{n} + {n} = {2 * n}.\n#### {2 * n}"} for n in range(8)]
    tasks = {"train": str(jsonl(folder / "sums.jsonl", *sums)), "validation_limit": 3}
    teach = {"enabled": True, "steps": 1, "examples_per_step": 8}
    settings = config(folder / "run", game="cpmobius", max_completion_tokens=200, tasks=tasks, cold_start=teach)
    measured = {problem.text for problem in plan(settings).sources["validation"]}
    taught = read_lines(cold_start(settings).path / EXAMPLES)
    asked = {row["completion"] for row in taught if row["role"] == "coach"}
    assert (len(measured), len(asked)) == (3, 5)
    assert not measured & asked
    assert not [row for row in taught for text in measured if text in row["prompt"]]


def test_a_game_that_stops_a_run_leaves_it_saved(folder: Path):
    # The random model writes no `<question>`: two steps in a row bring nothing to train on.
    game = {"name": "rzero", "max_empty_steps": 2, "votes": 2}
    with pytest.raises(GameError, match=r"2 steps in a row .*; saved before step 2\. Continue with: "):
        train(config(folder / "run", game=game, problems_per_step=2, steps=5))
    assert saved_steps(folder / "run") == [0, 1]


@pytest.fixture
def resting_game() -> Iterator[type]:
    """A game known as `resting`, whose solver learns at every second step, and is asked as `sampling` says."""
    from lite_selfplay.games import GAMES, Game

    class Resting(Game):
        roles = ("solver",)
        needs_answers, sampling = False, None
        default_tasks = "letters"

        def updates(self, steps: int) -> dict[str, int]:
            return {"solver": -(-steps // 2)}

        def play(self, step: int, table: Any) -> Episode:
            problems = table.draw("problems", 4)
            said = table.ask("solver", [x.text for x in problems], n=self.group_size, sampling=self.sampling)
            rewarded = [[Sample(c, float(i)) for i, c in enumerate(row)] for row in said]
            groups = [Group(*pair) for pair in zip(rewarded, problems, strict=True)]
            return Episode([Stream("solver", groups)] if step % 2 == 0 else [])

    GAMES.add("resting", Resting)
    yield Resting
    GAMES.known.pop("resting")


def resting(folder: Path, steps: int, minibatches: int) -> RunConfig:
    seat = {"schedule": "linear", "warmup": 0.0, "lr": 0.01}
    run = {"minibatches": minibatches, "save_every": 1, "keep_checkpoints": 9}
    return config(folder, game="resting", steps=steps, seats={"solver": seat}, run=run)


def seat_lines(folder: Path) -> list[dict[str, Any]]:
    return [row["seats"]["solver"] for row in read_lines(folder / "metrics.jsonl")]


@pytest.mark.usefixtures("resting_game")
@pytest.mark.parametrize("minibatches", [pytest.param(1, marks=pytest.mark.long), 2])
def test_a_schedule_ends_with_a_seats_last_update_and_goes_on_exactly_after_a_resume(folder: Path, minibatches: int):
    whole = train(resting(folder / "whole", 6, minibatches))
    seats = seat_lines(whole.path)
    # Three of six steps move it; the rate falls by the same amount at each update, and ends one such above 0.
    total = 3 * minibatches
    assert [seat["updates"] for seat in seats] == [n * minibatches for n in (1, 1, 2, 2, 3, 3)]
    moved = [seat["lr"] for seat in seats if seat["grad_norm"] is not None]
    assert moved == pytest.approx([0.01 * (total - minibatches * n + 1) / total for n in (1, 2, 3)])
    assert moved[-1] == pytest.approx(0.01 / total)

    first = seat_lines(train(resting(folder / "part", 3, minibatches)).path)
    assert first[-1]["lr"] == pytest.approx(0.01 / (2 * minibatches))
    again = seat_lines(resume(folder / "part", steps=6).path)
    # The first steps were those of a shorter run, and stay as they were; what is left is the longer one's schedule.
    assert again[:3] == first
    assert again[4]["lr"] == pytest.approx(moved[-1])

    (folder / "whole" / "checkpoints" / "step-6").rename(folder / "end")
    for step in (4, 5):
        shutil.rmtree(folder / "whole" / "checkpoints" / f"step-{step}")
    resumed = resume(whole.path)
    assert seat_lines(resumed.path) == seats
    for file in ("adapters/solver/adapter_model.safetensors", "optimizer.safetensors"):
        assert (folder / "end" / file).read_bytes() == (resumed.path / "checkpoints/step-6" / file).read_bytes()


def test_answer_checkers_that_do_not_start_find_the_run_saved(folder: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: Any, **__: Any) -> None:
        raise WorkerStartError("the answer checker's process did not start")

    class Watch(Progress):
        def step(self, metrics: Any, *_: Any) -> None:
            if metrics["step"] == 2:
                monkeypatch.setattr(Verifier, "verify", refuse)

    with pytest.raises(WorkerStartError, match=r"did not start; saved before step 3\. Continue with: "):
        train(config(folder / "run", game="grpo", tasks="letters", steps=4), progress=Watch())
    assert saved_steps(folder / "run") == [0, 2]


def test_a_game_that_asks_with_top_p_is_stopped_with_the_key(folder: Path, monkeypatch, resting_game: type):
    monkeypatch.setattr(resting_game, "sampling", Sampling(top_p=0.9, max_tokens=4))
    said = r"the solver's stream trains seat 'solver' on .* top_p=0\.9, .*saved before step 1"
    with pytest.raises(GameError, match=said):
        train(resting(folder / "run", 2, 1))

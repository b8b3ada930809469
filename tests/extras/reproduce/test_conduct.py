"""Carrying out an experiment: what is refused, in which order arms are made, and what is not made again."""

import shutil
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from filelock import FileLock

from lite_selfplay.errors import ConfigError, RunFolderError
from lite_selfplay.extras.reproduce import conduct as conducting
from lite_selfplay.extras.reproduce.conduct import conduct
from lite_selfplay.extras.reproduce.experiment import ArmSection, EvaluationSection, Experiment
from lite_selfplay.runs.api import Run
from lite_selfplay.runs.checkpoints import Checkpoint
from lite_selfplay.training.progress import Progress
from tests.made import jsonl

EVALUATIONS = (EvaluationSection(tasks="letters", limit=4),)
ARMS = {
    "one": ArmSection(game="grpo"),
    "again": ArmSection(of="one", mode="self-cascade"),
    "two": ArmSection(game="agon"),
    "base": ArmSection(start="base"),
    "taught": ArmSection(start="cold-start", mode="single"),
}
ABOUT = {"about": "Two ways to train and one that is not trained.", "source": "nowhere", "paper": "another model"}
BASE = {"model": "tiny", "tasks": "letters", "steps": 1}
SMALL = Experiment(name="small", base=BASE, cold_start={}, seeds=(0, 1), evaluations=EVALUATIONS, arms=ARMS, **ABOUT)


def test_a_curve_is_of_a_number_of_every_step_or_of_the_runs_own_evaluations():
    def measured(**scores: Any) -> dict[str, Any]:
        return {name: {k: {"pass_at_1": v} for k, v in each.items()} for name, each in scores.items()}

    class Finished:
        def evaluations(self) -> dict[int, dict[str, Any]]:
            return {
                -1: measured(seats={"base": 0.0}),
                0: measured(seats={"A": 0.25, "B": 0.75}),
                2: measured(seats={"A": 1.0, "B": 1.0}, directions={"A->B": 0.5, "B->A": 0.25}),
            }

    rows = [{"step": 1, "game": {"nash_conv": 0.5}}, {"step": 2, "game": {}}]
    run = cast(Run, Finished())
    assert conducting._curve(run, rows, "game.nash_conv") == [(1, 0.5)]
    assert conducting._curve(run, rows, "evaluation") == [(0, 0.5), (2, 0.375)]
    assert conducting._curve(run, rows, "") == []


def test_a_folder_of_something_else_damaged_or_whose_name_none_can_have_is_refused(tmp_path: Path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(RunFolderError, match="is not empty and holds no experiment"):
        conduct(SMALL, tmp_path, progress=Progress())
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
    with pytest.raises(RunFolderError, match=r"cannot write to aaa.*too long"):
        conduct(SMALL, Path("a" * 5000), progress=Progress())
    for text in ("[", "- a", "", "\\xff"):
        (tmp_path / "experiment.yaml").write_text(text)
        with pytest.raises(ConfigError, match=r"experiment\.yaml"):
            conduct(SMALL, tmp_path, progress=Progress())
        assert (tmp_path / "experiment.yaml").read_text() == text


def test_a_resumed_arm_and_its_evaluations_may_do_what_the_user_allowed_to_all(tmp_path: Path, monkeypatch):
    asked: list[Any] = []
    monkeypatch.setattr(conducting, "resume", lambda _, **given: asked.append(given))
    monkeypatch.setattr(conducting, "_newest", lambda path: Checkpoint(path, 0))
    monkeypatch.setattr(conducting, "holds_seats_of", lambda *_: True)
    monkeypatch.setattr(conducting, "last_step", lambda _: None)
    allowed = {"model": {"trust_remote_code": True}, "tasks": {"unsafe_code": True}, "run": {"report_to": "wandb"}}
    alone = SMALL.model_copy(update={"cold_start": None})
    for experiment in (alone, alone.having(allowed, {"rollouts": "http://node:8000"})):
        conducting._trained_run(experiment, "one", 0, tmp_path, Progress())
    (no, yes) = asked
    assert (no["trust_remote_code"], no["unsafe_code"], no["report_to"], no["rollouts"]) == (False, False, "none", None)
    assert (yes["trust_remote_code"], yes["unsafe_code"], yes["report_to"]) == (True, True, "wandb")
    assert yes["rollouts"]["servers"] == ["http://node:8000"]
    settings = EVALUATIONS[0].settings(alone.having(allowed).shared, ARMS["one"])
    assert (settings.trust_remote_code, settings.unsafe_code) == (True, True)


def test_seats_that_a_kill_kept_from_being_written_after_their_checkpoint_are_written(tmp_path: Path):
    source = jsonl(tmp_path / "taught.jsonl", *({"prompt": f"Write {x}", "completion": x} for x in "ab"))
    taught = {"source": str(source), "steps": 1, "examples_per_step": 2}
    arms, out = {name: ARMS[name] for name in ("one", "taught")}, tmp_path / "out"
    experiment = SMALL.model_copy(update={"cold_start": taught, "arms": arms, "seeds": (0,)})
    conduct(experiment, out, progress=Progress())
    folders = [out / "seed-0" / name / "adapters" for name in ("one", "cold-start")]
    whole = {path: path.read_bytes() for folder in folders for path in folder.rglob("*.safetensors")}
    assert len(whole) == 2
    for record in out.glob("seed-0/*.json"):
        record.unlink()
    for folder in folders:
        shutil.rmtree(folder)
    conduct(experiment, out, progress=Progress())
    assert {path: path.read_bytes() for path in whole} == whole


def test_each_arm_gets_the_rate_that_won_the_search_and_processes_share_the_work(tmp_path: Path, monkeypatch):
    search = {"rates": [1e-4, 1e-3], "seeds": [7, 8], "evaluations": [{"tasks": "letters:named=6", "limit": 4}]}
    searched = Experiment(**{**SMALL.model_dump(), "seeds": (0,), "search": search})
    # Over both seeds `one` is as good at both rates, so that it learns at the lower one; `two` at the higher, by the
    # mean of its directions.
    shares = {"one at 0.0001": (0.5, 0.0), "one at 0.001": (0.0, 0.5), "two at 0.0001": (0.5, 0.5)}
    shares["two at 0.001"] = (0.5, 0.75)
    made: list[tuple[int, str, object]] = []
    other = FileLock(tmp_path / "out" / "seed-0" / ".one.lock")

    def record(experiment: Experiment, name: str, arm: ArmSection, seed: int, *_: object) -> dict[str, Any]:
        made.append((seed, name, arm.set.get("seats.*.lr")))
        if experiment.name == "small" and name == "taught":
            other.release()
        share = shares[name][seed - 7] if name in shares else 0.0
        seats = {"solver": {"pass_at_1": share, "tokens_final_mean": 1, "tokens_total_mean": 1, "samples": 1}}
        directions = {"directions": {"A->B": seats["solver"]}, "mean_of_directions": share} if "two" in name else {}
        evaluation = {"tasks": "letters", "mode": "single", "seats": seats, **directions, "temperature": 0, "top_p": 1}
        outcome = {"solver": share, "A->B": share}
        more = {"max_completion_tokens": 6, "samples": 1, "per_problem": {"p": outcome}}
        return {"arm": name, "seed": seed, "training": {}, "evaluations": [{**evaluation, **more}]}

    monkeypatch.setattr(conducting, "_record", record)
    (tmp_path / "out" / "seed-0").mkdir(parents=True)
    (tmp_path / "out" / "experiment.yaml").write_text(yaml.safe_dump(searched.model_dump(mode="json")))
    other.acquire()  # as another process that is at work on `one`
    records = conduct(searched, tmp_path / "out", progress=Progress())
    tried = [(seed, f"{name} at {rate:g}", rate) for seed in (7, 8) for name in ("one", "two") for rate in (1e-4, 1e-3)]
    assert made[:8] == tried
    assert made[8:] == [(0, "two", 1e-3), (0, "base", None), (0, "taught", None), (0, "one", 1e-4), (0, "again", None)]
    assert [found["arm"] for found in records] == list(searched.arms)
    assert "| two at 0.001 | 62.5 [" in (tmp_path / "out" / "search" / "table.md").read_text()
    # What is there is not done again. It may grow; it may not shrink.
    made.clear()
    assert conduct(searched, tmp_path / "out", progress=Progress()) == records
    assert made == []
    conduct(searched.model_copy(update={"seeds": (0, 1)}), tmp_path / "out", progress=Progress())
    assert made == [(1, "one", 1e-4), (1, "again", None), (1, "two", 1e-3), (1, "taught", None)]
    with pytest.raises(RunFolderError, match="holds another experiment"):
        conduct(searched, tmp_path / "out", progress=Progress())


def test_arms_over_two_bases_of_one_name_are_not_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    bases = iter(["sums-1m:a", "sums-1m:a", "other:c", "sums-1m:b"])

    def record(experiment: Experiment, name: str, arm: ArmSection, seed: int, *_: object) -> dict[str, Any]:
        training = {"environment": {"base": next(bases)}} if arm.game else {}
        return {"arm": name, "seed": seed, "training": training, "evaluations": []}

    monkeypatch.setattr(conducting, "_record", record)
    trained = SMALL.model_copy(update={"arms": {"one": ARMS["one"], "base": ARMS["base"], "two": ARMS["two"]}})
    with pytest.raises(RunFolderError, match="its arms have different bases, other:c and sums-1m:a and sums-1m:b"):
        conduct(trained, tmp_path / "out", progress=Progress())
    assert not (tmp_path / "out" / "seed-1" / "two.json").exists()
    assert (tmp_path / "out" / "seed-1" / "one.json").exists()

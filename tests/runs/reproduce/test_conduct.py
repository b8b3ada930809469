"""A small experiment on the random model, carried out and gone on with."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from lite_selfplay.errors import RunFolderError
from lite_selfplay.runs.reproduce import conduct as conducting
from lite_selfplay.runs.reproduce.conduct import conduct
from lite_selfplay.runs.reproduce.experiment import ArmSection, EvaluationSection, Experiment
from lite_selfplay.runs.reproduce.findings import write_findings
from lite_selfplay.training.progress import Progress

SMALL = Experiment(
    name="small",
    about="Two ways to train and one that is not trained.",
    source="nowhere",
    paper="another model",
    base={
        "model": {"name": "tiny", "precision": "fp32"},
        "tasks": "letters",
        "steps": 1,
        "group_size": 2,
        "problems_per_step": 1,
        "max_completion_tokens": 6,
    },
    cold_start={"game": "self-refine", "tasks": "stories", "source": "worked", "steps": 1, "examples_per_step": 2},
    seeds=(0, 1),
    evaluations=(EvaluationSection(tasks="letters", limit=4),),
    arms={
        "one": ArmSection(game="grpo", paper={"letters": "30"}),
        "again": ArmSection(of="one", mode="self-cascade"),
        "two": ArmSection(game="agon", paper={"letters": "61"}),
        "base": ArmSection(start="base"),
        "taught": ArmSection(start="cold-start", mode="single"),
    },
)


@pytest.mark.long
def test_an_experiment_is_carried_out_and_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "out"
    experiment = SMALL.model_copy(update={"base": {**SMALL.base, "max_completion_tokens": 200}, "seeds": (0,)})
    records = conduct(experiment, out, progress=Progress())
    assert [record["arm"] for record in records] == list(SMALL.arms)
    assert {json.loads(p.read_text())["arm"] for p in (out / "seed-0").glob("*.json")} == set(SMALL.arms)
    assert all(len(record["evaluations"][0]["per_problem"]) == 4 for record in records)
    # All arms were asked the same problems, and the trained ones began with the same seats.
    assert len({json.dumps(list(record["evaluations"][0]["per_problem"])) for record in records}) == 1
    assert {record["evaluations"][0]["data"]["asked"] for record in records} == {
        records[0]["evaluations"][0]["data"]["asked"]
    }
    assert [record["evaluations"][0]["mode"] for record in records] == [
        *("single", "self-cascade", "cascade", "single", "single"),
    ]
    paths = write_findings(experiment, records, out)
    assert [path.name for path in paths] == ["table.md", "figure.png", "results.json"]
    text = (out / "table.md").read_text()
    assert "| two |" in text
    assert "| 61 |" in text
    assert "not ours: another model (nowhere)" in text

    def must_not(*_: Any, **__: Any) -> None:
        raise AssertionError("nothing is left to be done")

    for name in ("train", "resume", "cold_start", "evaluate_all"):
        monkeypatch.setattr(conducting, name, must_not)
    assert conduct(experiment, out, progress=Progress()) == records
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    # One arm is measured again from its finished run; what a killed run left is moved aside.
    (out / "seed-0" / "two.json").unlink()
    shutil.rmtree(out / "seed-0" / "two" / "checkpoints")
    again = conduct(experiment, out, progress=Progress())
    assert (out / "seed-0" / "two-stopped-1").is_dir()

    def without_times(record: Any) -> Any:
        return [{k: v for k, v in e.items() if k != "seconds"} for e in record["evaluations"]]

    assert list(map(without_times, again)) == list(map(without_times, records))
    with pytest.raises(RunFolderError, match="holds another experiment, or this one in another size"):
        conduct(SMALL, out, progress=Progress())


def test_a_folder_with_something_else_is_left_alone(tmp_path: Path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(RunFolderError, match="is not empty and holds no experiment"):
        conduct(SMALL, tmp_path, progress=Progress())
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]

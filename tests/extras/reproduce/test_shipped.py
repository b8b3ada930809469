"""Every experiment that is shipped, from nothing to its table, at its smallest size, on a few problems of each set."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from lite_selfplay.extras.reproduce.conduct import conduct, costs
from lite_selfplay.extras.reproduce.experiment import experiment_names, load_experiment
from lite_selfplay.extras.reproduce.findings import write_findings
from lite_selfplay.training.progress import Progress
from tests.made import jsonl

SETS = (
    "gsm8k_train",
    "gsm8k_test",
    "math500",
    "amc",
    "aime24",
    "aime25",
    "minerva",
    "olympiadbench",
    "omega",
    "deepmath",
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Stand-ins of all sets, in the columns of the hub or in ours, each with problems of its own."""
    folder = tmp_path_factory.mktemp("data")
    for place, name in enumerate(SETS):
        rows = [
            {
                "problem": f"{n} + {place}?",
                "answer": n + place,
                "solution": f"{n} + {place} = {n + place}.",
                "difficulty": 8,
            }
            for n in range(1, 13)
        ]
        jsonl(folder / f"{name}.jsonl", *rows)
    tests = {"input": ["1"], "output": ["2"]}
    programs = [
        {"name": f"p{n}", "description": f"Print {n} more.", "public_tests": tests, "difficulty": level}
        for n, level in enumerate(["EASY"] * 22 + ["HARD"] * 3)
    ]
    jsonl(folder / "codecontests_train.jsonl", *({**row, "private_tests": {}} for row in programs))
    place = folder / "PRIME-RL" / "Eurus-2-RL-Data"
    place.mkdir(parents=True)
    prompt = [{"role": "system", "content": "Think."}, {"role": "user", "content": "5 + 5?"}]
    jsonl(place / "train.jsonl", {"prompt": prompt, "reward_model": {"ground_truth": "10", "style": "rule"}})
    steps = [{"id": f"gsm8k-{n}", "problem": f"{n}?", "steps": ["a", "b"], "label": n % 2 - 1} for n in range(4)]
    for name in ("processbench", "prm800k", "deltabench"):
        jsonl(folder / f"{name}.jsonl", *steps)
    return str(folder)


@pytest.mark.slow
@pytest.mark.parametrize("name", experiment_names())
def test_from_nothing_to_its_table(name: str, data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    experiment, out = load_experiment(name, "tiny"), tmp_path / "out"
    assert len(experiment.seeds) == 1
    assert costs(experiment, data)
    records = conduct(experiment, out, data_dir=data, progress=Progress())
    assert [record["arm"] for record in records] == list(experiment.arms)
    asked = [spec for evaluation in experiment.evaluations for spec in evaluation.specs]
    assert all(len(record["evaluations"]) == len(asked) for record in records)
    assert any(record["training"].get("curve") for record in records) == bool(experiment.curve)
    write_findings(experiment, records, out)
    text = (out / "table.md").read_text()
    assert all(f"| {arm} |" in text for arm in experiment.arms)


@pytest.mark.slow
def test_a_kill_in_the_middle_is_gone_on_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    command = [sys.executable, "-m", "lite_selfplay_cli", "reproduce", "agon-table8", "--scale", "tiny", "--out", "cut"]
    killed = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    second, deadline = tmp_path / "cut" / "seed-0" / "adv with tiebreak", time.monotonic() + 120
    while not second.exists():
        assert killed.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    first = (tmp_path / "cut" / "seed-0" / "adv.json").read_text()
    experiment = load_experiment("agon-table8", "tiny")
    gone_on = conduct(experiment, tmp_path / "cut", progress=Progress())
    assert json.loads(first) == gone_on[0]  # what was complete is not done again
    at_once = conduct(experiment, tmp_path / "whole", progress=Progress())

    def found(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{**e, "seconds": 0} for record in records for e in record["evaluations"]]

    assert found(gone_on) == found(at_once)

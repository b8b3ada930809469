"""Every experiment that is shipped, from nothing to its table, at its smallest size, on a few problems of each set."""

import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from lite_selfplay.errors import TaskError
from lite_selfplay.extras.reproduce.conduct import conduct, costs
from lite_selfplay.extras.reproduce.experiment import Experiment, experiment_names, load_experiment
from lite_selfplay.extras.reproduce.findings import write_findings
from lite_selfplay.games.modes import Mode, find_mode
from lite_selfplay.runs.targets import find_task
from lite_selfplay.training.progress import Progress
from tests.made import jsonl

SETS = "gsm8k_train gsm8k_test math500 amc aime24 aime25 minerva olympiadbench omega deepmath".split()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Stand-ins of all sets, in the columns of the hub or in ours, each with problems of its own."""
    folder = tmp_path_factory.mktemp("data")
    for place, name in enumerate(SETS):
        sums = [(f"{n} + {place}", n + place) for n in range(1, 13)]
        rows = [{"problem": f"{a}?", "answer": b, "solution": f"{a} = {b}.", "difficulty": 8} for a, b in sums]
        jsonl(folder / f"{name}.jsonl", *rows)
    tests = {"public_tests": {"input": ["1"], "output": ["2"]}, "private_tests": {}}
    programs = [
        {"name": f"p{n}", "description": f"Print {n} more.", "difficulty": level, **tests}
        for n, level in enumerate(["EASY"] * 22 + ["HARD"] * 3)
    ]
    jsonl(folder / "codecontests_train.jsonl", *programs)
    place = folder / "PRIME-RL" / "Eurus-2-RL-Data"
    place.mkdir(parents=True)
    prompt = [{"role": "system", "content": "Think."}, {"role": "user", "content": "5 + 5?"}]
    jsonl(place / "train.jsonl", {"prompt": prompt, "reward_model": {"ground_truth": "10", "style": "rule"}})
    steps = [{"id": f"gsm8k-{n}", "problem": f"{n}?", "steps": ["a", "b"], "label": n % 2 - 1} for n in range(4)]
    for name in ("processbench", "prm800k", "deltabench"):
        jsonl(folder / f"{name}.jsonl", *steps)
    return str(folder)


def quick(experiment: Experiment) -> Experiment:
    """With one rate to choose from where there is a search: `test_conduct.py` has one that chooses."""
    if experiment.search is None:
        return experiment
    return experiment.model_copy(update={"search": experiment.search.model_copy(update={"rates": (1e-3,)})})


@pytest.fixture(scope="module")
def carried_out(data: str, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    """An experiment, its folder and its records: `carried_out("kuhn")`, which is done once for each."""

    @cache
    def carried_out(name: str) -> tuple[Experiment, Path, list[dict[str, Any]]]:
        experiment, out = quick(load_experiment(name, "tiny")), tmp_path_factory.mktemp("shipped") / "out"
        with (
            pytest.MonkeyPatch.context() as patch
        ):  # a run that is over is measured again and again, and never gone on with
            patch.setattr("lite_selfplay.extras.reproduce.conduct.resume", None)
            return experiment, out, conduct(experiment, out, data_dir=data, progress=Progress())

    return carried_out


@pytest.mark.parametrize("name", experiment_names())
@pytest.mark.parametrize("scale", ["tiny", "full"])
def test_what_is_missing_is_named_with_its_file_its_folder_and_where_it_is_to_be_had(name, scale, tmp_path: Path):
    experiment = load_experiment(name, scale)
    tasks = experiment.shared.tasks
    asked = {spec for evaluation in experiment.evaluations for spec in evaluation.specs}
    for spec in {*asked, *filter(None, (tasks.train, tasks.validation))}:
        mode = find_mode({"spc-table1": "critic", "kuhn": "versus"}.get(name, "single") if spec in asked else "single")
        if (said := refused(spec, tmp_path, mode)) is not None:
            for part in (".jsonl", f"not in {tmp_path}", "--data-dir", spec.removeprefix("hub:").partition(":")[0]):
                assert part in said
            assert "https://" in said or "hf download --repo-type dataset" in said


def refused(spec: str, data_dir: Path, mode: Mode) -> str | None:
    """Why a task cannot be had where there are no data, None for one that is made by rule."""
    try:
        assert find_task(spec, data_dir, 0, mode.tasks)[0].procedural
    except TaskError as error:
        return str(error)
    return None


@pytest.mark.slow
@pytest.mark.parametrize("name", experiment_names())
def test_from_nothing_to_its_table(name: str, data: str, carried_out: Callable[[str], Any]):
    experiment, out, records = carried_out(name)
    assert len(experiment.seeds) == 1
    assert costs(experiment, data)
    assert [record["arm"] for record in records] == list(experiment.arms)
    asked = [evaluation.mode for evaluation in experiment.evaluations for _ in evaluation.specs]
    for record in records:  # every arm was asked the same problems, as the file says
        own = experiment.arms[record["arm"]].mode
        for mode, each, first in zip(asked, record["evaluations"], records[0]["evaluations"], strict=True):
            assert each["mode"] == (mode or own or each["mode"])
            assert list(each["per_problem"]) == list(first["per_problem"])
    assert any(record["training"].get("curve") for record in records) == bool(experiment.curve)
    paths = write_findings(experiment, records, out)
    assert [path.name for path in paths if path.name != "figure.png"] == ["table.md", "results.json"]
    text = (out / "table.md").read_text()
    assert all(f"| {arm} |" in text for arm in experiment.arms)


@pytest.mark.slow
def test_an_arm_is_measured_again_from_its_run_and_trained_again_without_a_checkpoint(
    carried_out: Callable[[str], Any],
):
    experiment, out, records = carried_out("agon-table8")
    (out / "seed-0" / "adv.json").unlink()
    (out / "seed-0" / "adv with tiebreak.json").unlink()
    shutil.rmtree(out / "seed-0" / "adv with tiebreak" / "checkpoints")  # as a killed run leaves it
    (out / "seed-0" / "adv with tiebreak-stopped-1").mkdir()  # and another one before
    again = conduct(experiment, out, progress=Progress())
    for one, other in zip(again, records, strict=True):
        assert [{**e, "seconds": 0} for e in one["evaluations"]] == [{**e, "seconds": 0} for e in other["evaluations"]]
    assert (out / "seed-0" / "adv with tiebreak-stopped-2" / "metrics.jsonl").exists()

"""Several tasks and modes in one call, going on after a stop, and where answers are read."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from lite_selfplay.data import Verdict
from lite_selfplay.errors import Interrupted
from lite_selfplay.evaluation.examiner import SUFFIX
from lite_selfplay.evaluation.result import overview, settings_line
from lite_selfplay.runs.evaluating import Settings, evaluate, evaluate_all
from lite_selfplay.runs.folder import RunFolder
from lite_selfplay.tasks import load_task
from lite_selfplay.training.rollout import LiveTable
from tests.made import completion, jsonl
from tests.made_runs import Ear

from .conftest import problem_file

TASKS, MODES = ["letters:named=6", "stories"], ["single", "self-cascade", "vote"]
ASKED = Settings(limit=3, samples=2, k=(1, 2), max_completion_tokens=6, precision="fp32")


@pytest.fixture(scope="module")
def whole() -> tuple[list[Any], Ear]:
    """Several tasks in several modes, and what was told of it."""
    ear = Ear()
    return evaluate_all("tiny", TASKS, MODES, ASKED, progress=ear, write=False), ear


def test_several_tasks_and_modes_are_as_each_by_itself(whole: tuple[list[Any], Ear]):
    found, ear = whole
    assert [(one.tasks, one.mode) for one in found] == [(task, mode) for task in TASKS for mode in MODES]
    # One phase for all, whose parts add up: of each task 3 problems, in stages 1, 2 and 1.
    assert ear.phases == [("evaluation of tiny on letters:named=6, stories in single, self-cascade, vote", 24)]
    done = [done for done, _ in ear.notes]
    assert done[-1] == 24
    assert done == sorted(done)
    assert evaluate_all("tiny", TASKS[1:], MODES[1:2], ASKED, write=False) == [found[4]]
    result = found[0].to_json()
    assert set(result["data"]) == {"asked"}  # letters are made by rule
    assert set(result["seats"]["base"]["pass_at_k"]) == {"1", "2"}


def test_a_call_that_was_stopped_goes_on_with_its_answers(whole: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    verify, calls = LiveTable.verify, 0

    def stopped(self: LiveTable, pairs: Any) -> list[Verdict]:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise Interrupted("stopped by SIGTERM")
        return verify(self, pairs)

    monkeypatch.setattr(LiveTable, "verify", stopped)
    with pytest.raises(Interrupted, match=r"stopped by SIGTERM; eval/.*partial.jsonl has the answers so far: repeat"):
        evaluate_all("tiny", TASKS, MODES, ASKED)
    (kept,) = (tmp_path / "eval").iterdir()
    assert kept.name.endswith(SUFFIX)
    assert len(kept.read_text().splitlines()) == 1 + 6  # the drafts and second passes of three problems
    ear = Ear()
    calls = 3
    assert evaluate_all("tiny", TASKS, MODES, ASKED, progress=ear) == whole[0]
    assert calls == 3 + 6 + 2  # kept answers are judged again; then the other task's two stages
    assert ear.said[0] == f"continuing with the answers to 6 questions in {kept.relative_to(tmp_path)}"
    assert list(tmp_path.iterdir()) == []


def test_a_result_says_which_data_were_asked(of_a_file: Path):
    trained = str(of_a_file.parent / "trained.jsonl")
    result = evaluate("tiny", trained, limit=2, max_completion_tokens=4, precision="fp32").to_json()
    assert (result["tasks"], result["samples"], result["data"]["rows"]) == ("trained", 1, 3)
    assert result["data"]["origin"] == "trained.jsonl"
    assert len(result["data"]["fingerprint"]) == len(result["data"]["asked"]) == 64
    facts = json.loads((of_a_file / "environment.json").read_text())["data"]
    assert facts["tasks"]["fingerprint"] == result["data"]["fingerprint"]
    assert facts["tasks"]["tasks"] == trained


def test_a_benchmark_takes_its_own_number_of_samples(tmp_path: Path):
    problem_file(tmp_path / "amc.jsonl", "0?", "1?")
    asked = {"data_dir": tmp_path, "max_completion_tokens": 2, "precision": "fp32", "write": False}
    for given, samples in (({}, 10), ({"k": (1, 12)}, 12), ({"samples": 3}, 3)):
        assert evaluate("tiny", "amc", **asked, **given).seats["base"].samples == samples


def test_a_task_that_the_run_was_not_made_for_keeps_the_limit_that_it_suggests(of_a_file: Path):
    def limit(tasks: str, **chosen: Any) -> int:
        return evaluate(of_a_file, tasks, limit=1, write=False, trained_on=True, **chosen).sampling.max_tokens

    own = RunFolder(of_a_file).config().run.max_completion_tokens
    suggested = load_task("letters").max_completion_tokens
    assert own is not None
    assert own < suggested
    assert limit(str(of_a_file.parent / "trained.jsonl")) == own
    assert limit("letters") == suggested
    assert limit("letters", max_completion_tokens=3) == 3


@pytest.mark.parametrize(("answer_from", "right"), [(None, 1.0), ("anywhere", 1.0), ("block", 0.5)])
def test_where_a_bases_answers_are_read_and_what_the_other_place_gives(tmp_path, monkeypatch, answer_from, right):
    """One answer in a box and one in a block, both right."""
    said = {"1 + 1?": r"It is \boxed{2}.", "2 + 2?": "<answer>4</answer>"}

    def sample(self: LiveTable, seat: str, prompts: Sequence[str], n: int, sampling: Any, *_: Any) -> Any:
        return [[completion(said[problem]) for problem in said if problem in prompt] for prompt in prompts]

    monkeypatch.setattr(LiveTable, "sample", sample)
    tasks = jsonl(tmp_path / "two.jsonl", *({"problem": f"{n} + {n}?", "answer": 2 * n} for n in (1, 2)))
    settings = Settings(answer_from=answer_from, precision="fp32")
    (found,) = evaluate_all("tiny", [str(tasks)], [None], settings, write=False)
    assert found.seats["base"].pass_at_1 == right
    assert found.about["otherwise"] == {"base": 1.5 - right}
    columns, ((name, *rates, _, _, _),), _ = overview([found.to_json()])
    assert (columns[1:4], name) == (["pass@1 [95%]", "strict", "lenient"], "base")
    assert [rate.split()[0] for rate in rates] == [f"{right:.0%}", "50%", "100%"]
    read = "in the <answer> block (strict)" if right < 1 else "anywhere (lenient)"
    assert f"; answers read {read}" in settings_line(found.to_json())


def test_one_figure_stands_where_both_readings_agree(whole: tuple[list[Any], Ear]):
    result = {**whole[0][0].to_json(), "answer_from": "anywhere"}
    for otherwise, shown in ((0.0, False), (0.25, True)):
        rates = {name: {**score, "pass_at_1": 0.0} for name, score in result["seats"].items()}
        columns, _, _ = overview([{**result, "seats": rates, "otherwise": dict.fromkeys(rates, otherwise)}])
        assert ("strict" in columns) is shown


def test_rows_that_are_alike_are_asked_and_those_that_repeat_another_are_counted(tmp_path: Path):
    rows = [{"problem": f"Capitals in '{word}'?", "answer": n} for word, n in (("Abc", 1), ("aBC", 2), ("Abc", 1))]
    tasks, ear = jsonl(tmp_path / "capitals.jsonl", *rows), Ear()
    asked: dict[str, Any] = {"max_completion_tokens": 2, "precision": "fp32", "write": False, "progress": ear}
    result = evaluate("tiny", str(tasks), **asked).to_json()
    assert (result["n"], result["data"]["rows"], result["data"]["repeated"]) == (2, 3, 1)
    assert "1 of 3 rows of capitals repeat another row and are skipped" in ear.said

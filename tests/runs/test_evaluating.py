"""Several tasks and modes in one call, going on after a stop, and what stood in the training data."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from lite_selfplay import RunConfig, train
from lite_selfplay.data import Completion, Problem, Verdict
from lite_selfplay.errors import Interrupted
from lite_selfplay.evaluation.answers import SUFFIX
from lite_selfplay.runs.evaluating import Settings, evaluate, evaluate_all, graded_otherwise
from lite_selfplay.runs.folder import RunFolder
from lite_selfplay.training.rollout import LiveTable
from tests.made_runs import Ear, write_lines

LONG = "A farmer has seven fields and plants thirty rows of corn in each one of them"
SMALL: dict[str, Any] = {"group_size": 2, "problems_per_step": 1, "steps": 1, "precision": "fp32"}
TASKS, MODES = ["letters:named=6", "stories"], ["single", "self-cascade", "vote"]
ASKED = Settings(limit=3, samples=2, k=(1, 2), max_completion_tokens=6, precision="fp32")


def test_several_tasks_and_modes_are_as_each_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    ear = Ear()
    found = evaluate_all("tiny", TASKS, MODES, ASKED, progress=ear)
    assert [(one.tasks, one.mode) for one in found] == [(task, mode) for task in TASKS for mode in MODES]
    # One phase for all, whose parts add up: of each task 3 problems, in stages 1, 2 and 1.
    assert ear.phases == [("evaluation of tiny on letters:named=6, stories in single, self-cascade, vote", 24)]
    done = [done for done, _ in ear.notes]
    assert done[-1] == 24
    assert done == sorted(done)
    alone = evaluate(
        "tiny", "stories", mode="self-cascade", limit=3, samples=2, k=(1, 2), max_completion_tokens=6, precision="fp32"
    )
    assert alone == found[4]
    result = found[0].to_json()
    assert set(result["data"]) == {"asked"}  # letters are made by rule
    assert set(result["seats"]["base"]["pass_at_k"]) == {"1", "2"}
    assert list(tmp_path.iterdir()) == []


def test_a_call_that_was_stopped_goes_on_with_its_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    whole = evaluate_all("tiny", TASKS, MODES, ASKED, write=False)
    verify, calls = LiveTable.verify, 0

    def stopped(self: LiveTable, pairs: Sequence[tuple[Completion, Problem]]) -> list[Verdict]:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise Interrupted("stopped by SIGTERM")
        return verify(self, pairs)

    monkeypatch.setattr(LiveTable, "verify", stopped)
    with pytest.raises(Interrupted, match=r"stopped by SIGTERM; eval/.*partial.jsonl keeps what was answered"):
        evaluate_all("tiny", TASKS, MODES, ASKED)
    (kept,) = (tmp_path / "eval").iterdir()
    assert kept.name.endswith(SUFFIX)
    assert len(kept.read_text().splitlines()) == 1 + 6  # the drafts and second passes of three problems
    ear = Ear()
    calls = 3
    assert evaluate_all("tiny", TASKS, MODES, ASKED, progress=ear) == whole
    assert calls == 3 + 2  # the other task's two stages
    assert ear.said[0] == f"going on with the answers to 6 questions in {kept.relative_to(tmp_path)}"
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    rows = [{"question": text, "answer": "so\n#### 4"} for text in ("one?", "two?", f"{LONG}. How many?")]
    for split in ("train", "test"):
        write_lines(folder / f"gsm8k_{split}.jsonl", rows)
    return folder


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "grpo"
    config = RunConfig(game="grpo", model="tiny", tasks="gsm8k", data_dir=str(data), run_dir=folder, **SMALL)
    return train(RunConfig.of(config.chosen(), {"run": {"max_completion_tokens": 4}})).path


def problems(path: Path, *texts: str) -> str:
    return str(write_lines(path, [{"problem": text, "answer": "1"} for text in texts]))


def test_what_stood_in_a_benchmark_that_a_run_learned_from(run: Path, tmp_path: Path):
    ear = Ear()
    tasks = problems(tmp_path / "mixed.jsonl", "new?", "TWO?", f"{LONG}, and sells five. How many are left?")
    result = evaluate(run, tasks, write=False, progress=ear).to_json()
    assert ear.warned == [
        "1 of 3 problems of mixed were in training and are left out: mixed-2",
        "mixed: 1 of 2 evaluation problems stood in the training data (0 with the same content, 1 with 13 words in a "
        "row in common): mixed-3",
    ]
    assert result["overlap"] == {"left_out": ["mixed-2"], "same": [], "shared": ["mixed-3"]}
    assert list(result["per_problem"]) == ["mixed-1", "mixed-3"]


def test_what_stood_in_the_examples_of_a_cold_start_and_in_passages(run: Path, tmp_path: Path):
    other = shutil.copytree(run, tmp_path / "run")
    text = "The library lends nine books to each of its two hundred readers in the month of May"
    row = {"role": "solver", "prompt": f"{text}?", "completion": "many", "origin": "file"}
    write_lines(other / "cold_start.jsonl", [row])
    passage = "Every triangle with two equal sides has two equal angles which lie opposite to those sides"
    (tmp_path / "passages.txt").write_text(passage)
    knowledge = {"tasks": {"knowledge": str(tmp_path / "passages.txt")}}
    config = RunConfig.of(RunFolder(other).config().model_dump(mode="json"), knowledge)
    (other / "config.yaml").write_text(config.to_yaml())
    ear = Ear()
    tasks = problems(tmp_path / "p.jsonl", f"{text} and June.", f"Is it true? {passage}.", "short?")
    result = evaluate(other, tasks, write=False, progress=ear).to_json()
    assert result["overlap"] == {"left_out": [], "same": [], "shared": ["p-1", "p-2"]}
    assert len(ear.warned) == 1


def test_a_result_says_which_data_were_asked(run: Path, data: Path):
    result = evaluate("tiny", "gsm8k", limit=2, data_dir=data, max_completion_tokens=4, precision="fp32").to_json()
    assert (result["tasks"], result["samples"], result["data"]["rows"]) == ("gsm8k", 1, 3)
    assert result["data"]["origin"] == "gsm8k_test.jsonl"
    assert len(result["data"]["fingerprint"]) == len(result["data"]["asked"]) == 64
    facts = json.loads((run / "environment.json").read_text())["data"]
    assert facts["tasks"]["fingerprint"] == result["data"]["fingerprint"]  # the two splits are alike here
    assert facts["tasks"]["tasks"] == "gsm8k"


def test_a_benchmark_takes_its_own_number_of_samples(tmp_path: Path):
    problems(tmp_path / "amc.jsonl", "0?", "1?")
    asked = {"data_dir": tmp_path, "max_completion_tokens": 2, "precision": "fp32", "write": False}
    assert evaluate("tiny", "amc", **asked).seats["base"].samples == 10
    assert evaluate("tiny", "amc", k=(1, 12), **asked).seats["base"].samples == 12
    assert evaluate("tiny", "amc", samples=3, **asked).seats["base"].samples == 3


@pytest.mark.parametrize(
    ("answer_from", "right", "otherwise"), [(None, 1.0, 0.5), ("anywhere", 1.0, 0.5), ("block", 0.5, 1.0)]
)
def test_where_a_bases_answers_are_read_and_what_the_other_place_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer_from: str | None, right: float, otherwise: float
):
    """One answer in a box and one in a block, both right."""
    said = {"1 + 1?": r"It is \boxed{2}.", "2 + 2?": "<answer>4</answer>"}

    def speak(self: LiveTable, seat: str, prompts: Sequence[str], n: int, sampling: Any, *_: Any) -> Any:
        texts = [next(text for problem, text in said.items() if problem in prompt) for prompt in prompts]
        return [
            [Completion(p, t, (), (1,), (-1.0,), "eos", seat, -1, sampling)]
            for p, t in zip(prompts, texts, strict=True)
        ]

    monkeypatch.setattr(LiveTable, "speak", speak)
    tasks = write_lines(tmp_path / "two.jsonl", [{"problem": p, "answer": a} for p, a in zip(said, "24", strict=True)])
    settings = Settings(answer_from=answer_from, precision="fp32")
    (found,) = evaluate_all("tiny", [str(tasks)], [None], settings, write=False)
    assert found.seats["base"].pass_at_1 == right
    assert graded_otherwise(found, settings) == {"base": otherwise}

"""Problems whose answers decide nothing are refused as they are read, and files of well-known formats are not."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from lite_selfplay.errors import TaskError
from lite_selfplay.tasks import load_task
from lite_selfplay.verify.programs import run_tests
from tests.made import jsonl, shared

HUB = yaml.safe_load(Path(__file__).with_name("rows.yaml").read_text(encoding="utf-8"))
HUMANEVAL, MBPP = HUB["humaneval"]["row"], HUB["mbpp"]["row"]
CHECK = HUMANEVAL["test"]
ROWS: dict[str, dict[str, Any]] = {
    "HumanEval's columns": HUMANEVAL,
    "MBPP's columns": MBPP,
    "a check beside a problem": {"problem": "Add.", "test": CHECK, "entry_point": "add"},
    "a check as the tests": {"problem": "Add.", "tests": CHECK, "entry_point": "add"},
    "a test_list beside a problem": {"problem": "Add.", **{k: MBPP[k] for k in ("test_list", "test_setup_code")}},
    "a unittest": {
        "problem": "Add.",
        "tests": "import unittest\nclass T(unittest.TestCase):\n    def test(self):\n"
        "        self.assertEqual([add(1, 2), add(-5, 2)], [3, -3])\n",
    },
}


@pytest.mark.parametrize("row", ROWS)
def test_a_line_of_each_format(tmp_path: Path, row: str):
    (problem,) = load_task(str(jsonl(tmp_path / "mine.jsonl", ROWS[row]))).problems
    right, wrong = run_tests(["def add(a, b):\n    return a + b", "def add(a, b):\n    return -77"], problem.answer)
    assert (problem.kind, right.score, wrong.score) == ("program", 1, 0)
    if "solution" in problem.extra:
        assert run_tests(problem.extra["solution"], problem.answer).score == 1
    if row == "HumanEval's columns":
        assert (problem.id, "Complete this Python function" in problem.text) == ("HumanEval/0", True)
        assert run_tests("    return a + b", problem.answer).score == 1


def test_a_file_of_humanevals_format_is_trained_on(tmp_path: Path, call: Any):
    path = jsonl(tmp_path / "mine.jsonl", HUMANEVAL, {**HUMANEVAL, "task_id": "HumanEval/1"})
    train = ("train", "grpo", "--model", "tiny", "--tasks", path, "--steps", 1, "--precision", "fp32")
    ended = call(*train, "--group-size", 2, "--max-completion-tokens", 8, "--run-dir", tmp_path / "run")
    assert ended.code == 0, ended.err
    rows = [json.loads(line) for line in (tmp_path / "run" / "episodes.jsonl").read_text().splitlines()]
    assert rows
    assert not any(row["correct"] for row in rows)
    assert {row["reason"] for row in rows} <= {"no_program", "wrong_answer", "syntax", "error"}


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ({**HUMANEVAL, "test": f"# check(x)\n{CHECK}"}, "the tests test nothing: a program whose"),
        ({**MBPP, "test_list": ["add(1, 2)"], "challenge_test_list": []}, "the tests test nothing"),
        ({"problem": "x", "tests": ["assert f(1) == 2", "import math"]}, "every program passes assertion 2"),
        ({"problem": "x", "tests": CHECK}, "no `entry_point` names the function"),
        ({"problem": "x", "answer": "\\boxed{}"}, r"no answer matches this reference: '\\\\boxed\{\}'"),
        *(({"problem": "x", "answer": answer}, "no answer matches") for answer in ("$$", ["."])),
        ({"problem": "x", "answer": "9" * 3000}, "no answer matches this reference: '9{80}'"),
    ],
)
def test_what_decides_nothing_is_refused_with_file_and_line(tmp_path: Path, row: dict[str, Any], sentence: str):
    path = jsonl(tmp_path / "mine.jsonl", {"problem": "y", "answer": "4"}, HUMANEVAL, row)
    with pytest.raises(TaskError, match=rf"mine\.jsonl, line 3.*{sentence}"):
        load_task(str(path))


def test_a_benchmark_and_a_function_of_ones_own_are_looked_at_as_well(tmp_path: Path):
    odd = {**HUMANEVAL, "task_id": "odd", "test": "def check(f):\n    f(1, 2)"}
    jsonl(tmp_path / "humaneval.jsonl", HUMANEVAL, odd)
    with pytest.raises(TaskError, match=r"humaneval\.jsonl, problem odd: the tests test nothing"):
        load_task("humaneval", data_dir=str(tmp_path))
    own = tmp_path / "own.py"
    own.write_text(
        "from lite_selfplay.data import Problem\nfrom lite_selfplay.tasks import Task\n"
        "def made(seed, held_out):\n"
        "    return Task('mine', [Problem('p', 'Add.', ['add(1, 2)'], kind='program')])\n"
    )
    with pytest.raises(TaskError, match=r"own\.py:made, problem p: the tests test nothing"):
        load_task(f"{own}:made")


@pytest.mark.data
def test_real_problems_that_are_programs_are_read():
    """The other files of the shared data are read in verify/test_shared_data."""
    assert len(load_task(str(shared("humaneval"))).problems) == 164

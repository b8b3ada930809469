"""Problems whose answer is a program: files, `code-arithmetic`, and the layouts of benchmarks on small rows."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from lite_selfplay import RunConfig
from lite_selfplay.data import Problem
from lite_selfplay.errors import TaskError
from lite_selfplay.runs.evaluating import evaluate
from lite_selfplay.runs.planning import plan
from lite_selfplay.tasks import load_task
from lite_selfplay.tasks.benchmarks import BENCHMARKS
from lite_selfplay.tasks.columns import Columns
from lite_selfplay.tasks.jsonl import problems_of
from lite_selfplay.verify.programs import read_tests, run_tests
from tests.made import jsonl
from tests.made_runs import Ear

# Files


def test_a_file_with_tests(tmp_path):
    tripled = ["assert triple(1) == 3", "assert candidate(2) == 6"]
    path = jsonl(
        tmp_path / "mine.jsonl",
        {"problem": "Print the square of a number.", "tests": [["3", "9"]], "solution": "print(int(input())**2)"},
        {"question": "Double it.", "tests": [{"args": [2], "expected": 4}], "function": "double", "id": "d"},
        {"problem": "Triple it.", "tests": tripled, "entry_point": "triple"},
        {"problem": "Halve it.", "tests": '{"inputs": ["4"], "outputs": ["2.0"]}', "tolerance": 1e-6},
    )
    square, double, triple, half = load_task(str(path)).problems
    assert {p.kind for p in (square, double, triple, half)} == {"program"}
    assert square.text.startswith("Print the square of a number.\n\nThe program reads its input from stdin")
    assert (double.id, "function `double`" in double.text, "function `triple`" in triple.text) == ("d", True, True)
    for problem, program in (
        (square, square.extra["solution"]),
        (double, "def double(x): return 2 * x"),
        (triple, "def triple(x): return 3 * x"),
        (half, "print(int(input()) / 2.0000001)"),
    ):
        assert run_tests(program, problem.answer).score == 1


@pytest.mark.parametrize("tests", [[["only one"]], "[broken"])  # of those in `test_judge.py`, and no JSON
def test_tests_that_cannot_be_read_are_refused_with_their_line(tmp_path, tests):
    path = jsonl(tmp_path / "mine.jsonl", {"problem": "x", "tests": [["", ""]]}, {"problem": "y", "tests": tests})
    with pytest.raises(TaskError, match="line 2"):
        load_task(str(path))


def with_solutions(path: Path, right: int, wrong: int) -> str:
    """A file of problems, of which some have a wrong solution of their own; one has prose, and one none."""
    solutions = [*["def twice(x): return 2 * x"] * right, *["def twice(x): return x"] * wrong, "Double it.", None]
    rows = [
        {
            "question": f"Double it, {n}.",
            "tests": ["from solution import twice\nassert twice(2) == 4"],
            "solution": each,
        }
        for n, each in enumerate(solutions)
    ]
    return str(jsonl(path, *rows))


def test_a_problem_whose_own_solution_fails_is_left_out_and_said(tmp_path):
    task = load_task(with_solutions(tmp_path / "mine.jsonl", right=3, wrong=2))
    assert [problem.id for problem in task.problems] == [f"mine-{n}" for n in (1, 2, 3, 6, 7)]
    assert task.caution == (
        "2 of 5 solutions in mine.jsonl fail the tests of their own problems, which are left out: mine-4: wrong_answer "
        "(test 1: AssertionError:); mine-5: wrong_answer (test 1: AssertionError:)"
    )
    config = RunConfig(game="grpo", model="tiny", tasks=str(tmp_path / "mine.jsonl"))
    assert f"caution: {task.caution}" in plan(config).lines()
    assert f"caution: {task.caution}" in plan(config).chosen()


def test_what_is_left_out_of_an_evaluation_is_said_as_well(tmp_path):
    file = with_solutions(tmp_path / "other.jsonl", right=3, wrong=2)
    sentence = load_task(file).caution
    assert sentence.startswith("2 of 5 solutions in other.jsonl fail the tests of their own problems, which are left")
    ready = plan(RunConfig(game="grpo", model="tiny", tasks="letters", eval_tasks=file))
    assert len(ready.held_out) == 5
    assert f"caution: {sentence}" in ready.lines()
    ear = Ear()
    result = evaluate("tiny", file, max_completion_tokens=2, precision="fp32", write=False, progress=ear).to_json()
    assert result["n"] == 5
    assert f"other: {sentence}" in ear.said


def test_where_most_solutions_fail_nothing_is_trained_on(tmp_path):
    with pytest.raises(TaskError, match=r"2 of 3 solutions in mine\.jsonl fail .*: mine-2: .*; mine-3: ") as caught:
        load_task(with_solutions(tmp_path / "mine.jsonl", right=1, wrong=2))
    assert str(caught.value).count("AssertionError") == 2


# code-arithmetic


def test_every_solution_passes_and_what_is_left_out_shows():
    for problem in load_task("code-arithmetic", seed=1).problems[:6]:
        program = problem.extra["solution"]
        lines = program.split("\n")
        without = "\n".join([lines[0], *lines[2:]])
        right, first, empty = run_tests([program, without, "print()"], problem.answer)
        assert (right.passed, right.total) == (5, 5), problem
        assert first.passed < 5 or "numbers = " not in lines[1], problem
        assert empty.passed < 5


@pytest.mark.parametrize(("steps", "lines"), [("0", {2}), ("1", {3}), ("2", {3, 4})])
def test_options(steps, lines):
    problems = load_task(f"code-arithmetic:steps={steps},tests=3").problems[:30]
    assert {len(p.extra["solution"].split("\n")) for p in problems} == lines
    assert {len(read_tests(p.answer).cases) for p in problems} == {3}


# Benchmarks: a row in the columns of the hub, a program that passes, one that does not

MADE: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("rows.yaml").read_text(encoding="utf-8"))
ROWS = {name: (made["row"], made["right"], made["wrong"]) for name, made in MADE.items() if "right" in made}


@pytest.mark.parametrize("name", ROWS)
def test_a_row_of_the_hub(name, tmp_path):
    row, right, wrong = ROWS[name]
    own = BENCHMARKS[name].own_split is not None  # too few for a held-out side
    jsonl(tmp_path / f"{name}_{'train' if own else 'test'}.jsonl", row)
    task = load_task(name, held_out=not own, data_dir=str(tmp_path))
    (problem,) = task.problems
    assert problem.kind == "program"
    assert json.loads(json.dumps(problem.answer)) == problem.answer
    good, bad = run_tests([right, wrong], problem.answer)
    assert good.score == 1, good
    assert bad.score < 1
    if "solution" in problem.extra:
        assert run_tests(problem.extra["solution"], problem.answer).score == 1


def test_the_easy_ones_of_codecontests_that_have_tests_are_meant(tmp_path):
    row, untested = ROWS["codecontests"][0], {"input": [], "output": []}
    none = {**row, "name": "none", "description": "Untested.", "public_tests": untested, "private_tests": None}
    others = [{**row, "difficulty": 1 + (n > 32), "name": f"b{n}", "description": f"Add {n}."} for n in range(34)]
    jsonl(tmp_path / "codecontests_train.jsonl", none, row, *others)
    # 34 easy ones in the paper's proportion of 3,000 to 300, by what they ask alone.
    sides = [load_task("codecontests", held_out=side, data_dir=str(tmp_path)).problems for side in (False, True)]
    assert [len(side) for side in sides] == [31, 3]
    assert {p.id for side in sides for p in side} == {"1_A. Sum", *(f"b{n}" for n in range(33))}
    assert [p.id for p in load_task("codecontests:difficulty=2", data_dir=str(tmp_path)).problems] == ["b33"]
    assert len(load_task("codecontests:difficulty=all", data_dir=str(tmp_path)).problems) == 32
    with pytest.raises(TaskError, match="difficulty=9"):
        load_task("codecontests:difficulty=9", data_dir=str(tmp_path))


@pytest.mark.parametrize("name", ROWS)
def test_a_row_that_lacks_a_column_or_is_of_another_form_is_named_by_file_and_line(name, tmp_path):
    row = dict(ROWS[name][0])
    del row[BENCHMARKS[name].columns.required[-1]]
    jsonl(tmp_path / f"{name}.jsonl", row)
    with pytest.raises(TaskError, match=r"line 1: .*no column"):
        load_task(name, data_dir=str(tmp_path))
    jsonl(tmp_path / "codecontests.jsonl", {**ROWS["codecontests"][0], "public_tests": {"input": 7, "output": "x"}})
    with pytest.raises(TaskError, match=r"codecontests\.jsonl, line 1: not a row of this benchmark"):
        load_task("codecontests", held_out=True, data_dir=str(tmp_path))


def test_lists_of_inputs_and_outputs_beside_a_problem_are_its_tests(tmp_path):
    row = {"question": "Add two numbers.", "inputs": ["1 2\n", "3 4\n"], "outputs": ["3\n", "7\n"]}
    (problem,) = load_task(str(jsonl(tmp_path / "m.jsonl", row))).problems
    assert problem.kind == "program"
    assert problem.answer["tests"] == [["1 2\n", "3\n"], ["3 4\n", "7\n"]]
    assert problem.extra == {}


def test_any_data_set_by_a_map_of_its_columns(tmp_path):
    row = {"question": "Add.", "input_output": '{"inputs": ["1 2"], "outputs": ["3"]}', "problem_id": 7}
    columns = Columns(("question",), "input_output", id="problem_id")
    (problem,) = problems_of(columns.rows_of([("row 1", row)], "program"), "x", (), "program")[0].values()
    assert isinstance(problem, Problem)
    assert (problem.id, problem.kind) == ("7", "program")
    assert run_tests("print(3)", problem.answer).score == 1

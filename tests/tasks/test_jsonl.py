"""A user's own problems: valid lines, and errors that name file and line for all others."""

import codecs
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lite_selfplay.data import Problem
from lite_selfplay.errors import TaskError
from lite_selfplay.tasks import load_task
from lite_selfplay.tasks.jsonl import read_jsonl
from tests.made import jsonl

GOOD = b'{"problem": "1 + 1?", "answer": "2"}\n'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "sums.jsonl"


def read(file: Path, *rows: Any) -> list[Problem]:
    return read_jsonl(jsonl(file, *rows))


def answer(file: Path, value: Any) -> Any:
    return read(file, {"problem": "x", "answer": value})[0].answer


def test_a_line_is_a_problem(file):
    assert read(file, {"problem": " 1 + 1?\n", "answer": "2"}) == [Problem("sums-1", "1 + 1?", "2")]


def test_question_is_accepted_instead_of_problem(file):
    assert read(file, {"question": "1 + 1?", "answer": "2"}) == [Problem("sums-1", "1 + 1?", "2")]


def test_problem_takes_precedence_over_question(file):
    (problem,) = read(file, {"question": "why?", "problem": "1 + 1?"})
    assert (problem.text, problem.extra) == ("1 + 1?", {"question": "why?"})


def test_other_columns_are_kept(file):
    (problem,) = read(file, {"problem": "x", "answer": "2", "id": "a", "level": 3, "tags": ["sum"]})
    assert problem.extra == {"level": 3, "tags": ["sum"]}


@pytest.mark.parametrize(("own", "used"), [("a-7", "a-7"), (7, "7"), (0, "0"), (None, "sums-1")])
def test_an_id_of_its_own(file, own, used):
    assert read(file, {"problem": "x", "id": own})[0].id == used


def test_ids_count_lines_and_blank_lines_are_skipped(file):
    file.write_bytes(b"\n" + GOOD + b" \t\r\n\n" + GOOD.strip())
    assert [problem.id for problem in read_jsonl(file)] == ["sums-2", "sums-5"]


@pytest.mark.parametrize("value", ["2", "x + 1", 2, -2.5, ["1", "2"], [1, 2.5, "x"], 10**400, None])
def test_answers_are_kept_unchanged(file, value):
    assert answer(file, value) == value


@pytest.mark.parametrize("value", [{"any_of": ["1/2", 0.5]}, {"any_of": [["1", "2"], 3]}])
def test_alternative_answers(file, value):
    assert answer(file, value) == value


@pytest.mark.parametrize("value", ["", " \n", "all of this #### ", "####"])
def test_a_blank_answer_is_none(file, value):
    assert answer(file, value) is None


@pytest.mark.parametrize(
    ("solution", "final"),
    [
        ("She has 3.\n#### 3", "3"),
        ("#### 1,234", "1234"),
        ("#### -1,234,567.5", "-1234567.5"),
        ("#### $1,000", "$1000"),
        ("####42\n", "42"),
        ("a #### 1\n#### 2  \n", "2"),
        ("#### (1, 2)", "(1, 2)"),
        ("#### 1,2", "1,2"),
        ("#### x,y", "x,y"),
    ],
)
def test_the_answer_of_a_worked_solution_follows_the_mark(file, solution, final):
    (problem,) = read(file, {"question": "x", "answer": solution})
    assert (problem.answer, problem.extra) == (final, {"solution": solution})


def test_a_mark_in_the_middle_is_not_an_answer(file):
    text = "#### Step one\n3 + 4 = 7\nso 7"
    (problem,) = read(file, {"problem": "x", "answer": text})
    assert (problem.answer, problem.extra) == (text, {})


def test_a_solution_column_of_its_own_is_kept(file):
    (problem,) = read(file, {"problem": "x", "answer": "work #### 5", "solution": "theirs"})
    assert (problem.answer, problem.extra) == ("5", {"solution": "theirs"})


@settings(deadline=None)
@given(st.text().filter(lambda text: text.strip()))
def test_every_text_survives(tmp_path_factory, text):
    file = tmp_path_factory.mktemp("texts") / "a.jsonl"
    for escaped in (True, False):
        file.write_text(json.dumps({"problem": text}, ensure_ascii=escaped) + "\n", encoding="utf-8", newline="\n")
        assert read_jsonl(file)[0].text == text.strip()


def test_a_task_is_named_after_its_file(file):
    file.write_bytes(GOOD)
    task = load_task(str(file))
    assert (task.name, len(task.problems), task.max_completion_tokens) == ("sums", 1, 512)


# What is refused. The bad line is always the third, after a good and a blank one. How lines are read: test_files.

BAD_LINES = {
    "cut off": (b'{"problem": "x"', "not JSON .*column 16"),
    "no columns": (b"{}", "neither 'problem' nor 'question' among its columns .none"),
    "other columns": (b'{"prompt": "x", "answer": "2"}', "neither 'problem' nor 'question'.*prompt, answer"),
    "number as problem": (b'{"problem": 3}', "'problem' must be a non-empty text"),
    "null as problem": (b'{"problem": null}', "'problem' must be a non-empty text"),
    "blank question": (b'{"question": " "}', "'question' must be a non-empty text"),
    "truth as answer": (
        b'{"problem": "x", "answer": true}',
        "'answer' must be a text, a number, a list of them or",
    ),
    "object as answer": (b'{"problem": "x", "answer": {"a": 1}}', "'answer' must be"),
    "no alternatives": (b'{"problem": "x", "answer": {"any_of": []}}', "'answer' must be"),
    "alternatives that are no list": (b'{"problem": "x", "answer": {"any_of": "1"}}', "'answer' must be"),
    "truth among alternatives": (b'{"problem": "x", "answer": {"any_of": ["1", true]}}', "'answer' must be"),
    "another key beside them": (b'{"problem": "x", "answer": {"any_of": ["1"], "x": 1}}', "'answer' must be"),
    "empty list as answer": (b'{"problem": "x", "answer": []}', "'answer' must be"),
    "null in a list": (b'{"problem": "x", "answer": ["1", null]}', "'answer' must be"),
    "list in a list": (b'{"problem": "x", "answer": [["1"]]}', "'answer' must be"),
}


@pytest.mark.parametrize("case", BAD_LINES)
def test_a_bad_line_is_named_by_file_and_number(file, case):
    line, problem = BAD_LINES[case]
    file.write_bytes(GOOD + b"\n" + line + b"\n" + GOOD)
    with pytest.raises(TaskError, match=problem) as caught:
        read_jsonl(file)
    assert str(caught.value).startswith(f"{file}, line 3: ")
    assert len(str(caught.value)) < 400
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("content", [b"", b"\n \n\t\n", codecs.BOM_UTF8])
def test_a_file_without_problems(file, content):
    file.write_bytes(content)
    with pytest.raises(TaskError, match=r"sums\.jsonl has no problem"):
        read_jsonl(file)


def test_a_missing_file(tmp_path):
    with pytest.raises(TaskError, match=r"no task file at .*none\.jsonl"):
        read_jsonl(tmp_path / "none.jsonl")
    with pytest.raises(TaskError, match="cannot read"):
        read_jsonl(tmp_path)

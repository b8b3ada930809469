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


def sum_of(answer: Any = None, **more: Any) -> Problem:
    """What becomes of the first line of a file."""
    return Problem("sums-1", "1 + 1?", answer, **more)


# Taken as they stand; for none; and worked solutions, of which the answer is what follows the mark.
ANSWERS: list[Any] = ["2", "x + 1", 2, -2.5, ["1", "2"], [1, 2.5, "x"], 10**400, None]
ALTERNATIVES = [{"any_of": ["1/2", 0.5]}, {"any_of": [["1", "2"], 3]}]
BLANK = ["", " \n"]
WORKED = {
    "all of this #### ": None,
    "####": None,
    "She has 3.\n#### 3": "3",
    "#### 1,234": "1234",
    "#### -1,234,567.5": "-1234567.5",
    "#### $1,000": "$1000",
    "####42\n": "42",
    "a #### 1\n#### 2  \n": "2",
    "#### (1, 2)": "(1, 2)",
    "#### 1,2": "1,2",
    "#### x,y": "x,y",
}
STEPS = "#### Step one\n3 + 4 = 7\nso 7"


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"problem": " 1 + 1?\n", "answer": "2"}, sum_of("2")),
        ({"question": "1 + 1?", "answer": "2"}, sum_of("2")),
        ({"question": "why?", "problem": "1 + 1?"}, sum_of(extra={"question": "why?"})),
        ({"problem": "1 + 1?", "level": 3, "tags": ["sum"]}, sum_of(extra={"level": 3, "tags": ["sum"]})),
        *(({"problem": "x", "id": own}, Problem(used, "x")) for own, used in (("a-7", "a-7"), (7, "7"), (0, "0"))),
        ({"problem": "x", "id": None}, Problem("sums-1", "x")),
        *(({"problem": "1 + 1?", "answer": value}, sum_of(value)) for value in (*ANSWERS, *ALTERNATIVES)),
        *(({"problem": "1 + 1?", "answer": value}, sum_of()) for value in BLANK),
        *(({"question": "1 + 1?", "answer": t}, sum_of(end, extra={"solution": t})) for t, end in WORKED.items()),
        ({"problem": "1 + 1?", "answer": STEPS}, sum_of(STEPS)),  # a mark in the middle is none
        ({"problem": "1 + 1?", "answer": "work #### 5", "solution": "own"}, sum_of("5", extra={"solution": "own"})),
    ],
)
def test_a_line_is_a_problem(file: Path, row: dict[str, Any], problem: Problem):
    assert read(file, row) == [problem]


def test_ids_count_lines_and_blank_lines_are_skipped(file):
    file.write_bytes(b"\n" + GOOD + b" \t\r\n\n" + GOOD.strip())
    assert [problem.id for problem in read_jsonl(file)] == ["sums-2", "sums-5"]


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

NO_ANSWERS = [
    {"problem": "x", "answer": answer}
    for answer in (
        *(True, {"a": 1}, {"any_of": []}, {"any_of": "1"}, {"any_of": ["1", True]}, {"any_of": ["1"], "x": 1}),
        *([], ["1", None], [["1"]]),
    )
]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"problem": "x"', "not JSON .*column 16"),
        ("{}", "neither 'problem' nor 'question' among its columns .none"),
        ('{"prompt": "x", "answer": "2"}', "neither 'problem' nor 'question'.*prompt, answer"),
        *((f'{{"problem": {text}}}', "'problem' must be a non-empty text") for text in ("3", "null")),
        ('{"question": " "}', "'question' must be a non-empty text"),
        ('{"question": "x", "image": "a.png"}', "it has an image .'image'."),
        *((json.dumps(row), "'answer' must be a text, a number, a list of them or") for row in NO_ANSWERS),
    ],
)
def test_a_bad_line_is_named_by_file_and_number(file: Path, line: str, said: str):
    file.write_bytes(GOOD + b"\n" + line.encode() + b"\n" + GOOD)
    with pytest.raises(TaskError, match=said) as caught:
        read_jsonl(file)
    assert str(caught.value).startswith(f"{file}, line 3: ")
    assert len(str(caught.value)) < 400
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("content", [b"", b"\n \n\t\n", codecs.BOM_UTF8])
def test_a_file_without_problems_or_none_at_all(file, content):
    with pytest.raises(TaskError, match=r"no task file at .*sums\.jsonl"):
        read_jsonl(file)
    file.write_bytes(content)
    with pytest.raises(TaskError, match=r"sums\.jsonl has no problem"):
        read_jsonl(file)

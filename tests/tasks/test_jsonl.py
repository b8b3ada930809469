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
    return [*read_jsonl(jsonl(file, *rows)).problems]


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
    assert [problem.id for problem in read_jsonl(file).problems] == ["sums-2", "sums-5"]


@settings(deadline=None)
@given(st.text().filter(lambda text: text.strip()))
def test_every_text_survives(tmp_path_factory, text):
    file = tmp_path_factory.mktemp("texts") / "a.jsonl"
    for escaped in (True, False):
        file.write_text(json.dumps({"problem": text}, ensure_ascii=escaped) + "\n", encoding="utf-8", newline="\n")
        assert read_jsonl(file).problems[0].text == text.strip()


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
        ('{"task": "x", "gold": "2"}', r"neither 'problem' nor .*\(task, gold\): map .*FILE:problem=task,answer=gold$"),
        (
            '{"messages": [{"role": "user", "content": "x"}], "gold": "2"}',
            "FILE:problem=messages.0.content,answer=gold$",
        ),
        (
            '{"text": "x", "reward_model": {"style": "rule", "ground_truth": "2"}}',
            "FILE:problem=text,answer=reward_model.ground_truth$",
        ),
        ('{"prompt": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]}', "with one message"),
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


# References

QUOTED, LABELLED = "is in quotes, or code", "has the label of an option"
FAULTY = {
    "is a mark of a missing value": ["N/A", "NA", "n/a", "#N/A", "nan", "NaN", "NULL", "TBD", "n.a."],
    "is no value": ["-", "???"],
    QUOTED: ['"7"', "'7'", "['7', '8']", '["7"]', '{"answer": 7}', '"blue"', "('blue',)"],
    LABELLED: ["D. Madrid", "(B) 5", "C: 12", "Option B", "choice (c)"],
    "is a sentence with a value in it": ["It costs 7 euros in all.", "Then we have 9 apples", "7 more than the others"],
}
WORDS = ["Evelyn", "north-east", "no solution", "J. Smith", "Москва", "unknown", "cannot be determined", "Room 12"]
VALUES = ["7", "-0.5", "1/2", "x+1", "(1, 2)", "3 pm", "5 apples", "2 hours and 30 minutes", "{1,2}", "x=3", "n/2", "A"]


@pytest.mark.parametrize(("fault", "answer"), [(fault, answer) for fault in FAULTY for answer in FAULTY[fault]])
def test_a_reference_that_no_right_answer_equals_is_refused(file: Path, fault: str, answer: str):
    with pytest.raises(TaskError, match=rf"line 2: the reference .* {fault}.*no right answer equals it"):
        read(file, {"problem": "1?", "answer": "1"}, {"problem": "2?", "answer": answer})
    with pytest.raises(TaskError, match=rf"line 1: the reference .* {fault}"):
        load_task(f"{jsonl(file, {'q': '2?', 'a': answer})}:problem=q,answer=a")


def test_references_that_are_words_are_counted(file: Path):
    rows = [{"problem": f"{n}?", "answer": answer} for n, answer in enumerate([*WORDS, *VALUES, None])]
    notes = read_jsonl(jsonl(file, *rows)).notes
    said = f"{len(WORDS)} of {len(WORDS + VALUES)} references are read as words, which only the same words equal"
    assert notes == (f"{said}: `Evelyn`, `north-east`, `no solution`",)
    assert load_task(str(file)).notes == notes
    assert load_task(str(jsonl(file, *rows[len(WORDS) :]))).notes == ()


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"Question": "1 + 1?", "ANSWER ": "2", "Level": 3}, sum_of("2", extra={"Level": 3})),
        ({"prompt": "1 + 1?", "answer": "2"}, sum_of("2")),
        ({"prompt": [{"role": "user", "content": "1 + 1?"}], "answer": "2"}, sum_of("2")),
        (
            {"prompt": [{"role": "system", "content": "Think."}, {"role": "user", "content": "1 + 1?"}], "answer": "2"},
            sum_of("2"),
        ),
        (
            {"problem": "1 + 1?", "solution": r"\boxed{1} and so \boxed{2}."},
            sum_of("2", extra={"solution": r"\boxed{1} and so \boxed{2}."}),
        ),
        ({"problem": "1 + 1?", "answer": "3", "solution": r"\boxed{2}"}, sum_of("3", extra={"solution": r"\boxed{2}"})),
    ],
)
def test_columns_in_any_case_conversations_and_a_boxed_answer(file: Path, row: dict[str, Any], problem: Problem):
    assert read(file, row) == [problem]


@pytest.mark.parametrize("name", ["test_cases", "unit_tests", "TestCases", "input_output", "test"])
def test_tests_that_are_not_mapped_are_named(file: Path, name: str):
    tests = [["1", "2"]]
    for more in ({}, {"answer": "def f(x): ..."}):
        with pytest.raises(TaskError, match=rf"line 1: '{name}' looks .*as in FILE:kind=program,answer={name}$"):
            read(file, {"problem": "Add one.", name: tests, **more})
    assert read(file, {"problem": "Add one.", "answer": "2", "latest": [1], name: None, "test": True})[0].answer == "2"
    assert load_task(f"{jsonl(file, {'problem': 'Add one.', name: tests})}:kind=program,answer={name}").problems


def test_a_part_of_the_problem_in_a_column_of_its_own_is_asked_for(tmp_path: Path):
    file = jsonl(tmp_path / "m.jsonl", {"Body": "Ann has 3 pens.", "Question": "How many has she?", "Answer": 3})
    said = r"line 1: 'Body' looks like a part .*FILE:problem=Body\+question, or .* FILE:problem=question,keep=Body$"
    with pytest.raises(TaskError, match=said):
        load_task(str(file))
    both, one = (
        load_task(f"{file}:problem={columns}").problems[0] for columns in ("Body+question", "question,keep=Body")
    )
    assert (both.text, both.answer) == ("Ann has 3 pens. How many has she?", 3)
    assert (one.text, one.extra["Body"]) == ("How many has she?", "Ann has 3 pens.")

"""Passages from texts split at blank lines, lines of a file, folders and tasks; and what is refused."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lite_selfplay.data import Problem
from lite_selfplay.errors import TaskError
from lite_selfplay.tasks import Task, load_task
from lite_selfplay.tasks import passages as passages_module
from lite_selfplay.tasks.passages import JOINED_CHARACTERS, _joined, passages_of, read_passages, short_enough
from tests.made import jsonl


def written(path: Path, content: str | bytes) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def pairs_of(passages: Iterable[Problem]) -> list[tuple[str, str]]:
    return [(passage.id, passage.text) for passage in passages]


# Texts


@pytest.mark.parametrize(
    ("name", "content", "passages"),
    [
        ("n.txt", "\n\nOne.\nStill.\n\n\n  Two.  \r\n \t \r\nThree.\n", [("n-1", "One.\nStill.\n\nTwo.\n\nThree.")]),
        ("a.txt", b"\xef\xbb\xbfText", [("a-1", "Text")]),
        ("a.jsonl", b'\xef\xbb\xbf{"text": "x"}\n', [("a-1", "x")]),
        ("k.jsonl", '{"text": "a"}\n\n{"text": "b"}\n', [("k-1", "a"), ("k-3", "b")]),
    ],
)
def test_short_paragraphs_are_joined_and_lines_are_counted(
    tmp_path: Path, name: str, content: str | bytes, passages: list[tuple[str, str]]
):
    found = read_passages(written(tmp_path / name, content))
    assert pairs_of(found) == passages
    assert {passage.answer for passage in found} == {None}


def test_paragraphs_are_joined_up_to_the_length_and_a_long_one_stays_whole():
    first, fits, not_quite = "a" * 1000, "b" * (JOINED_CHARACTERS - 1002), "c" * (JOINED_CHARACTERS - 1001)
    assert [len(p) for p in _joined(f"{first}\n\n{fits}")] == [JOINED_CHARACTERS]
    assert [len(p) for p in _joined(f"{first}\n\n{not_quite}")] == [1000, JOINED_CHARACTERS - 1001]
    long = "x" * (JOINED_CHARACTERS + 5)
    assert list(_joined(f"before\n\n{long}\n\nafter")) == ["before", long, "after"]


@settings(deadline=None)
@given(st.lists(st.text(alphabet=st.sampled_from("ab c\n"), max_size=900), max_size=8))
def test_no_word_is_lost_and_no_join_is_too_long(paragraphs):
    found = list(_joined("\n\n".join(paragraphs)))
    assert " ".join(found).split() == " ".join(paragraphs).split()
    assert all(passage.strip() == passage != "" for passage in found)
    assert all(len(passage) <= JOINED_CHARACTERS or "\n\n" not in passage for passage in found)


# Lines


@pytest.mark.parametrize(
    ("row", "text"),
    [
        *(({key: " t "}, "t") for key in ("text", "passage", "content", "solution")),
        ({"text": "", "content": "c", "other": 1}, "c"),
        ({"problem": "2 + 2?", "answer": 4}, "2 + 2?\n4"),
        ({"question": "2 + 2?", "answer": "It is 4 #### 4"}, "2 + 2?\nIt is 4 #### 4"),
        ({"question": "2 + 2?", "solution": "4.", "answer": "4"}, "2 + 2?\n4."),
        *(({"question": "2 + 2?", **more}, "2 + 2?") for more in ({}, {"answer": ""})),
        ({"question": " ", "text": "t"}, "t"),
    ],
)
def test_a_line_is_a_passage_or_a_problem(tmp_path: Path, row: dict[str, Any], text: str):
    assert pairs_of(read_passages(str(jsonl(tmp_path / "k.jsonl", row)))) == [("k-1", text)]


# Folders


def test_a_folder_gives_the_passages_of_all_its_files_in_order(tmp_path: Path):
    written(tmp_path / "b.md", "B")
    written(tmp_path / "a" / "b.txt", "AB")
    written(tmp_path / "c" / "b.txt", "CB")
    jsonl(tmp_path / "z.jsonl", {"text": "Z"})
    written(tmp_path / "picture.png", b"\xff\xfe")
    found = pairs_of(read_passages(str(tmp_path)))
    assert found == [("a/b.txt-1", "AB"), ("b.md-1", "B"), ("c/b.txt-1", "CB"), ("z.jsonl-1", "Z")]


# Refused


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", " \n\n ", "has no passage"),
        ("a.txt", b"\xff\xfe\x00", r"a\.txt: not UTF-8"),
        ("a.jsonl", "", "has no passage"),
        ("a.jsonl", '{"text": "x"}\n{"body": "x"}\n', r"a\.jsonl, line 2: no text under text, passage, content"),
        ("a.jsonl", '{"text": 5}\n', r"a\.jsonl, line 1: no text"),
        ("a.jsonl", '{"question": ""}\n', r"a\.jsonl, line 1: no text"),
        ("a.jsonl", b'{"text": "\xff"}\n', r"a\.jsonl, line 1: not UTF-8"),  # and so on: test_files
        ("missing.txt", None, r"no passages at .*missing\.txt: give a text or JSONL file"),
        (".", None, "has no passage"),
    ],
)
def test_what_cannot_be_read(tmp_path: Path, name: str, content: str | bytes | None, message: str):
    path = str(tmp_path / name) if content is None else written(tmp_path / name, content)
    with pytest.raises(TaskError, match=message):
        read_passages(path)


# Tasks


def test_problems_as_passages_include_their_solutions():
    solved = Problem("a", "2 + 2?", "4", extra={"solution": "2 + 2 = 4."})
    found = passages_of(Task("t", [solved, Problem("b", "3 + 3?", 6), Problem("c", "Why?")]))
    assert pairs_of(found) == [("a", "2 + 2?\n2 + 2 = 4."), ("b", "3 + 3?\n6"), ("c", "Why?")]
    assert all(passage.answer is None for passage in found)


# Lengths


def test_passages_that_are_too_long_are_left_out():
    passages = [Problem(str(n), "x" * n) for n in (3, 4, 5)]
    assert [[p.id for p in short_enough(passages, len, most)] for most in (3, 4)] == [["3"], ["3", "4"]]
    with pytest.raises(TaskError, match=r"every passage is longer than 2 tokens: raise tasks\.passage_tokens"):
        short_enough(passages, len, 2)


# The hub


def hub(monkeypatch: pytest.MonkeyPatch, rows: list[dict[str, Any]] | Exception) -> list[tuple[Any, ...]]:
    """A hub that has these rows, or fails; returns a list of what it is asked for."""
    asked: list[tuple[Any, ...]] = []

    def load_dataset(name: str, config: None, split: str, streaming: bool) -> list[dict[str, Any]]:
        asked.append((name, split, streaming))
        if isinstance(rows, Exception):
            raise rows
        return rows

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    return asked


def test_the_hub_is_streamed_and_a_procedural_task_is_bounded_as_it_is(monkeypatch: pytest.MonkeyPatch):
    asked = hub(monkeypatch, [{"text": "a", "b": "B1"}, {"text": "c", "b": " "}, {"text": "d", "b": "B3"}])
    assert pairs_of(read_passages("hub:me/data")) == [("me/data-1", "a"), ("me/data-2", "c"), ("me/data-3", "d")]
    assert pairs_of(read_passages("hub:me/data:test:b")) == [("me/data-1", "B1"), ("me/data-3", "B3")]
    assert asked == [("me/data", "train", True), ("me/data", "test", True)]
    monkeypatch.setattr(passages_module, "HUB_ROWS", 2)
    assert len(read_passages("hub:me/data")) == len(passages_of(load_task("arithmetic"))) == 2


@pytest.mark.parametrize(
    ("spec", "rows", "message"),
    [
        ("hub:me/data:test:b:more", [], r"hub:NAME\[:SPLIT\[:COLUMN\]\]"),
        ("hub:me/data:test:b", [{"a": "x"}], r"me/data, row 1: no text under 'b' \(its columns: a\)"),
        ("hub:me/data", [{"a": "x"}], "me/data, row 1: no text under"),
        ("hub:me/data", [], "has no passage"),
        ("hub:me/data", OSError("no\nroute"), r"cannot stream me/data from the hub \(--knowledge .*\): no$"),
        ("hub:me/data", TimeoutError(), r"cannot stream me/data from the hub .*: TimeoutError"),
    ],
)
def test_errors_of_the_hub(monkeypatch: pytest.MonkeyPatch, spec: str, rows: Any, message: str):
    hub(monkeypatch, rows)
    with pytest.raises(TaskError, match=message):
        read_passages(spec)

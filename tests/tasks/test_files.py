"""Lines of somebody's data, read with distrust; files and folders written whole or not at all."""

import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lite_selfplay.errors import ConfigError, RunFolderError, TaskError
from lite_selfplay.tasks import files as reading
from lite_selfplay.tasks.files import parse_object, read_object_lines, replace_folder, write_whole, written_whole


def read(path: Path) -> list[tuple[int, dict]]:
    return list(read_object_lines(path, TaskError))


def file(folder: Path, content: bytes) -> Path:
    (folder / "data.jsonl").write_bytes(content)
    return folder / "data.jsonl"


def test_lines_are_counted_and_blank_ones_passed_over(tmp_path: Path):
    content = b'\xef\xbb\xbf{"a": 1}\r\n\n \t\n{"b": "\xc3\xa9"}\n{"c": [null]}'
    assert read(file(tmp_path, content)) == [(1, {"a": 1}), (4, {"b": "é"}), (5, {"c": [None]})]
    assert read(file(tmp_path, b"")) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"a": 1}\n{"a"', "line 2: not JSON"),
        (b'{"a": 1}\n\xef\xbb\xbf{"a": 1}', "line 2: not JSON"),  # a mark in the middle is no mark
        (b'{"a": NaN}', "line 1: not JSON .NaN is not a finite number"),
        (b'{"a": -Infinity}', "line 1: not JSON .-Infinity is not a finite number"),
        (b'{"a": 1e999}', "line 1: not JSON .1e999 is not a finite number"),
        (b'{"a": ' + b"9" * 5000 + b"}", "line 1: not JSON"),
        (b"[" * 100_000, "line 1: nested too deeply"),
        (b'{"a": "\\ud800"}', "line 1: holds half a surrogate pair"),
        (b'{"a": "\xff"}', "line 1: not UTF-8 .invalid start byte at byte 7"),
        (b"5", "line 1: must be an object, not int"),
        (b"null", "line 1: must be an object, not NoneType"),
    ],
)
def test_what_is_refused_names_the_line(tmp_path: Path, content: bytes, message: str):
    path = file(tmp_path, content)
    with pytest.raises(TaskError, match=message):
        read(path)
    with pytest.raises(ConfigError, match=message):
        list(read_object_lines(path, ConfigError))


def test_a_line_may_be_as_long_as_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reading, "DATA_LINE_LIMIT", 20)
    line = b'{"a": "12345678901"}'
    assert len(line) == 20
    assert read(file(tmp_path, line)) == [(1, {"a": "12345678901"})]
    with pytest.raises(TaskError, match="line 1: longer than 20 bytes"):
        read(file(tmp_path, line + b" "))


def test_nothing_to_read(tmp_path: Path):
    with pytest.raises(TaskError, match=r"cannot read .*missing: No such file"):
        read(tmp_path / "missing")
    with pytest.raises(TaskError, match=r"cannot read .*: it is a folder, not a file"):
        read(tmp_path)


def test_a_line_by_itself_is_refused_by_its_place_and_with_the_error_that_is_told():
    assert parse_object(b' {"a": 0.5} ', "here") == {"a": 0.5}
    for content, error in ((b"{", RunFolderError), (b'""', TaskError)):
        with pytest.raises(error, match=r"^here: (not JSON|must be an object)"):
            parse_object(content, "here", error)


@settings(deadline=None)
@given(
    st.binary(max_size=40) | st.text(alphabet=st.sampled_from('{}[]":,0.-eE ainfNultr\\u'), max_size=30).map(str.encode)
)
def test_bytes_are_an_object_or_a_refusal(content):
    try:
        found = parse_object(content, "x")
    except RunFolderError:
        return
    assert isinstance(found, dict)
    json.dumps(found, allow_nan=False, ensure_ascii=False).encode()


# Writing


def refuse(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def half() -> Iterator[bytes]:
    yield b"half"
    raise KeyboardInterrupt


@pytest.mark.parametrize("place", ["os.fsync", "pathlib.Path.replace", None])
def test_a_full_disk_or_an_error_while_writing_leaves_the_older_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str | None
):
    write_whole(tmp_path / "a", "first")
    if place:
        monkeypatch.setattr(place, refuse)
    with pytest.raises(OSError if place else KeyboardInterrupt), written_whole(tmp_path / "a") as file:
        file.writelines([b"second"] if place else half())
    assert (tmp_path / "a").read_text() == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.skipif(os.name == "nt", reason="needs symbolic links")
def test_a_link_in_the_place_of_what_is_written_aside_is_not_followed(tmp_path: Path):
    (tmp_path / "other").write_text("mine")
    (tmp_path / ".a.partial").symlink_to(tmp_path / "other")
    write_whole(tmp_path / "a", "text")
    assert ((tmp_path / "a").read_text(), (tmp_path / "other").read_text()) == ("text", "mine")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "other"]


def written_aside(folder: Path, content: str) -> Path:
    (folder / ".a.partial").mkdir()
    (folder / ".a.partial" / "file").write_text(content)
    return folder / ".a.partial"


def test_a_text_or_a_folder_takes_the_place_of_an_older_one(tmp_path: Path):
    for text in ("first", "second ✓\n"):
        write_whole(tmp_path / "a", text)
        assert (tmp_path / "a").read_bytes() == text.encode()
        replace_folder(written_aside(tmp_path, text), tmp_path / "b")
        assert (tmp_path / "b" / "file").read_text() == text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_a_folder_that_cannot_take_the_place_leaves_the_older_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    replace_folder(written_aside(tmp_path, "first"), tmp_path / "a")
    rename = Path.rename
    monkeypatch.setattr(Path, "rename", lambda path, to: refuse() if path.suffix == ".partial" else rename(path, to))
    with pytest.raises(OSError, match="No space left"):
        replace_folder(written_aside(tmp_path, "second"), tmp_path / "a")
    assert (tmp_path / "a" / "file").read_text() == "first"
    assert sorted(path.name for path in tmp_path.iterdir()) == [".a.partial", "a"]


def test_of_two_that_a_killed_process_left_the_one_moved_aside_is_kept_until_the_end(tmp_path: Path):
    replace_folder(written_aside(tmp_path, "whole"), tmp_path / ".a.old")
    (tmp_path / "a").mkdir()
    replace_folder(written_aside(tmp_path, "new"), tmp_path / "a")
    assert (tmp_path / "a" / "file").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]

"""Files of a user's: what is no regular file is refused before it is opened, since a pipe would be waited for."""

import os
from pathlib import Path
from typing import Any

import pytest

from lite_selfplay.config import RunConfig, load_layer, parse_assignment
from lite_selfplay.config.layers import parse_mapping
from lite_selfplay.config.user_files import open_file, read_file, read_utf8
from lite_selfplay.errors import ConfigError, TaskError
from lite_selfplay.tasks.files import parse_object
from lite_selfplay.tasks.jsonl import read_jsonl
from lite_selfplay.tasks.passages import read_passages
from tests import damaged

pytestmark = pytest.mark.skipif(os.name != "posix", reason="makes pipes and devices")


NO_FILES: dict[str, Any] = {
    "a folder": lambda path: path.mkdir(),
    "a pipe": lambda path: os.mkfifo(path),
    "a device": lambda path: path.symlink_to("/dev/zero"),
}
READERS: dict[Any, type[Exception]] = {open_file: ConfigError, load_layer: ConfigError, read_jsonl: TaskError}


@pytest.mark.parametrize("what", NO_FILES)
def test_what_is_no_file_is_refused(tmp_path: Path, what: str) -> None:
    path = tmp_path / "data.jsonl"
    NO_FILES[what](path)
    said = f"data.jsonl: it is {what}, not a file"
    for read, error in READERS.items():
        with pytest.raises(error, match=said):
            read(path, error) if read is open_file else read(path)
    with pytest.raises(TaskError, match="has no passage" if what == "a folder" else said):
        read_passages(str(path))


@pytest.mark.parametrize("name", ["x" * 5000, "/".join(["y" * 200] * 30), "nowhere", "nowhere/at/all"])
def test_a_name_that_cannot_be_is_an_error_of_ours(name: str) -> None:
    for read, error in ((lambda path: read_utf8(path, ConfigError), ConfigError), (read_jsonl, TaskError)):
        with pytest.raises(error, match=r"no task file at|cannot read"):
            read(Path(name))


def test_only_a_configuration_has_a_limit(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("a: " + "x" * 2**20)
    assert len(read_file(tmp_path / "c.yaml", ConfigError)) > 2**20


@pytest.mark.parametrize("name", damaged.CONFIGS)
def test_what_is_no_configuration(tmp_path: Path, name: str) -> None:
    content, why = (damaged.NO_YAML | damaged.WRONG_YAML)[name]
    (tmp_path / "c.yaml").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError, match=rf"c\.yaml.*{why}" if name in damaged.NO_YAML else f"^{why}") as caught:
        RunConfig.of(load_layer(tmp_path / "c.yaml"))
    assert "\n" not in str(caught.value)


def test_a_key_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    text = "model: tiny\nrun:\n  steps: 1\n  seed: 2\n  steps: 3\n"
    with pytest.raises(ConfigError, match=r"c\.yaml, line 5: not YAML \(the key steps is there twice\)"):
        parse_mapping(text, "c.yaml")
    merged = "a: &a {x: 1, y: 2}\nb: {<<: *a, x: 3}\nc: {<<: *a, y: 4}\n"  # a default that is overridden
    assert parse_mapping(merged, "c.yaml")["b"] == {"x": 3, "y": 2}
    with pytest.raises(ConfigError, match=r"not JSON \(the key 'answer' is there twice, with different values\)"):
        parse_object(b'{"problem": "1 + 1?", "answer": "2", "answer": "3"}', "a.jsonl, line 1", ConfigError)
    assert parse_object(b'{"a": 1, "b": {"a": 2}, "a": 1}', "a.json", ConfigError) == {"a": 1, "b": {"a": 2}}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        *((text, "--set takes KEY=VALUE, such as") for text in ("steps", "", "=3", " =3", "steps:3")),
        *((f"run.steps={value}", "is not a YAML value") for value in ("[1", "{", "'", "a: b: c", "2024-99-99")),
        *((f"run.steps={value}", "is not a YAML value") for value in ("!!int ''", "{[1]: 2}")),
        *((f"run.steps={value}", "--set run.steps: nested too deeply") for value in ("&a [*a]", "[" * 99 + "]" * 99)),
    ],
)
def test_an_assignment_that_is_none(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        parse_assignment(text)

"""Data and configuration files that are damaged, of another kind, or no files at all."""

import os
from collections.abc import Iterator
from pathlib import Path

from tests import damaged

from .wrong import TRAIN, Prepare, Request

GOOD = '{"problem": "1+1?", "answer": 2}\n'


def holding(name: str, content: str | bytes, file: str = "data.jsonl") -> Prepare:
    """A file with this content; `name` says what is wrong with it."""

    def write(path: Path) -> None:
        (path / file).write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))

    write.__name__ = name
    return write


def no_file(file: str) -> list[Prepare]:
    """Things of this name that are no regular files."""

    def a_folder(path: Path) -> None:
        (path / file).mkdir()

    def a_pipe(path: Path) -> None:
        os.mkfifo(path / file)

    def a_dangling_link(path: Path) -> None:
        (path / file).symlink_to(path / "nowhere")

    def a_link_to_itself(path: Path) -> None:
        (path / file).symlink_to(path / file)

    def a_device(path: Path) -> None:
        (path / file).symlink_to("/dev/zero")

    def a_terminal(path: Path) -> None:
        (path / file).symlink_to("/dev/tty")

    return [a_folder, a_pipe, a_dangling_link, a_link_to_itself, a_device, a_terminal]


def unreadable(path: Path) -> None:
    """A file that nobody may read."""
    (path / "data.jsonl").write_text(GOOD)
    (path / "data.jsonl").chmod(0)


NO_LINES = [
    holding("empty", ""),
    holding("blank_lines", "\n \n\t\n"),
    holding("binary", bytes(range(256)) * 50),
    holding("utf_16", GOOD.encode("utf-16")),
    *(holding(name.replace(" ", "_"), GOOD.encode() + content + b"\n") for name, content in damaged.NO_JSON.items()),
    holding("a_long_line", '{"problem": "' + "x" * 10_000_001 + '", "answer": 2}\n'),
]
NO_PROBLEMS = [
    holding("no_problem", '{"text": "1+1?", "answer": 2}\n'),
    holding("empty_problem", '{"problem": " ", "answer": 2}\n'),
    holding("number_for_a_problem", '{"problem": 5, "answer": 2}\n'),
    holding("no_answer", '{"problem": "1+1?"}\n'),
    holding("empty_answer", '{"problem": "1+1?", "answer": " "}\n'),
    holding("odd_answer", '{"problem": "1+1?", "answer": {"all_of": [1]}}\n'),
    holding("a_boolean_answer", '{"problem": "1+1?", "answer": true}\n'),
    holding("an_empty_list", '{"problem": "1+1?", "answer": []}\n'),
]
NO_EXAMPLES = [
    holding("no_completion", '{"prompt": "1+1?"}\n'),
    holding("a_number_for_a_completion", '{"prompt": "1+1?", "completion": 2}\n'),
    holding("a_role_of_no_game", '{"prompt": "1+1?", "completion": "2", "role": "umpire"}\n'),
    holding("an_empty_completion", '{"prompt": "1+1?", "completion": ""}\n'),
]
CONFIGS = [
    *no_file("c.yaml"),
    *(holding(name.replace(" ", "_"), content, "c.yaml") for name, content in damaged.CONFIGS.items()),
]
READERS = {
    "--tasks": (("train", "grpo", "--model", "tiny", "--steps", "1"), [*NO_LINES, *NO_PROBLEMS]),
    "--eval-tasks": (TRAIN, [*NO_LINES, *NO_PROBLEMS]),
    "--validation": (("train", "cpmobius", *TRAIN[2:]), [*NO_LINES, *NO_PROBLEMS]),
    "--knowledge": (("train", "pasodoble", *TRAIN[2:]), [*NO_LINES[:-1], NO_PROBLEMS[1]]),
    "cold_start.source": ((*TRAIN, "--cold-start"), [*NO_LINES, *NO_EXAMPLES]),
    "cold_start.tasks": ((*TRAIN, "--cold-start", "--set", "cold_start.source=worked"), [*NO_LINES, *NO_PROBLEMS[:3]]),
}


def data_files() -> Iterator[Request]:
    for name, (base, contents) in READERS.items():
        given = (name, "data.jsonl") if name.startswith("--") else ("--set", f"{name}=data.jsonl")
        kinds = [
            prepare for prepare in no_file("data.jsonl") if (name, prepare.__name__) != ("--knowledge", "a_folder")
        ]
        for prepare in (*kinds, *contents):
            yield Request((*base, *given), prepare)
        yield Request((*base, *given), unreadable, plain=True)
    for prepare in (*no_file("data.jsonl"), *NO_LINES, *NO_PROBLEMS):
        yield Request(("eval", "tiny", "--tasks", "data.jsonl"), prepare)
    for prepare in no_file("data.txt")[1:]:
        yield Request(("train", "pasodoble", *TRAIN[2:], "--knowledge", "data.txt"), prepare)
        yield Request(("train", "pasodoble", *TRAIN[2:], "--knowledge", "."), prepare)
    yield Request(
        ("eval", "tiny", "--tasks", "data.jsonl"), holding("no_json", GOOD + "{"), names=("data.jsonl, line 2",)
    )
    yield Request(("train", "pasodoble", *TRAIN[2:], "--knowledge", "t.txt"), holding("latin", b"\xe9t\xe9", "t.txt"))
    for prepare in (*no_file("gsm8k_test.jsonl"), holding("no_json", "{", "gsm8k_test.jsonl")):
        yield Request(("eval", "tiny", "--tasks", "gsm8k", "--data-dir", "."), prepare)


def config_files() -> Iterator[Request]:
    for prepare in CONFIGS:
        for arguments in (("train", "--config"), ("config", "validate"), ("config", "show")):
            yield Request((*arguments, "c.yaml"), prepare)
    yield Request(("plan", "--config", "c.yaml"), CONFIGS[1])
    yield Request(("cold-start", "--config", "c.yaml"), CONFIGS[1])


REQUESTS = [*data_files(), *config_files()]

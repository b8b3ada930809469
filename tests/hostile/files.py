"""Data and configuration files that are damaged, of another kind, or no files at all."""

import os
from collections.abc import Iterator
from pathlib import Path

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
    holding("no_json", GOOD + '{"problem": \n'),
    holding("a_list", '["1+1?", 2]\n'),
    holding("nested_too_deep", '{"problem": ' + "[" * 100_000 + "\n"),
    holding("half_a_surrogate", '{"problem": "\\ud800", "answer": 2}\n'),
    holding("a_number_of_ten_thousand_digits", '{"problem": "1?", "answer": ' + "1" * 10_000 + "}\n"),
    holding("not_a_number", '{"problem": "1?", "answer": NaN}\n'),
    holding("a_long_line", '{"problem": "' + "x" * 10_000_001 + '", "answer": 2}\n'),
    holding("null_bytes", b"\0" * 5000),
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
    holding("an_empty_config", "", "c.yaml"),
    holding("a_list", "- 1\n- 2\n", "c.yaml"),
    holding("no_yaml", "a: [1, 2\nb: {", "c.yaml"),
    holding("a_billion_laughs", "\n".join(['a0: &a0 ["x"]'] + [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]"
                                                                for i in range(1, 12)]), "c.yaml"),
    holding("binary", b"\xff\xfe\x00\x01" * 100, "c.yaml"),
    holding("an_unknown_key", "game: agon\nmodel: tiny\ntasks: letters\nrun: {stepps: 3}\n", "c.yaml"),
    holding("a_section_that_is_a_list", "game: agon\nmodel: tiny\ntasks: letters\nrun: [3]\n", "c.yaml"),
    holding("code", "game: !!python/object/apply:os.system ['touch written']\n", "c.yaml"),
    holding("a_date_that_does_not_exist", "game: 2026-99-99\n", "c.yaml"),
    holding("nested_too_deep", "a: " + "[" * 20_000, "c.yaml"),
    holding("itself", "run: &a {steps: *a}\n", "c.yaml"),
    holding("keys_that_are_no_names", "{1: 2, [3]: 4}\n", "c.yaml"),
    holding("a_mapping_as_a_key", "? {a: 1}\n: 2\n", "c.yaml"),
    holding("two_documents", "game: agon\n---\ngame: grpo\n", "c.yaml"),
    holding("a_control_character", "game: ag\x07on\n", "c.yaml"),
    holding("a_large_number", "game: agon\nmodel: tiny\nsteps: " + "9" * 5000 + "\n", "c.yaml"),
    holding("numbers_for_names", "game: 3\nmodel: 4\n", "c.yaml"),
]  # fmt: skip
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

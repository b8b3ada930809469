"""Data and configuration files that are damaged, of another kind, or no files at all."""

from collections.abc import Iterator
from pathlib import Path

from tests import damaged

from .wrong import TRAIN, Prepare, Request, holding, no_file

GOOD = '{"problem": "1+1?", "answer": 2}\n'


def data(name: str, content: str | bytes, file: str = "data.jsonl") -> Prepare:
    return holding(name, {file: content})


def unreadable(path: Path) -> None:
    """A file that nobody may read."""
    (path / "data.jsonl").write_text(GOOD)
    (path / "data.jsonl").chmod(0)


NO_LINES = [
    data("empty", ""),
    data("blank_lines", "\n \n\t\n"),
    data("binary", bytes(range(256)) * 50),
    data("utf_16", GOOD.encode("utf-16")),
    *(data(name.replace(" ", "_"), GOOD.encode() + content + b"\n") for name, content in damaged.NO_JSON.items()),
    data("a_long_line", '{"problem": "' + "x" * 10_000_001 + '", "answer": 2}\n'),
]
NO_PROBLEMS = [
    data(name, f"{line}\n")
    for name, line in {
        "no_problem": '{"text": "1+1?", "answer": 2}',
        "empty_problem": '{"problem": " ", "answer": 2}',
        "number_for_a_problem": '{"problem": 5, "answer": 2}',
        "no_answer": '{"problem": "1+1?"}',
        "empty_answer": '{"problem": "1+1?", "answer": " "}',
        "odd_answer": '{"problem": "1+1?", "answer": {"all_of": [1]}}',
        "a_boolean_answer": '{"problem": "1+1?", "answer": true}',
        "an_empty_list": '{"problem": "1+1?", "answer": []}',
    }.items()
]
NO_EXAMPLES = [
    data("no_completion", '{"prompt": "1+1?"}\n'),
    data("a_number_for_a_completion", '{"prompt": "1+1?", "completion": 2}\n'),
    data("a_role_of_no_game", '{"prompt": "1+1?", "completion": "2", "role": "umpire"}\n'),
    data("an_empty_completion", '{"prompt": "1+1?", "completion": ""}\n'),
]
CONFIGS = [
    *no_file("c.yaml"),
    *(data(name.replace(" ", "_"), content, "c.yaml") for name, content in damaged.CONFIGS.items()),
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
        kinds = no_file("data.jsonl")[name == "--knowledge" :]  # which may be a folder
        for prepare in (*kinds, *contents):
            yield Request((*base, *given), prepare)
        yield Request((*base, *given), unreadable, plain=True)
    for prepare in (*no_file("data.jsonl"), *NO_LINES, *NO_PROBLEMS):
        yield Request(("eval", "tiny", "--tasks", "data.jsonl"), prepare)
    for prepare in no_file("data.txt")[1:]:
        yield Request(("train", "pasodoble", *TRAIN[2:], "--knowledge", "data.txt"), prepare)
        yield Request(("train", "pasodoble", *TRAIN[2:], "--knowledge", "."), prepare)
    no_json = data("no_json", GOOD + "{")
    yield Request(("eval", "tiny", "--tasks", "data.jsonl"), no_json, names=("data.jsonl, line 2",))
    yield Request(("train", "pasodoble", *TRAIN[2:], "--knowledge", "t.txt"), data("latin", b"\xe9t\xe9", "t.txt"))
    for prepare in (*no_file("gsm8k_test.jsonl"), data("no_json", "{", "gsm8k_test.jsonl")):
        yield Request(("eval", "tiny", "--tasks", "gsm8k", "--data-dir", "."), prepare)


def config_files() -> Iterator[Request]:
    for prepare in CONFIGS:
        for arguments in (("train", "--config"), ("config", "validate"), ("config", "show")):
            yield Request((*arguments, "c.yaml"), prepare)
    yield Request(("plan", "--config", "c.yaml"), CONFIGS[1])
    yield Request(("cold-start", "--config", "c.yaml"), CONFIGS[1])


REQUESTS = [*data_files(), *config_files()]

"""Hostile texts: what models write, and what users write into files, flags and configurations."""

import contextlib
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from lite_selfplay.config import KEYS, RunConfig, load_layer, parse_assignment
from lite_selfplay.data import Completion, Sampling
from lite_selfplay.errors import LiteSelfPlayError, TaskError
from lite_selfplay.games.agon.recap import summarise
from lite_selfplay.games.baselines.rzero import read_question
from lite_selfplay.games.cpmobius.cpmobius import read_task
from lite_selfplay.games.pasodoble.pasodoble import parse_proposal
from lite_selfplay.games.propose_solve.questions import read
from lite_selfplay.games.sqlm.topics import load_topic, numbered_lines
from lite_selfplay.runs.defaults import filled_in
from lite_selfplay.tasks import load_task
from lite_selfplay.tasks.files import parse_object
from lite_selfplay.tasks.jsonl import read_jsonl, to_problem
from lite_selfplay.tasks.passages import read_passages
from lite_selfplay.training.examples import read_examples

from .fuzzing import FEW, ODD_JSON, fuzz, mutated_bytes, mutated_json, mutated_text, of_file, sizes

PROBLEMS: list[dict[str, Any]] = [
    {"problem": "What is 1 + 1?", "answer": "2"},
    {"question": "x?", "answer": 3.5, "id": 7, "level": [1, {"a": None}]},
    {"problem": "List them.", "answer": ["1", 2]},
    {"problem": "Either.", "answer": {"any_of": ["1", ["2", 3]]}, "content": "c"},
    {"question": "Two steps.", "answer": "So 3 * 4 = 12.\n#### 1,200"},
]
EXAMPLES: list[dict[str, Any]] = [
    {"prompt": "Write a", "completion": "<answer>a</answer>", "role": "drafter"},
    {"prompt": "Write b", "completion": "b", "origin": "self"},
]
PASSAGES: list[dict[str, Any]] = [{"text": "A passage."}, {"passage": "Another."}, {"problem": "p", "solution": "s"}]
JSON_PIECES = (b"{", b"}", b"[" * 3000, b'"', b"\\u", b"\\ud800", b"NaN", b"1e999", b"-0", b"null", b"\xff", b"\0",
               b"\xef\xbb\xbf", b"\n", b"\r\n", b"9" * 5000, b'{"a":' * 2000, b"\xe2\x80\xa8")  # fmt: skip


def lines(rng: random.Random, rows: list[dict[str, Any]]) -> bytes:
    """A JSONL file of some rows: a value of one of them changed, or bytes of the file."""
    chosen = [rng.choice(rows) for _ in range(rng.randrange(1, 4))]
    if rng.random() < 0.6:
        chosen[rng.randrange(len(chosen))] = mutated_json(rng, rng.choice(chosen))
        return "\n".join(json.dumps(row, ensure_ascii=True) for row in chosen).encode()
    return mutated_bytes(rng, "\n".join(map(json.dumps, chosen)).encode(), JSON_PIECES)


Read = Callable[[Any], object]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
NAMES = st.sampled_from(["problem", "question", "answer", "id", "content", "solution", "any_of", "x"])


# Configurations

CONFIGS: list[dict[str, Any]] = [
    {"game": "agon", "model": "tiny", "tasks": "letters", "steps": 3},
    {"game": {"name": "grpo"}, "model": {"name": "tiny", "precision": "fp32"}, "run": {"steps": 2, "group_size": 4}},
    {"game": {"name": "pasodoble", "reward": "random"}, "model": "tiny", "seats": {"*": {"lr": 1e-4, "rank": 4}}},
    {"game": "sqlm", "model": "tiny", "roles": {"*": {"beta": 0.1, "stop": ["a"]}}, "cold_start": True},
    {"preset": "demo", "eval": {"tasks": "letters", "limit": 3, "temperature": 0}, "seed": 5},
]
YAML_PIECES = (b"&a ", b"*a", b"!!python/object:os.system ", b"!!int ", b"!!binary ", b"!!set ", b"!!timestamp ",
               b"2026-99-99", b": ", b"- ", b"? ", b"|", b">", b"[", b"{", b"#", b"---\n", b"...\n", b"<<: ",
               b"%YAML 9.9\n", b"\t", b"[" * 400, b"1_0", b"1:30", b".inf", b"~", b"0x", b"0b", b"'", b'"',
               b"\\x", b"\0", b"\xff")  # fmt: skip


def configuration(rng: random.Random) -> bytes:
    config = rng.choice(CONFIGS)
    if rng.random() < 0.5:
        changed = mutated_json(rng, config)
        return yaml.safe_dump(changed, allow_unicode=True, default_flow_style=None).encode("utf-8", "surrogatepass")
    return mutated_bytes(rng, yaml.safe_dump(config).encode(), YAML_PIECES)


PATHS = [*(path.replace("ROLE", "drafter").replace("SEAT", "A") for path in KEYS), "game.reward", "seats.*.lr", "steps"]
VALUES = ["3", "0.5", "[1, 2]", "{a: 1}", "on", "null", "'x'", "1e-4", "agon", "letters", "*a", "&a [*a]", "!!set {a}"]


def assignment(rng: random.Random) -> str:
    value = rng.choice(VALUES) if rng.random() < 0.7 else json.dumps(rng.choice(ODD_JSON))
    text = f"{rng.choice(PATHS)}={value}"
    pieces = (".", "=", "*", "..", "[", "{", ": ", "!!int ", "\n", " ")
    return mutated_text(rng, text, pieces) if rng.random() < 0.6 else text


SECTIONS = st.sampled_from("game model tasks roles seats run eval cold_start steps preset".split())
LEAST = {"game": "agon", "model": "tiny"}


TASKS = ["letters:named=6", "arithmetic:digits=2,ops=+", "stories:steps=2", "equations", "multiplication:digits=2",
         "reasoning-gym:chain_sum", "p.jsonl", "./t.py:f:x=1"]  # fmt: skip
TASK_PIECES = (*": , = digits named= 99 -1 1e9 / .. .jsonl .py:".split(), "\u0663", "a" * 300, " ", "\n")


def task_name(rng: random.Random) -> str:
    name = rng.choice(TASKS)
    return mutated_text(rng, name, TASK_PIECES) if rng.random() < 0.9 else name


def load_own_task(spec: str) -> object:
    if spec.partition(":")[0].strip() in ("hub", "reasoning-gym"):
        raise TaskError("asks a library of others")
    return load_task(spec)


def of_row(row: dict[str, Any]) -> object:
    return to_problem(parse_object(json.dumps(row).encode(), "row", TaskError), "row", "id")


def of_assignment(text: str) -> object:
    return filled_in(RunConfig.of({**LEAST, "tasks": "letters"}, parse_assignment(text)))


READERS: dict[str, tuple[Callable[[random.Random], Any], str | None, Read]] = {
    "problems": (lambda rng: lines(rng, PROBLEMS), "p.jsonl", read_jsonl),
    "cold-start examples": (
        lambda rng: lines(rng, EXAMPLES), "e.jsonl", lambda file: read_examples(file, ("drafter", "challenger")),
    ),
    "passages": (lambda rng: lines(rng, PASSAGES), "k.jsonl", lambda file: read_passages(str(file))),
    "configuration files": (configuration, "c.yaml", lambda file: filled_in(RunConfig.of(load_layer(file)))),
    "assignments": (assignment, None, of_assignment),
    "task names": (task_name, None, load_own_task),
}  # fmt: skip
"""What makes an input of each kind, the file that it is written to, and what reads that, or the input itself."""


@sizes
@pytest.mark.parametrize("name", READERS)
def test_what_users_write(name: str, inputs: int, place: Path) -> None:
    make, file, reads = READERS[name]
    fuzz(name, inputs, make, reads if file is None else of_file(place / file, reads))


@sizes
@pytest.mark.parametrize(
    ("strategy", "read"),
    [
        (st.dictionaries(NAMES, JSON, max_size=5), of_row),
        (st.dictionaries(SECTIONS | st.text(max_size=6), JSON, max_size=4), lambda layer: RunConfig.of(LEAST, layer)),
    ],
    ids=["a problem", "a configuration"],
)
def test_anything_is_one_or_an_error(inputs: int, strategy: Any, read: Read) -> None:
    @settings(max_examples=max(FEW, inputs // 20), database=None, derandomize=True)
    @given(strategy)
    def check(value: dict[str, Any]) -> None:
        with contextlib.suppress(LiteSelfPlayError):
            read(value)

    check()


# What models write

DRAFTS = [
    "<think>\n3 * 4 = 12\n</think>\n\nSo there are 12 apples. The answer is 12.\n<answer>12</answer>",
    "First, 5 + 7 = 12.\nThen \\boxed{12} is left, so 12/2 = 6.\n#### 6",
    "It costs $1,200.50 or 50% of \\frac{1}{2}. Therefore x = -3.5e2, i.e. \\sqrt{2}.",
    "The number twenty-one thousand and three is it!",
]
REPLIES = [
    "<think>hm</think><problem>\nHow many?\n</problem>\n<answer>\nTwo steps: \\boxed{12}\n</answer>",
    "<question>\nWhat is 2 + 2?\n</question>\n\n\\boxed{4}",
    "<task>Find x with x + 1 = 3.</task>",
    "Think first.\nSelected Question: What is x if 2x = 6?",
    "1. What is 1 + 1?\n2) And 2 + 2?\n**3.** Three?",
    "```\nQuestion: How many?\n```\nAnswer: 3",
]
MODEL_PIECES = (
    *"<think> </think> <answer> </answer> <problem> </problem> <question> </question> </task>".split(),
    *("\\boxed{", "}", "{", "\\frac", "$", "####", "Selected Question:", "\n\n", "12", "-", "1,2", "%", "=", "≈", "。"),
    *("\u200b", "½", "²", "<" * 200, "{" * 200, "(" * 200, "12 " * 100, "\\boxed{" * 50, "<answer>" * 50, "a." * 200),
)


def recap(rng: random.Random) -> tuple[str, str, bool]:
    return mutated_text(rng, rng.choice(DRAFTS), MODEL_PIECES), rng.choice(DRAFTS), rng.random() < 0.5


def reply(rng: random.Random) -> Completion:
    text = mutated_text(rng, rng.choice(REPLIES), MODEL_PIECES)
    return Completion("p", text, (0,), (1,), (-1.0,), rng.choice(("eos", "length")), "A", 0, Sampling())


TOPIC = load_topic("algebra", 3)
WRITTEN: dict[str, tuple[Callable[[random.Random], Any], Read]] = {
    "recaps": (recap, lambda made: summarise(made[0], made[1], thinks=made[2]).strip()),
    "proposals of pasodoble": (reply, lambda completion: read(completion, parse_proposal)),
    "proposals of rzero": (reply, read_question),
    "proposals of cpmobius": (reply, read_task),
    "proposals of sqlm": (reply, lambda said: (TOPIC.find(said.text), numbered_lines(said.text, cut=True))),
}


@sizes
@pytest.mark.parametrize("name", WRITTEN)
def test_what_models_write(name: str, inputs: int) -> None:
    fuzz(name, inputs, *WRITTEN[name], refuses=False)

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
from lite_selfplay.games.cpmobius.cpmobius import read_task
from lite_selfplay.games.pasodoble.pasodoble import parse_proposal
from lite_selfplay.games.propose_solve.questions import to_proposal
from lite_selfplay.games.spice import read_question
from lite_selfplay.games.sqlm.topics import load_topic, numbered_lines
from lite_selfplay.runs.defaults import filled_in
from lite_selfplay.tasks import load_task
from lite_selfplay.tasks.files import parse_object
from lite_selfplay.tasks.jsonl import read_jsonl, to_problem
from lite_selfplay.tasks.passages import read_passages
from lite_selfplay.training.examples import read_examples

from .fuzzing import FEW, ODD_JSON, fuzz, mutated_bytes, mutated_json, mutated_text, of_file, sizes

SAMPLES = yaml.safe_load(Path(__file__).with_name("samples.yaml").read_text(encoding="utf-8"))
JSON_PIECES = (b"{", b"}", b"[" * 3000, b'"', b"\\u", b"\\ud800", b"NaN", b"1e999", b"-0", b"null", b"\xff", b"\0",
               b"\xef\xbb\xbf", b"\n", b"\r\n", b"9" * 5000, b'{"a":' * 2000, b"\xe2\x80\xa8")  # fmt: skip


def lines(rng: random.Random, kind: str) -> bytes:
    """A JSONL file of some rows: a value of one of them changed, or bytes of the file."""
    chosen = [rng.choice(SAMPLES[kind]) for _ in range(rng.randrange(1, 4))]
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

YAML_PIECES = (b"&a ", b"*a", b"!!python/object:os.system ", b"!!int ", b"!!binary ", b"!!set ", b"!!timestamp ",
               b"2026-99-99", b": ", b"- ", b"? ", b"|", b">", b"[", b"{", b"#", b"---\n", b"...\n", b"<<: ",
               b"%YAML 9.9\n", b"\t", b"[" * 400, b"1_0", b"1:30", b".inf", b"~", b"0x", b"0b", b"'", b'"',
               b"\\x", b"\0", b"\xff")  # fmt: skip


def configuration(rng: random.Random) -> bytes:
    config = rng.choice(SAMPLES["configurations"])
    if rng.random() < 0.5:
        changed = mutated_json(rng, config)
        return yaml.safe_dump(changed, allow_unicode=True, default_flow_style=None).encode("utf-8", "surrogatepass")
    return mutated_bytes(rng, yaml.safe_dump(config).encode(), YAML_PIECES)


PATHS = [*(path.replace("ROLE", "drafter").replace("SEAT", "A") for path in KEYS), "game.reward", "seats.*.lr", "steps"]


def assignment(rng: random.Random) -> str:
    value = rng.choice(SAMPLES["values"]) if rng.random() < 0.7 else json.dumps(rng.choice(ODD_JSON))
    text = f"{rng.choice(PATHS)}={value}"
    pieces = (".", "=", "*", "..", "[", "{", ": ", "!!int ", "\n", " ")
    return mutated_text(rng, text, pieces) if rng.random() < 0.6 else text


SECTIONS = st.sampled_from("game model tasks roles seats run eval cold_start steps preset".split())
LEAST = {"game": "agon", "model": "tiny"}


TASK_PIECES = (*": , = digits named= 99 -1 1e9 / .. .jsonl .py:".split(), "\u0663", "a" * 300, " ", "\n")


def task_name(rng: random.Random) -> str:
    name = rng.choice(SAMPLES["tasks"])
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
    "problems": (lambda rng: lines(rng, "problems"), "p.jsonl", read_jsonl),
    "cold-start examples": (
        lambda rng: lines(rng, "examples"), "e.jsonl", lambda file: read_examples(file, ("drafter", "challenger")),
    ),
    "passages": (lambda rng: lines(rng, "passages"), "k.jsonl", lambda file: read_passages(str(file))),
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

MODEL_PIECES = (
    *"<think> </think> <answer> </answer> <problem> </problem> <question> </question> </task>".split(),
    *("\\boxed{", "}", "{", "\\frac", "$", "####", "Selected Question:", "\n\n", "12", "-", "1,2", "%", "=", "≈", "。"),
    *("\u200b", "½", "²", "<" * 200, "{" * 200, "(" * 200, "12 " * 100, "\\boxed{" * 50, "<answer>" * 50, "a." * 200),
)


def recap(rng: random.Random) -> tuple[str, str, bool]:
    draft, problem = (rng.choice(SAMPLES["drafts"]) for _ in range(2))
    return mutated_text(rng, draft, MODEL_PIECES), problem, rng.random() < 0.5


def reply(rng: random.Random) -> Completion:
    text = mutated_text(rng, rng.choice(SAMPLES["replies"]), MODEL_PIECES)
    return Completion("p", text, (0,), (1,), (-1.0,), rng.choice(("eos", "length")), "A", 0, Sampling())


TOPIC = load_topic("algebra", 3)
WRITTEN: dict[str, tuple[Callable[[random.Random], Any], Read]] = {
    "recaps": (recap, lambda made: summarise(made[0], made[1], thinks=made[2]).strip()),
    "proposals of pasodoble": (reply, lambda completion: to_proposal(completion, parse_proposal)),
    "proposals of rzero and spice": (reply, read_question),
    "proposals of cpmobius": (reply, read_task),
    "proposals of sqlm": (reply, lambda said: (TOPIC.find(said.text), numbered_lines(said.text, cut=True))),
}


@sizes
@pytest.mark.parametrize("name", WRITTEN)
def test_what_models_write(name: str, inputs: int) -> None:
    fuzz(name, inputs, *WRITTEN[name], refuses=False)

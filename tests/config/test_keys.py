"""The declared keys: each has a meaning, a range that is enforced, and the flag that sets it."""

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest

from lite_selfplay.config import FLAGS, FLAT_KEYS, KEYS, SECTIONS, Key, RunConfig, keys_in, parse_assignment
from lite_selfplay.errors import ConfigError, UnknownNameError
from lite_selfplay_cli.plan import plan
from lite_selfplay_cli.train import cold_start, train

LEAST = {"game": "agon", "model": "tiny"}


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS.keys())
def test_every_key_says_what_it_means(key: Key):
    assert key.about[0].isupper()
    assert not key.about.endswith(".")
    assert key.type_text
    assert not (key.required and key.default_text)
    assert key.default_text == "" or key.default is not None or key.default_text == key.unset


def test_every_field_of_every_section_is_a_key():
    assert [key.path for name in SECTIONS for key in keys_in(name)] == list(KEYS)
    assert len(KEYS) == sum(len(model.model_fields) for model in SECTIONS.values())
    assert list(SECTIONS) == list(RunConfig.model_fields)
    assert set(FLAGS) < set(inspect.signature(train).parameters)
    with pytest.raises(UnknownNameError, match="unknown section 'runs': did you mean run"):
        keys_in("runs")


@pytest.mark.parametrize(
    ("path", "type_text", "bounds", "default"),
    [
        ("run.steps", "int", ">= 1, <= 1000000", "200"),
        ("run.dir", "path", "", "runs/GAME-MODEL-TIME"),
        ("eval.top_p", "float", "> 0, <= 1", "0.95"),
        ("roles.ROLE.stop", "list of texts", "", ""),
        ("roles.ROLE.ratio", "token|sequence", "", "token"),
        ("model.gradient_checkpointing", "auto|bool", "", "auto"),
        ("cold_start.enabled", "bool", "", "if a probe finds that the base never follows it"),
        ("cold_start.roles", "list of texts", "length >= 1", "all"),
        ("seats.SEAT.lr", "float", ">= 0, <= 10", "5e-05"),
    ],
)
def test_type_range_and_default(path: str, type_text: str, bounds: str, default: str):
    key = KEYS[path]
    assert (key.type_text, key.bounds, key.default_text) == (type_text, bounds, default)


def wrong(key: Key) -> list[str]:
    """Values that a key must refuse: outside its range, no number, of another type, no name that it knows."""
    ends = re.findall(r"([<>]=?) (\S+?)(?:,|$)", key.bounds) if key.kind in (int, float) else []
    outside = [key.kind({">": end, "<": end, ">=": end - 1, "<=": end + 1}[sign])
               for sign, text in ends for end in [float(text)]]  # fmt: skip
    others = {int: ["1.5", "many", "[3]"], float: [".nan", ".inf", "-.inf", "many"], bool: ["3"]}.get(key.kind, [])
    return [*map(str, outside), *others, *(["no-such-name", "3"] if key.choices and key.kind is str else [])]


WRONG = [
    f"{key.path.replace('ROLE', 'r').replace('SEAT', 'S')}={value}" for key in KEYS.values() for value in wrong(key)
]


@pytest.mark.parametrize("assignment", [*WRONG, "run.steps.x=3", "model.backend=3", "seats.S=3", "cold_start=3"])
def test_a_value_that_is_wrong_is_named_with_its_key(assignment: str):
    key = assignment.partition("=")[0].removesuffix(".x")
    with pytest.raises(ConfigError) as caught:
        RunConfig.of(LEAST, parse_assignment(assignment))
    assert str(caught.value).startswith(f"{key}: ")
    assert ", got " in str(caught.value)


def value_of(key: Key) -> Any:
    """A value of a key that is not its default."""
    if key.choices:
        return next(choice for choice in key.choices if choice != key.default)
    return {bool: not key.default, int: 7, float: 0.5}.get(key.kind, "some")


@pytest.mark.parametrize("flat", FLAT_KEYS)
def test_a_flat_key_is_another_spelling(flat: str):
    key = FLAGS[flat]
    path, value = FLAT_KEYS[flat], value_of(key)
    config = RunConfig(**{**LEAST, flat: value})
    found = config.model_dump()
    for name in path.split("."):
        found = found[name]
    assert path == key.path.replace("SEAT", "*")
    assert str(found) == str(value)
    assert RunConfig.of(LEAST, parse_assignment(f"{flat}={value}")) == config
    assert RunConfig.of(LEAST, parse_assignment(f"{path}={value}")) == config


@pytest.mark.parametrize("command", [train, cold_start, plan])
def test_a_commands_options_say_what_their_keys_mean(command: Callable[..., None]):
    options = {
        name: parameter.annotation.__metadata__[0]
        for name, parameter in inspect.signature(command).parameters.items()
        if name in FLAGS and name not in ("steps", "lr")  # in `cold-start` its own
    }
    assert options
    for name, option in options.items():
        assert option.help.startswith(f"{FLAGS[name].about}."), name

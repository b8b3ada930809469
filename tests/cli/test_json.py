"""`--json` on every command that prints facts: one JSON value and nothing else on stdout, also where it warns."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
import typer.main

from lite_selfplay.config import KEYS, preset_names
from lite_selfplay.extras.reproduce.experiment import experiment_names
from lite_selfplay.games import game_names
from lite_selfplay.models.sources import known_models
from lite_selfplay.tasks import task_names
from lite_selfplay_cli.app import app

WITHOUT = {"train", "cold-start", "view", "config init", "config validate"}
"""Commands that do something, or say only whether a file is valid, which their exit code says as well."""
ELSEWHERE = {"chat", "export"}
"""Commands whose facts are looked at in the tests of their own."""


def names(values: list[dict[str, Any]]) -> list[str]:
    return [value["name"] for value in values]


def game_facts(found: Any) -> None:
    assert names(found) == game_names()
    agon = next(game for game in found if game["name"] == "agon")
    assert agon["roles"] == ["drafter", "challenger"]
    assert agon["switches"]["rotate"] is True


def key_facts(found: Any) -> None:
    assert [key["key"] for key in found] == list(KEYS)
    (steps,) = [key for key in found if key["key"] == "run.steps"]
    about = {"key": "run.steps", "type": "int", "range": ">= 1, <= 1000000", "required": False, "default": 200}
    assert steps == {**about, "unset": None, "flag": "steps", "meaning": "Steps of play and update"}


def machine_facts(found: Any) -> None:
    assert found["healthy"] is all(part["fine"] for part in found["findings"])


def report_facts(found: Any) -> None:
    assert (found["game"], found["model"], found["steps"]) == ("agon", "tiny", 2)
    assert [found["first_step"]["step"], found["last_step"]["step"]] == [1, 2]
    assert list(found["evaluations"]) == ["untouched", "before training", "after 2 steps"]
    (transcript,) = found["transcripts"]
    assert [completion["role"] for completion in transcript["completions"]] == ["drafter", "challenger"]
    assert all(Path(path).is_dir() for path in found["adapters"].values())


FACTS: dict[str, Callable[[Any], None]] = {
    "list games": game_facts,
    "list tasks": lambda found: _equal(names(found), task_names()),
    "list models": lambda found: _equal(names(found), [model.name for model in known_models()]),
    "list presets": lambda found: _equal(names(found), preset_names()),
    "plan --model tiny --gpu t4": lambda found: _equal(found["fits"], {"Tesla T4": True}),
    "doctor": machine_facts,
    "config show RUN/config.yaml": lambda found: _equal((found["run"]["steps"], found["game"]["name"]), (2, "agon")),
    "config keys": key_facts,
    "config keys tasks": lambda found: _equal(found[0]["flag"], "tasks"),
    "eval RUN --tasks letters --limit 2": lambda found: _equal((found["mode"], found["n"]), ("cascade", 2)),
    "reproduce": lambda found: _equal(names(found), experiment_names()),
    "report RUN": report_facts,
    "report RUN --duels 0": lambda found: _equal(found["transcripts"], []),
    "why RUN": lambda found: _equal((found["steps"], bool(found["findings"])), ([1, 2], True)),
    "why reward RUN": lambda found: _equal(
        (found["key"], list(found["values"])), ("reward_mean", ["drafter", "challenger"])
    ),
    "list losses": lambda found: _equal({"grpo", "sequence"} <= set(names(found)), True),
    "list runs RUN": lambda found: _equal([(one["game"], one["stage"]) for one in found], [("agon", "finished")]),
    "plan --prompts --model tiny --tasks letters": lambda found: _equal(
        [prompt["role"] for prompt in found["prompts"]], ["drafter", "challenger"]
    ),
    "plan --model tiny --reward REWARD --tasks letters": lambda found: _equal(len(found["samples"]), 10),
}


def _equal(found: object, expected: object) -> None:
    assert found == expected


@pytest.mark.parametrize("command", FACTS)
def test_json_and_nothing_else(call: Callable[..., Any], run: Path, command: str):
    reward = f"{Path(__file__).parents[1] / 'varied_reward.py'}:varied"
    words = command.replace("RUN", str(run)).replace("REWARD", reward)
    ended = call(*words.split(), "--json")
    found = json.loads(ended.out)
    FACTS[command](found)
    assert ended.code == (1 if command == "doctor" and not found["healthy"] else 0), ended.err
    assert ended.out.isascii()


def leaves(command: click.Command, path: tuple[str, ...] = ()) -> dict[str, click.Command]:
    if not hasattr(command, "list_commands"):
        return {" ".join(path): command}
    below = {key: command.get_command(None, key) for key in command.list_commands(None)}
    return {name: leaf for key, one in below.items() for name, leaf in leaves(one, (*path, key)).items()}


def test_every_command_that_prints_facts_is_among_them():
    commands = leaves(typer.main.get_command(app))
    with_json = {name for name, one in commands.items() if any("--json" in option.opts for option in one.params)}
    assert with_json == commands.keys() - WITHOUT
    assert all(any(command.startswith(name) for command in FACTS) for name in with_json - ELSEWHERE)

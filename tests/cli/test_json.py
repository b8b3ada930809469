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


def names(found: Any) -> list[str]:
    return [value["name"] for value in found]


def games(found: Any) -> Any:
    agon = next(game for game in found if game["name"] == "agon")
    return names(found), agon["roles"], agon["switches"]["rotate"]


def steps_key(found: Any) -> Any:
    (steps,) = [key for key in found if key["key"] == "run.steps"]
    return [key["key"] for key in found], steps


def report(found: Any) -> Any:
    assert all(Path(path).is_dir() for path in found["adapters"].values())
    (transcript,) = found["transcripts"]
    about = [found["game"], found["model"], found["steps"], found["first_step"]["step"], found["last_step"]["step"]]
    return about, list(found["evaluations"]), [each["role"] for each in transcript["completions"]]


PAIR = ["drafter", "challenger"]
STEPS = {"key": "run.steps", "type": "int", "range": ">= 1, <= 1000000", "required": False, "default": 200}
STEPS |= {"unset": None, "flag": "steps", "meaning": "Steps of play and update"}
MEASURED = ["untouched", "before training", "after 2 steps"]
FACTS: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "list games": (games, (game_names(), PAIR, True)),
    "list tasks": (names, task_names()),
    "list models": (names, [model.name for model in known_models()]),
    "list presets": (names, preset_names()),
    "list losses": (lambda found: {"grpo", "sequence"} <= set(names(found)), True),
    "list runs RUN": (lambda found: [(one["game"], one["stage"]) for one in found], [("agon", "finished")]),
    "plan --model tiny --gpu t4": (lambda found: found["fits"], {"Tesla T4": True}),
    "plan --prompts --model tiny --tasks letters": (lambda found: [each["role"] for each in found["prompts"]], PAIR),
    "plan --model tiny --reward REWARD --tasks letters": (lambda found: len(found["samples"]), 10),
    "doctor": (lambda found: found["healthy"] is all(part["fine"] for part in found["findings"]), True),
    "config show RUN/config.yaml": (lambda found: (found["run"]["steps"], found["game"]["name"]), (2, "agon")),
    "config keys": (steps_key, (list(KEYS), STEPS)),
    "config keys tasks": (lambda found: found[0]["flag"], "tasks"),
    "eval RUN --tasks letters --limit 2": (lambda found: (found["mode"], found["n"]), ("cascade", 2)),
    "reproduce": (names, experiment_names()),
    "report RUN": (report, (["agon", "tiny", 2, 1, 2], MEASURED, PAIR)),
    "report RUN --duels 0": (lambda found: found["transcripts"], []),
    "why RUN": (lambda found: (found["steps"], bool(found["findings"])), ([1, 2], True)),
    "why reward RUN": (lambda found: (found["key"], list(found["values"])), ("reward_mean", PAIR)),
}


@pytest.mark.parametrize("command", FACTS)
def test_json_and_nothing_else(call: Callable[..., Any], run: Path, command: str):
    reward = f"{Path(__file__).parents[1] / 'varied_reward.py'}:varied"
    words = command.replace("RUN", str(run)).replace("REWARD", reward)
    ended = call(*words.split(), "--json")
    found = json.loads(ended.out)
    about, expected = FACTS[command]
    assert about(found) == expected
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

"""`lite-selfplay plan --prompts` and `plan --reward`."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lite_selfplay.models.sources.tiny import build_tiny

REWARDS = """
def right(completions, answer, **columns):
    return [float(f"<answer>{a}</answer>" in c) for c, a in zip(completions, answer)]

def same(completions):
    return [1.0] * len(completions)

def against(completions, answer):
    return [0.0 if str(a) in c else 1.0 for c, a in zip(completions, answer)]

def short(completions):
    return [1.0]

def leaves(completions):
    raise SystemExit(3)
"""


@pytest.fixture
def rewards(tmp_path: Path) -> Path:
    (tmp_path / "rewards.py").write_text(REWARDS)
    return tmp_path / "rewards.py"


def test_the_prompts_of_a_game(call: Callable[..., Any]):
    ended = call("plan", "--prompts", "--game", "agon", "--model", "tiny", "--tasks", "arithmetic")
    assert ended.code == 0, ended.err
    drafter, challenger = ended.out.split("== ")[1:]
    assert drafter.startswith("drafter (seat A): ")
    assert "<s>user" in drafter
    assert "Here is a rival's attempt" in challenger
    assert "the model's chat template knows no thinking" in ended.out.casefold()


def test_thinking_on_and_off(call: Callable[..., Any], tmp_path: Path):
    build_tiny(tmp_path / "model", template="thinking")
    ended = call("plan", "--prompts", "--game", "grpo", "--model", tmp_path / "model", "--tasks", "letters", "--json")
    on, off = json.loads(ended.out)["prompts"]
    assert (on["role"], on["thinking"], off["thinking"]) == ("solver", "on", "off")
    assert off["text"] == on["text"] + "<think>\n\n</think>\n\n"
    assert off["tokens"] - on["tokens"] == len("<think>\n\n</think>\n\n")


def test_a_game_that_poses_its_problems(call: Callable[..., Any]):
    found = json.loads(call("plan", "--prompts", "--game", "sqlm", "--model", "tiny", "--json").out)
    assert [prompt["role"] for prompt in found["prompts"]] == ["proposer", "solver"]
    assert found["not_asked"] == []


@pytest.mark.parametrize(
    ("function", "says"),
    [
        ("right", "As it should be, right answers earn 1 in the mean, wrong ones 0."),
        ("same", "Every completion earns 1: such a group has no variance, and nothing is learned from it."),
        ("against", "Look at this: right answers earn 0 in the mean, wrong ones 1."),
    ],
)
def test_a_reward_before_any_training(call: Callable[..., Any], rewards: Path, function: str, says: str):
    ended = call("plan", "--model", "tiny", "--reward", f"{rewards}:{function}", "--tasks", "arithmetic")
    lines = ended.out.splitlines()
    assert (ended.code, len(lines), lines[-1]) == (0, 13, says)
    assert lines[0].split() == ["problem", "completion", "reward", "checker", "text"]


@pytest.mark.parametrize(("function", "says"), [("short", "returned 1 values for 10"), ("leaves", "SystemExit")])
def test_a_reward_that_fails_is_an_error(call: Callable[..., Any], rewards: Path, function: str, says: str):
    ended = call("plan", "--model", "tiny", "--reward", f"{rewards}:{function}", "--tasks", "arithmetic")
    assert (ended.code, ended.out) == (1, "")
    assert says in ended.err


@pytest.mark.parametrize("place", ["nosuch.py:f", "rewards.py", "rewards.py:nosuch"])
def test_a_reward_that_is_not_there_is_a_wrong_request(call: Callable[..., Any], rewards: Path, place: str):
    assert call("plan", "--model", "tiny", "--reward", place, "--tasks", "arithmetic").code == 2


def test_problems_without_answers_are_refused(call: Callable[..., Any], rewards: Path, tmp_path: Path):
    (tmp_path / "open.jsonl").write_text('{"problem": "Say something."}\n')
    ended = call("plan", "--model", "tiny", "--reward", f"{rewards}:same", "--tasks", tmp_path / "open.jsonl")
    assert ended.code == 2
    assert "no problem with an answer" in ended.err

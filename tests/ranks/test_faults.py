"""What goes wrong in one process is decided for all of them, and what must be the same in all is compared."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.made_runs import read_lines

from .conftest import COMMAND

Play = Callable[..., Any]


def test_a_number_that_is_not_finite_in_one_process_skips_the_step_in_all(play: Play, tmp_path: Path):
    ended = play(2, *COMMAND, "--steps", 3, "--run-dir", tmp_path / "run", play=("nan", 1, 1))
    steps = read_lines(tmp_path / "run/metrics.jsonl")
    assert [row["nonfinite_what"] is None for row in steps] == [True, False, True]
    assert steps[1]["seats"]["A"]["updates"] == steps[0]["seats"]["A"]["updates"]
    assert "the loss of" in ended.said


def test_memory_that_runs_out_in_one_process_makes_microbatches_smaller_in_all(play: Play, tmp_path: Path):
    ended = play(2, *COMMAND, "--steps", 2, "--run-dir", tmp_path / "run", play=("out_of_memory", 1, 1))
    assert "out of memory in the update of another process: from now on at most" in ended.said
    assert all(row["streams"]["drafter"]["loss"] is not None for row in read_lines(tmp_path / "run/metrics.jsonl"))


def test_a_users_reward_is_asked_by_one_process_and_its_random_numbers_are_shared(play: Play, tmp_path: Path):
    code = "import os, random\n\ndef judged(completions, **_):\n"
    code += "    open(f'{os.path.dirname(__file__)}/asked-{os.getpid()}', 'a').write('.')\n"
    code += "    return [random.random() for _ in completions]\n"
    (tmp_path / "reward.py").write_text(code)
    play(2, *COMMAND, "--reward", f"{tmp_path}/reward.py:judged", "--steps", 2, "--run-dir", tmp_path / "run")
    assert len(list(tmp_path.glob("asked-*"))) == 1


OWN = """
import os
from lite_selfplay.games.baselines.grpo import Solo

class Odd(Solo):
    def play(self, step, table):
        table.ask('solver', [f'{os.getpid() if step else 0}'], n=2)
        return super().play(step, table)

def judged(completions, **_):
    return [float('nan') for _ in completions]
"""
"""A game that depends on its process, and a reward that fails."""


@pytest.mark.parametrize(
    ("fault", "own", "saved", "words"),
    [
        (
            ("out_of_memory", 1, 0),
            {},
            1,
            "process 1 of this run has left: out of memory in the update of one completion",
        ),
        (("nothing", None), {"reward": "judged"}, 1, "judged returned nan for completion 0"),
        (("nothing", None), {"game": "Odd"}, 2, "play different games: process 0 was at completions of 1 prompts"),
        (("drift", 1, 1), {}, None, "at step 2 process 1 of this run has other weights in seat A than process 0"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_what_cannot_go_on_in_one_process_ends_the_run_and_one_says_why(
    fault: tuple[Any, ...], own: dict[str, str], saved: int | None, words: str, play: Play, tmp_path: Path
):
    (tmp_path / "own.py").write_text(OWN)
    given = {key: f"{tmp_path}/own.py:{name}" for key, name in own.items()}
    command = [*COMMAND, *(("--reward", given["reward"]) if "reward" in given else ())]
    command[1] = given.get("game", "agon")
    ended = play(2, *command, "--steps", 3, "--run-dir", tmp_path / "run", play=fault, code=1)
    assert words in ended.said
    assert "error" not in ended.texts[1], "process 0 has said it"
    if saved is not None:  # which weights that drift apart are not
        assert f"saved before step {saved}. Continue with: lite-selfplay train --resume" in ended.said
        assert (tmp_path / f"run/checkpoints/step-{saved - 1}").is_dir()


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (("other_package", 1), "set of packages than process 0: 'trl 0.0.1', not 'trl "),
        (("other_device", 1), "device than process 0: 'another card, torch.float32'"),
        (("other_argument", 1, "--seed=5"), "configuration than process 0: 'seed: 5'"),
    ],
)
def test_processes_that_were_started_on_something_else_are_refused(
    fault: tuple[Any, ...], words: str, play: Play, tmp_path: Path
):
    ended = play(2, *COMMAND, "--steps", 1, "--run-dir", tmp_path / "run", play=fault, code=2)
    assert f"process 1 of this run has another {words}" in ended.said
    assert ended.texts[1] == ""
    assert not (tmp_path / "run").exists()


@pytest.mark.long
def test_a_minutes_budget_is_kept_by_one_clock(play: Play, tmp_path: Path):
    play(2, *COMMAND, "--steps", 400, "--minutes", 0.15, "--run-dir", tmp_path / "run", play=("slow_clock", 1))
    assert 1 <= len(read_lines(tmp_path / "run/metrics.jsonl")) < 400

"""What goes wrong in one process is decided for all of them, and what must be the same in all is compared."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.made_runs import read_lines

from .conftest import COMMAND


def test_a_number_that_is_not_finite_in_one_process_skips_the_step_in_all(play: Callable[..., Any], tmp_path: Path):
    ended = play(2, *COMMAND, "--steps", 3, "--run-dir", tmp_path / "run", play=("nan", 1, 1))
    assert ended.codes == [0, 0], ended.said
    steps = read_lines(tmp_path / "run/metrics.jsonl")
    assert [row["nonfinite_what"] is None for row in steps] == [True, False, True]
    assert steps[1]["seats"]["A"]["updates"] == steps[0]["seats"]["A"]["updates"]
    assert "the loss of" in ended.said[0]


def test_memory_that_runs_out_in_one_process_makes_microbatches_smaller_in_all(
    play: Callable[..., Any], tmp_path: Path
):
    ended = play(2, *COMMAND, "--steps", 2, "--run-dir", tmp_path / "run", play=("out_of_memory", 1, 1))
    assert ended.codes == [0, 0], ended.said
    assert "out of memory in the update of another process: from now on at most" in ended.said[0]
    assert all(row["streams"]["drafter"]["loss"] is not None for row in read_lines(tmp_path / "run/metrics.jsonl"))


def test_memory_for_less_than_a_row_ends_the_run_saved_and_says_where(play: Callable[..., Any], tmp_path: Path):
    ended = play(2, *COMMAND, "--steps", 2, "--run-dir", tmp_path / "run", play=("out_of_memory", 1, 0))
    assert ended.codes == [1, 1], ended.said
    assert "process 1 of this run has left: out of memory in the update of one completion" in ended.said[0]
    assert "saved before step 1. Go on with: lite-selfplay train --resume" in ended.said[0]
    assert "error" not in ended.said[1], "process 0 has said it"


def test_weights_that_drift_are_named(play: Callable[..., Any], tmp_path: Path):
    ended = play(2, *COMMAND, "--steps", 3, "--run-dir", tmp_path / "run", play=("drift", 1, 1))
    assert ended.codes == [1, 1], ended.said
    assert "at step 2 process 1 of this run has other weights in seat A than process 0" in ended.said[0]


def test_a_users_reward_is_asked_by_one_process_and_its_random_numbers_are_shared(
    play: Callable[..., Any], tmp_path: Path
):
    code = "import os, random\n\ndef judged(completions, **_):\n"
    code += "    open(f'{os.path.dirname(__file__)}/asked-{os.getpid()}', 'a').write('.')\n"
    code += "    return [random.random() for _ in completions]\n"
    (tmp_path / "reward.py").write_text(code)
    reward = ("--reward", f"{tmp_path / 'reward.py'}:judged")
    ended = play(2, *COMMAND, *reward, "--steps", 2, "--run-dir", tmp_path / "run")
    assert ended.codes == [0, 0], ended.said
    assert len(list(tmp_path.glob("asked-*"))) == 1
    # One that fails ends the run in all processes, and it is saved.
    (tmp_path / "reward.py").write_text(
        "def judged(completions, **_):\n    return [float('nan') for _ in completions]\n"
    )
    ended = play(2, *COMMAND, *reward, "--steps", 2, "--run-dir", tmp_path / "wrong")
    assert ended.codes == [1, 1], ended.said
    assert "judged returned nan for completion 0; saved before step 1" in ended.said[0]
    assert (tmp_path / "wrong/checkpoints/step-0").is_dir()


def test_a_game_that_depends_on_its_process_is_refused(play: Callable[..., Any], tmp_path: Path):
    code = "import os\nfrom lite_selfplay.games.baselines.grpo import Solo\n\nclass Odd(Solo):\n"
    code += "    def play(self, step, table):\n"
    code += "        table.ask('solver', [f'{os.getpid() if step else 0}'], n=2)\n"
    code += "        return super().play(step, table)\n"
    (tmp_path / "odd.py").write_text(code)
    game = ("train", f"{tmp_path / 'odd.py'}:Odd", *COMMAND[2:])
    ended = play(2, *game, "--steps", 2, "--run-dir", tmp_path / "run")
    assert ended.codes == [1, 1], ended.said
    assert (
        "the processes of this run came to different games: process 0 was at completions of 1 prompts" in ended.said[0]
    )
    assert "saved before step 2" in ended.said[0]


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (
            ("other_package", 1),
            "process 1 of this run has another set of packages than process 0: 'trl 0.0.1', not 'trl ",
        ),
        (("other_device", 1), "process 1 of this run has another device than process 0: 'another card, torch.float32'"),
        (
            ("other_argument", 1, "--seed=5"),
            "process 1 of this run has another configuration than process 0: 'seed: 5'",
        ),
    ],
)
def test_processes_that_were_started_on_something_else_are_refused(
    fault: tuple[Any, ...], words: str, play: Callable[..., Any], tmp_path: Path
):
    ended = play(2, *COMMAND, "--steps", 1, "--run-dir", tmp_path / "run", play=fault)
    assert ended.codes == [2, 2], ended.said
    assert words in ended.said[0]
    assert ended.said[1] == ""
    assert not (tmp_path / "run").exists()


@pytest.mark.long
def test_a_minutes_budget_is_kept_by_one_clock(play: Callable[..., Any], tmp_path: Path):
    ended = play(2, *COMMAND, "--steps", 400, "--minutes", 0.15, "--run-dir", tmp_path / "run", play=("slow_clock", 1))
    assert ended.codes == [0, 0], ended.said
    assert 1 <= len(read_lines(tmp_path / "run/metrics.jsonl")) < 400
    shutil.rmtree(tmp_path / "run")

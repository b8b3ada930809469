"""A run folder, or a configuration, that somebody else may have written names code: no command runs it unasked."""

import io
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from lite_selfplay import RunConfig, resume, train
from lite_selfplay.errors import ConfigError, RewardError, RunFolderError
from lite_selfplay.evaluation import Settings
from lite_selfplay.runs.folder import RunFolder
from lite_selfplay.runs.targets import Target, trained_on
from tests.made_runs import Ear

from .conftest import read_back

Call = Callable[..., Any]
EVIL = """
from pathlib import Path
(Path(__file__).parent / "ran").touch()
from lite_selfplay.games.agon.agon import DraftChallenge
from lite_selfplay.tasks import load_task
class G(DraftChallenge): pass
def task(seed, held_out): return load_task("letters", held_out=held_out)
def reward(completions, **rest): return [0.0] * len(completions)
def loss(logprobs): return logprobs
"""
KEYS = {
    "game.name": "G",
    "tasks.train": "task",
    "eval.tasks": "task",
    "run.reward": "reward",
    "roles.drafter.loss": "loss",
    "tasks.validation": "task",
    "cold_start.tasks": "task",
}
COMMANDS = tuple(
    line.split()
    for line in """
report run
report run --figures
why run
why kl run
view run --bundle page
list runs .
chat run
plan --config run/config.yaml
plan --config run/config.yaml --prompts
config validate run/config.yaml
cold-start --config run/config.yaml --dry-run
train --config run/config.yaml --dry-run
train --config run/config.yaml --run-dir new
train --resume run --steps 3
eval run --tasks letters --limit 1
export run A --out out
""".strip().splitlines()
)
*_, RESUME, EVAL, EXPORT = COMMANDS
READING = ("report", "why", "view", "list")


def names(run: Path, key: str, place: str) -> None:
    """Let a run's configuration name code under a key."""
    config = yaml.safe_load((run / "config.yaml").read_text())
    *path, name = key.split(".")
    below = config
    for part in path:
        below = below[part]
    below[name] = f"{place}:{KEYS[key]}"
    (run / "config.yaml").write_text(yaml.safe_dump(config))


@pytest.fixture
def here(tmp_path: Path, run: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as a stranger's archive leaves it: a run, and code beside it that a path in the run leads to."""
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "evil.py").write_text(EVIL)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    # Neither what draws nor the other tool that reads an export is asked here: both take longer than all the rest.
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda self, path, **_: Path(path).touch())
    monkeypatch.setattr("lite_selfplay.extras.export.verification.read_back", read_back)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("keys", "command"),
    [
        *((list(KEYS), command) for command in COMMANDS),
        *(([key], RESUME) for key in KEYS),
        *((["run.reward", "roles.drafter.loss"], command) for command in (EVAL, EXPORT)),
    ],
    ids=lambda value: " ".join(value),
)
def test_no_command_runs_what_a_folder_names(here: Path, call: Call, keys: list[str], command: list[str]):
    """Any key by one command, and all of them by any; a reward or a loss stops nothing that calls none."""
    for key in keys:
        names(here / "run", key, "/proc/self/cwd/code/evil.py")
    ended = call(*command)
    calls_none = len(keys) == 2 and command in (EVAL, EXPORT)
    assert ended.code == (0 if command[0] in READING or calls_none else 2)
    assert not (here / "code" / "ran").exists()
    if ended.code == 2:
        named = [key for key in keys if f"it was not run: {key}" in ended.err]
        assert f"{here}/code/evil.py:{KEYS[named[0]]}" in ended.err


@pytest.mark.parametrize(
    "place", ["code/evil.py", "./code/evil.py", "~/code/evil.py", "run/eval/evil.py", "{here}/run/linked/evil.py"]
)
def test_nor_by_another_way_to_it(here: Path, call: Call, place: str):
    (here / "run" / "eval").mkdir(exist_ok=True)
    (here / "run" / "eval" / "evil.py").write_text(EVIL)
    os.symlink(here / "code", here / "run" / "linked")
    for key in ("game.name", "run.reward", "tasks.train", "roles.drafter.loss"):
        names(here / "run", key, place.format(here=here))
    assert call("report", "run").code == 0
    for command in (("train", "--resume", "run"), ("train", "--config", "run/config.yaml", "--run-dir", "new")):
        assert call(*command).code == 2
    assert not list(here.rglob("ran"))


def test_nor_does_an_experiment(here: Path, call: Call):
    whole: Any = {"about": "One.", "source": "nowhere", "paper": "another", "arms": {"one": {"game": "grpo"}}}
    whole |= {"base": {"model": "tiny", "tasks": "letters"}, "evaluations": [{"tasks": "letters"}], "cold_start": {}}
    for changes in (
        {"arms": {"one": {"game": "PLACE:G"}}},
        {"base": {"model": "tiny", "tasks": "PLACE:task"}},
        {"arms": {"one": {"game": "grpo", "set": {"run.reward": "PLACE:reward", "roles.*.loss": "PLACE:loss"}}}},
        {"evaluations": [{"tasks": "letters,PLACE:task"}]},
        {"cold_start": {"game": "PLACE:G"}},
    ):
        (here / "mine.yaml").write_text(yaml.safe_dump(whole | changes).replace("PLACE", f"{here}/code/evil.py"))
        assert "mine.yaml names code that you have not run" in call("reproduce", "mine.yaml", "--dry-run").err
    assert not (here / "code" / "ran").exists()


def test_a_run_that_this_one_started_from_runs_nothing(here: Path):
    shutil.copytree(here / "run", here / "before")
    names(here / "before", "game.name", f"{here}/code/evil.py")
    config = Target.of("run", Settings()).config
    begun = RunConfig.of(config.model_dump(mode="json"), {"run": {"init": str(here / "before")}})
    ear = Ear()
    trained_on(begun, ear)
    assert "before/config.yaml names code" in ear.warned[0]
    assert not (here / "code" / "ran").exists()


def test_who_names_it_is_obeyed_and_what_was_run_here_goes_on_until_it_changes(here: Path, call: Call):
    own = here / "code" / "evil.py"
    for key in ("game.name", "tasks.train", "run.reward"):
        names(here / "run", key, str(own))
    assert call("list", "games", f"{own}:G").code == 0
    assert "a record" not in call("list", "tasks", f"{own}:task").out
    (here / "run" / "config.yaml").rename(here / "mine.yaml")
    small = ("--config", "mine.yaml", "--set", "eval.tasks=none", "--steps", "1")
    assert call("train", *small, "--run-dir", "own").code == 0  # the file was run before, so nothing is asked
    assert call("train", "--resume", "own", "--steps", "2").code == 0
    own.write_text(EVIL + "\n# better\n")
    refused = call("train", "--resume", "own", "--steps", "3")
    assert (refused.code, "or that has changed since" in refused.err) == (2, True)
    assert call("list", "games", f"{own}:G").code == 0
    ended = call("train", "--resume", "own", "--steps", "3", "--reward", f"{own}:reward")
    assert ended.code == 0
    assert "the source of reward (run.reward) has changed since the run was made" in ended.err


def much(completions: list[str], **rest: Any) -> list[float]:
    return [float(len(text)) for text in completions]


def broken(completions: list[str], **rest: Any) -> list[float]:
    raise ValueError("no")


def test_a_reward_given_in_python_is_not_forgotten(tmp_path: Path, call: Call):
    small: dict[str, Any] = {"game": "grpo", "model": "tiny", "tasks": "letters", "group_size": 2, "steps": 1}
    small |= {"problems_per_step": 1, "precision": "fp32", "max_completion_tokens": 8, "preflight": False}
    run = train(RunConfig(**small, run_dir=tmp_path / "run"), reward=much).path
    refused = call("train", "--resume", run, "--steps", "2")
    assert refused.code == 2
    said = f"made with a reward given in Python, much of {__file__}: continue it with resume('{run}', reward=much)"
    assert said in refused.err
    with pytest.raises(RunFolderError, match="given in Python"):
        resume(run, steps=2)
    warned: list[str] = []
    resumed = resume(run, steps=2, reward=much, progress=warned.append)
    assert [line for line in warned if "is not what it was" in line] == []
    rows = [row for row in resumed.episodes() if row["step"] == 2]
    assert min(row["reward"] for row in rows) > 1  # the checker gives at most 1
    with pytest.raises(RewardError, match=r"resume\('.*run', reward=broken\)"):
        resume(run, steps=3, reward=broken, progress=warned.append)
    assert "the source of broken (reward) has changed since the run was made" in "\n".join(warned)
    with pytest.raises(ConfigError, match="no file at"):
        resume(run, steps=3, reward="gone.py:much")
    noted = run / "environment.json"
    noted.write_text(noted.read_text().replace('"name": "broken"', '"name": "f)\\nos.system(\'x\'"'))
    assert RunFolder(run).resume_command() == f"resume('{run}', reward=fos.systemx)"


def test_what_a_folder_says_drives_no_terminal_and_is_not_endless(here: Path, call: Call):
    config = (here / "run" / "config.yaml").read_text()
    (here / "run" / "config.yaml").write_text(config.replace("name: tiny", 'name: "ti\\e[31m\\e]0;x\\a ny"'))
    shown = call("report", "run")
    assert "agon on ti ny: 2 steps" in shown.out
    assert "\x1b" not in shown.out + shown.err
    long = "y" * 900_000
    for wrong in (f"model: {{name: {long}}}\ngame: {{name: agon}}", f"model: {{name: tiny}}\ngame: {{name: {long}}}"):
        (here / "run" / "config.yaml").write_text(wrong)
        for command in (("report", "run"), ("train", "--resume", "run")):
            ended = call(*command)
            assert ended.code == 2
            assert len(ended.err) < 2000


def test_no_linked_file_is_copied_into_a_run_that_starts_from_a_strangers(here: Path, call: Call):
    (here / "private").write_text("secret")
    (here / "run" / "cold_start.jsonl").symlink_to(here / "private")
    ended = call("train", "agon", "--model", "tiny", "--tasks", "letters", "--init", "run", "--run-dir", "new")
    assert ended.code == 2
    assert "cold_start.jsonl is a symbolic link, which is not followed" in ended.err
    assert not (here / "new").exists()


def test_an_evaluation_is_not_written_through_a_link(here: Path, call: Call):
    shutil.rmtree(here / "run" / "eval", ignore_errors=True)
    (here / "run" / "eval").symlink_to(here / "code")
    ended = call(*EVAL)
    assert ended.code == 2
    assert "eval is a symbolic link, which is not followed" in ended.err
    assert sorted(path.name for path in (here / "code").iterdir()) == ["evil.py"]

"""The command line: what it prints, how it ends, and that a wrong request leaves nothing behind."""

import re
import signal
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml

from lite_selfplay.errors import Interrupted, TrainingError
from lite_selfplay.models.memory import CARDS
from lite_selfplay.training.interrupts import Interrupts
from tests.made_runs import read_lines

AGON = ("train", "agon", "--model", "tiny", "--tasks", "letters")
SMALL = ("--steps", "2", "--group-size", "2", "--problems-per-step", "1")
REWARD = "def mine(completions):\n    return [0.0] * len(completions)\n"


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path) -> Path:
    """An empty working directory."""
    monkeypatch.setenv("LITE_SELFPLAY_CACHE", str(cache))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def refused(here: Path, call: Callable[..., Any]) -> Callable[..., str]:
    """Run a command that must be refused in one sentence and leave nothing on disk; returns the sentence."""

    def refused(*arguments: str) -> str:
        before = everything(here)
        ended = call(*arguments)
        assert ended.code == 2, ended
        assert ended.out == "" or arguments[0] == "train"  # which has told how far it came
        assert ended.err.startswith("error: ")
        assert ended.err.count("\n") == 1
        assert "Traceback" not in ended.err
        assert everything(here) == before
        return ended.err

    return refused


def everything(folder: Path) -> dict[str, bytes | None]:
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in folder.rglob("*")}


# Wrong requests


@pytest.mark.parametrize("command", [("reproduce", "agon-table3"), ("chat", "runs/a"), ("export", "runs/a")])
def test_what_runs_in_one_process_refuses_to_be_one_of_several(refused, command, monkeypatch):
    places = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    for name, value in {**places, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}.items():
        monkeypatch.setenv(name, value)
    assert f"`{command[0]}` runs in one process, but 2 were started" in refused(*command)


REQUESTS = [
    line.split(" | ")
    for line in Path(__file__).with_name("wrong_requests.txt").read_text().splitlines()
    if not line.startswith("#")
]


@pytest.mark.parametrize(("command", "sentence"), REQUESTS)
def test_a_wrong_request_is_refused_in_a_sentence(refused, here, run, command, sentence):
    (here / "mine").write_text("game: agon\n- a\n")
    (here / "mine.py").write_text(REWARD)
    (here / "bad.yaml").write_text("game: agon\nmodel: tiny\ntasks: letters\nseats: {C: {lr: 1}}\n")
    (here / "said.jsonl").write_text('{"problem": "Say something."}\n')
    for name, line in (("cut", '\n{"problem": "1 + 2?", "answer": \n'), ("open", '{"problem": "2?", "id": "b"}\n')):
        (here / f"{name}.jsonl").write_text('{"problem": "1 + 1?", "answer": "2"}\n' + line)
    told = refused(*(str(run) if word == "RUN" else word for word in command.split()))
    assert sentence in told.replace("\n", "$")  # the sign stands for the end


def test_a_wrong_command_line(call, here):
    for arguments in (("trian",), (*AGON, "--stepz", "3"), (*AGON, "--steps", "many"), ("report",)):
        ended = call(*arguments)
        assert (ended.code, bool(ended.err), everything(here)) == (2, True, {})


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (TrainingError("the loss is nan at step 3"), 1, "error: the loss is nan at step 3\n"),
        (Interrupted("stopped by SIGTERM; saved"), 130, "stopped by SIGTERM; saved\n"),
        (RuntimeError("boom"), 1, "error: RuntimeError: boom (--debug shows where)\n"),
        (KeyboardInterrupt(), 130, "stopped: nothing was saved\n"),
    ],
)
def test_a_run_that_fails(call, monkeypatch, error, code, sentence):
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("lite_selfplay.runs.api.train", fail)
    assert call(*AGON)[::2] == (code, sentence)
    for place in (0, 1, 3) if isinstance(error, Exception) else ():  # --debug shows where, wherever it stands
        with pytest.raises(type(error)):
            call(*AGON[:place], "--debug", *AGON[place:])


def test_a_signal_after_the_work_does_not_say_that_nothing_was_saved(call, monkeypatch):
    def end_late(*_: object, **__: object) -> None:
        with Interrupts() as interrupts:
            interrupts.poll()
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr("lite_selfplay.runs.api.train", end_late)
    assert call(*AGON)[::2] == (130, "stopped\n")


def test_version_and_help(call):
    assert call("--version") == (0, f"lite-selfplay {version('lite-selfplay')}\n", "")
    for arguments in (("--help",), ("-h",), ("train", "--help"), ("eval", "--help")):
        ended = call(*arguments)
        assert (ended.code, "Usage: " in ended.out) == (0, True)


PAID = "drafter 2 for a right answer; challenger 2 for a right answer, 1 more if the draft is wrong"


def test_a_dry_run_says_what_would_happen_and_makes_nothing(call, here):
    """A reward function of one's own judges without answers, so none are needed."""
    ended = call(*AGON, "--run-dir", "run", "--dry-run")
    assert (ended.code, ended.err) == (0, "")
    # 4 problems, 8 drafts and 8 challenges each; 16 tokens at most; the 40 steps of a CPU.
    assert "a step: 64 completions of up to 16 tokens; at most 2,560 in all, or 40,960 tokens" in ended.out
    assert "evaluation: none" in ended.out
    assert "tasks: letters, 10,000 problems, 4 a step" in ended.out
    assert f"rewards: {PAID}\n" in ended.out
    idle = call(*AGON, "--run-dir", "run", "--eval-limit", "5", "--dry-run").out
    assert "evaluation: none, so that eval.limit=5 does nothing; --eval-tasks T evaluates" in idle
    assert not everything(here)
    (here / "sums.jsonl").write_text('{"problem": "1 + 1?"}\n')
    (here / "mine.py").write_text(REWARD)
    ended = call(*AGON[:4], "--tasks", "sums.jsonl", "--reward", "mine.py:mine", "--dry-run")
    assert ended.code == 0
    assert "rewards: drafter 2 by mine; challenger 2 by mine, 1 more" in ended.out


def test_flags_go_over_the_file_and_set_over_the_flags(call, here):
    (here / "c.yaml").write_text("game: agon\nmodel: tiny\ntasks: letters\nsteps: 5\nseed: 5\ngroup_size: 5\n")
    flags = ("--steps", "6", "--seed", "6", "--max-completion-tokens", "10", "--precision", "fp32")
    ended = call("train", "--config", "c.yaml", *flags, "--set", "seed=7", "--dry-run")
    assert "agon with tiny in fp32, 6 steps, seed 7" in ended.out
    # 4 problems, 5 drafts and 5 challenges each, 10 tokens, 6 steps.
    assert "a step: 40 completions of up to 10 tokens; at most 240 in all, or 2,400 tokens" in ended.out


def test_a_dry_run_shows_a_preset_and_what_goes_over_it(call):
    ended = call("train", "agon", "--preset", "demo", "--steps", "7", "--tasks", "letters", "--dry-run")
    assert (ended.code, ended.err) == (0, "")
    for told in ("agon with smollm2-135m in 4bit, 7 steps", "tasks: letters", "cold start: "):
        assert told in ended.out
    assert "evaluation: A and B (mode cascade) on 75 held-out problems of arithmetic" in ended.out
    assert "evaluation: none" in call("train", "agon", "--preset", "demo", "--eval-tasks", "none", "--dry-run").out


def test_init_show_and_validate(call, here):
    ended = call("config", "init", "agon", "--model", "tiny", "--tasks", "letters")
    assert (ended.code, ended.out) == (0, "wrote config.yaml; run it with: lite-selfplay train --config config.yaml\n")
    assert list(everything(here)) == ["config.yaml"]
    written = (here / "config.yaml").read_text()
    values = yaml.safe_load(written)
    assert (set(values["seats"]), set(values["roles"])) == ({"A", "B"}, {"drafter", "challenger"})
    assert (values["game"]["reward"], values["run"]["max_completion_tokens"]) == ("adv", 16)
    assert call("config", "validate", "config.yaml") == (0, "config.yaml is valid\n", "")
    assert call("config", "show", "config.yaml") == (0, written, "")
    assert call("train", "--config", "config.yaml", "--dry-run").code == 0


def test_a_run_its_report_and_no_second_one(here, call, refused):
    asked = [*AGON, *SMALL, "--run-dir", "run"]
    done = call(*asked)
    assert done.code == 0, done.err
    assert "step 2/2 | " in done.out
    assert done.out.index(f"rewards: {PAID}\n") < done.out.index("step 1/2")
    assert f"\n- rewards: {PAID}\n" in (here / "run" / "README.md").read_text()
    made = set(everything(here / "run"))
    whole = {"config.yaml", "environment.json", "metrics.jsonl", "episodes.jsonl", "README.md"}
    whole |= {
        f"adapters/{seat}/{name}" for seat in "AB" for name in ("adapter_model.safetensors", "adapter_config.json")
    }
    assert whole | {"checkpoints/step-2/manifest.json"} <= made
    assert not [name for name in made if "partial" in name or name.endswith((".pt", ".bin", ".pkl"))]
    assert set(everything(here)) == {"run", *(f"run/{name}" for name in made)}
    assert [row["step"] for row in read_lines(here / "run" / "metrics.jsonl")] == [1, 2]
    # Two steps of one problem with two drafts and two challenges each.
    assert len((here / "run" / "episodes.jsonl").read_text().splitlines()) == 8

    ended = call("report", "run", "--duels", "2")
    assert (ended.code, ended.err) == (0, "")
    for told in (
        "agon on tiny: 2 steps in run",
        f"  rewards: {PAID}\n",
        "step 1: drafter (seat A): ",
        "step 2: drafter (seat B): ",
    ):
        assert told in ended.out
    assert ended.out.count("== transcript ") == 2
    assert ended.out.count("-- drafter (seat ") == ended.out.count("-- challenger (seat ") == 2
    assert "== transcript " not in call("report", "run", "--duels", "0").out

    assert "never overwritten" in refused(*asked)
    assert "is already at step 2, past the 1 asked for" in refused("train", "--resume", "run", "--steps", "1")
    assert call("train", "--config", "run/config.yaml", "--run-dir", "again", "--dry-run").code == 0


def test_an_experiment_says_nothing_but_what_was_asked(call):
    """Among it the cold start of the experiment's file, and not the one of a configuration by itself."""
    ended = call("reproduce", "agon-table3", "--scale", "small", "--dry-run")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.endswith("dry run: nothing was started\n")
    assert set(re.findall(r"cold start: (\d+) steps of (\d+) examples", ended.out)) == {("7", "16")}


def test_a_dry_run_says_where_a_preset_wants_a_gpu(call, monkeypatch):
    assert "the preset t4 is for a GPU, and this machine has none" in call(*AGON, "--preset", "t4", "--dry-run").err
    assert call(*AGON, "--preset", "cpu", "--dry-run").err == ""
    monkeypatch.setattr("lite_selfplay.runs.defaults._gpu", lambda config: CARDS["v100"])
    assert call(*AGON, "--preset", "t4", "--dry-run").err == ""

"""The pre-flight: what it says and refuses, and that it leaves the run as it was."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lite_selfplay import RunConfig, resume, train
from lite_selfplay.config.guard import unnoticed
from lite_selfplay.data import Completion, Sampling
from lite_selfplay.errors import PreflightError, RunFolderError
from lite_selfplay.games import find_game
from lite_selfplay.runs import fit as fitting
from lite_selfplay.runs import preflight as looking
from lite_selfplay.runs.fit import Fit, machine_memory
from lite_selfplay.runs.folder import PREFLIGHT
from lite_selfplay.runs.preflight import Preflight, wanted
from lite_selfplay.runs.report.diagnosis import Cause, diagnose
from lite_selfplay.runs.small_step import Enough, SmallTable, small_game
from lite_selfplay.training.progress import OutOfTime, Poll, Progress
from lite_selfplay.training.rollout import LiveTable
from lite_selfplay.training.trainer import SelfPlayTrainer

AGON = find_game("agon")


class Ear(Progress):
    def __init__(self) -> None:
        self.said: list[str] = []
        self.warned: list[str] = []

    def say(self, sentence: str) -> None:
        self.said.append(sentence)

    def warn(self, sentence: str) -> None:
        self.warned.append(sentence)


def config(folder: Path, game: Any = "agon", **changes: Any) -> RunConfig:
    small = {"model": "tiny", "precision": "fp32", "tasks": "letters", "steps": 2, "preflight": True}
    sizes = {"group_size": 4, "problems_per_step": 2, "max_completion_tokens": 8}
    return RunConfig(**{**small, **sizes, "game": game, "run_dir": folder, **changes})


def without_times(path: Path) -> list[Any]:
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return [{**row, "wall_s": None} for row in rows]


def trained(settings: RunConfig, progress: Progress) -> Path:
    """A run that goes on where the pre-flight of a random model refuses it."""
    try:
        return train(settings, progress=progress).path
    except PreflightError:
        assert settings.run.dir is not None
        return resume(settings.run.dir, progress=progress).path


@pytest.mark.parametrize("game", ["agon", "sqlm", {"name": "pasodoble", "mode": "offline"}])
def test_the_run_is_the_same_with_it_and_without(tmp_path: Path, game: Any):
    settings: dict[str, Any] = {"tasks": "arithmetic"}
    if game == "agon":
        settings = {"eval": {"tasks": "letters", "limit": 3}, "roles": {"*": {"beta": 0.1}}}
    if isinstance(game, dict):
        (tmp_path / "notes.jsonl").write_text('{"text": "Two and two are four."}\n' * 3)
        settings["knowledge"] = str(tmp_path / "notes.jsonl")
    looked = trained(config(tmp_path / "looked", game, **settings), Ear())
    plain = trained(config(tmp_path / "plain", game, **settings, preflight=False), Ear())
    assert (looked / PREFLIGHT).is_file()
    assert not (plain / PREFLIGHT).exists()
    assert without_times(looked) == without_times(plain)
    assert (looked / "episodes.jsonl").read_bytes() == (plain / "episodes.jsonl").read_bytes()
    for name in ("optimizer.safetensors", "state.json", "adapters/A/adapter_model.safetensors"):
        last = Path("checkpoints", "step-2", name)
        if (plain / last).exists():
            assert (looked / last).read_bytes() == (plain / last).read_bytes()


def test_it_says_what_to_expect_and_why_shows_it(tmp_path: Path):
    ear = Ear()
    run = train(config(tmp_path / "run"), progress=ear)
    found = json.loads((run.path / PREFLIGHT).read_text())
    said = "\n".join(ear.said)
    assert found["samples"] == 16
    assert found["seconds"] < 60
    assert found["streams"]["drafter"]["groups"] == 2
    assert "pre-flight: 16 completions, 2 problems in groups of 4, in " in said
    assert "groups with variance" in said
    assert "GB (resident memory)" in said
    assert 0 < found["fit"]["used"] < found["fit"]["of"]
    assert f"2 of them about {'0:' if found['step_s'] < 25 else ''}" in said
    assert list(diagnose(run.path).preflight) == found["lines"]
    assert all(line in ear.said for line in found["lines"])


def test_a_run_that_cannot_learn_is_refused_and_goes_on_where_that_is_wanted(tmp_path: Path, call: Callable[..., Any]):
    flags = "--model tiny --precision fp32 --tasks arithmetic --steps 1 --max-completion-tokens 4 --preflight"
    sizes = "--group-size 4 --problems-per-step 2 --run-dir run"
    ended = call("train", "agon", *flags.split(), *sizes.split())
    assert ended.code == 2
    assert "each of 16 completions was cut off at the token limit" in ended.err
    assert "--config run/config.yaml --max-completion-tokens 8" in ended.err
    assert "lite-selfplay train --resume run, or --no-preflight" in ended.err
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
    told = call("why", "run")
    assert told.code == 0
    assert "agon on tiny, before its first step:" in told.out
    assert "! The run was refused: each of 16 completions" in told.out
    assert json.loads(call("why", "run", "--json").out)["steps"] is None
    assert call("why", "run", "--step", "1").code == 2
    gone_on = call("train", "--resume", "run")
    assert gone_on.code == 0
    assert "pre-flight" not in gone_on.out
    assert "before the first step:" in call("why", "run").out


@pytest.mark.parametrize("content", ["[]", "{}", '{"lines": 3, "findings": [], "refused": ""}', '{"lines": ["a"]}'])
def test_a_file_that_is_none_of_its_own_is_an_error(tmp_path: Path, content: str):
    (tmp_path / "config.yaml").write_text("game: agon\nmodel: tiny\n")
    (tmp_path / PREFLIGHT).write_text(content)
    with pytest.raises(RunFolderError):
        diagnose(tmp_path)


# What is refused


def stream(**values: Any) -> dict[str, Any]:
    plain = {"seat": "A", "completions": 8, "accuracy": 0.0, "well_formed": 0.0, "tokens_mean": 9.0, "truncated": 0.5}
    return {**plain, "groups": 2, "zero_variance_groups": 2, **values}


CAUSES = [
    Cause("truncation", "wrong", "", next="train --max-completion-tokens 80"),
    Cause("format", "wrong", "", next="train --cold-start"),
]


@pytest.mark.parametrize(
    ("streams", "flag"),
    [
        ([stream(), stream()], "--cold-start"),
        ([stream(truncated=1.0), stream(truncated=1.0)], "--max-completion-tokens 80"),
        ([stream(truncated=1.0, accuracy=0.5)], "--max-completion-tokens 80"),
        ([stream(accuracy=0.1), stream()], ""),
        ([stream(well_formed=0.1), stream()], ""),
        ([stream(zero_variance_groups=1), stream()], ""),
        ([stream(accuracy=1.0, well_formed=1.0)], ""),  # too easy, which is only doubtful
        ([stream(completions=4)], ""),  # too few to say
        ([{**stream(accuracy=None, well_formed=None), "groups": 0}], ""),  # nobody judged
        ([], ""),
    ],
)
def test_what_is_refused(streams: list[dict[str, Any]], flag: str):
    found = Preflight(1.0, 4, 2, {str(i): each for i, each in enumerate(streams)}, None, None, 2)
    refused = looking._refusal(found, CAUSES)
    assert bool(refused) == bool(flag)
    assert flag in refused


def test_a_refusal_says_how_sure_it_is():
    found = Preflight(1.0, 4, 2, {"a": stream(), "b": stream()}, None, None, 2)
    assert "none of 16 completions was right or well-formed (with 95% confidence at most 21% are)" in looking._refusal(
        found, CAUSES
    )


@pytest.mark.parametrize(
    ("model", "asked", "expected"),
    [("tiny", None, False), (" Tiny", None, False), ("tiny", True, True), ("smollm2-135m", None, True)],
)
def test_it_is_for_bases_that_are_not_random(model: str, asked: bool | None, expected: bool):
    settings = RunConfig(game="agon", model=model, run={"preflight": asked})
    assert wanted(settings) is expected
    assert not wanted(RunConfig.of(settings.chosen(), {"run": {"preflight": False}}))


# Time and memory


def test_it_ends_in_time_and_the_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(looking, "SECONDS", 0.0)
    ear = Ear()
    run = train(config(tmp_path / "run", steps=1), progress=ear)
    assert any("nor could the speed of sampling be measured" in line for line in ear.said)
    assert len(run.metrics_rows()) == 1


def test_a_poll_ends_what_takes_too_long():
    poll = Poll(Progress())
    with pytest.raises(OutOfTime), poll.within(0.0):
        poll()
    poll()
    with poll.within(100.0):
        poll()


def test_less_at_once_is_tried_where_memory_runs_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    real, tried = SelfPlayTrainer.rehearse, list[int]()

    def rehearse(self: SelfPlayTrainer, micro: Any) -> None:
        tried.append(micro.batch.cost)
        if len(tried) == 1:
            raise MemoryError
        real(self, micro)

    monkeypatch.setattr(SelfPlayTrainer, "rehearse", rehearse)
    ear = Ear()
    train(config(tmp_path / "run", steps=1), progress=ear)
    assert tried[1] < tried[0]  # one row at the least
    assert any("tokens at once do not fit into memory; a microbatch of" in line for line in ear.said)
    assert any("pre-flight: Memory is short" in line and "run.microbatch_tokens=" in line for line in ear.warned)


def test_a_row_that_does_not_fit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def rehearse(self: SelfPlayTrainer, micro: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(SelfPlayTrainer, "rehearse", rehearse)
    with pytest.raises(PreflightError, match=r"one completion of .* does not fit into memory: lower --max-completion"):
        train(config(tmp_path / "run", steps=1))


def test_memory_is_that_of_the_machine_or_of_its_container(tmp_path: Path):
    bound, gone = tmp_path / "memory.max", tmp_path / "gone"
    bound.write_text("1000\n")
    assert machine_memory(bound) == 1000
    bound.write_text("max\n")
    assert machine_memory(bound) == machine_memory(gone) > 10**8
    used, of, _ = fitting.peak(torch.device("cpu"))
    assert 10**7 < used < of


def test_on_a_card_counts_what_others_hold_there(monkeypatch: pytest.MonkeyPatch):
    for name, value in {
        "mem_get_info": (4, 15),
        "memory_reserved": 8,
        "max_memory_reserved": 9,
        "get_device_name": "Tesla T4",
    }.items():
        monkeypatch.setattr(torch.cuda, name, lambda device, value=value: value)
    assert fitting.peak(torch.device("cuda")) == (12, 15, "Tesla T4")  # 9 at the peak, and 3 of others


def test_a_fit_in_a_sentence():
    fit = Fit("drafter", 1280, 2.0, 11_200_000_000, 15_000_000_000, "Tesla T4")
    assert fit.line() == "the largest microbatch, 1,280 tokens of the drafter, fits: 11.2 of 15.0 GB (Tesla T4)"


# Playing in small


def test_a_small_game_samples_no_more_than_it_may():
    settings = RunConfig(game="agon", model="tiny", group_size=8, problems_per_step=4)
    assert [small_game(settings, most).rollouts_per_step() for most in (100, 16, 9, 4, 1)] == [32, 16, 8, 4, 4]


def test_a_table_ends_the_game_once_enough_was_said(monkeypatch: pytest.MonkeyPatch):
    def speak(self: Any, seat: str, prompts: Any, n: int, sampling: Any, seeds: Any, *rest: Any) -> Any:
        assert len(seeds) == len(prompts)
        assert {len(row) for row in seeds} <= {n}
        return [[Completion(p, "", (1,), (2,), (), "eos", seat, 0, sampling) for _ in range(n)] for p in prompts]

    monkeypatch.setattr(LiveTable, "speak", speak)
    table = SmallTable.__new__(SmallTable)
    table.most, table.said, table.verdicts, table._role, table._measured = 5, {}, {}, "drafter", []
    assert len(table.speak("A", ["a", "b"], 2, Sampling(), [[1, 2], [3, 4]])) == 2
    with pytest.raises(Enough):
        table.speak("A", ["c", "d"], 3, Sampling(), [[1, 2, 3], [4, 5, 6]])
    assert [c.prompt for c in table.said["drafter"]] == ["a", "a", "b", "b", "c"]
    with pytest.raises(Enough):
        table.speak("A", ["e"], 1, Sampling(), [[1]])


def test_what_it_draws_at_random_is_not_noticed():
    random.seed(3)
    expected = random.random()
    random.seed(3)
    with unnoticed():
        random.random()
    assert random.random() == expected

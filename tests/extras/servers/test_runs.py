"""Whole runs whose completions come from servers: what they write, what ends them, and how they go on."""

import contextlib
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from lite_selfplay import RunConfig, resume, train
from lite_selfplay.errors import ConfigError, LiteSelfPlayError, RequestError, RolloutsLost, TrainingError
from lite_selfplay.runs.api import Run, cold_start
from lite_selfplay.runs.plan import plan
from lite_selfplay.runs.processes import require_one_run
from lite_selfplay.training.progress import Progress
from lite_selfplay.training.ranks import Ranks

from .conftest import StandIn

SMALL: dict[str, Any] = {
    "game": "agon",
    "model": "tiny",
    "precision": "fp32",
    "tasks": "letters",
    "steps": 4,
    "group_size": 4,
    "problems_per_step": 2,
    "max_completion_tokens": 6,
    "seats": {"*": {"lr": 5e-3, "rank": 4}},
    "run": {"save_every": 1},
}


ROUNDING = 5e-4
"""How far weights may be apart that were taught the same: a server's batches are of other sizes each time, which moves
the last digits, and an update of 5e-3 a weight is Adam's quotient of gradients."""


class Ear(Progress):
    """Remembers what was warned of; after each step `then` is called with its number."""

    def __init__(self, then: Callable[[int], None] = lambda done: None) -> None:
        self.warned: list[str] = []
        self._then = then

    def warn(self, sentence: str) -> None:
        self.warned.append(sentence)

    def step(self, metrics: Any, line: str) -> None:
        self._then(metrics["step"])


def config(folder: Path, servers: list[StandIn] | None = None, **changes: Any) -> RunConfig:
    rollouts = {} if servers is None else {"rollouts": address_of(servers)}
    return RunConfig(**{**SMALL, "run_dir": folder, **rollouts, **changes})


def address_of(servers: list[StandIn]) -> str:
    return ",".join(server.address for server in servers)


def played(run: Run) -> list[tuple[Any, ...]]:
    """What was said, in order."""
    return [(row["step"], row["role"], row["group"], row["text"]) for row in run.episodes()]


def require_whole(run: Run, steps: int = 4) -> None:
    """Every completion of every step is there once: 16 a step, 4 to each of 2 problems, by two roles."""
    rows = run.episodes()
    assert [row["step"] for row in run.metrics_rows()] == list(range(1, steps + 1))
    for step in range(1, steps + 1):
        own = [row for row in rows if row["step"] == step]
        assert {role: sum(row["role"] == role for row in own) for role in ("drafter", "challenger")} == {
            "drafter": 8,
            "challenger": 8,
        }
    for row in run.metrics_rows():
        assert not row.get("nonfinite_what")
        for stream in row["streams"].values():
            assert stream["completions"] == 8
            assert stream["sampler_gap"] is None or stream["sampler_gap"] < 1e-5


def distance(one: Run, other: Run) -> float:
    """The largest difference between the seats of two runs."""
    return max(
        float((value - theirs[key]).abs().max())
        for seat, folder in one.seats.items()
        for theirs in [load_file(other.seats[seat] / "adapter_model.safetensors")]
        for key, value in load_file(folder / "adapter_model.safetensors").items()
    )


@pytest.fixture(scope="module")
def whole(started: list[StandIn], tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that nothing happens to."""
    return train(config(tmp_path_factory.mktemp("whole") / "run", started))


def test_a_run_on_servers_is_written_as_one_without(servers: list[StandIn], whole: Run, tmp_path: Path):
    here = train(config(tmp_path / "here"))
    require_whole(whole)
    for own, theirs in zip(whole.metrics_rows(), here.metrics_rows(), strict=True):
        assert own.keys() == theirs.keys()
        assert {k: v.keys() for k, v in own["streams"].items()} == {k: v.keys() for k, v in theirs["streams"].items()}
    assert [row.keys() for row in whole.episodes()] == [row.keys() for row in here.episodes()]
    # A ratio to what the server noted, at which nothing is clipped, in place of none.
    clipped = [s["clipped"] for row in whole.metrics_rows() for s in row["streams"].values() if s["rows_trained"]]
    assert clipped
    assert set(clipped) == {0.0}
    assert json.loads((whole.path / "environment.json").read_text())["rollouts"] == [s.address for s in servers]
    assert not (whole.path / "rollouts").exists()


def test_the_same_command_gives_the_same_run_where_servers_repeat_themselves(
    servers: list[StandIn], whole: Run, tmp_path: Path
):
    again = train(config(tmp_path / "again", servers))
    assert played(again) == played(whole)
    assert distance(again, whole) < ROUNDING


def test_nothing_is_lost_or_learned_from_twice(servers: list[StandIn], whole: Run, tmp_path: Path):
    kinds = {1: ("drop", "json"), 2: ("status", "vocabulary"), 3: ("restart", "lengths")}

    def fail(done: int) -> None:
        for server, kind in zip(servers, kinds.get(done, ()), strict=False):
            server.fault(kind, 3, status=500)

    run = train(config(tmp_path / "run", servers), progress=Ear(fail))
    require_whole(run)
    assert played(run) == played(whole)
    assert distance(run, whole) < ROUNDING


def test_a_stale_adapter_trains_nothing_and_ends_the_run(servers: list[StandIn], tmp_path: Path):
    def stale(done: int) -> None:
        if done == 1:
            for server in servers:
                server.fault("stale")

    patience = {"save_every": 1, "max_bad_steps": 1}
    with pytest.raises(TrainingError, match="come from other weights than it trains") as ended:
        train(config(tmp_path / "run", servers, run=patience), progress=Ear(stale))
    assert re.search("seat [AB] before its last update|those of the base", str(ended.value))
    assert "--rollouts http://" in str(ended.value), "the command to go on"
    *whole, skipped = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert not any(row.get("sampler_what") for row in whole)
    assert skipped["sampler_what"]
    assert not any(stream["rows_trained"] for stream in skipped["streams"].values())
    for server in servers:
        server.start()
    require_whole(resume(tmp_path / "run", rollouts=address_of(servers)))


def test_a_run_that_loses_all_servers_is_saved_and_goes_on(servers: list[StandIn], whole: Run, tmp_path: Path):
    def lose(done: int) -> None:
        if done == 2:
            for server in servers:
                server.fault("status", status=503)

    with pytest.raises(RolloutsLost, match="no server of rollouts is left") as ended:
        train(config(tmp_path / "run", servers), progress=Ear(lose))
    assert ended.value.exit_code == 1
    command = f"Go on with: lite-selfplay train --resume {tmp_path / 'run'} --rollouts {address_of(servers)}"
    assert f"saved before step 3. {command}" in str(ended.value)
    with pytest.raises(ConfigError, match=f"give --rollouts {address_of(servers)} again, or others, or none"):
        resume(tmp_path / "run")
    for server in servers:
        server.start()
    run = resume(tmp_path / "run", rollouts=address_of(servers[1:]))
    require_whole(run)
    assert played(run) == played(whole)
    assert distance(run, whole) < ROUNDING
    assert run.config.rollouts.servers == (servers[1].address,)


def test_one_server_of_two_is_lost_and_the_run_goes_on(servers: list[StandIn], whole: Run, tmp_path: Path):
    ear = Ear(lambda done: servers[0].start(dead=done >= 1))
    run = train(config(tmp_path / "run", servers), progress=ear)
    require_whole(run)
    assert played(run) == played(whole)
    (warning,) = [sentence for sentence in ear.warned if sentence.startswith("rollouts: ")]
    assert warning.startswith(f"rollouts: {servers[0].address} cannot be reached, or did not answer")


def test_servers_that_hold_another_base_train_nothing(servers: list[StandIn], tmp_path: Path):
    for server in servers:
        server.start(other_weights=True)
    with pytest.raises(TrainingError, match=r"do not agree on the base's own completions.* --rollouts hold this base"):
        train(config(tmp_path / "run", servers))
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_log_probabilities_before_the_temperature_train_nothing(servers: list[StandIn], tmp_path: Path):
    for server in servers:
        server.start(raw=True)
    cold = {"roles": {"*": {"temperature": 0.5}}, "run": {"save_every": 1, "max_bad_steps": 1}}
    with pytest.raises(TrainingError, match=r"do not come from the weights it trains.*--logprobs-mode"):
        train(config(tmp_path / "run", servers, **cold))


def test_a_run_goes_on_without_servers(servers: list[StandIn], tmp_path: Path):
    train(config(tmp_path / "run", servers, steps=1))
    before = len(servers[0].log)
    run = resume(tmp_path / "run", steps=4, rollouts="none")
    require_whole(run)
    assert len(servers[0].log) == before


def test_several_updates_of_a_step_have_their_ratio_to_the_server(servers: list[StandIn], tmp_path: Path):
    varied = f"{Path(__file__).parents[2] / 'varied_reward.py'}:varied"
    run = train(config(tmp_path / "run", servers, run={"minibatches": 2, "reward": varied}))
    require_whole(run)
    assert any(s["clipped"] for row in run.metrics_rows() for s in row["streams"].values())


def test_cold_start_and_evaluation_are_sampled_there(servers: list[StandIn], tmp_path: Path):
    taught = {"cold_start": {"source": "self", "tasks": "letters", "steps": 1, "rounds": 1, "examples_per_step": 2}}
    settings = config(tmp_path / "run", servers, eval_tasks="letters", eval_limit=2, **taught)
    with contextlib.suppress(LiteSelfPlayError):  # a random model gets nothing right that could be taught
        cold_start(settings)
    asked = [body["model"] for server in servers for body in server.asked("/v1/completions")]
    assert asked.count("the-base") > 2 * 4 + 2  # more than what is compared at the start, and evaluated


@pytest.mark.long
def test_a_killed_run_goes_on_from_its_checkpoint(servers: list[StandIn], whole: Run, tmp_path: Path):
    flags = ["--rollouts", address_of(servers), "--config", str(whole.path / "config.yaml"), "--run-dir"]
    command = [sys.executable, "-m", "lite_selfplay_cli", "train", *flags, str(tmp_path / "run")]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        lines = tmp_path / "run" / "metrics.jsonl"
        until = time.monotonic() + 240
        while time.monotonic() < until and not (lines.is_file() and lines.read_text().count("\n") >= 1):
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
    run = resume(tmp_path / "run", rollouts=address_of(servers))
    require_whole(run)
    assert played(run) == played(whole)
    assert distance(run, whole) < ROUNDING
    assert not (run.path / "rollouts").exists()


# What is refused


def test_what_does_not_go_together(tmp_path: Path):
    fast = {"name": "tiny", "precision": "bf16", "fast_inference": True}
    both = RunConfig(game="agon", tasks="letters", model=fast, rollouts="http://here:1")
    with pytest.raises(ConfigError, match=r"rollouts\.servers and model\.fast_inference both say what samples"):
        plan(both)
    with pytest.raises(ConfigError, match=r"works with the transformers backend, and model.backend is unsloth"):
        plan(config(tmp_path / "run", rollouts="http://here:1", backend="unsloth"))
    ready = plan(config(tmp_path / "run", rollouts="http://here:1"))
    assert ready.config.model.backend == "transformers"
    assert "samplers: http://here:1" in ready.lines()
    with pytest.raises(RequestError, match="--rollouts is for one process, and there are 2"):
        require_one_run(Ranks(0, 2), ready)


def test_a_temperature_of_an_evaluation_is_refused_before_anything_is_written(tmp_path: Path):
    with pytest.raises(RequestError, match=r"from 0\.01 to 2, and 3 is asked for"):
        train(config(tmp_path / "run", rollouts="http://127.0.0.1:9", eval={"temperature": 3}))
    assert not (tmp_path / "run").exists()


def test_a_server_that_is_not_there_leaves_nothing_behind(tmp_path: Path):
    with pytest.raises(RequestError, match=r"http://127.0.0.1:9 cannot be reached"):
        train(config(tmp_path / "run", rollouts="http://127.0.0.1:9"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("servers", "found"),
    [
        ("http://a:8000", ("http://a:8000",)),
        ("http://a:8000/v1/, https://b/x/", ("http://a:8000", "https://b/x")),
        (["http://[::1]:80"], ("http://[::1]:80",)),
        ("none", ()),
        ([], ()),
    ],
)
def test_addresses(servers: Any, found: tuple[str, ...], tmp_path: Path):
    assert config(tmp_path, rollouts={"servers": servers}).rollouts.servers == found


@pytest.mark.parametrize(
    "address",
    ["", "a:8000", "ftp://a", "http://", "http://a:99999", "http://a b", "http://u:p@a", "http://a?x=1", "http://a,,"],
)
def test_what_is_no_address(address: str, tmp_path: Path):
    with pytest.raises(ConfigError, match=r"rollouts\.servers: should "):
        config(tmp_path, rollouts=address)


def test_a_server_is_named_once(tmp_path: Path):
    with pytest.raises(ConfigError, match="should name each server once"):
        config(tmp_path, rollouts="http://a,http://a/v1")

"""Whole runs whose completions come from servers: what they write, what ends them, and how they go on."""

import contextlib
import json
import re
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lite_selfplay import RunConfig, resume, train
from lite_selfplay.errors import ConfigError, LiteSelfPlayError, RequestError, RolloutsLost, TrainingError
from lite_selfplay.runs.api import Run, cold_start
from lite_selfplay.runs.build import require_one_run
from lite_selfplay.runs.planning import plan
from lite_selfplay.training.ranks import Ranks
from tests import made_runs

from .conftest import StandIn

SIZES = {"steps": 4, "group_size": 4, "problems_per_step": 2, "max_completion_tokens": 6}
SEATS = {"seats": {"*": {"lr": 5e-3, "rank": 4}}, "run": {"save_every": 1}}
SMALL: dict[str, Any] = {"game": "agon", "model": "tiny", "precision": "fp32", "tasks": "letters", **SIZES, **SEATS}

ROUNDING = 5e-4
"""How far weights may be apart that were taught the same: a server's batches are of other sizes each time, which moves
the last digits, and an update of 5e-3 a weight is Adam's quotient of gradients."""


class Ear(made_runs.Ear):
    """After each step `then` is called with its number."""

    def __init__(self, then: Callable[[int], None] = lambda done: None) -> None:
        super().__init__()
        self._then = then

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
    rows = run.metrics_rows()
    assert [row["step"] for row in rows] == list(range(1, steps + 1))
    said = Counter((row["step"], row["role"]) for row in run.episodes())
    assert said == {(step, role): 8 for step in range(1, steps + 1) for role in ("drafter", "challenger")}
    assert not any(row.get("nonfinite_what") for row in rows)
    for stream in (stream for row in rows for stream in row["streams"].values()):
        assert (stream["completions"], (stream["sampler_gap"] or 0.0) < 1e-5) == (8, True)


def distance(one: Run, other: Run) -> float:
    """The largest difference between the seats of two runs."""
    pairs = [tuple(made_runs.seat_weights(run.path, seat) for run in (one, other)) for seat in one.seats]
    return max(float((own[key] - theirs[key]).abs().max()) for own, theirs in pairs for key in own)


@pytest.fixture(scope="module")
def whole(started: list[StandIn], tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that nothing happens to."""
    return train(config(tmp_path_factory.mktemp("whole") / "run", started))


def test_a_run_on_servers_is_written_as_one_without(servers: list[StandIn], whole: Run, tmp_path: Path):
    here = train(config(tmp_path / "here", steps=1))
    require_whole(whole)
    for own, theirs in zip(whole.metrics_rows(), here.metrics_rows(), strict=False):
        assert own.keys() == theirs.keys()
        assert {k: v.keys() for k, v in own["streams"].items()} == {k: v.keys() for k, v in theirs["streams"].items()}
    assert [row.keys() for row in whole.episodes()][:16] == [row.keys() for row in here.episodes()]
    # A ratio to what the server noted, at which nothing is clipped, in place of none.
    streams = [stream for row in whole.metrics_rows() for stream in row["streams"].values()]
    assert {stream["clipped"] for stream in streams if stream["rows_trained"]} == {0.0}
    assert json.loads((whole.path / "environment.json").read_text())["rollouts"] == [s.address for s in servers]
    assert not (whole.path / "rollouts").exists()


def test_nothing_is_lost_or_learned_from_twice(servers: list[StandIn], whole: Run, tmp_path: Path):
    """Where answers are odd, a server is started anew, and in the end one of the two is lost."""
    kinds = {1: ("drop", "json"), 2: ("status", "restart")}

    def fail(done: int) -> None:
        for server, kind in zip(servers, kinds.get(done, ()), strict=False):
            server.fault(kind, 3, status=500)
        if done == 3:
            servers[0].start(dead=True)

    ear = Ear(fail)
    run = train(config(tmp_path / "run", servers), progress=ear)
    require_whole(run)
    assert played(run) == played(whole)
    assert distance(run, whole) < ROUNDING
    *_, warning = (sentence for sentence in ear.warned if sentence.startswith("rollouts: "))
    assert warning.startswith(f"rollouts: {servers[0].address} cannot be reached, or did not answer")


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
    *whole, skipped = made_runs.read_lines(tmp_path / "run" / "metrics.jsonl")
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

    with pytest.raises(RolloutsLost, match="no rollout server is left") as ended:
        train(config(tmp_path / "run", servers), progress=Ear(lose))
    assert ended.value.exit_code == 1
    command = f"Continue with: lite-selfplay train --resume {tmp_path / 'run'} --rollouts {address_of(servers)}"
    assert f"saved before step 3. {command}" in str(ended.value)
    with pytest.raises(ConfigError, match=f"repeat --rollouts {address_of(servers)}, or give other servers"):
        resume(tmp_path / "run")
    for server in servers:
        server.start()
    run = resume(tmp_path / "run", rollouts=address_of(servers[1:]))
    require_whole(run)
    assert played(run) == played(whole)
    assert distance(run, whole) < ROUNDING
    assert run.config.rollouts.servers == (servers[1].address,)


@pytest.mark.parametrize(
    ("start", "changes", "sentence"),
    [
        ({"other_weights": True}, {}, r"do not agree on the base's own completions.* --rollouts hold this base"),
        (
            {"raw": True},  # log-probabilities before the temperature
            {"roles": {"*": {"temperature": 0.5}}, "run": {"save_every": 1, "max_bad_steps": 1}},
            r"do not come from the weights it trains.*--logprobs-mode",
        ),
    ],
)
def test_servers_that_do_not_say_what_the_weights_do_train_nothing(
    servers: list[StandIn], tmp_path: Path, start: dict[str, bool], changes: dict[str, Any], sentence: str
):
    for server in servers:
        server.start(**start)
    with pytest.raises(TrainingError, match=sentence):
        train(config(tmp_path / "run", servers, **changes))
    assert (tmp_path / "run" / "metrics.jsonl").exists() == ("raw" in start)


def test_a_run_goes_on_without_servers(servers: list[StandIn], tmp_path: Path):
    train(config(tmp_path / "run", servers, steps=1))
    before = len(servers[0].log)
    require_whole(resume(tmp_path / "run", steps=2, rollouts="none"), 2)
    assert len(servers[0].log) == before


def test_several_updates_of_a_step_have_their_ratio_to_the_server(servers: list[StandIn], tmp_path: Path):
    varied = f"{Path(__file__).parents[2] / 'varied_reward.py'}:varied"
    run = train(config(tmp_path / "run", servers, steps=2, run={"minibatches": 2, "reward": varied}))
    require_whole(run, 2)
    assert any(s["clipped"] for row in run.metrics_rows() for s in row["streams"].values())


def test_cold_start_and_evaluation_are_sampled_there(servers: list[StandIn], tmp_path: Path):
    taught = {"cold_start": {"source": "self", "tasks": "letters", "steps": 1, "rounds": 1, "examples_per_step": 2}}
    settings = config(tmp_path / "run", servers, eval_tasks="letters", eval_limit=2, **taught)
    with contextlib.suppress(LiteSelfPlayError):  # a random model gets nothing right that could be taught
        cold_start(settings)
    asked = [body["model"] for server in servers for body in server.completions]
    assert asked.count("the-base") > 2 * 4 + 2  # more than what is compared at the start, and evaluated


def test_what_does_not_go_together(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"works with the transformers backend, and model.backend is unsloth"):
        plan(config(tmp_path / "run", rollouts="http://here:1", backend="unsloth"))
    ready = plan(config(tmp_path / "run", rollouts="http://here:1"))
    assert ready.config.model.backend == "transformers"
    assert "samplers: http://here:1" in ready.lines()
    with pytest.raises(RequestError, match="--rollouts is for one process, and there are 2"):
        require_one_run(Ranks(0, 2), ready)


def test_what_is_refused_before_anything_is_written(tmp_path: Path):
    hot = {"eval": {"temperature": 3}}
    for changes, sentence in ((hot, r"from 0\.01 to 2, and 3 is asked for"), ({}, "127.0.0.1:9 cannot be reached")):
        with pytest.raises(RequestError, match=sentence):
            train(config(tmp_path / "run", rollouts="http://127.0.0.1:9", **changes))
    assert list(tmp_path.iterdir()) == []


def test_addresses(tmp_path: Path):
    two, six = ("http://a:8000", "https://b/x"), ("http://[::1]:80",)
    for servers, found in (("http://a:8000/v1/, https://b/x/", two), (list(six), six), ("none", ())):
        assert config(tmp_path, rollouts={"servers": servers}).rollouts.servers == found
    unusable = ["", "a:8000", "ftp://a", "http://", "http://a:99999", "http://a b", "http://u:p@a", "http://a?x=1"]
    for servers in (*unusable, "http://a,,", "http://a,http://a/v1"):
        with pytest.raises(ConfigError, match=r"rollouts\.servers: should "):
            config(tmp_path, rollouts=servers)


def test_adapters_are_written_elsewhere_only_for_a_run_made_here(servers: list[StandIn], tmp_path: Path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    shared, address = tmp_path / "shared", address_of(servers)
    path = train(config(tmp_path / "run", servers, steps=1, rollouts={"servers": address, "folder": str(shared)})).path
    copy = Path(shutil.copytree(path, tmp_path / "copy"))
    require_whole(resume(path, steps=2, rollouts=address), 2)
    with pytest.raises(ConfigError, match=f"copy/config.yaml sets rollouts.folder, .*: {shared}"):
        resume(copy, steps=2, rollouts=address)
    require_whole(resume(copy, steps=2, rollouts={"servers": address, "folder": str(tmp_path / "own")}), 2)
    assert (tmp_path / "own").is_dir()

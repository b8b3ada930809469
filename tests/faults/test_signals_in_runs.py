"""SIGINT, SIGTERM and SIGHUP in every phase of a real run: how soon it leaves, its exit code, and that it goes on."""

import math
import random
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from tests.runs_in_processes import STOPPED

from .conftest import STEPS, only_long
from .test_kills import reproduced

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
LATENCY_S = 10.0
WHERE = ("starting", "loading", "cold start", "evaluation", "generation", "update", "saving", "a resumed run")
LATER_S = 0.02
"""A signal comes up to so long after its phase has begun."""


@dataclass
class Stop:
    """A signal that was answered: where it was aimed, the phase it met, and the seconds until the process was gone."""

    where: str
    met: str
    seconds: float


def stop(lab: Any, where: str, number: signal.Signals, rng: random.Random) -> Stop:
    """Send a run a signal in a phase, see it leave, resume it, and compare it with the untouched one."""
    if where == "a resumed run":
        run = lab.stopped(lab.new(), generation=2)
        process = lab.resume(run)
        process.until_begun("starting")
        time.sleep(rng.uniform(0, lab.seconds / 2))
    else:
        run = lab.new()
        process = lab.train(run)
        times = rng.randint(1, lab.begun[where])
        assert process.until(lambda page: page.begun(where) >= times and page.phase == where)
        time.sleep(rng.uniform(0, LATER_S))
    # A signal after the last poll, which the closing evaluation makes, finds nothing to stop.
    metrics = run / "metrics.jsonl"
    over = metrics.is_file() and metrics.read_bytes().count(b"\n") == STEPS
    met, sent = process.page.phase, process.send(number)
    ended = process.wait()
    assert ended.code == STOPPED or (over and ended.code in (0, -number)), f"{number.name} in {met}: {ended.said}"
    assert "Traceback" not in ended.said or met == "leaving", ended.said
    assert not over or "nothing was saved" not in ended.said, ended.said
    again = lab.went_on(run)
    if again is None:
        assert met in ("starting", "loading", "cold start", "evaluation")
    else:
        assert again.code == 0, f"after {number.name} in {met}: {ended.said}\n{again.said}"
        assert lab.differences(run) == [], f"after {number.name} in {met}"
        if met in ("generation", "update", "saving"):
            assert f"Continue with: lite-selfplay train --resume {run}" in ended.said.splitlines()[-1]
    shutil.rmtree(run, ignore_errors=True)
    return Stop(where, met, ended.at - sent)


@pytest.mark.parametrize(
    "number",
    [SIGNALS[0], *(pytest.param(number, marks=only_long) for number in SIGNALS[1:])],
    ids=lambda number: number.name,
)
def test_a_signal_in_each_phase_saves_and_leaves(
    lab: Any, number: signal.Signals, count: int, show: Callable[..., None]
):
    rng = random.Random(number)
    times = max(1, math.ceil(count / (len(WHERE) * len(SIGNALS))))
    stops = [stop(lab, where, number, rng) for where in (WHERE if count else ("saving",)) for _ in range(times)]
    if count:
        show(f"{number.name}: seconds from the signal until the process was gone", rows(stops))
    assert max(one.seconds for one in stops) < LATENCY_S


PLACES = 12
"""Of a cold start, and of a save."""
EXPERIMENT = """
{about: Two arms., source: nowhere, paper: another model, base: {model: tiny, tasks: letters, steps: 1, save_every: 1},
 cold_start: {source: taught.jsonl, steps: 12, examples_per_step: 2}, evaluations: [{tasks: letters, limit: 2}],
 seeds: [0], arms: {one: {game: grpo}, taught: {start: cold-start}}}
"""


def places(count: int) -> list[int]:
    return list(range(1, PLACES + 1)) if count else [PLACES // 2]


def in_cold_start(process: Any, place: int) -> None:
    """Send a run SIGTERM at one of the places of its cold start, whose updates are its first."""
    assert process.until_begun("update", place)
    process.send(signal.SIGTERM)


@pytest.mark.parametrize("where", ["cold start", "saving"])
def test_a_signal_at_every_place_of_a_cold_start_and_of_a_save(lab: Any, where: str, count: int):
    for place in places(count):
        run = lab.new()
        if where == "saving":
            process = lab.train(run, fault="signal", phase=where, at=place)
        else:
            process = lab.train(run)
            in_cold_start(process, 1 + place // 4)
            time.sleep(place % 4 * LATER_S / 4)
        ended = process.wait()
        assert ended.code in (STOPPED, 0), ended.said
        if where == "cold start" and list(run.glob("checkpoints/step-0")):
            refused = lab.run("eval", run, "--tasks", "letters", "--limit", 2)
            assert (refused.code, "was stopped in its cold start" in refused.said) == (2, True), refused.said
        again = lab.went_on(run)
        assert again is None or again.code == 0, again.said
        assert again is None or lab.differences(run) == [], f"after a signal at place {place} of {where}"
        shutil.rmtree(run, ignore_errors=True)


@pytest.mark.parametrize("where", ["cold start", "saving"])
def test_a_signal_at_every_place_of_an_experiment_and_the_same_command_again(lab: Any, where: str, count: int):
    (lab.place / "two.yaml").write_text(EXPERIMENT)
    whole = lab.new()
    ended = lab.run("reproduce", "two.yaml", "--out", whole)
    assert ended.code == 0, ended.said
    for place in places(count):
        out = lab.new()
        fault = {"fault": "signal", "phase": where, "at": place} if where == "saving" else {}
        process = lab.start("reproduce", "two.yaml", "--out", out, watched=out, **fault)
        if where == "cold start":
            in_cold_start(process, place)
        ended = process.wait()
        assert ended.code == STOPPED, ended.said
        assert f"the same command continues {out}" in ended.said
        ended = lab.run("reproduce", "two.yaml", "--out", out)
        assert ended.code == 0, ended.said
        assert reproduced(out) == reproduced(whole), f"after a signal at place {place} of {where}"
        shutil.rmtree(out)


def rows(stops: list[Stop]) -> list[list[object]]:
    lines: list[list[object]] = [["sent in", "signals", "median", "90%", "99%", "longest"]]
    for where in (*WHERE, "all"):
        seconds = sorted(one.seconds for one in stops if where in (one.where, "all"))
        ranks = [seconds[min(len(seconds) - 1, int(share * len(seconds)))] for share in (0.5, 0.9, 0.99, 1)]
        lines.append([where, len(seconds), *(f"{value:.3f} s" for value in ranks)])
    return lines

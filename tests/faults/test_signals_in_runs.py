"""SIGINT, SIGTERM and SIGHUP in every phase of a real run: how soon it leaves, its exit code, and that it goes on."""

import random
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from tests.runs_in_processes import STOPPED

from .conftest import only_long

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
    met, sent = process.page.phase, process.send(number)
    ended = process.wait()
    assert ended.code == STOPPED or (ended.code == 0 and met == "leaving"), f"{number.name} in {met}: {ended.said}"
    assert "Traceback" not in ended.said or met == "leaving", ended.said
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
    [signal.SIGTERM, *(pytest.param(number, marks=only_long) for number in (signal.SIGINT, signal.SIGHUP))],
    ids=lambda number: number.name,
)
def test_a_signal_in_each_phase_saves_and_leaves(
    lab: Any, number: signal.Signals, count: int, show: Callable[..., None]
):
    rng = random.Random(number)
    times = max(1, count // 40)
    stops = [stop(lab, where, number, rng) for where in (WHERE if count else ("saving",)) for _ in range(times)]
    if count:
        show(f"{number.name}: seconds from the signal until the process was gone", rows(stops))
    assert max(one.seconds for one in stops) < LATENCY_S


def rows(stops: list[Stop]) -> list[list[object]]:
    lines: list[list[object]] = [["sent in", "signals", "median", "90%", "99%", "longest"]]
    for where in (*WHERE, "all"):
        seconds = sorted(one.seconds for one in stops if where in (one.where, "all"))
        ranks = [seconds[min(len(seconds) - 1, int(share * len(seconds)))] for share in (0.5, 0.9, 0.99, 1)]
        lines.append([where, len(seconds), *(f"{value:.3f} s" for value in ranks)])
    return lines

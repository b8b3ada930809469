"""A run that is killed, at any moment and however often, and resumed, ends as the one that nobody touched."""

import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lite_selfplay.stats import clopper_pearson

from .conftest import NO_CHECKPOINT

KILLED = -signal.SIGKILL
AIMS = ("any moment", "a file operation", "a save", "a phase")
AGAIN = 0.6
"""How often a resumed run is killed, too."""
SOON_S = 0.03
"""About as long as a save takes; kills aimed at one, or at a phase, come so soon after its beginning."""
FRESH = 10
"""Kills of processes that were not forked from one that had imported everything."""


def kill(lab: Any, start: Callable[..., Any], run: Path, aim: str, rng: random.Random) -> Any:
    """Start a process and send it a kill; it may have ended before."""
    if aim == "a file operation":
        process = start(run, fault="kill", at=rng.randint(1, lab.operations))
    else:
        process = start(run)
        if aim == "a save":
            saves = rng.randint(1, lab.begun["saving"])
            aside = run / "checkpoints"
            process.until(lambda: process.begun("saving") >= saves and any(aside.glob(".step-*.partial")))
            time.sleep(rng.uniform(0, SOON_S))
        elif aim == "a phase":
            phase = rng.choice(list(lab.begun))
            times = rng.randint(1, lab.begun[phase])
            process.until(lambda: process.begun(phase) >= times)
            time.sleep(rng.uniform(0, SOON_S))
        else:
            time.sleep(rng.uniform(0, lab.seconds))
        process.send(signal.SIGKILL)
    return process


def survive(lab: Any, aim: str, rng: random.Random) -> tuple[list[str], list[str], list[str]]:
    """Kill a run, possibly again when it is resumed, and let it end.

    Returns the phases of the kills after which it was resumed, of those after which nothing had been saved and it was
    started anew, and what the finished run has otherwise than the untouched one.
    """
    run = lab.new()
    kills, anew = list[str](), list[str]()
    start = lab.train
    while True:
        again = not kills or rng.random() < AGAIN
        process = kill(lab, start, run, aim, rng) if again else start(run)
        ended = process.wait()
        if ended.code == KILLED:
            kills.append(process.phase)
            start, aim = lab.resume, rng.choice(AIMS)
        elif ended.code == 2 and any(sentence in ended.said for sentence in NO_CHECKPOINT):
            anew += kills
            kills, start = [], lab.train
            shutil.rmtree(run, ignore_errors=True)
        else:
            assert ended.code == 0, f"after kills in {', '.join(kills)}: {ended.said}"
            differences = lab.differences(run)
            if not differences:
                shutil.rmtree(run)
            return kills, anew, differences


def test_killed_runs_end_as_the_untouched_one(lab: Any, count: int, rng: random.Random, show: Callable[..., None]):
    tried, survived, anew = Counter[str](), Counter[str](), Counter[str]()
    broken: list[str] = []
    trial = 0
    while sum(tried.values()) < (count or 1):
        kills, fresh, differences = survive(lab, AIMS[trial % len(AIMS)], rng)
        trial += 1
        tried.update(kills)
        anew.update(fresh)
        if differences:
            broken.append(f"trial {trial}, killed in {', '.join([*kills, *fresh])}: {', '.join(differences)}")
        else:
            survived.update(kills)
    if count:
        show(f"kills survived, {trial} runs, {lab.seconds:.1f} s each untouched", rows(tried, survived, anew))
    assert not broken, "\n".join(broken)


def test_fresh_processes_that_are_killed_end_as_the_untouched_one(
    lab: Any, count: int, rng: random.Random, show: Callable[..., None]
):
    if not count:
        pytest.skip("run by make test-faults")
    run, started = lab.new(), time.monotonic()
    assert lab.fresh(run).wait() == 0
    assert lab.differences(run) == []
    seconds = time.monotonic() - started
    met, survived = Counter[str](), Counter[str]()
    for number in range(FRESH):
        run = lab.new()
        process = lab.fresh(run)
        time.sleep(seconds * (number + rng.random()) / FRESH)
        process.kill()
        process.wait()
        place = "after the first checkpoint" if list(run.glob("checkpoints/step-*")) else "before the first checkpoint"
        if not (run / "config.yaml").exists():
            place = "importing, loading"
        met[place] += 1
        ended = lab.resume(run).wait()
        if ended.code == 2 and any(sentence in ended.said for sentence in NO_CHECKPOINT):
            assert place != "after the first checkpoint", ended.said
            shutil.rmtree(run, ignore_errors=True)
            ended = lab.train(run).wait()
        assert ended.code == 0, ended.said
        survived[place] += lab.differences(run) == []
        shutil.rmtree(run)
    show(
        f"kills of fresh processes, {seconds:.1f} s each untouched",
        [["killed", "tried", "survived"], *([place, n, survived[place]] for place, n in met.items())],
    )
    assert survived == met


def rows(tried: Counter[str], survived: Counter[str], anew: Counter[str]) -> list[list[object]]:
    lines: list[list[object]] = [["killed in", "tried", "survived", "95% interval", "started anew"]]
    for phase in [*dict.fromkeys([*tried, *anew]), "all"]:
        n, k = (sum(c.values()) if phase == "all" else c[phase] for c in (tried, survived))
        low, high = clopper_pearson(k, n)
        fresh = sum(anew.values()) if phase == "all" else anew[phase]
        lines.append([phase, n, k, f"{low:.1%} to {high:.1%}" if n else "-", fresh])
    return lines


def test_the_processes_are_seen_in_every_phase(lab: Any):
    assert all(lab.begun.values()), lab.begun
    assert lab.operations > 100


@pytest.mark.parametrize("sentence", NO_CHECKPOINT)
def test_a_run_that_has_saved_nothing_is_started_anew(lab: Any, sentence: str):
    run = lab.new()
    if sentence != "is not a run folder":
        run.mkdir()
        (run / "config.yaml").write_text("" if "mapping" in sentence else "game: agon\nmodel: tiny\ntasks: letters\n")
    ended = lab.run("train", "--resume", run)
    assert ended.code == 2
    assert sentence in ended.said

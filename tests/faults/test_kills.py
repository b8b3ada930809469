"""A run that is killed, at any moment and however often, and resumed, ends as the one that nobody touched."""

import json
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.runs_in_processes import NO_CHECKPOINT

from .conftest import only_long

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
            process.until(lambda page: page.begun("saving") >= saves and any(aside.glob(".step-*.partial")))
            time.sleep(rng.uniform(0, SOON_S))
        elif aim == "a phase":
            phase = rng.choice(list(lab.begun))
            times = rng.randint(1, lab.begun[phase])
            process.until_begun(phase, times)
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
            kills.append(process.page.phase)
            start, aim = lab.resume, rng.choice(AIMS)
        elif ended.saved_nothing:
            anew += kills
            kills, start = [], lab.train
            shutil.rmtree(run, ignore_errors=True)
        else:
            assert ended.code == 0, f"after kills in {', '.join(kills)}: {ended.said}"
            differences = lab.differences(run)
            if not differences:
                shutil.rmtree(run)
            return kills, anew, differences


def test_killed_runs_end_as_the_untouched_one(lab: Any, count: int, rng: random.Random, tally: Callable[..., None]):
    tries: list[tuple[str, str, list[str]]] = []
    trial = survived = 0
    while survived < (count or 1):
        kills, anew, differences = survive(lab, AIMS[trial % len(AIMS)], rng)
        trial += 1
        survived += len(kills)
        where = [*kills, *(f"{phase}, started anew" for phase in anew)]
        tries += [(phase, f"trial {trial}, killed in {', '.join(where)}", differences) for phase in where]
    tally(f"kills, {trial} runs, {lab.seconds:.1f} s each untouched", "killed in", tries)


@only_long
def test_fresh_processes_that_are_killed_end_as_the_untouched_one(
    lab: Any, rng: random.Random, tally: Callable[..., None]
):
    run, started = lab.new(), time.monotonic()
    assert lab.fresh(run).wait() == 0
    assert lab.differences(run) == []
    seconds = time.monotonic() - started
    tries = []
    for number in range(FRESH):
        run = lab.new()
        process = lab.fresh(run)
        time.sleep(seconds * (number + rng.random()) / FRESH)
        process.kill()
        process.wait()
        place = "after the first checkpoint" if list(run.glob("checkpoints/step-*")) else "before the first checkpoint"
        if not (run / "config.yaml").exists():
            place = "importing, loading"
        ended = lab.went_on(run) or lab.train(run).wait()
        assert ended.code == 0, ended.said
        tries.append((place, f"kill {number}", lab.differences(run)))
        shutil.rmtree(run)
    tally(f"kills of fresh processes, {seconds:.1f} s each untouched", "killed", tries)


EXPERIMENT = """
{about: Four arms., source: nowhere, paper: another model, base: {model: tiny, tasks: letters, steps: 2, save_every: 1},
 cold_start: {source: taught.jsonl, steps: 2, examples_per_step: 2}, evaluations: [{tasks: letters, limit: 4}],
 search: {rates: [1.0e-4, 1.0e-3], seeds: [7], evaluations: [{tasks: "letters:named=6", limit: 4}]}, seeds: [0],
 arms: {one: {game: grpo}, again: {of: one, mode: self-cascade}, taught: {start: cold-start}, base: {start: base}}}
"""


def reproduced(out: Path) -> dict[str, Any]:
    """What an experiment ended with that is to be the same, whatever happened on the way."""
    records = {path.relative_to(out): json.loads(path.read_text()) for path in out.glob("**/seed-*/*.json")}
    for record in records.values():
        record["training"].pop("seconds", None)
        for evaluation in record["evaluations"]:
            del evaluation["seconds"]
    weights = {path.relative_to(out): path.read_bytes() for path in out.glob("**/adapters/*/*.safetensors")}
    return {str(path): content for path, content in {**records, **weights}.items() if "-stopped-" not in str(path)}


def test_an_experiment_that_is_killed_is_gone_on_with(lab: Any, count: int, rng: random.Random):
    (lab.place / "four.yaml").write_text(EXPERIMENT)
    whole = lab.new()
    process = lab.start("reproduce", "four.yaml", "--out", whole)
    ended = process.wait()
    assert ended.code == 0, ended.said
    seconds, untouched = ended.at - process.started, reproduced(whole)
    names = ["search/seed-7/one at 0.0001.json", "search/seed-7/one at 0.001.json", "seed-0/again.json"]
    assert {*names, "seed-0/one.json", "seed-0/taught.json", "seed-0/base.json"} <= untouched.keys()
    killed = 0
    while killed < (count or 1):
        out, limit = lab.new(), rng.uniform(0, seconds)
        while (ended := end_after(lab.start("reproduce", "four.yaml", "--out", out), limit)).code == KILLED:
            killed, limit = killed + 1, rng.uniform(0, 2 * seconds)
        assert ended.code == 0, ended.said
        assert reproduced(out) == untouched
        assert all((out / name).read_text() for name in ("table.md", "results.json", "search/table.md"))


def end_after(process: Any, seconds: float) -> Any:
    """How it ended: killed after so many seconds, or before by itself."""
    while process.alive() and time.monotonic() < process.started + seconds:
        time.sleep(0.01)
    process.send(signal.SIGKILL)
    return process.wait()


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

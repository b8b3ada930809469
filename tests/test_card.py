"""The queue for a GPU's minutes: a whole draw on a CPU with the random model, and the queue with small jobs."""

import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import NormalDist
from typing import Any

import pytest
import yaml

from lite_selfplay.extras.reproduce.conduct import require_fair
from lite_selfplay.extras.reproduce.experiment import load_experiment
from tests.made_runs import read_lines

ROOT = Path(__file__).parents[1]
BENCHMARKS, PLAN = ROOT / "benchmarks", ROOT / "experiments" / "real-base.yaml"
LISTS = sorted((BENCHMARKS / "jobs").glob("*.yaml"))
DRAW = BENCHMARKS / "jobs" / "0-draw.yaml"
NAMES = ("kernels", "arms", "vllm", "unsloth agon")
LATER = ("grpo", "agon", "resumed", "unsloth tests", "real-base")
Script = Callable[[str], Any]
EVERY = tuple(job["name"] for path in LISTS for job in yaml.safe_load(path.read_text())["jobs"])


def queue(out: Path, *options: str, timeout: float = 200) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, str(BENCHMARKS / "card.py"), "--out", str(out), *options]
    environment = {**os.environ, "COLUMNS": "300", "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False, env=environment)


def lines(out: Path) -> list[dict[str, Any]]:
    return read_lines(out / "results.jsonl")


def a_list(path: Path, *jobs: dict[str, Any]) -> str:
    path.write_text(yaml.safe_dump({"jobs": [{"about": "", "seconds": 20, **job} for job in jobs]}))
    return str(path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A draw that nothing interrupts, under its own limits, and then a later one in its folder."""
    folder = tmp_path_factory.mktemp("draw")
    options = ("--tiny", "--commit", "this", "--back", str(folder / "back"))
    done = queue(folder / "out", *options, "--list", str(DRAW), "--seconds", "290", timeout=300)
    return folder / "out", done


def test_a_whole_draw_in_its_order(whole: tuple[Path, Any]) -> None:
    out, done = whole
    assert done.returncode == 0, done.stderr
    assert "left out" not in done.stderr
    assert [line["job"] for line in lines(out)] == [*NAMES]
    for line in lines(out):
        assert line["rc"] == 0, (line["job"], line["said"])
        assert (line["ended"], line["card"], line["base"], line["commit"]) == ("by itself", "CPU", "tiny", "this")
        assert 0 < line["seconds"] <= line["limit_s"] + 1
    figures = {line["job"]: line["figures"] for line in lines(out)}
    assert figures["kernels"]["backward, efficient, 16 x 64, deterministic"]["ms"] > 0
    for which in ("adapter", "no adapter", "adapter, lookup"):
        assert figures["kernels"][f"recorded lengths, ours, {which}, round 2"]["tokens a second"] > 0
    assert figures["arms"]["update"]["kernels"] > 1000
    arms = load_experiment(str(PLAN), "tiny-draw").arms
    assert set(figures["arms"]["pass_at_1"]) == {f"seed-1/{arm}" for arm in arms}
    assert figures["arms"]["steps"] == {"seed-1/grpo": 4, "seed-1/agon": 4}
    assert figures["unsloth agon"]["steps"] == 2
    assert (out / "runs" / "real-base" / "table.md").is_file()
    # All that is no weight has come back: results, curves and episodes.
    with tarfile.open(out.parent / "back" / "records.tar.gz") as archive:
        names = set(archive.getnames())
    came = {"results.jsonl", "table.md", *(f"runs/real-base/seed-1/{arm}.json" for arm in arms)}
    came |= {
        f"runs/real-base/seed-1/{arm}/{name}.jsonl" for arm in ("grpo", "agon") for name in ("metrics", "episodes")
    }
    assert came <= names
    assert not [name for name in names if name.endswith(".safetensors")]
    # What was recorded stands beside what is measured.
    page = (out / "table.md").read_text()
    assert page.strip() in done.stdout
    assert "| unsloth agon | H100 80 GB 2026-11-26 d0e51dc | exit code 0, by itself" in page


def test_a_draw_that_is_stopped_goes_on_elsewhere_bit_for_bit(
    tmp_path: Path, whole: tuple[Path, Any], script: Script
) -> None:
    """While Agon trains. Its records have come back by then, and what is packed goes on in another folder."""
    out, agon = tmp_path / "here" / "out", "runs/real-base/seed-1/agon"
    options = ["--tiny", "--list", str(DRAW), "--commit", "this", "--only", "arms"]
    command = [sys.executable, str(BENCHMARKS / "card.py"), "--out", str(out), *options]
    command += ["--pack", str(tmp_path / "parts"), "--back", str(tmp_path / "back")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment) as process:
        while process.poll() is None and not (out / agon / "metrics.jsonl").is_file():
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    assert [line["ended"] for line in lines(out)] == ["stopped"]
    assert len(read_lines(out / agon / "metrics.jsonl")) < 4
    assert (tmp_path / "back" / "records.tar.gz").is_file()
    there = tmp_path / "there" / "out"
    done = queue(there, *options, "--unpack", str(tmp_path / "parts"))
    assert [line["ended"] for line in lines(there)] == ["stopped", "by itself"], done.stderr
    for arm in ("base", "base cascade", "grpo", "agon", "agon alone"):
        records = [at / "runs/real-base/seed-1" / f"{arm}.json" for at in (there, whole[0])]
        one, other = (json.loads(path.read_text())["evaluations"] for path in records)
        assert [{**each, "seconds": 0} for each in one] == [{**each, "seconds": 0} for each in other]
    for seat in ("A", "B"):
        one, other = ([*(at / agon).glob(f"**/{seat}/adapter_model.safetensors")] for at in (there, whole[0]))
        assert sorted(one)[-1].read_bytes() == sorted(other)[-1].read_bytes()
    rows = ([{**row, "wall_s": 0} for row in read_lines(at / agon / "metrics.jsonl")] for at in (there, whole[0]))
    assert next(rows) == next(rows)


@pytest.mark.parametrize(
    ("slower", "done", "said"),
    [
        (1.0, NAMES, ()),
        (1.25, NAMES[:3], ("unsloth agon",)),
        (1.55, NAMES[:2], ("vllm", "unsloth agon")),
        (1.65, NAMES[:2], ("vllm", "unsloth agon")),
    ],
)
def test_on_a_slower_machine_what_falls_away_is_the_end_of_the_list(
    tmp_path: Path,
    script: Script,
    monkeypatch: pytest.MonkeyPatch,
    slower: float,
    done: Sequence[str],
    said: Sequence[str],
) -> None:
    """The real list and its real limits, on a clock of the test's own: a job takes what is expected, times so much."""
    card = script("benchmarks/card")
    clock, spent, told = [0.0], dict.fromkeys(NAMES, 0.0), []
    monkeypatch.setattr(card.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(card, "say", told.append)
    jobs = [job.scaled(1.0) for job in card.load_jobs(DRAW)]

    def carried_out(job: Any, here: Any, limit: float) -> dict[str, Any]:
        needs = job.expect * slower - (spent[job.name] if job.slices > 1 else 0.0)
        seconds = min(needs, limit)
        spent[job.name] += seconds
        clock[0] += seconds
        complete = needs <= limit
        ended = {"rc": 0 if complete else -15, "ended": "by itself" if complete else "at its limit"}
        return {"job": job.name, "base": "b", "card": "c", "commit": "d", "seconds": seconds, **ended}

    monkeypatch.setattr(card, "carry_out", carried_out)
    here = card.Here("b", tmp_path, "c", tmp_path, "d")
    card.work(jobs, {job.name: job for job in jobs}, here, 780.0)
    assert clock[0] <= 780.0
    assert list(dict.fromkeys(line["job"] for line in lines(tmp_path))) == [*done]
    assert here.state(jobs[1]) == "done", "the arms never fall away"
    assert [sentence.partition(":")[0] for sentence in told if "left out" in sentence] == [*said]


@pytest.mark.long
def test_later_draws(whole: tuple[Path, Any]) -> None:
    """What another draw does in the folder of the first: other arms, tests, a run that is resumed."""
    out, _ = whole
    later = ("--only", "arms", *(word for name in LATER for word in ("--only", name)))
    assert queue(out, "--tiny", "--commit", "this", "--seconds", "270", *later, timeout=290).returncode == 0
    figures = {line["job"]: line["figures"] for line in lines(out)}
    assert figures["resumed"] == {"steps_equal": [True] * 4, "seats_equal": {"A": True, "B": True}}
    assert figures["unsloth tests"].keys() & {"skipped", "passed"}
    assert {"seed-1/coin", "seed-1/form", "seed-1/self-refine"} <= set(figures["real-base"]["pass_at_1"])


# The queue itself, with another checkout whose command line does little

DOES = """
import os, signal, subprocess, sys, time
what, place = sys.argv[1:]
print("it", what, flush=True)
if what == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("child", subprocess.Popen(["sleep", "60"]).pid, flush=True)
if what == "slices":
    with open(place, "a") as file:
        file.write("x")
    if os.path.getsize(place) == 3:
        sys.exit(0)
if what != "quick":
    time.sleep(60)
sys.exit(3 if "bad" in place else 0)
"""


@pytest.fixture
def checkout(tmp_path: Path) -> str:
    (tmp_path / "checkout" / "cli").mkdir(parents=True)
    (tmp_path / "checkout" / "cli" / "__main__.py").write_text(DOES)
    return str(tmp_path / "checkout")


ITSELF, LIMIT, KILLED = ("by itself", 0), ("at its limit", -signal.SIGTERM), ("killed", -signal.SIGKILL)
ENDS: dict[str, tuple[dict[str, Any], list[tuple[str, int]], str]] = {
    "quick good": ({}, [ITSELF], "done"),
    "quick bad": ({"slices": 3}, [("by itself", 3)], "failed"),
    "sleeps long": ({"seconds": 2}, [LIMIT], "done"),
    "deaf long": ({"seconds": 2}, [KILLED], "done"),
    "slices {place}.x": ({"seconds": 2, "slices": 5}, [LIMIT, LIMIT, ITSELF], "done"),
    "sleeps again": ({"seconds": 2, "slices": 2}, [LIMIT, LIMIT], "failed"),
    "quick next": ({}, [ITSELF], "done"),  # whatever one does, the next one has its turn
}
"""How a job's lines end, and what is then thought of it."""


def test_how_jobs_end(tmp_path: Path, checkout: str) -> None:
    out = tmp_path / "out"
    (out / "runs").mkdir(parents=True)
    jobs = ({"name": does, "command": f"lite-selfplay {does}", **job} for does, (job, *_) in ENDS.items())
    options = ("--tiny", "--checkout", checkout, "--list", a_list(tmp_path / "own.yaml", *jobs), "--seconds", "100")
    done = queue(out, *options, "--commit", "one")
    assert done.returncode == 0, done.stderr
    found = lines(out)
    for does, (_, ended, _) in ENDS.items():
        own = [line for line in found if line["job"] == does]
        assert [(line["ended"], line["rc"]) for line in own] == ended, does
        assert all(line["said"][0] == f"it {does.split()[0]}" for line in own)
    for child in [said.split()[1] for line in found for said in line["said"] if said.startswith("child")]:
        assert not Path(f"/proc/{child}/cmdline").exists() or not Path(f"/proc/{child}/cmdline").read_bytes()
    queue(out, *options, "--commit", "one")
    assert lines(out) == found, "what has ended is not tried again"
    planned = queue(out, *options, "--commit", "one", "--dry-run").stdout
    assert [does for does, (*_, state) in ENDS.items() if f"| {does} | {state} |" not in planned] == []
    another = queue(out, *options, "--commit", "another", "--only", "quick next")
    assert [(line["job"], line["commit"]) for line in lines(out)[len(found) :]] == [("quick next", "another")]
    (row,) = (row for row in another.stdout.splitlines() if row.startswith("| quick next |"))
    assert re.fullmatch(r"\| quick next \| CPU [-\d]+ [:\d]+ one \| exit code 0, by itself, \d+ s \|", row)


def test_the_queue_ends_before_its_time(tmp_path: Path, checkout: str) -> None:
    jobs: dict[str, dict[str, Any]] = {
        "long": {"seconds": 100},
        "slices": {"command": "lite-selfplay sleeps long", "seconds": 100, "slices": 9},
        "short": {"seconds": 2},
        "waits": {"seconds": 2, "after": "long"},
    }
    good = {"command": "lite-selfplay quick good"}
    own = a_list(tmp_path / "own.yaml", *({"name": name, **good, **job} for name, job in jobs.items()))
    began = time.monotonic()
    options = ("--base", "any", "--checkout", checkout, "--list", own, "--seconds", "20")
    done = queue(tmp_path / "out", *options)
    assert time.monotonic() - began < 20
    assert [line["job"] for line in lines(tmp_path / "out")] == ["short"]
    said = " ".join(done.stderr.split())
    left = ("long: left out, since it needs 100 s", "slices: left out, since it needs 60 s", "long is not complete")
    assert [sentence for sentence in left if sentence not in said] == []


def test_a_queue_that_is_stopped_writes_its_line_and_begins_that_job_anew(tmp_path: Path, checkout: str) -> None:
    out = tmp_path / "out"
    own = a_list(tmp_path / "own.yaml", {"name": "it", "command": "lite-selfplay sleeps long", "seconds": 8})
    command = [sys.executable, str(BENCHMARKS / "card.py"), "--base", "any", "--out", str(out), "--list", own]
    command += ["--checkout", checkout, "--seconds", "60"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while not list(out.glob("logs/*.log")) or "it sleeps" not in next(out.glob("logs/*.log")).read_text():
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    assert [line["ended"] for line in lines(out)] == ["stopped"]
    assert (out / "table.md").is_file()
    queue(out, *command[command.index("--list") :], "--base", "any")
    assert [line["ended"] for line in lines(out)] == ["stopped", "at its limit"]


# Arithmetic


def test_what_is_packed_is_unpacked_as_it_was(tmp_path: Path, script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    """In parts, records and the last run first; what did not come whole is named, and what is damaged refused."""
    results = script("benchmarks/card_results")
    monkeypatch.setattr(results, "PART_BYTES", 4000)
    out, parts, there = tmp_path / "out", tmp_path / "parts", tmp_path / "there"
    for number, run in enumerate(("first", "last")):
        for name in ("metrics.jsonl", "adapters/A/adapter_model.safetensors", "checkpoints/step-1/state.json"):
            path = out / run / name
            path.parent.mkdir(parents=True)
            path.write_bytes(os.urandom(9000))
            os.utime(path, (number, number))
    results.packed(out, parts)
    assert max(path.stat().st_size for path in parts.rglob("*.*")) <= 4000
    assert max(len([*folder.iterdir()]) for folder in parts.iterdir()) == results.PARTS + 1
    assert results.unpacked(parts, there) == []
    found, made = ({p.relative_to(at): p.read_bytes() for p in at.rglob("*") if p.is_file()} for at in (there, out))
    assert found == made
    shutil.rmtree(sorted(parts.iterdir())[-1])
    assert results.unpacked(parts, tmp_path / "less") == ["weights-1.tar"]
    assert (tmp_path / "less/last/adapters/A/adapter_model.safetensors").is_file()
    next(parts.rglob("records*")).write_bytes(b"else")
    with pytest.raises(results.BenchmarkError, match="damaged"):
        results.unpacked(parts, tmp_path / "none")


def test_power_of_the_plan() -> None:
    """The plan's table, computed again: the chance that an interval of a paired gain lies above zero."""
    rows = re.findall(r"^\| (\d+)% \| (.*) \|$", (PLAN.with_suffix(".md")).read_text(), re.MULTILINE)
    assert len(rows) == 3
    for discordant, shares in rows:
        for gain, share in zip((0.02, 0.05, 0.08), shares.split(" | "), strict=True):
            error = math.sqrt((int(discordant) / 100 - gain**2) / 500)
            assert round(100 * NormalDist().cdf(gain / error - 1.96)) == int(share.rstrip("%"))


def test_the_plan_s_budget_and_what_a_dry_run_says_of_it(tmp_path: Path) -> None:
    for scale in ("full", "draw", "tiny", "tiny-draw"):
        require_fair(load_experiment(str(PLAN), scale))
    printed = queue(tmp_path / "none", "--dry-run").stdout
    table = [[cell.strip() for cell in row.split("|")[1:]] for row in printed.splitlines()[2:]]
    rows = {name: cells for name, *cells in table}
    assert rows["arms"][3] == f"{2 * 45 * 128:,} completions"
    assert rows["real-base"][3] == f"{2 * 5 * 45 * 128:,} completions"
    drawn = queue(tmp_path / "none", "--dry-run", "--list", str(DRAW)).stdout.strip().splitlines()[-1]
    at_most, expected = (int(cell) for cell in drawn.split("|")[3:5])
    assert 0 < expected <= at_most <= 780
    assert not (tmp_path / "none").exists()
    for path in LISTS:
        listed = yaml.safe_load(path.read_text())
        assert all((job.get("seconds") or listed["defaults"]["seconds"]) <= 480 for job in listed["jobs"])
        assert {job["name"] for job in listed["jobs"]} <= rows.keys()


def test_a_request_that_cannot_be_done_is_refused(tmp_path: Path) -> None:
    wrong = a_list(tmp_path / "wrong.yaml", {"name": "it", "command": "rm -r", "second": 3})
    for options, said in (
        ((), "--base names the base"),
        (("--tiny", "--only", "nothing"), "there is no job nothing"),
        (("--tiny", "--list", wrong), "unexpected keyword argument 'second'"),
    ):
        done = queue(tmp_path / "out", *options)
        assert done.returncode == 1
        assert said in " ".join(done.stderr.split())

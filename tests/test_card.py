"""The queue for a card's minutes: every job on a CPU with the random model, and the queue with jobs that do little."""

import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from lite_selfplay.extras.reproduce.conduct import require_fair
from lite_selfplay.extras.reproduce.experiment import load_experiment
from tests.made_runs import read_lines

ROOT = Path(__file__).parents[1]
BENCHMARKS, PLAN = ROOT / "benchmarks", ROOT / "experiments" / "real-base.yaml"
LISTS = sorted((BENCHMARKS / "jobs").glob("*.yaml"))
KINDS = (
    *("grpo", "token", "attention", "update", "lean", "resumed", "unsloth tests", "unsloth agon"),
    *("real-base-problems", "real-base-rate", "real-base"),
)
"""A job of each kind: a measure, a run, tests, an experiment, and one that goes on with what another one found."""
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


@pytest.fixture(scope="module", params=[KINDS, pytest.param(EVERY, marks=pytest.mark.long)], ids=["kinds", "every"])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """Jobs of all lists in one queue: all of them need two minutes of a processor, whoever else is at work on it."""
    out, before = tmp_path_factory.mktemp("card") / "out", resource.getrusage(resource.RUSAGE_CHILDREN)
    only = [word for name in request.param for word in ("--only", name)]
    done = queue(out, "--tiny", "--commit", "this", "--seconds", "270", *only, timeout=290)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr
    assert "left out" not in done.stderr
    assert [line["job"] for line in lines(out)] == [*request.param], "a line each, in their order"
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 120
    return out, done


def test_jobs_run_on_a_cpu_in_two_minutes_and_are_shown_beside_what_was_recorded(whole: tuple[Path, Any]) -> None:
    out, done = whole
    found = {line["job"]: line for line in lines(out)}
    for name, line in found.items():
        assert line["rc"] == 0, (name, line["said"])
        assert (line["ended"], line["card"], line["base"], line["commit"]) == ("by itself", "CPU", "tiny", "this")
        assert 0 < line["seconds"] <= line["limit_s"]
        assert line["date"].startswith("20")
    figures = {name: line["figures"] for name, line in found.items()}
    assert figures["grpo"]["steps"] == len(figures["grpo"]["step_s"]) == 1
    assert 0 < figures["grpo"]["training_s"] < figures["grpo"]["first_step_s"]
    assert figures["resumed"] == {"steps_equal": [True] * 4, "seats_equal": {"A": True, "B": True}}
    assert len(figures["token"]["rows 4, columns 128: ms a token, s new"]) == 2
    assert figures["token"]["rows 4, columns 128"]["kernels"] > 100
    assert figures["attention"]["sdpa, rows 4, columns 64"]["differ of 100"] == 0
    assert figures["lean"]["lean"].startswith("not built") or figures["lean"].keys() > {"loaded_s"}
    assert figures["update"]["update"]["kernels"] > 1000
    assert figures["unsloth tests"].keys() & {"skipped", "passed"}
    assert set(figures["real-base-rate"]["pass_at_1"]) == {f"seed-100/{rate}" for rate in ("5e-5", "1e-4", "2e-4")}
    arms = load_experiment(str(PLAN), "tiny").arms
    assert set(figures["real-base"]["pass_at_1"]) == {f"seed-1/{arm}" for arm in arms}
    log = (out / "logs" / "real-base.log").read_text().splitlines()
    assert log[0].startswith("$ lite-selfplay reproduce ")
    seconds = [float(line.split()[0]) for line in log[1:]]
    assert seconds == sorted(seconds)
    # What was recorded stands beside what is measured.
    page = (out / "table.md").read_text()
    assert page.strip() in done.stdout
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in page.splitlines() if row.startswith("| ")]
    start = next(i for i, row in enumerate(rows) if row[0] == "grpo")
    assert rows[start][1] == "H100 80 GB 2026-11-27 092a619"
    assert rows[start][2].startswith("exit code 0, by itself")
    (step,) = (row for row in rows[start : start + 4] if row[0] == "- step_s")
    assert step[1].startswith("10.53, 7.48")
    assert float(step[2]) > 0


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
    """All but the weights of a run that is complete, in parts."""
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
    assert max(len([*folder.iterdir()]) for folder in parts.iterdir()) <= results.PARTS
    there.mkdir()
    unpack = f"cat {parts}/*/records.* | tar -xz -C {there}; cat {parts}/*/weights.* | tar -x -C {there}"
    subprocess.run(["bash", "-euc", unpack], check=True)
    found, made = ({p.relative_to(at): p.read_bytes() for p in at.rglob("*") if p.is_file()} for at in (there, out))
    assert found == {path: data for path, data in made.items() if "last" in path.parts or path.name == "metrics.jsonl"}


@pytest.mark.parametrize(
    ("found", "chosen"),
    [
        ({"5e-5": [0.30], "1e-4": [0.33], "2e-4": [0.35]}, 1e-4),  # 2 points below the best is near enough
        ({"5e-5": [0.30], "1e-4": [0.3275], "2e-4": [0.35]}, 2e-4),
        ({"5e-5": [0.35], "1e-4": [0.35], "2e-4": [0.05]}, 5e-5),
        ({"5e-5": [0.20, 0.30], "1e-4": [0.30, 0.30], "2e-4": [0.50, 0.06]}, 1e-4),  # means 25, 30 and 28
    ],
)
def test_the_rate_is_the_lowest_one_near_the_best(
    tmp_path: Path, script: Script, found: dict[str, list[float]], chosen: float
) -> None:
    for rate, scores in found.items():
        for seed, score in enumerate(scores):
            (tmp_path / f"seed-{seed}").mkdir(exist_ok=True)
            evaluation = {"seats": {"solver": {"pass_at_1": score}}, "otherwise": {"solver": score / 2}}
            (tmp_path / f"seed-{seed}" / f"{rate}.json").write_text(json.dumps({"evaluations": [evaluation]}))
    results = script("benchmarks/card_results")
    assert results.chosen_rate(tmp_path) == chosen
    assert results.of_experiment(tmp_path)["pass_at_1"]["seed-0/5e-5"] == [found["5e-5"][0], found["5e-5"][0] / 2]


def test_attention_by_the_flash_kernel_is_what_eager_computes(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's place is taken by one that reads its arguments as it does: a sequence of one token each, whose keys
    begin at its offset and are as many as `seqused_k` says."""

    def kernel(q: Any, k: Any, v: Any, cu_q: Any, cu_k: Any, most_q: int, most_k: int, *rest: Any, **named: Any) -> Any:
        assert rest == (0.0, False, False)
        assert (most_q, q.shape[0]) == (1, cu_q.numel() - 1)
        rows = []
        for i, used in enumerate(named["seqused_k"].tolist()):
            assert used <= most_k
            keys, values = (store[cu_k[i] : cu_k[i] + used, 0].float() for store in (k, v))
            rows.append((q[cu_q[i]].float() @ keys.T * named["scale"]).softmax(-1) @ values)
        return (torch.stack(rows),)

    jobs = script("benchmarks/card_jobs")
    monkeypatch.setattr(torch.ops.aten, "_flash_attention_forward", kernel, raising=False)
    torch.manual_seed(0)
    query, k, v = torch.randn(3, 6, 1, 8), torch.randn(3, 2, 16, 8), torch.randn(3, 2, 16, 8)
    lengths = torch.tensor([1, 7, 16], dtype=torch.int32)
    exact = jobs.eager(query, k, v, lengths)
    # The first row has one key, so its heads answer with that key's value.
    torch.testing.assert_close(exact[0], v[0, :, 0].repeat_interleave(3, 0))
    for way in (jobs.flash, jobs.sdpa):
        torch.testing.assert_close(way(query, k, v, lengths)(), exact)


def test_the_plan_s_budget_and_what_a_dry_run_says_of_it(tmp_path: Path) -> None:
    for scale in ("full", "rate", "tiny", "tiny-rate"):
        require_fair(load_experiment(str(PLAN), scale))
    printed = queue(tmp_path / "none", "--dry-run").stdout
    table = [[cell.strip() for cell in row.split("|")[1:]] for row in printed.splitlines()[2:]]
    rows = {name: cells for name, *cells in table}
    assert rows["real-base-rate"][3] == f"{3 * 25 * 256:,} completions"
    assert rows["real-base"][3] == f"{3 * 5 * 60 * 256:,} completions"
    assert not (tmp_path / "none").exists()
    for path in LISTS:
        listed = yaml.safe_load(path.read_text())
        assert all((job.get("seconds") or listed["defaults"]["seconds"]) <= 240 for job in listed["jobs"])
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

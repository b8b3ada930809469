"""A training step beside busy neighbours: how near it comes to its fair share of the cores.

The same run of the command line, alone and beside one and two processes that never rest, with this library's threads
and with torch's own: as many as there are cores, on all of them, spinning while they wait. Each is a process of its
own, and a step's time is the median over its steps, the first one apart.

A fair share: a scheduler that gives every busy thread as much lets `t` threads beside `b` neighbours on `c` cores have
min(1, c / (t + b)) of a core each. A step that takes 1 / that times as long as alone has had its share; what it takes
beyond is lost. A run that needs less (two threads on a core of their own do not wait for each other in vain) comes out
below 1.

Part of what is lost no program can save: cores share caches, clocks and sometimes their arithmetic, and a scheduler
moves threads late. So as many processes of one thread, which wait for nothing, multiply matrices beside the same
neighbours: by how much they become slower, all in all, is what the machine leaves.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import harness
import typer
from harness import machine, say, show, show_table

from lite_selfplay.models.cores import cores

OURS, PLAIN, WAITLESS = "lite-selfplay", "torch's own threads", "products that wait for nothing"
SPIN = {"GOMP_SPINCOUNT": "300000"}
"""What GNU's OpenMP takes by itself: some milliseconds."""
GOAL = 1.2
PRODUCTS = """
import sys, time
import numpy as np
a, b = np.ones((64, 512), np.float32), np.ones((512, 512), np.float32)
print("ready", flush=True)
sys.stdin.readline()
end, done = time.monotonic() + float(sys.argv[1]), 0
while time.monotonic() < end:
    for _ in range(20):
        a @ b
    done += 20
print(done)
"""
"""Products of one thread that waits for nobody; says how many there were."""

Result = dict[str, Any]


def main(
    models: Annotated[str, typer.Option(help="Bases, separated by commas.")] = "tiny,smollm2-135m",
    steps: Annotated[int, typer.Option(min=2, help="Steps of a run; the first is not counted.")] = 4,
    neighbours: Annotated[int, typer.Option(min=1, help="The most busy processes beside it.")] = 2,
    compare: Annotated[bool, typer.Option(help="Also with torch's own threads.")] = True,
    cap: Annotated[int, typer.Option(min=1, help="The most tokens of a completion.")] = 40,
    seconds: Annotated[float, typer.Option(min=0.1, help="Of products by processes that wait for nothing.")] = 10,
    json_path: harness.JsonPath = None,
) -> None:
    """Seconds of an Agon step alone and beside busy processes, against the fair share of the cores."""
    results: Result = {"benchmark": "neighbours", "machine": machine(), "models": {}}
    show(f"{results['machine']['cpu']}, {cores()} cores, load {results['machine']['load']} at the start")
    plain = ["--threads", str(cores()), "--set", "model.share_cores=false"]
    contenders: dict[str, tuple[dict[str, str], list[str]]] = {OURS: ({}, [])} | (
        {PLAIN: (SPIN, plain)} if compare else {}
    )
    for model in models.split(","):
        found: Result = {}
        for name, (environment, options) in contenders.items():
            runs = []
            for busy in range(neighbours + 1):
                say(f"{model}, {name}: beside {busy} busy processes")
                with busy_processes(busy):
                    runs.append(run(model, steps, cap, environment, options))
            found[name] = [compared(each, busy, runs[0]) for busy, each in enumerate(runs)]
        processes, runs = found[OURS][0]["threads"], []
        for busy in range(neighbours + 1):
            say(f"{processes} processes that wait for nothing: beside {busy} busy processes")
            with busy_processes(busy):
                runs.append(multiply(processes, seconds))
        found[WAITLESS] = [compared(each, busy, runs[0]) for busy, each in enumerate(runs)]
        results["models"][model] = found
        show_model(model, found)
    harness.save(json_path, results)


def run(model: str, steps: int, cap: int, environment: Mapping[str, str], options: list[str]) -> Result:
    """The median of a run's steps in seconds, and the number of its threads."""
    with tempfile.TemporaryDirectory(prefix="lite-selfplay-benchmark-") as folder:
        command = [sys.executable, "-m", "lite_selfplay_cli", "train", "agon", "--model", model, "--run-dir", "run"]
        command += ["--tasks", "arithmetic", "--steps", steps, "--max-completion-tokens", cap, "--save-every", 10**6]
        command += ["--group-size", 8, "--problems-per-step", 4, "--eval-tasks", "none", "--no-preflight", *options]
        clean = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
        done = subprocess.run(
            list(map(str, command)), cwd=folder, env={**clean, **environment}, capture_output=True, text=True
        )
        if done.returncode != 0:
            raise harness.BenchmarkError(f"{model} ended with exit code {done.returncode}:\n{done.stderr[-2000:]}")
        lines = (Path(folder) / "run/metrics.jsonl").read_text(encoding="utf-8").splitlines()
        about = json.loads((Path(folder) / "run/environment.json").read_text(encoding="utf-8"))
    seconds = statistics.median(json.loads(line)["wall_s"]["total"] for line in lines[1:])
    return {"seconds": seconds, "threads": int(about["device"].split()[0])}


def multiply(processes: int, seconds: float) -> Result:
    """Seconds that 10,000 products take processes of one thread together, from how many they do in so many seconds."""
    clean = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", PRODUCTS, str(seconds)]
    running = [
        subprocess.Popen(command, env=clean, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(processes)
    ]
    for process in running:
        assert process.stdout is not None
        process.stdout.readline()
    done = 0
    for process in running:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    for process in running:
        done += int(process.communicate()[0])
    return {"seconds": 10_000 * seconds / done, "threads": processes}


def compared(found: Result, busy: int, alone: Result) -> Result:
    """A run's step against one alone, and against that one's fair share."""
    fair = max(1.0, (alone["threads"] + busy) / cores())
    slower = found["seconds"] / alone["seconds"]
    return {**found, "slower": slower, "fair": fair, "lost": slower / fair}


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Processes of one thread each that never rest."""
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def show_model(model: str, found: Mapping[str, list[Result]]) -> None:
    rows = []
    for name, runs in found.items():
        for busy, one in enumerate(runs):
            figures = (f"{one['seconds']:.2f}", f"{one['slower']:.2f}", f"{one['fair']:.2f}", f"{one['lost']:.2f}")
            rows.append((name, str(busy), str(one["threads"]), *figures))
    columns = ("", "busy neighbours", "threads", "s", "against alone", "fair share", "of the fair share")
    show_table(f"{model}: an Agon step beside busy processes (goal: at most {GOAL} of the fair share)", columns, rows)
    show(f"of what is left to {WAITLESS}: " + _ratios(found, WAITLESS, "lost"))
    if PLAIN in found:
        show(f"over {PLAIN}: " + _ratios(found, PLAIN, "seconds"))


def _ratios(found: Mapping[str, list[Result]], other: str, key: str) -> str:
    """Ours divided by another's, beside each number of neighbours."""
    return ", ".join(f"{ours[key] / theirs[key]:.2f}" for ours, theirs in zip(found[OURS], found[other], strict=True))


if __name__ == "__main__":
    harness.run(main)

"""A training step beside busy neighbours: how near it comes to its fair share of the cores.

The same run of the command line, alone and beside one and two processes that never rest, with this library's threads
and with torch's own: as many as there are cores, spinning while they wait. Each is a process of its own, and a step's
time is the median over its steps, the first one apart.

A fair share: a scheduler that gives every busy thread as much lets `t` threads beside `b` neighbours on `c` cores have
min(1, c / (t + b)) of a core each. A step that takes 1 / that times as long as alone has had its share; what it takes
beyond is lost in waiting. A run that is left more than that (its threads sleep while they wait) comes out below 1.
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

from lite_selfplay.models.threads import cores

OURS, PLAIN = "lite-selfplay", "torch's own threads"
SPIN = {"GOMP_SPINCOUNT": "300000"}
"""What GNU's OpenMP takes by itself: some milliseconds."""
GOAL = 1.2

Result = dict[str, Any]


def main(
    models: Annotated[str, typer.Option(help="Bases, separated by commas.")] = "tiny,smollm2-135m",
    steps: Annotated[int, typer.Option(min=2, help="Steps of a run; the first is not counted.")] = 4,
    neighbours: Annotated[int, typer.Option(min=1, help="The most busy processes beside it.")] = 2,
    compare: Annotated[bool, typer.Option(help="Also with torch's own threads.")] = True,
    cap: Annotated[int, typer.Option(min=1, help="The most tokens of a completion.")] = 40,
    json_path: harness.JsonPath = None,
) -> None:
    """Seconds of an Agon step alone and beside busy processes, against the fair share of the cores."""
    results: Result = {"benchmark": "neighbours", "machine": machine(), "models": {}}
    show(f"{results['machine']['cpu']}, {cores()} cores, load {results['machine']['load']} at the start")
    contenders = {OURS: (dict[str, str](), None)} | ({PLAIN: (SPIN, cores())} if compare else {})
    for model in models.split(","):
        found: Result = {}
        for name, (environment, threads) in contenders.items():
            runs = []
            for busy in range(neighbours + 1):
                say(f"{model}, {name}: beside {busy} busy processes")
                with busy_processes(busy):
                    runs.append(run(model, steps, cap, environment, threads))
            found[name] = [compared(each, busy, runs[0]) for busy, each in enumerate(runs)]
        results["models"][model] = found
        show_model(model, found)
    harness.save(json_path, results)


def run(model: str, steps: int, cap: int, environment: Mapping[str, str], threads: int | None) -> Result:
    """The median of a run's steps in seconds, and the number of its threads."""
    with tempfile.TemporaryDirectory(prefix="lite-selfplay-benchmark-") as folder:
        command = [sys.executable, "-m", "lite_selfplay_cli", "train", "agon", "--model", model, "--run-dir", "run"]
        command += ["--tasks", "arithmetic", "--steps", steps, "--max-completion-tokens", cap, "--save-every", 10**6]
        command += ["--group-size", 8, "--problems-per-step", 4, "--eval-tasks", "none", "--no-preflight"]
        command += ["--threads", threads] if threads else []
        clean = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
        done = subprocess.run(
            list(map(str, command)), cwd=folder, env={**clean, **environment}, capture_output=True, text=True
        )
        if done.returncode != 0:
            raise harness.BenchmarkError(f"{model} ended with exit code {done.returncode}:\n{done.stderr[-2000:]}")
        lines = (Path(folder) / "run/metrics.jsonl").read_text(encoding="utf-8").splitlines()
        about = json.loads((Path(folder) / "run/environment.json").read_text(encoding="utf-8"))
    return {"seconds": statistics.median(json.loads(line)["wall_s"]["total"] for line in lines[1:]), "about": about}


def compared(found: Result, busy: int, alone: Result) -> Result:
    """A run's step against the same one alone and against the fair share."""
    threads = int(found["about"]["device"].split()[0])
    fair = max(1.0, (threads + busy) / cores())
    slower = found["seconds"] / alone["seconds"]
    return {"seconds": found["seconds"], "threads": threads, "slower": slower, "fair": fair, "lost": slower / fair}


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
    columns = ("", "busy neighbours", "threads", "s a step", "against alone", "fair share", "of the fair share")
    show_table(f"{model}: an Agon step beside busy processes (goal: at most {GOAL} of the fair share)", columns, rows)
    if PLAIN in found:
        show(
            "ours over torch's own threads: " + ", ".join(_against(*pair) for pair in zip(*found.values(), strict=True))
        )


def _against(ours: Result, plain: Result) -> str:
    return f"{ours['seconds'] / plain['seconds']:.2f}"


if __name__ == "__main__":
    harness.run(main)

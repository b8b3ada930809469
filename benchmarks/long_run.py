"""A run folder of many steps and episodes, made by rule, and how long `lite-selfplay view` takes to open it.

    python benchmarks/long_run.py make FOLDER [--steps 1000] [--episodes 200000]
    python benchmarks/long_run.py open FOLDER

`make` writes an Agon run in which nothing was ever sampled: its texts are long enough for its size to be a real run's.
`open` starts the server in a process of its own and asks for what a browser asks for first, then for a search and a
filter through all steps; it prints the seconds of each, how many of them the server computed, and the most memory that
it held.
"""

import argparse
import itertools
import json
import random
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from lite_selfplay.config import RunConfig
from lite_selfplay.runs.folder import RunFolder

GROUP = 8
_LONG = "".join(f"{{0}} and {k} are more than {k}. " for k in range(30)) + "<answer>{0}</answer>"


def make(path: Path, steps: int, episodes: int) -> None:
    """Write the run: every step has as many problems of two groups, drafts and challenges, as the episodes ask for."""
    folder = RunFolder(path)
    problems = max(1, episodes // steps // (2 * GROUP))
    sizes = {"group_size": GROUP, "problems_per_step": problems}
    folder.create(
        RunConfig(game="agon", model="tiny", tasks="arithmetic", steps=steps, seats={"A": {}, "B": {}}, **sizes)
    )
    rng = random.Random(0)
    for step in range(steps):
        rows = list(_rows(rng, step, problems, learned=step / steps))
        folder.append(_metrics(step, rows), rows, limit_mb=1e6)


def _rows(rng: random.Random, step: int, problems: int, learned: float) -> Iterator[dict[str, Any]]:
    numbers = [rng.randrange(2000) for _ in range(problems)]
    for role, (group, number) in itertools.product(("drafter", "challenger"), enumerate(numbers)):
        for sample in range(GROUP):
            right = rng.random() < 0.2 + 0.5 * learned
            yield {
                "step": step + 1, "role": role, "seat": "AB"[(step + (role == "challenger")) % 2],
                "problem_id": f"sum-{number}", "group": group, "sample": sample,
                "prompt": f"What is {number} + {group}?\n\n" + "Reason step by step. " * 15,
                "text": _LONG.format(number),
                "tokens": 200, "stop": "eos" if rng.random() < 0.9 else "length", "reward": 2.0 * right + 0.5,
                "advantage": right - 0.5, "correct": right, "well_formed": True, "answer": str(number),
                "reason": "" if right else "wrong", **({"draft": sample} if role == "challenger" else {}),
            }  # fmt: skip


def _metrics(step: int, rows: list[dict[str, Any]]) -> dict[str, Any]:
    streams = {}
    for place, role in enumerate(("drafter", "challenger")):
        own = [row for row in rows if row["role"] == role]
        share = sum(row["correct"] for row in own) / len(own)
        streams[role] = {
            "seat": "AB"[(step + place) % 2], "completions": len(own), "reward_mean": 2 * share + 0.5,
            "accuracy": share, "well_formed": 1.0, "tokens_mean": 200.0,
            "truncated": 0.1, "groups": len(own) // GROUP,
            "zero_variance_groups": 1, "rows_trained": len(own), "loss": 0.0, "kl": 0.001 * step, "sampler_gap": 0.01,
            "base_gap": 0.001 * step,
        }  # fmt: skip
    seats = {seat: {"lr": 1e-4, "grad_norm": 0.5, "updates": step + 1} for seat in "AB"}
    game = {"pairs": len(rows) // 2, "conversions": 5, "regressions": 3, "empty_summaries": 0.0}
    wall = {"total": 10.0, "generate": 7.0, "verify": 0.1, "update": 2.9}
    tokens = {"generated": 200 * len(rows), "trained": 200 * len(rows)}
    return {
        "step": step + 1,
        "wall_s": wall,
        "tokens": tokens,
        "streams": streams,
        "seats": seats,
        "game": game,
        "warnings": [],
    }


def measure(path: Path) -> None:
    """Print what opening the run, its last step, a search and a filter take, and the server's peak memory."""
    started = time.perf_counter()
    command = [sys.executable, "-m", "lite_selfplay_cli", "view", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        watched, before = psutil.Process(server.pid), [started, 0.0]

        def said(what: str) -> None:
            now, computed = time.perf_counter(), sum(watched.cpu_times()[:2])
            peak = _peak(server.pid)
            print(f"{what}: {now - before[0]:.2f} s, {computed - before[1]:.2f} of them computing, peak {peak:.0f} MB")
            before[:] = [time.perf_counter(), computed]

        def ask(question: str) -> dict[str, Any]:
            with urllib.request.urlopen(url + question, timeout=60) as answer:
                found: dict[str, Any] = json.load(answer)
            return found

        def find(about: str) -> None:
            step: int | None = 0
            while step is not None:
                step = ask(f"api/find?from={step}&{about}")["next"]

        try:
            last = ask("api/run")["steps"][-1][0]
            ask(f"api/step?step={last}")
            said("started, with the curves and the last step")
            find("q=not+in+any+text")
            said("a search through all steps")
            find("filter=no+such+kind")
            said("a filter over all steps")
        finally:
            server.terminate()


def _peak(process: int) -> float:
    """The most memory that a process held so far, in MB; Linux alone tells."""
    return int(Path(f"/proc/{process}/status").read_text().partition("VmHWM:")[2].split()[0]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["make", "open"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--episodes", type=int, default=200_000)
    given = parser.parse_args()
    if given.what == "make":
        make(given.folder, given.steps, given.episodes)
    else:
        measure(given.folder)


if __name__ == "__main__":
    main()

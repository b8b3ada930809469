"""Several processes: processor time of a step in one and in more, what is sent, and what each process holds.

Each run is one of its own, started by torchrun. Only processor time is compared, which a busy machine changes little: a
process counts its own, and a step takes as long as the busiest of them. Links are measured between processes of this
machine.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer

COMPLETIONS = (64, 1024)
GROUP = 8
WARM_STEPS = 1
"""Steps at the beginning that are not counted: the first ones prepare what later ones find ready."""


def main(
    model: Annotated[str, typer.Option(help="The base model.")] = "tiny",
    tasks: Annotated[str, typer.Option(help="The task.")] = "letters",
    cap: Annotated[int, typer.Option(min=1, help="Maximum number of tokens per completion.")] = 64,
    steps: Annotated[int, typer.Option(min=2, help="Steps of each run; the first is not counted.")] = 4,
    processes: Annotated[str, typer.Option(help="Numbers of processes, separated by commas.")] = "1,2",
    completions: Annotated[str, typer.Option(help="Completions of a step, separated by commas.")] = "64,1024",
    json_path: Annotated[Path | None, typer.Option("--json", help="Write the results to this file, too.")] = None,
    worker: Annotated[str | None, typer.Option(hidden=True)] = None,
) -> None:
    """Processor seconds of an Agon step by processes and completions, and bytes sent."""
    if worker is not None:
        work(json.loads(worker))
        return
    worlds, sizes = ([int(part) for part in text.split(",")] for text in (processes, completions))
    results = []
    for size in sizes:
        for world in worlds:
            setting = {"model": model, "tasks": tasks, "cap": cap, "steps": steps, "completions": size}
            results.append({"completions": size, "processes": world, **measure(setting, world)})
    found = {"benchmark": "ranks", "results": results, "held_bytes_a_token": held_bytes(), "links": links(max(worlds))}
    show(found)
    if json_path is not None:
        json_path.write_text(json.dumps(found, indent=1) + "\n")


def measure(setting: dict[str, Any], world: int) -> dict[str, Any]:
    """Run a setting in so many processes; medians over the steps that count."""
    with tempfile.TemporaryDirectory() as place:
        job = json.dumps({**setting, "place": place})
        torchrun(world, __file__, "--worker", job)
        each = [json.loads(path.read_text()) for path in sorted(Path(place).glob("rank-*.json"))]
    assert len(each) == world
    busiest = [max(process["cpu_s"][step] for process in each) for step in range(setting["steps"])][WARM_STEPS:]
    sent = [max(process["sent"][step] for process in each) for step in range(setting["steps"])][WARM_STEPS:]
    return {
        "cpu_s": median(busiest),
        "lowest_s": min(busiest),
        "highest_s": max(busiest),
        "sent": int(median(sent)),
        "tokens": each[0]["tokens"],
        "peak_rss": max(process["peak_rss"] for process in each),
    }


def torchrun(world: int, *command: str) -> str:
    """What a program that runs in so many processes prints."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world), *command]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(launch, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise typer.Exit(print(done.stdout + done.stderr, file=sys.stderr) or 1)
    return done.stdout


def work(job: dict[str, Any]) -> None:
    """In a process of a run: play it, and note each step's processor time and bytes."""
    import torch.distributed as dist

    from lite_selfplay import RunConfig, train
    from lite_selfplay.runs.loop import RunLoop
    from lite_selfplay.training.ranks import joined

    if "links" in job:
        measure_links(job)
        return
    cpu, sent, messages, whole = [], [], [], RunLoop._step

    def counting(collective: Any) -> Any:
        """A collective operation that notes the bytes of its last tensor, which this process sends."""

        def counted(*tensors: Any, **options: Any) -> Any:
            messages.append(tensors[-1].numel() * tensors[-1].element_size())
            return collective(*tensors, **options)

        return counted

    def step(self: RunLoop) -> Any:
        before = processor()
        messages.clear()
        report = whole(self)
        cpu.append(processor() - before)
        sent.append(sum(messages))
        return report

    dist.all_gather, dist.all_reduce = counting(dist.all_gather), counting(dist.all_reduce)
    RunLoop._step = step  # type: ignore[method-assign]
    config = RunConfig(
        game={"name": "agon"},
        model=job["model"],
        tasks=job["tasks"],
        precision="fp32",
        steps=job["steps"],
        group_size=GROUP,
        problems_per_step=job["completions"] // (2 * GROUP),
        max_completion_tokens=job["cap"],
        run_dir=Path(job["place"]) / "run",
        run={"save_minutes": 0, "save_every": 1000},
    )
    with joined() as ranks:
        run = train(config, reward=coin)
        tokens = run.metrics_rows()[-1]["tokens"]["generated"]
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        found = {"cpu_s": cpu, "sent": sent, "tokens": tokens, "peak_rss": peak}
        (Path(job["place"]) / f"rank-{ranks.rank}.json").write_text(json.dumps(found))


def coin(completion_ids: Sequence[Sequence[int]], **_: Any) -> list[float]:
    """A reward that follows from the tokens and gives every group a gradient."""
    return [sum(ids) % 97 / 97 for ids in completion_ids]


def processor() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def held_bytes(rows: int = 200, tokens: int = 500) -> float:
    """What a process holds of a completion's token: its id and its log-probability, as Python has them."""
    import numpy as np

    ids, logprobs = np.arange(tokens) % 150_000 + 1000, np.linspace(-5, -1e-3, tokens, dtype="f4")
    tracemalloc.start()
    held = [(tuple(ids.tolist()), tuple(logprobs.tolist())) for _ in range(rows)]
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return used / (len(held) * tokens)


def links(world: int) -> dict[str, float]:
    """Seconds of a small message to all, and of a megabyte gathered (of all together) and added up, on this machine."""
    return json.loads(torchrun(world, __file__, "--worker", json.dumps({"links": True})).splitlines()[-1])


def measure_links(job: dict[str, Any]) -> None:
    import torch

    from lite_selfplay.training.ranks import joined

    def fastest(what: Any, times: int) -> float:
        """Seconds of the fastest of several: what else the machine does only makes one slower."""
        seconds = []
        for _ in range(times):
            began = time.perf_counter()
            what()
            seconds.append(time.perf_counter() - began)
        return min(seconds)

    with joined() as ranks:
        megabytes = 8
        text = "x" * (megabytes * 2**20)
        gradient = torch.ones(megabytes * 2**18)
        message = fastest(lambda: ranks.gather("nothing"), 300)
        found = {
            "processes": ranks.world,
            "message_s": message,
            "gather_s_a_mb": (fastest(lambda: ranks.gather("much", text), 10) - message) / (megabytes * ranks.world),
            "sum_s_a_mb": fastest(lambda: ranks.add_up([gradient]), 10) / megabytes,
        }
        if ranks.main:
            print(json.dumps(found), flush=True)


def show(found: dict[str, Any]) -> None:
    print("| completions | processes | processor s a step | one process over this | sent a step and process | tokens |")
    print("| --- | --- | --- | --- | --- | --- |")
    alone = {row["completions"]: row["cpu_s"] for row in found["results"] if row["processes"] == 1}
    for row in found["results"]:
        ratio = f"{alone[row['completions']] / row['cpu_s']:.2f}" if row["completions"] in alone else "-"
        spread = f"{row['cpu_s']:.3f} ({row['lowest_s']:.3f} to {row['highest_s']:.3f})"
        sent = f"{row['sent'] / 1e3:,.0f} kB"
        print(f"| {row['completions']:,} | {row['processes']} | {spread} | {ratio} | {sent} | {row['tokens']:,} |")
    links = found["links"]
    print(
        f"\nheld of a completion's token: {found['held_bytes_a_token']:.0f} bytes; between {links['processes']} "
        f"processes, at best: {1e3 * links['message_s']:.2f} ms a message, {1e3 * links['gather_s_a_mb']:.2f} ms a "
        f"MB gathered, {1e3 * links['sum_s_a_mb']:.2f} ms a MB added up"
    )


if __name__ == "__main__":
    typer.run(main)

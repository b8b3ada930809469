"""Long runs: whether memory, step time or the run folder grow.

A run of Agon with checkpoints and evaluations. After each step its resident memory is noted; the slope is a line
through the steps after the tenth, by least squares. The drift of the step time is the median of the last quarter of the
steps over that of the first (the first ten left out), in seconds of the processor, which other work on it hardly
changes. The run folder is compared with the bound in docs/reliability.md, after every step.

    python benchmarks/soak.py                                  # 500 steps of the random model
    python benchmarks/soak.py --model smollm2-135m             # 60 steps of a real one
"""

import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import harness
import typer
from contender import resident
from harness import megabytes, say, show, show_table

from lite_selfplay import Progress, RunConfig, train
from lite_selfplay.config.layers import preset_layer

WARM_UP = 10
"""Steps after which memory is to be flat: caches, heaps and moments are there by then."""
FLAT_MIB = 0.1
"""The slope of resident memory that counts as flat, in MiB a step."""
STEPS = {"tiny": 500}
OTHER_STEPS = 60
EPISODES_MB = 1.0
"""Where `episodes.jsonl` ends: small, so that its limit is reached."""

Result = dict[str, Any]


class Watch(Progress):
    """Notes memory and the processor's time after each step, and the largest the folder was."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.memory: list[int] = []
        self.seconds: list[float] = []
        self.largest = 0
        self._said, self._spent = time.monotonic(), time.process_time()

    def step(self, metrics: Mapping[str, Any], line: str) -> None:
        self.memory.append(resident("VmRSS"))
        spent, self._spent = self._spent, time.process_time()
        self.seconds.append(self._spent - spent)
        self.largest = max(self.largest, bytes_in(self.folder))
        if time.monotonic() - self._said > 30:
            self._said = time.monotonic()
            say(f"  {line}")

    def warn(self, sentence: str) -> None:
        say(f"  warning: {sentence}")


def main(
    model: harness.Model = "tiny",
    steps: Annotated[int | None, typer.Option(min=24, help="[default: 500 of tiny, 60 of another]")] = None,
    precision: harness.Precision = "4bit",
    seed: int = 0,
    json_path: harness.JsonPath = None,
) -> None:
    """Memory, step time and folder of one long run. Exit code 1 if memory grows, or the folder past its bound."""
    steps = steps or STEPS.get(model, OTHER_STEPS)
    facts = harness.machine()
    versions = ", ".join(f"{name} {number}" for name, number in facts["versions"].items())
    show(f"{facts['cpu']}, {facts['cores']} cores, load {facts['load']} at the start; {versions}")
    with tempfile.TemporaryDirectory(prefix="soak-") as place:
        watch = Watch(Path(place) / "run")
        config = configuration(model, precision, steps, seed, watch.folder)
        started = time.monotonic()
        run = train(config, progress=watch)
        result = measured(watch, bound_of(run.path, run.config)) | {
            "model": model,
            "steps": steps,
            "minutes": (time.monotonic() - started) / 60,
        }
    show_table(f"{steps} steps of {model}", ["", "measured", "goal"], table(result))
    harness.save(json_path, {"benchmark": "soak", "machine": facts, **result})
    if result["slope_mib"] >= FLAT_MIB or result["folder_largest"] > result["folder_bound"]:
        raise typer.Exit(1)


def configuration(model: str, precision: str, steps: int, seed: int, folder: Path) -> RunConfig:
    """Small steps that learn: `tiny` finds letters by itself, another model starts as in the preset `demo`."""
    own: dict[str, Any]
    if model == "tiny":
        precision = "fp32"
        own = {"tasks": "letters", "max_completion_tokens": 16, "eval_tasks": "letters:named=6"}
    else:
        demo = preset_layer("demo")
        tasks = demo["tasks"]["train"]
        own = {"tasks": tasks, "max_completion_tokens": 40, "eval_tasks": tasks, "cold_start": demo["cold_start"]}
    return RunConfig(
        game="agon",
        model=model,
        precision=precision,
        steps=steps,
        seed=seed,
        group_size=4,
        problems_per_step=2,
        save_every=10,
        eval_every=max(12, steps // 10),
        run_dir=folder,
        eval={"limit": 8},
        run={"episodes_limit_mb": EPISODES_MB, "preflight": False},
        **own,
    )


def measured(watch: Watch, bound: int) -> Result:
    first, last = quarters(watch.seconds[WARM_UP:])
    return {
        "memory": watch.memory,
        "seconds": watch.seconds,
        "slope_mib": slope(watch.memory[WARM_UP:]) / 2**20,
        "first_quarter_s": first,
        "last_quarter_s": last,
        "folder_largest": watch.largest,
        "folder_bound": bound,
    }


def slope(values: Sequence[float]) -> float:
    """How much a value grows from one to the next, by least squares."""
    return statistics.linear_regression(range(len(values)), values).slope


def quarters(values: Sequence[float]) -> tuple[float, float]:
    """The medians of the first and the last quarter."""
    size = len(values) // 4
    return statistics.median(values[:size]), statistics.median(values[-size:])


def bytes_in(folder: Path) -> int:
    """What the files below a folder take. One that is removed meanwhile counts as nothing."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def bound_of(folder: Path, config: RunConfig) -> int:
    """The bound of docs/reliability.md, from what one checkpoint, one step and one evaluation take in this run.

    Checkpoints that are kept, the best one, and one that is being written; the adapters; episodes up to their limit and
    one more step; and per step a line of metrics, per evaluation a file.
    """
    run = config.run
    checkpoint = max(bytes_in(path) for path in (folder / "checkpoints").glob("step-*"))
    lines = (folder / "metrics.jsonl").read_bytes().splitlines()
    files = list((folder / "eval").glob("*.json"))
    per_evaluation = max((path.stat().st_size for path in files), default=0)
    others = [path for path in folder.iterdir() if path.is_file() and path.suffix != ".jsonl"]
    step_of_episodes = (folder / "episodes.jsonl").stat().st_size / len(lines)
    return int(
        (run.keep_checkpoints + 2) * checkpoint
        + 2 * bytes_in(folder / "adapters")
        + run.episodes_limit_mb * 1e6
        + 4 * step_of_episodes
        + max(map(len, lines)) * run.steps
        + per_evaluation * (run.steps // (config.eval.every or run.steps) + 3)
        + 2 * sum(path.stat().st_size for path in others)
    )


def table(result: Result) -> list[list[str]]:
    memory = result["memory"]
    drift = result["last_quarter_s"] / result["first_quarter_s"]
    first, last = result["first_quarter_s"], result["last_quarter_s"]
    return [
        [f"resident memory after step {WARM_UP}, MiB", megabytes(memory[WARM_UP - 1]), ""],
        ["at the end, MiB", megabytes(memory[-1]), ""],
        ["slope, MiB a step", f"{result['slope_mib']:.3f}", f"< {FLAT_MIB}"],
        ["a step, first quarter, s of the processor", f"{first:.3f}", ""],
        ["a step, last quarter, s of the processor", f"{last:.3f}", ""],
        ["last over first", f"{drift:.2f}", "about 1"],
        ["run folder at its largest, MB", f"{result['folder_largest'] / 1e6:.2f}", ""],
        ["its bound, MB", f"{result['folder_bound'] / 1e6:.2f}", "not below it"],
        ["minutes in all", f"{result['minutes']:.1f}", ""],
    ]


if __name__ == "__main__":
    harness.run(main)

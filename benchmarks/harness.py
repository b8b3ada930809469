"""Shared by the benchmarks: a process for each contender, turns, medians, tables and facts about the machine."""

import json
import math
import os
import platform
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table

from lite_selfplay import RunConfig
from lite_selfplay.errors import LiteSelfPlayError
from lite_selfplay.models.sources import locate
from lite_selfplay.tasks import Source, load_task

PAUSE_S = 0.5
"""Between turns, so that the threads of one process stop spinning before the other one starts."""
PACKAGES = ("torch", "transformers", "trl", "peft", "bitsandbytes", "lite-selfplay")
HERE = Path(__file__).parent

Reply = dict[str, Any]

# Options that the benchmarks share.
Model = Annotated[str, typer.Option(help="Any model that `lite-selfplay train --model` takes.")]
Tasks = Annotated[str | None, typer.Option(help="A .jsonl file such as GSM8K's, or a task. [default: arithmetic]")]
Precision = Annotated[str, typer.Option(help="4bit, bf16, fp16 or fp32, as in a run.")]
ComputeDtype = Annotated[str, typer.Option(help="What 4-bit weights are multiplied in, as in a run.")]
Threads = Annotated[int | None, typer.Option(min=1, help="OMP_NUM_THREADS of all processes. [default: torch's choice]")]
JsonPath = Annotated[Path | None, typer.Option("--json", help="Also write the results to this file.")]


class Lengths(StrEnum):
    """uniform: no completion ends before the cap; long-tailed: the model ends them."""

    uniform = "uniform"
    long_tailed = "long-tailed"


class BenchmarkError(Exception):
    """A contender failed; the message ends with its last output."""


@dataclass(frozen=True)
class Setting:
    """The settings that all contenders share.

    `tasks` is a JSONL file with exactly the problems of a round, `folder` a place for files that contenders write, and
    `adapter` the folder where this library saves the adapter that TRL starts with. `lengths` is `uniform` (every
    completion runs to `cap`) or `long-tailed` (the model ends completions). `group_size` is the number of completions
    per problem; in a training step, those of one of two roles. A prompt is the problem followed by `ask`, or the
    library's own prompt if that is None. `checkpointing` recomputes activations in the backward pass; if it
    is None, this library decides for itself, and others keep them, which is faster.
    """

    model: str
    precision: str
    compute_dtype: str
    lengths: str
    tasks: str
    folder: str
    adapter: str
    prompts: int
    group_size: int
    cap: int
    rounds: int
    ask: str | None = None
    seats: int = 1
    rank: int = 16
    alpha: int = 32
    init_std: float = 1e-3
    lr: float = 1e-5
    checkpointing: bool | None = None

    @property
    def uniform(self) -> bool:
        return self.lengths == "uniform"

    def as_result(self, tasks: str, lengths: str) -> dict[str, Any]:
        """The settings for the results, without the temporary paths."""
        values = {**asdict(self), "tasks": tasks, "lengths": lengths}
        return {key: value for key, value in values.items() if key not in ("folder", "adapter")}


GRPO_ADAPTER = "grpo-1/adapters/solver"
"""Where this library saves the seat of `grpo` as it is before training."""


class Contender:
    """A process that is compared; its protocol is JSON lines. `hear` waits for its next one, `ask` sends one first.

    It is waited for no longer than `until`, a time of `time.monotonic`.
    """

    def __init__(
        self,
        name: str,
        script: str,
        kind: str,
        setting: Setting,
        threads: int | None = None,
        until: float = math.inf,
    ):
        self.name, self.until = name, until
        self._log = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        environment = dict(os.environ)
        if threads is not None:
            environment["OMP_NUM_THREADS"] = str(threads)
        mine, its = os.pipe()  # not stdout, where libraries print
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / script), kind, json.dumps(asdict(setting)), str(its)],
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            pass_fds=[its],
            text=True,
            env=environment,
        )
        os.close(its)
        self._answers = os.fdopen(mine, encoding="utf-8")

    def ask(self, **message: Any) -> Reply:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._broken() from None
        return self.hear()

    def hear(self) -> Reply:
        left = None if math.isinf(self.until) else max(0.0, self.until - time.monotonic())
        if not select.select([self._answers], [], [], left)[0]:
            self._process.kill()
            raise BenchmarkError(f"{self.name} had no answer when the time was used up")
        line = self._answers.readline()
        if not line:
            raise self._broken()
        reply: Reply = json.loads(line)
        return reply

    def close(self) -> None:
        """End the process, which exits by itself once its stdin is closed."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._answers.close()
        self._log.close()

    def _broken(self) -> BenchmarkError:
        code = self._process.wait()
        self._log.seek(0)
        tail = "".join(self._log.readlines()[-25:])
        return BenchmarkError(f"{self.name} ended with exit code {code}:\n{tail}")


@contextmanager
def started(
    kinds: Mapping[str, tuple[str, str]], setting: Setting, threads: int | None
) -> Iterator[list[tuple[Contender, Reply]]]:
    """Contenders by (script, kind), each loaded and warmed up before the next, with their first reports."""
    with ExitStack() as ending:
        running = []
        for name, (script, kind) in kinds.items():
            say(f"{name}: loading, and a first round to warm up")
            contender = Contender(name, script, kind, setting, threads)
            ending.callback(contender.close)
            running.append((contender, contender.hear()))
        yield running


def take_turns(
    contenders: Sequence[Contender],
    rounds: int,
    message: Callable[[int], Mapping[str, Any]],
    until: float = math.inf,
) -> dict[str, list[Reply]]:
    """The replies of each contender to `message(round)`; in every round they take turns.

    After `until`, a time of `time.monotonic`, no further round begins; the first one always does.
    """
    replies: dict[str, list[Reply]] = {contender.name: [] for contender in contenders}
    for number in range(rounds):
        if number and time.monotonic() > until:
            say(f"the time is used up after round {number} of {rounds}")
            break
        for contender in contenders:
            time.sleep(PAUSE_S)
            reply = contender.ask(**message(number))
            replies[contender.name].append(reply)
            say(f"round {number + 1} of {rounds}, {contender.name}: {reply['seconds']:.2f} s, {reply['tokens']} tokens")
    return replies


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, minimum and maximum."""
    return {"median": statistics.median(values), "lowest": min(values), "highest": max(values)}


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, float]:
    """Ours divided by theirs: the ratio of the medians, and the extremes of the single rounds' ratios."""
    pairs = [mine / other for mine, other in zip(ours, theirs, strict=True)]
    return {**spread(pairs), "median": statistics.median(ours) / statistics.median(theirs)}


def write_problems(tasks: str | None, n: int, path: Path) -> str:
    """Write `n` problems of a task to a JSONL file, always the same ones in the same order. Returns the task's name."""
    task = load_task(tasks or "arithmetic")
    rows = [{"problem": p.text, "answer": p.answer or ""} for p in Source(task.problems, seed=0).draw(n)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return task.name


@contextmanager
def prepared(tasks: str | None, adapter: str, **values: Any) -> Iterator[tuple[Setting, str]]:
    """The settings of all contenders, and the name of the task. Problems and `adapter` are in a temporary folder.

    `values` are the other fields of `Setting`.
    """
    with tempfile.TemporaryDirectory(prefix="lite-selfplay-benchmark-") as folder:
        problems = Path(folder) / "problems.jsonl"
        name = write_problems(tasks, values["prompts"], problems)
        yield Setting(tasks=str(problems), folder=folder, adapter=str(Path(folder) / adapter), **values), name


def require(model: str, precision: str, compute_dtype: str) -> None:
    """Raise RequestError for a model or a precision that a run would refuse."""
    RunConfig(game="grpo", model={"name": model, "precision": precision, "compute_dtype": compute_dtype})
    locate(model)


def machine() -> dict[str, Any]:
    """The processor, the cores available to this process, the load before the run, and versions."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "not installed"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    load = round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None
    return {"cpu": _cpu(), "cores": cores, "load": load, "python": platform.python_version(), "versions": versions}


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def machine_line(facts: Mapping[str, Any], contender: Mapping[str, Any]) -> str:
    """The machine in one line; `contender` has the facts that a contender reported."""
    versions = ", ".join(f"{name} {number}" for name, number in facts["versions"].items())
    threads, device, dtype = (contender[key] for key in ("threads", "device", "dtype"))
    return (
        f"{facts['cpu']}, {facts['cores']} cores, {threads} threads, load {facts['load']} at the start; "
        f"{device}, weights multiplied in {dtype}; {versions}"
    )


# Printing

_console = Console(width=None if sys.stdout.isatty() else 200)
_notes = Console(stderr=True, highlight=False)


def say(sentence: str) -> None:
    """Print progress to stderr; results go to stdout."""
    _notes.print(sentence, markup=False)


def show(text: str) -> None:
    _console.print(text, markup=False, highlight=False, soft_wrap=True)


def show_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table in Markdown under its title."""
    table = Table(box=MARKDOWN)
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    with _console.capture() as printed:
        _console.print(table)
    lines = [line.rstrip() for line in printed.get().splitlines()]
    show("\n".join(["", title, "", *filter(None, lines), ""]))


def ranged(values: Mapping[str, float], digits: int = 1) -> str:
    """`2.1 (1.9 to 2.4)`, or `2.1` if all values are equal."""
    if values["lowest"] == values["highest"]:
        return f"{values['median']:.{digits}f}"
    return f"{values['median']:.{digits}f} ({values['lowest']:.{digits}f} to {values['highest']:.{digits}f})"


def megabytes(count: float) -> str:
    return f"{count / 2**20:,.0f}"


def run(command: Callable[..., None]) -> None:
    """A benchmark's command line. Exit code 1 if a contender fails, 2 for an invalid request."""
    app = typer.Typer(add_completion=False, rich_markup_mode="markdown")
    app.command()(command)
    try:
        app()
    except BenchmarkError as error:
        say(str(error))
        raise SystemExit(1) from None
    except LiteSelfPlayError as error:
        say(str(error))
        raise SystemExit(error.exit_code) from None


def save(path: Path | None, results: Mapping[str, Any]) -> None:
    if path is not None:
        path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        say(f"results in {path}")

"""Programs a second: for each way to confine one, beside fresh interpreters without any protection.

    python benchmarks/programs.py [--programs 64] [--workers 2] [--model smollm2-135m] [--json FILE]

Each program is run with 5 tests: of stdin and stdout (a process a test), of calls (one process), and of assertions (two
processes). With --model, steps of plain GRPO on `code-arithmetic` are trained as well (64 completions of up to 160
tokens), and the time that checking 64 right programs with 5 tests takes is set against a step's.

Seconds are by the clock, milliseconds of the processor: on a machine that is busy with other things the latter are the
ones to compare.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from lite_selfplay.data import Completion, Sampling
from lite_selfplay.tasks import load_task
from lite_selfplay.verify import Verifier
from lite_selfplay.verify.programs import SandboxError, open_sandbox, run_tests

TESTS = 5
TIERS = {
    "seccomp": ("seccomp",),
    "seccomp, Landlock": ("seccomp", "landlock"),
    "every layer": ("seccomp", "landlock", "namespaces", "chroot", "uid"),
}
PROGRAM = """numbers = [int(word) for word in input().split()]
total = 0
for i in range(8000):
    total += i * numbers[i % len(numbers)] % 7
print(sum(numbers), total % 10)
"""
FUNCTION = "def add(a, b):\n    return a + b\n"


def expected(line: str) -> str:
    numbers = [int(word) for word in line.split()]
    total = sum(i * numbers[i % len(numbers)] % 7 for i in range(8000))
    return f"{sum(numbers)} {total % 10}\n"


LINES = [f"{i} 2 3 {i * i}\n" for i in range(TESTS)]
STDIN = [[line, expected(line)] for line in LINES]
CALLS = [{"function": "add", "arguments": [i, 2], "expected": i + 2} for i in range(TESTS)]
ASSERTIONS = [f"assert add({i}, 2) == {i + 2}" for i in range(TESTS)]


def timed(work: Callable[[], Any], count: int) -> dict[str, float]:
    """Programs a second by the clock, and milliseconds of the processor each, children included."""
    before, started = processor_seconds(), time.perf_counter()
    work()
    wall, used = time.perf_counter() - started, processor_seconds() - before
    return {"a_second": count / wall, "processor_ms": 1000 * used / count}


def processor_seconds() -> float:
    seen = (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in seen)


def unprotected(programs: int, workers: int) -> None:
    """A fresh interpreter a test, as plain as it can be."""

    def one(test: list[str]) -> None:
        command = [sys.executable, "-I", "-S", "-c", PROGRAM]
        done = subprocess.run(command, input=test[0], capture_output=True, text=True, check=True)
        assert done.stdout == test[1]

    with ThreadPoolExecutor(workers) as threads:
        list(threads.map(one, STDIN * programs))


def confined(layers: tuple[str, ...], program: str, tests: Any, programs: int, workers: int) -> dict[str, float]:
    """The same in a sandbox, which is opened beforehand."""
    started = time.perf_counter()
    sandbox = open_sandbox(size=workers, layers=layers)
    try:
        if set(layers) - set(sandbox.layers):
            raise SandboxError("; ".join(f"no {name}: {why}" for name, why in sandbox.missing.items()))
        opened = time.perf_counter() - started
        run_tests([program] * workers, tests, sandbox=sandbox)  # starts all its processes
        before = processor_seconds() + of_sessions(sandbox.pids())
        begun = time.perf_counter()
        reports = run_tests([program] * programs, tests, sandbox=sandbox)
        wall = time.perf_counter() - begun
        used = processor_seconds() + of_sessions(sandbox.pids()) - before
        assert all(report.score == 1 for report in reports), reports
    finally:
        sandbox.close()
    count = programs * TESTS
    return {"a_second": count / wall, "processor_ms": 1000 * used / count, "open_s": opened}


def of_sessions(leaders: list[int]) -> float:
    """Processor seconds of all processes of some sessions, with those of their children that have ended."""
    found = 0.0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[3]) in leaders:
            found += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return found


def measured(programs: int, workers: int) -> Iterator[tuple[str, str, dict[str, float]]]:
    """(how, tests of what kind, figures)"""
    yield "a fresh interpreter, unprotected", "stdin", timed(lambda: unprotected(programs, workers), programs * TESTS)
    for name, layers in TIERS.items():
        for kind, program, tests in (
            ("stdin", PROGRAM, STDIN),
            ("calls", FUNCTION, CALLS),
            ("assertions", FUNCTION, ASSERTIONS),
        ):
            try:
                yield name, kind, confined(layers, program, tests, programs, workers)
            except SandboxError as error:
                print(f"{name}: not here ({error})", file=sys.stderr)


def share_of_a_step(model: str, steps: int, cap: int) -> dict[str, float]:
    """What checking 64 right programs costs beside a step that samples and learns from as many."""
    from lite_selfplay import RunConfig, train

    task = load_task("code-arithmetic")
    with tempfile.TemporaryDirectory() as place:
        run = train(
            RunConfig(
                game="grpo", model=model, tasks="code-arithmetic", steps=steps, group_size=8, problems_per_step=4,
                max_completion_tokens=cap, run={"dir": str(Path(place, "run")), "preflight": False},
            )
        )  # fmt: skip
        rows = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    seconds = [row["wall_s"]["generate"] + row["wall_s"]["update"] for row in rows]
    pairs = [
        (
            Completion("", f"<answer>\n{problem.extra['solution']}\n</answer>", (), (), (), "eos", "", 0, Sampling()),
            problem,
        )
        for problem in task.problems[:64]
    ]
    with Verifier() as verifier:
        verifier.verify(pairs[:1])  # opens the sandbox, once a run
        started = time.perf_counter()
        assert all(verdict.correct for verdict in verifier.verify(pairs))
        checking = time.perf_counter() - started
    step = sorted(seconds)[len(seconds) // 2]
    return {"checking_s": checking, "step_s": step, "share": checking / (step + checking)}


def main(
    programs: Annotated[int, typer.Option(help="Programs, each with 5 tests.", min=1)] = 64,
    workers: Annotated[int, typer.Option(help="Processes that start programs.", min=1)] = 2,
    model: Annotated[str | None, typer.Option(help="Train steps of this model, and give checking's share.")] = None,
    steps: Annotated[int, typer.Option(help="Steps of that training; the median counts.", min=1)] = 3,
    cap: Annotated[int, typer.Option(help="Tokens of a completion in it.", min=1)] = 160,
    json_path: Annotated[Path | None, typer.Option("--json", help="Write the figures here as well.")] = None,
) -> None:
    """Print a row for each way to run programs and each kind of test: tests a second, and processor time of each."""
    found: dict[str, Any] = {"rows": []}
    table = Table("run in", "tests of", "a second", "ms each", "opened in s")
    for how, kind, figures in measured(programs, workers):
        found["rows"].append({"how": how, "kind": kind, **figures})
        opened = f"{figures['open_s']:.2f}" if "open_s" in figures else ""
        table.add_row(how, kind, f"{figures['a_second']:.0f}", f"{figures['processor_ms']:.1f}", opened)
    Console().print(table)
    if model is not None:
        found["step"] = share_of_a_step(model, steps, cap)
        print(
            "64 programs with 5 tests: {checking_s:.2f} s; a step: {step_s:.1f} s; share {share:.1%}".format(
                **found["step"]
            )
        )
    if json_path is not None:
        json_path.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    typer.run(main)

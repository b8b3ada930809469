"""A training step on a card: this library on each of its backends, against TRL's trainer and Unsloth's own GRPO loop.

Every contender makes the same number of completions of the same prompts under the same cap, from the same base weights
and adapters of the same kind: with one seat by `grpo`, with two by `agon`. They take turns, each in a process of its
own, after one warm-up step each. Rewards are a hash of the text: no checker is timed, and every group has variance.
Contenders that cannot run on this machine are listed with the reason.

On a CPU the benchmark runs as well, with the memory of the process in place of the card's. This only shows that it
works.
"""

import math
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import harness
import typer
from harness import BenchmarkError, Contender, Lengths, Reply, Setting, megabytes, ranged, ratio, say, spread

from lite_selfplay.evaluation import as_markdown
from lite_selfplay.extras.doctor import machine as machine_as_found
from lite_selfplay.models.backends import unsloth_problem
from lite_selfplay.models.packages import version_of

RESULTS = Path(__file__).parent / "results"
TRL, UNSLOTH = "TRL", "Unsloth"
KINDS = {
    "lite-selfplay, one seat": ("ours.py", "grpo"),  # first: it saves the adapter that the others start with
    "lite-selfplay, two seats": ("ours.py", "agon"),
    "lite-selfplay on Unsloth, one seat": ("ours.py", "grpo-unsloth"),
    "lite-selfplay on Unsloth, two seats": ("ours.py", "agon-unsloth"),
    TRL: ("stock.py", "step"),
    UNSLOTH: ("stock.py", "step-unsloth"),
}
COMPARED_WITH = (TRL, UNSLOTH)
BESIDES = ("unsloth", "unsloth_zoo", "xformers", "flash-attn", "triton")

Result = dict[str, Any]


@dataclass(frozen=True)
class Times:
    """When contenders have to be loaded, when the last round begins, and when all ends: times of `time.monotonic`."""

    loaded: float = math.inf
    last_round: float = math.inf
    end: float = math.inf

    @classmethod
    def of_a_quick_run(cls) -> "Times":
        """Ten minutes, less half a minute for the table."""
        now = time.monotonic()
        return cls(now + 300, now + 420, now + 570)


def main(
    model: harness.Model = "smollm2-135m",
    tasks: harness.Tasks = None,
    prompts: Annotated[int, typer.Option(min=1, help="Problems per step, the same ones at every step.")] = 4,
    group_size: Annotated[int, typer.Option(min=2, help="Half of the completions per problem.")] = 8,
    cap: Annotated[int, typer.Option(min=1, help="Maximum number of tokens per completion.")] = 256,
    rounds: Annotated[int, typer.Option(min=1, help="Timed steps of each contender.")] = 5,
    lengths: Annotated[Lengths, typer.Option(help=Lengths.__doc__)] = Lengths.uniform,
    precision: harness.Precision = "4bit",
    compute_dtype: harness.ComputeDtype = "auto",
    checkpointing: Annotated[bool, typer.Option(help="Gradient checkpointing, in all contenders.")] = False,
    threads: harness.Threads = None,
    out: Annotated[Path, typer.Option(help="Folder for the table and the JSON file.")] = RESULTS,
    quick: Annotated[
        bool, typer.Option("--quick", help="A table within 10 minutes: short completions, two rounds, no latecomers.")
    ] = False,
) -> None:
    """Tokens per second of sampling and of updates, and peak memory: this library, TRL's trainer and Unsloth's loop.

    A step is PROMPTS x 2 x GROUP_SIZE completions. Figures are medians; ratios are ours divided by the other's, with
    the extremes of single rounds in brackets. Results are written as Markdown and JSON, with machine and versions.
    """
    harness.require(model, precision, compute_dtype)
    if quick:
        prompts, group_size, cap, rounds = min(prompts, 2), min(group_size, 4), min(cap, 64), min(rounds, 2)
    times = Times.of_a_quick_run() if quick else Times()
    results: Result = {"benchmark": "gpu", "machine": machine()}
    with (
        harness.prepared(
            tasks,
            harness.GRPO_ADAPTER,
            model=model,
            precision=precision,
            compute_dtype=compute_dtype,
            lengths=str(lengths),
            prompts=prompts,
            group_size=group_size,
            cap=cap,
            rounds=rounds,
            checkpointing=checkpointing,
        ) as (setting, name),
        ExitStack() as ending,
    ):
        results["settings"] = setting.as_result(name, str(lengths))
        running, results["cannot_run"] = start(setting, threads, ending, times)
        results["machine"]["contender"] = {key: running[0][1][key] for key in ("threads", "device", "dtype")}
        contenders = [contender for contender, _ in running]
        for contender in contenders:
            contender.until = times.end
        replies = harness.take_turns(contenders, rounds, lambda number: {"profile": False}, times.last_round)
    results["settings"]["rounds"] = len(replies[contenders[0].name])
    results["contenders"] = {name: summary(found) for name, found in replies.items()}
    results["ratios"] = {
        name: {other: against(replies[name], replies[other]) for other in COMPARED_WITH if other in replies}
        for name in replies
        if name not in COMPARED_WITH
    }
    write(results, out)


def machine() -> Result:
    """The machine, its card, and the versions of further packages that may compute on it."""
    found, texts = harness.machine(), {finding.part: finding.text for finding in machine_as_found()}
    besides = {name: version_of(name) or "not installed" for name in BESIDES}
    xformers = texts.get("xformers", "not installed")
    return {**found, "versions": found["versions"] | besides, "card": texts["device"], "xformers": xformers}


def start(
    setting: Setting, threads: int | None, ending: ExitStack, times: Times
) -> tuple[list[tuple[Contender, Reply]], dict[str, str]]:
    """The contenders that can run here, warmed up, and why the others cannot. The first one, which saves the adapter
    that the others start with, is loaded alone, and then all others at once.

    Raises BenchmarkError if the first one cannot run.
    """
    running: list[tuple[Contender, Reply]] = []
    loading: list[Contender] = []
    missing: dict[str, str] = {}
    for name, (script, kind) in KINDS.items():
        if UNSLOTH in name and (problem := unsloth_problem()) is not None:
            missing[name] = problem
            continue
        say(f"{name}: loading, and a first step to warm up")
        contender = Contender(name, script, kind, setting, threads, times.loaded if running else times.end)
        ending.callback(contender.close)
        if running:
            loading.append(contender)
        else:
            running.append((contender, contender.hear()))
    for contender in loading:
        try:
            running.append((contender, contender.hear()))
        except BenchmarkError as error:
            missing[contender.name] = f"it ended at its start: {str(error).strip().splitlines()[-1]}"
            say(str(error))
    return running, missing


def summary(replies: Sequence[Reply]) -> Result:
    """One contender's steps: tokens per second, peak memory in bytes. `moved`: every step changed the weights."""
    return {
        "tokens": [reply["tokens"] for reply in replies],
        "seconds": spread([reply["seconds"] for reply in replies]),
        "generating": spread(speeds(replies, "generate_s")),
        "updating": spread(speeds(replies, "update_s")),
        "peak": peak(replies),
        "moved": all(reply["moved"] for reply in replies),
    }


def speeds(replies: Sequence[Reply], phase: str) -> list[float]:
    """Completion tokens per second of a phase, in each round."""
    return [reply["tokens"] / reply[phase] for reply in replies]


def peak(replies: Sequence[Reply]) -> int:
    """Peak memory of the steps: the card's or, on a CPU, the process's."""
    memory: Mapping[str, int] = replies[-1]["memory"]
    return memory["gpu_peak"] or memory["peak"]


def against(ours: Sequence[Reply], theirs: Sequence[Reply]) -> Result:
    """Ours divided by theirs."""
    return {
        "generating": ratio(speeds(ours, "generate_s"), speeds(theirs, "generate_s")),
        "updating": ratio(speeds(ours, "update_s"), speeds(theirs, "update_s")),
        "seconds": ratio([reply["seconds"] for reply in ours], [reply["seconds"] for reply in theirs]),
        "peak": peak(ours) / peak(theirs),
    }


# Writing


def write(results: Result, folder: Path) -> None:
    """The page and the JSON file, named by device and model."""
    device, model = results["machine"]["contender"]["device"], Path(results["settings"]["model"]).name
    name = re.sub(r"[^a-z0-9.]+", "-", f"gpu-{device}-{model}".lower())
    folder.mkdir(parents=True, exist_ok=True)
    text = page(results)
    (folder / f"{name}.md").write_text(text, encoding="utf-8")
    harness.save(folder / f"{name}.json", results)
    harness.show(text)


def page(results: Result) -> str:
    """The results as a page of Markdown."""
    setting, here = results["settings"], results["machine"]
    completions = f"{setting['prompts']} x {2 * setting['group_size']} completions of at most {setting['cap']} tokens"
    parts = [
        f"# A step on {here['contender']['device']}: {setting['model']} in {setting['precision']}",
        f"{completions}, {setting['lengths']}, {setting['rounds']} rounds of each in turns; gradient checkpointing "
        f"{'on' if setting['checkpointing'] else 'off'}. Medians, with the extremes in brackets.",
        as_markdown(*table(results["contenders"])),
    ]
    for other in COMPARED_WITH:
        rows = {name: found[other] for name, found in results["ratios"].items() if other in found}
        if rows:
            parts += [f"Ours divided by {other}'s:", as_markdown(*ratios(rows))]
    parts += [f"Not run: {name}, since {why}." for name, why in results["cannot_run"].items()]
    parts.append(f"The card: {here['card']}; xformers: {here['xformers']}.")
    parts.append(harness.machine_line(here, here["contender"]) + ".")
    return "\n\n".join(parts) + "\n"


def table(contenders: Mapping[str, Result]) -> tuple[list[str], list[list[str]]]:
    columns = ["", "sampled tokens/s", "updated tokens/s", "seconds a step", "peak MiB", "moved"]
    rows = [
        [
            name,
            ranged(found["generating"], 0),
            ranged(found["updating"], 0),
            ranged(found["seconds"], 2),
            megabytes(found["peak"]),
            "yes" if found["moved"] else "NO",
        ]
        for name, found in contenders.items()
    ]
    return columns, rows


def ratios(rows: Mapping[str, Result]) -> tuple[list[str], list[list[str]]]:
    columns = ["", "sampling", "updating", "seconds a step", "peak memory"]
    keys = ("generating", "updating", "seconds")
    return columns, [[name, *(ranged(r[key], 2) for key in keys), f"{r['peak']:.2f}"] for name, r in rows.items()]


if __name__ == "__main__":
    harness.run(main)

"""A training step: one whole Agon step of this library against one GRPO step of TRL's stock `GRPOTrainer`.

Agon samples N drafts and N challenges for each problem and trains both seats; GRPO samples 2N completions for each and
trains one. So all contenders make the same number of completions under the same cap, with the same base model and
adapters of the same kind; this library's `grpo` does the same task as TRL. They take turns, each in a process of its
own. Rewards are a hash of the text on both sides: no checker is timed, and every group has variance.

TRL is set up as in its documentation: 8 rows per device, enough accumulation steps to make all completions one
generation batch, no KL term. Its gradient checkpointing is off, which is faster and takes more memory; this library
decides for itself (`model.gradient_checkpointing=auto`). On both sides dropout is off and nothing is saved. On a CPU,
TRL's loss kernel, which needs Triton, is replaced by plain torch in chunks that are recomputed, as in this library.
"""

import statistics
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import harness
import typer
from harness import Lengths, Reply, Setting, megabytes, ranged, ratio, say, show, show_table, spread

AGON, GRPO, TRL = "lite-selfplay agon", "lite-selfplay grpo", "TRL grpo"
KINDS = {GRPO: ("ours.py", "grpo"), AGON: ("ours.py", "agon"), TRL: ("stock.py", "step")}
OWN_LIMIT = 0.03
"""The share of a step that this library's own Python may take."""

Result = dict[str, Any]


def main(
    model: harness.Model = "smollm2-135m",
    tasks: harness.Tasks = None,
    prompts: Annotated[int, typer.Option(min=1, help="Problems per step, the same ones at every step.")] = 4,
    group_size: Annotated[
        int, typer.Option(min=2, help="Completions per problem and role: N drafts, N challenges.")
    ] = 8,
    cap: Annotated[int, typer.Option(min=1, help="Maximum number of tokens per completion.")] = 128,
    rounds: Annotated[int, typer.Option(min=1, help="Timed steps of each contender.")] = 3,
    lengths: Annotated[Lengths, typer.Option(help=Lengths.__doc__)] = Lengths.uniform,
    precision: harness.Precision = "4bit",
    compute_dtype: harness.ComputeDtype = "auto",
    threads: harness.Threads = None,
    checkpointing: Annotated[
        bool | None, typer.Option(help="Compute activations again in all contenders, or in none.")
    ] = None,
    json_path: harness.JsonPath = None,
) -> None:
    """Seconds and memory of one training step: this library and TRL's stock GRPOTrainer in the same run.

    A step is PROMPTS x 2 x GROUP_SIZE completions for every contender, sampled at temperature 1 and trained on. Ratios
    are ours divided by TRL's: that of the medians, with the extremes of single rounds in brackets. If the model ends
    completions itself, steps differ in their tokens: compare seconds only where the tokens are similar.

    After the timed steps, this library runs one more step with timers around its calls. `own Python` is the time that
    no timer covers, within generation and elsewhere.
    """
    harness.require(model, precision, compute_dtype)
    results: Result = {"benchmark": "step", "machine": harness.machine()}
    with harness.prepared(
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
    ) as (setting, name):
        results["settings"] = setting.as_result(name, str(lengths))
        with harness.started(KINDS, setting, threads) as running:
            results["machine"]["contender"] = {key: running[0][1][key] for key in ("threads", "device", "dtype")}
            show(harness.machine_line(results["machine"], results["machine"]["contender"]))
            contenders = [contender for contender, _ in running]
            replies = harness.take_turns(contenders, rounds, lambda number: {"profile": False})
            say("one more step with timers")
            profiles = {c.name: c.ask(profile=True) for c in contenders if c.name != TRL}
    results["contenders"] = {name: summary(replies[name]) for name in (AGON, GRPO, TRL)}
    results["ratios"] = {name: against(replies[name], replies[TRL]) for name in (AGON, GRPO)}
    results["profile"] = {name: profile(profiles[name]) for name in (AGON, GRPO)}
    show_steps(setting, results)
    show_profile(results["profile"])
    harness.save(json_path, results)


def summary(replies: Sequence[Reply]) -> Result:
    """One contender's steps. `moved`: every step changed the weights."""
    columns = {key: [reply[key] for reply in replies] for key in ("seconds", "tokens", "generate_s", "update_s")}
    return {
        **columns,
        "seconds_a_step": spread(columns["seconds"]),
        "moved": all(reply["moved"] for reply in replies),
        "memory": replies[-1]["memory"],
    }


def against(ours: Sequence[Reply], theirs: Sequence[Reply]) -> Result:
    """Ours divided by TRL's: seconds per step, and the peak memory of the steps."""
    seconds = [[reply["seconds"] for reply in replies] for replies in (ours, theirs)]
    peaks = [replies[-1]["memory"]["peak"] for replies in (ours, theirs)]
    return {"seconds": ratio(*seconds), "peak": peaks[0] / peaks[1]}


def profile(reply: Reply) -> Result:
    """Seconds by part, and the rest of the step: this library's own Python, and TRL's around it."""
    own = reply["seconds"] - sum(reply["parts"].values())
    return {
        "seconds": reply["seconds"],
        "parts": reply["parts"],
        "own_generating": reply["arranging"],
        "own_elsewhere": own - reply["arranging"],
        "own_share": own / reply["seconds"],
    }


# Printing


def show_steps(setting: Setting, results: Result) -> None:
    completions = f"{setting.prompts} x {2 * setting.group_size} completions of at most {setting.cap} tokens"
    title = (
        f"a step of {completions}, {setting.lengths}: {setting.model} in {setting.precision}, {setting.rounds} rounds"
    )
    rows = []
    for name, side in results["contenders"].items():
        compared: Mapping[str, Any] | None = results["ratios"].get(name)
        memory, tokens = side["memory"], sum(side["tokens"]) / setting.rounds
        rows.append(
            [
                name,
                ranged(side["seconds_a_step"], 2),
                ranged(compared["seconds"], 2) if compared else "",
                f"{tokens:,.0f}",
                f"{statistics.median(side['generate_s']):.1f}",
                f"{statistics.median(side['update_s']):.1f}",
                megabytes(memory["loaded"]),
                f"{megabytes(memory['peak'])} ({megabytes(memory['total_peak'])})",
                f"{compared['peak']:.2f}" if compared else "",
                "yes" if side["moved"] else "NO",
            ]
        )
    columns = ["", "seconds a step", "ratio", "tokens", "generate", "update", "loaded MiB", "peak (total) MiB", "ratio"]
    show_table(title, [*columns, "moved"], rows)


def show_profile(profiles: Mapping[str, Result]) -> None:
    rows = []
    parts = next(iter(profiles.values()))["parts"]
    for part in parts:
        rows.append([part, *[cell for p in profiles.values() for cell in _cells(p["parts"][part], p["seconds"])]])
    for label, key in (("own Python, generating", "own_generating"), ("own Python, elsewhere", "own_elsewhere")):
        rows.append([label, *[cell for p in profiles.values() for cell in _cells(p[key], p["seconds"])]])
    rows.append(["the step", *[cell for p in profiles.values() for cell in _cells(p["seconds"], p["seconds"])]])
    columns = [column for name in profiles for column in (f"{name}, s", "share")]
    show_table("where a step's time goes", ["", *columns], rows)
    for name, found in profiles.items():
        verdict = "within" if found["own_share"] < OWN_LIMIT else "OVER"
        show(f"{name}: own Python {found['own_share']:.1%} of a step, {verdict} the {OWN_LIMIT:.0%} it may take")


def _cells(seconds: float, whole: float) -> list[str]:
    return [f"{seconds:.3f}", f"{seconds / whole:.1%}"]


if __name__ == "__main__":
    harness.run(main)

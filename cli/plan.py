"""`lite-selfplay plan`: a run's memory, prompts and rewards, estimated before anything is downloaded."""

from pathlib import Path
from typing import Annotated, Any

import typer

from lite_selfplay.config import RunConfig
from lite_selfplay.config.user_files import load
from lite_selfplay.errors import UnknownNameError
from lite_selfplay.evaluation.result import as_text
from lite_selfplay.extras.rehearsal import MOST_STEPS, in_a_sentence, rendered_prompts, tried
from lite_selfplay.models.memory import CARDS, GIB, Load, advise, estimate
from lite_selfplay.models.shapes import shape_of
from lite_selfplay.runs import planning
from lite_selfplay.runs.defaults import filled_in, size
from lite_selfplay.training.progress import PlainProgress, printable
from lite_selfplay_cli import flags

_FLAGS = (
    "model", "group_size", "problems_per_step", "max_completion_tokens", "backend", "precision", "tasks", "knowledge",
    "validation", "solutions", "data_dir", "seed", "reward", "trust_remote_code",
)  # fmt: skip
PREVIEW = 60


@flags.takes({flag: flags.TRAIN[flag] for flag in _FLAGS})
def plan(
    game: Annotated[
        str | None,
        typer.Option("--game", help="The game whose seats are trained.", show_default="the file's, else agon"),
    ] = None,
    *,
    given: dict[str, Any],
    gpu: Annotated[
        str | None, typer.Option(help="t4, rtx3060, rtx4090, l4, a100, h100, ...; cpu. [default: all GPUs]")
    ] = None,
    prompt_tokens: Annotated[int, typer.Option(min=1, max=2**31 - 1, help="Tokens of a long prompt.")] = 512,
    prompts: Annotated[
        bool, typer.Option(help="Show instead the prompts of each role, as the model reads them.")
    ] = False,
    preset: flags.Preset = None,
    config: flags.Config = None,
    assignments: flags.Assignments = None,
    as_json: flags.Json = False,
) -> None:
    """Estimate a step's memory and tokens from the configuration, without downloading anything.

    Weights, adapters, optimizer state and KV cache follow from the shape of the base. Activations are estimated from
    the tensors that a block keeps for its backward pass, plus a tenth for allocator overhead. If a GPU is too small,
    the output lists settings that fit. With --json memory is in bytes. A run estimates its duration after two steps.

    --prompts shows each role's prompt, with thinking on and off, and its number of tokens: the problems are the task's,
    the texts of other roles are made up, and only the model's tokenizer is loaded. --reward calls a reward function on
    ten made-up completions of two problems and shows each reward beside the checker's verdict: right, right without the
    answer format, wrong, empty and cut off; their token ids are bytes.

    \b
    Examples:
      lite-selfplay plan --model Qwen3-4B --game agon --gpu t4 --preset t4
      lite-selfplay plan --model Qwen3-0.6B --game sqlm --prompts
      lite-selfplay plan --model tiny --tasks problems.jsonl --reward my_reward.py:reward
      lite-selfplay plan --model Qwen3-1.7B --gpu rtx3060 --max-completion-tokens 2048
    """
    if gpu is not None and gpu.lower() not in (*CARDS, "cpu"):
        raise UnknownNameError("GPU", gpu, [*CARDS, "cpu"])
    given |= {"game": game}
    asked = RunConfig.of({"game": "agon"}, *flags.layers(given, preset, config, assignments, needs=("model",)))
    if prompts or asked.run.reward is not None:
        (_show_prompts if prompts else _try_reward)(asked, as_json)
        return
    _, played = filled_in(asked)
    one = None if gpu is None else CARDS.get(gpu.lower())
    sized = [] if gpu is None else size(asked, played, one)
    whole, played = filled_in(asked, sized)
    shape = shape_of(whole.model.name)
    run, rollouts = whole.run, played.rollouts_per_step()
    if (folder := Path(whole.model.name).expanduser()).is_dir():
        planning.fitted(whole, folder, run.max_completion_tokens or 512, flags.to_stderr)
    rows = max(run.problems_per_step * run.group_size, (rollouts or 0) // len(played.roles))
    load = Load(rows, prompt_tokens, run.max_completion_tokens or 512)
    chosen = [one] if one is not None else list(CARDS.values()) if gpu is None else []
    found = estimate(whole, shape, load, on_cpu=gpu is not None and one is None, card=one)
    fitting = {each.name: estimate(whole, shape, load, card=each).peak <= each.memory for each in chosen}
    most = None if rollouts is None else rollouts * load.completion_tokens
    facts = {
        "parts": {part.name: round(part.bytes) for part in found.parts},
        "generating": round(found.generating),
        "updating": round(found.updating),
        "completions_per_step": rollouts,
        "tokens_per_step": most,
        "fits": fitting,
    }
    why = (f"{choice.why}; {choice.flag} changes that" for choice in sized)
    gpus = (
        f"{each.name:<20}{each.memory / GIB:>6.1f} GiB  {'fits' if fitting[each.name] else 'too small'}"
        for each in chosen
    )
    advice = advise(whole, shape, load, one) if one is not None else ()
    lines = [*_about(whole, shape, load, rollouts, most), *why, "", *_table(found), "", *gpus, *advice]
    lines.append("\nAn estimate: its parts were checked by measurement on a CPU, its peak on one H200.")
    flags.show(as_json, facts, lines)


def _about(config: Any, shape: Any, load: Any, rollouts: int | None, most: int | None) -> list[str]:
    seats = f"{len(config.seats)} seat{'s' if len(config.seats) > 1 else ''}"
    step = "a number of completions that varies" if rollouts is None else f"{rollouts} completions"
    return [
        f"{config.game.label} with {config.model.name} in {config.model.precision}: {shape.parameters / 1e9:.2f}B "
        f"parameters, {seats}, {load.rows} completions at a time, prompts of {load.prompt_tokens} and completions "
        f"of {load.completion_tokens} tokens",
        f"a step: {step}" + ("" if most is None else f", at most {most:,} tokens"),
    ]


def _table(found: Any) -> list[str]:
    lines = [f"{'':<18}{'GiB':>7}  in memory"]
    for part in found.parts:
        when = "always" if part.generating and part.updating else "sampling" if part.generating else "updating"
        lines.append(f"{part.name:<18}{part.bytes / GIB:>7.2f}  {when}")
    sampling, updating = found.generating / GIB, found.updating / GIB
    return [*lines, "", f"peak, with overhead: {sampling:.1f} GiB sampling, {updating:.1f} GiB updating"]


def _show_prompts(asked: Any, as_json: bool) -> None:
    found, silent = rendered_prompts(
        planning.plan(asked, own_checker=asked.run.reward is not None), PlainProgress(flags.to_stderr)
    )
    lines = []
    for each in found:
        how = "" if each["thinking"] == "auto" else f", thinking {each['thinking']}"
        lines.append(f"== {each['role']} (seat {each['seat']}){how}: {each['tokens']} tokens")
        lines += [*(f"    {line}" for line in printable(each["text"]).splitlines()), ""]
    if found and all(each["thinking"] == "auto" for each in found):
        lines.append("The model's chat template has no thinking switch.")
    lines += [f"\n{role}: not asked in the first {MOST_STEPS} steps of a made-up game" for role in silent]
    flags.show(as_json, {"prompts": found, "not_asked": silent}, lines)


def _try_reward(asked: Any, as_json: bool) -> None:
    function = load(asked.run.reward, "--reward", "function")
    found = tried(function, planning.plan(asked, own_checker=True).task, PlainProgress(flags.to_stderr))
    verdict = in_a_sentence(found)
    rows = [
        [
            flags.short(each["problem"], PREVIEW),
            each["kind"],
            f"{each['reward']:g}",
            "right" if each["right"] else "wrong",
            flags.short(each["text"], PREVIEW),
        ]
        for each in found
    ]
    lines = [as_text(["problem", "completion", "reward", "checker", "text"], rows), f"\n{verdict}"]
    flags.show(as_json, {"samples": found, "verdict": verdict}, lines)

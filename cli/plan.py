"""`lite-selfplay plan`: how much memory a run would take, before anything is downloaded."""

from typing import Annotated, Any

import typer

from lite_selfplay.errors import UnknownNameError
from lite_selfplay_cli import flags

_FLAGS = ("model", "group_size", "problems_per_step", "max_completion_tokens", "backend", "precision")


@flags.takes({flag: flags.TRAIN[flag] for flag in _FLAGS})
def plan(
    game: Annotated[str, typer.Option("--game", help="The game whose seats are trained.")] = "agon",
    *,
    given: dict[str, Any],
    gpu: Annotated[
        str | None, typer.Option(help="t4, rtx3060, rtx4090, l4, a100, h100, ...; cpu. [default: all cards]")
    ] = None,
    prompt_tokens: Annotated[int, typer.Option(min=1, max=2**31 - 1, help="Tokens of a long prompt of yours.")] = 512,
    preset: flags.Preset = None,
    config: flags.Config = None,
    assignments: flags.Assignments = None,
    as_json: flags.Json = False,
) -> None:
    """Estimate a step's memory and tokens from the configuration; nothing is downloaded.

    Weights, adapters, optimizer state, keys and values follow from the shape of the base. Activations are estimated
    from what a block keeps for its backward pass, and a tenth is added for what allocators waste. Where a card is too
    small, the settings are named that make it fit. With --json memory is in bytes. How long a step takes, a run says
    once it has made two.

    Examples:

      lite-selfplay plan --model Qwen3-4B --game agon --gpu t4 --preset t4

      lite-selfplay plan --model Qwen3-1.7B --gpu rtx3060 --max-completion-tokens 2048
    """
    from lite_selfplay.config import RunConfig
    from lite_selfplay.models.memory import CARDS, GIB, Load, advise, estimate
    from lite_selfplay.models.shapes import shape_of
    from lite_selfplay.runs.plan import filled_in

    if gpu is not None and gpu.lower() not in (*CARDS, "cpu"):
        raise UnknownNameError("GPU", gpu, [*CARDS, "cpu"])
    asked = RunConfig.of(*flags.layers({"game": game, **given}, preset, config, assignments))
    whole, played = filled_in(asked)
    shape = shape_of(whole.model.name)
    run = whole.run
    rows = max(run.problems_per_step * run.group_size, (played.rollouts_per_step() or 0) // len(played.roles))
    load = Load(rows, prompt_tokens, run.max_completion_tokens or 512)
    on_cpu = gpu is not None and gpu.lower() == "cpu"
    found = estimate(whole, shape, load, on_cpu=on_cpu)
    rollouts = played.rollouts_per_step()
    most = None if rollouts is None else rollouts * load.completion_tokens
    chosen = [] if on_cpu else [CARDS[gpu.lower()]] if gpu is not None else list(CARDS.values())
    if as_json:
        facts = {
            "parts": {part.name: round(part.bytes) for part in found.parts},
            "generating": round(found.generating),
            "updating": round(found.updating),
            "completions_per_step": rollouts,
            "tokens_per_step": most,
            "fits": {card.name: found.peak <= card.memory for card in chosen},
        }
        flags.echo_json(facts)
        return
    for line in [*_about(whole, shape, load, rollouts, most), "", *_table(found), ""]:
        typer.echo(line)
    for card in chosen:
        fits = "fits" if found.peak <= card.memory else "too small"
        typer.echo(f"{card.name:<20}{card.memory / GIB:>6.1f} GiB  {fits}")
    for sentence in advise(whole, shape, load, chosen[0]) if len(chosen) == 1 else ():
        typer.echo(sentence)
    typer.echo("\nAn estimate: its parts have been compared with measured memory on a CPU, and not yet on a GPU.")


def _about(config: Any, shape: Any, load: Any, rollouts: int | None, most: int | None) -> list[str]:
    seats = f"{len(config.seats)} seat{'s' if len(config.seats) > 1 else ''}"
    step = "a number of completions that varies" if rollouts is None else f"{rollouts} completions"
    return [
        f"{config.game.label} with {config.model.name} in {config.model.precision}: {shape.parameters / 1e9:.2f}B "
        f"parameters, {seats}, {load.rows} completions side by side, prompts of {load.prompt_tokens} and completions "
        f"of {load.completion_tokens} tokens",
        f"a step: {step}" + ("" if most is None else f", at most {most:,} tokens"),
    ]


def _table(found: Any) -> list[str]:
    from lite_selfplay.models.memory import GIB

    lines = [f"{'':<18}{'GiB':>7}  held while"]
    for part in found.parts:
        when = "always" if part.generating and part.updating else "sampling" if part.generating else "updating"
        lines.append(f"{part.name:<18}{part.bytes / GIB:>7.2f}  {when}")
    sampling, updating = found.generating / GIB, found.updating / GIB
    return [*lines, "", f"peak, with allowances: {sampling:.1f} GiB sampling, {updating:.1f} updating"]

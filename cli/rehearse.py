"""`lite-selfplay show-prompt` and `try-reward`: what a run would ask, and what it would pay, before one is started."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lite_selfplay_cli import flags

if TYPE_CHECKING:
    from lite_selfplay.runs.rehearsal import Rendered, Tried
    from lite_selfplay.training.progress import Progress

PREVIEW = 60

_FLAGS = ("model", "tasks", "knowledge", "validation", "solutions", "data_dir", "seed", "trust_remote_code")


@flags.takes({flag: flags.TRAIN[flag] for flag in _FLAGS})
def show_prompt(
    game: flags.Game = None,
    *,
    given: dict[str, Any],
    preset: flags.Preset = None,
    config: flags.Config = None,
    assignments: flags.Assignments = None,
    as_json: flags.Json = False,
) -> None:
    """Show the prompt of each role as the model would read it, with thinking on and off, and how many tokens it has.

    The problems are the task's own; what other roles write before (a draft, a question) is made up: a worked solution
    where a problem brings one. Only the model's tokenizer is loaded.

    Examples:

      lite-selfplay show-prompt agon --model tiny --tasks arithmetic

      lite-selfplay show-prompt sqlm --model Qwen3-0.6B
    """
    from lite_selfplay.config import RunConfig
    from lite_selfplay.runs.plan import plan
    from lite_selfplay.runs.rehearsal import MOST_STEPS, rendered_prompts

    ready = plan(RunConfig.of(*flags.layers({"game": game, **given}, preset, config, assignments)))
    found, silent = rendered_prompts(ready, _to_stderr())
    if as_json:
        flags.echo_json({"prompts": [vars(each) for each in found], "not_asked": silent})
        return
    _print_rendered(found)
    for role in silent:
        typer.echo(f"\n{role}: not asked in the first {MOST_STEPS} steps of a made-up game")


def _to_stderr() -> "Progress":
    """Progress beside the result, which alone is on stdout."""
    from lite_selfplay.training.progress import PlainProgress

    return PlainProgress(lambda line: typer.echo(line, err=True))


def _print_rendered(found: "Sequence[Rendered]") -> None:
    from lite_selfplay.training.progress import printable

    for each in found:
        how = "" if each.thinking == "auto" else f", thinking {each.thinking}"
        typer.echo(f"== {each.role} (seat {each.seat}){how}: {each.tokens} tokens")
        typer.echo("\n".join(f"    {line}" for line in printable(each.text).splitlines()) + "\n")
    if found and all(each.thinking == "auto" for each in found):
        typer.echo("The model's chat template knows no thinking: there is nothing to switch on or off.")


def try_reward(
    reward: Annotated[str, typer.Argument(help="Your reward function: FILE.py:FUNCTION.", metavar="FILE.py:FUNCTION")],
    tasks: Annotated[str, typer.Option(help="Problems to try it on, as in training.", metavar="T")],
    model: Annotated[
        str | None,
        typer.Option(help="Sample the completions from this model; without one they are made up.", metavar="M"),
    ] = None,
    as_json: flags.Json = False,
) -> None:
    """Call a reward function on ten completions, and show what each would earn beside what the checker says.

    Made-up completions are right, right without the answer format, wrong, empty and cut off, of two problems; their
    token ids are bytes.

    Examples:

      lite-selfplay try-reward my_reward.py:reward --tasks arithmetic

      lite-selfplay try-reward my_reward.py:reward --tasks problems.jsonl --model smollm2-135m
    """
    from lite_selfplay.config.user_code import load
    from lite_selfplay.runs.rehearsal import in_a_sentence, made_up, sampled, tried
    from lite_selfplay.tasks import load_task

    function, task, progress = load(reward, "try-reward", "function"), load_task(tasks), _to_stderr()
    found = tried(function, made_up(task) if model is None else sampled(task, model, progress), progress)
    sentence = in_a_sentence(found)
    if as_json:
        flags.echo_json({"samples": [vars(each) for each in found], "verdict": sentence})
        return
    _print_tried(found, sentence)


def _print_tried(found: "Sequence[Tried]", sentence: str) -> None:
    from lite_selfplay.evaluation.tables import as_text
    from lite_selfplay.training.progress import printable

    words = {True: "right", False: "wrong", None: "-"}
    rows = [
        [
            _short(printable(each.problem)),
            each.kind,
            f"{each.reward:g}",
            words[each.right],
            _short(printable(each.text)),
        ]
        for each in found
    ]
    typer.echo(as_text(["problem", "completion", "reward", "checker", "text"], rows))
    typer.echo(f"\n{sentence}")


def _short(text: str) -> str:
    words = " ".join(text.split()) or "(nothing)"
    return words if len(words) <= PREVIEW else f"{words[:PREVIEW]}..."

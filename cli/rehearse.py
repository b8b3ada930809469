"""`lite-selfplay show-prompt` and `try-reward`: what a run would ask, and what it would pay, before one is started."""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from lite_selfplay.errors import ConfigError, GameError, RewardError
from lite_selfplay_cli import flags

if TYPE_CHECKING:
    from lite_selfplay.data import Completion, Problem, Verdict
    from lite_selfplay.runs.plan import Plan
    from lite_selfplay.tasks import Task
    from lite_selfplay.verify.reward_functions import RewardFunction

MOST_STEPS = 40
"""Steps of a game after which a role that was not asked is given up."""
SAMPLES, PREVIEW = 10, 60
MODEL_TOKENS = 256
"""Tokens of a completion that a model is sampled for, unless the task suggests fewer."""

_FLAGS = ("model", "tasks", "knowledge", "validation", "solutions", "data_dir", "seed", "trust_remote_code")


@dataclass(frozen=True)
class Rendered:
    """A role's prompt as the model reads it: under which thinking, its text with special tokens, how many tokens."""

    role: str
    seat: str
    thinking: str
    tokens: int
    text: str


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
    from lite_selfplay.models.backends import import_first
    from lite_selfplay.models.silence import quiet
    from lite_selfplay.models.sources import base_of
    from lite_selfplay.runs.plan import plan
    from lite_selfplay.training.progress import PlainProgress

    ready = plan(RunConfig.of(*flags.layers({"game": game, **given}, preset, config, assignments)))
    prompts = _prompts(ready)
    import_first(ready.config.model)
    with quiet():
        path = base_of(ready.config.model, PlainProgress(lambda line: typer.echo(line, err=True))).path
    found = list(_rendered(path, ready, prompts))
    silent = [role for role in ready.game.roles if role not in prompts]
    if as_json:
        flags.echo_json({"prompts": [vars(each) for each in found], "not_asked": silent})
        return
    _print_rendered(found)
    for role in silent:
        typer.echo(f"\n{role}: not asked in the first {MOST_STEPS} steps of a made-up game")


def _print_rendered(found: Sequence[Rendered]) -> None:
    from lite_selfplay.training.progress import printable

    for each in found:
        how = "" if each.thinking == "auto" else f", thinking {each.thinking}"
        typer.echo(f"== {each.role} (seat {each.seat}){how}: {each.tokens} tokens")
        typer.echo("\n".join(f"    {line}" for line in printable(each.text).splitlines()) + "\n")
    if found and all(each.thinking == "auto" for each in found):
        typer.echo("The model's chat template knows no thinking: there is nothing to switch on or off.")


def _rendered(path: Path, ready: "Plan", prompts: Mapping[str, tuple[str, str]]) -> Iterator[Rendered]:
    """Each role's prompt under each thinking that the template knows."""
    from lite_selfplay.models.chat import Chat

    trusted = ready.config.model.trust_remote_code
    kinds: tuple[Literal["auto", "on", "off"], ...] = ("on", "off")
    try:
        chats = {kind: Chat.load(path, kind, trust_remote_code=trusted) for kind in kinds}
    except ConfigError:  # the template knows no thinking
        chats = {"auto": Chat.load(path, "auto", trust_remote_code=trusted)}
    for role, (seat, prompt) in prompts.items():
        for kind, chat in chats.items():
            ids = chat.encode(prompt).ids
            yield Rendered(role, seat, kind, len(ids), str(chat.tokenizer.decode(ids)))


def _prompts(ready: "Plan") -> dict[str, tuple[str, str]]:
    """The first prompt of each role in a made-up game, after the seat that plays it."""
    from lite_selfplay.testing import ScriptedTable, noisy_script

    game, rng, sources = ready.game, random.Random(ready.config.run.seed), ready.sources
    noise = noisy_script(game)

    class Table(ScriptedTable):
        """Draws what the run would draw from."""

        def draw(self, source: str, n: int) -> list["Problem"]:
            walk = self._drawn.setdefault(source, cycle(islice(sources[source], 100)))
            return list(islice(walk, n))

        def everything(self, source: str) -> Sequence["Problem"]:
            return sources[source]

    asked_about = list(islice(sources.get("problems", ()), 100))

    def said(role: str, prompt: str, number: int) -> str:
        problem = next((each for each in asked_about if each.text in prompt), None)
        example = None if problem is None else game.cold_start(role, problem, rng, thinks=False)
        if example is not None:
            return example.completion
        return noise(role, prompt, number) if callable(noise) else ""

    table, found = Table(said), dict[str, tuple[str, str]]()
    try:
        for step in range(MOST_STEPS):
            if game.over() or len(found) == len(game.roles):
                break
            seats = game.seats(step)
            table.open(step, seats)
            game.play(step, table)
            for role, prompts, _ in table.asked:
                name = role.removesuffix(", measured")
                if prompts and name in game.roles:
                    found.setdefault(name, (seats.get(name, name), prompts[0]))
    except GameError:  # it found nothing to play with in what was made up
        pass
    finally:
        table.close()
    return {role: found[role] for role in game.roles if role in found}


# Rewards


@dataclass(frozen=True)
class Tried:
    """A completion and what it earned: `kind` says what is known of it, `right` whether the checker takes it for right
    (None where the problem has no answer)."""

    problem: str
    kind: str
    text: str
    reward: float
    right: bool | None


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
    from lite_selfplay.tasks import load_task

    function, task = load(reward, "try-reward", "function"), load_task(tasks)
    found = _tried(function, _made_up(task) if model is None else _sampled(task, model))
    sentence = _judged(found, made_up=model is None)
    if as_json:
        flags.echo_json({"samples": [vars(each) for each in found], "verdict": sentence})
        return
    _print_tried(found, sentence)


def _print_tried(found: Sequence[Tried], sentence: str) -> None:
    from lite_selfplay.evaluation.tables import as_text
    from lite_selfplay.training.progress import printable

    words = {True: "right", False: "wrong", None: "-"}
    rows = [
        [printable(each.problem), each.kind, f"{each.reward:g}", words[each.right], _short(printable(each.text))]
        for each in found
    ]
    typer.echo(as_text(["problem", "completion", "reward", "checker", "text"], rows))
    typer.echo(f"\n{sentence}")


def _short(text: str) -> str:
    words = " ".join(text.split()) or "(nothing)"
    return words if len(words) <= PREVIEW else f"{words[:PREVIEW]}..."


Asked = tuple[str, "Completion", "Problem"]
"""What is known of a completion, itself, and the problem it answers."""


def _made_up(task: "Task") -> list[Asked]:
    """Five completions of each of two problems: right, right without its format, wrong, empty, cut off."""
    from lite_selfplay.data import Completion, Sampling
    from lite_selfplay.games.prompts import fill
    from lite_selfplay.games.worked_examples import draft, solution_of

    answered = [problem for problem in islice(task.problems, 200) if problem.answer is not None][:2]
    if not answered:
        raise ConfigError(f"{task.name} has no problem with an answer to make completions up from: give --model")
    found = []
    for problem in answered:
        answer, solution = str(problem.answer), solution_of(problem) or "I work it out step by step."
        wrong = "1" if answer == "0" else "0"
        texts = {
            "right": draft(solution, answer),
            "right, no format": f"It is {answer}.",
            "wrong": draft("I guess.", wrong),
            "empty": "",
            "cut off": solution[: max(1, len(solution) // 2)],
        }
        for kind, text in texts.items():
            prompt, stop = fill("solver", problem=problem.text), "length" if kind == "cut off" else "eos"
            ids = tuple(text.encode())
            found.append((kind, Completion(prompt, text, (), ids, (), stop, "", -1, Sampling()), problem))  # type: ignore[arg-type]
    return found


def _sampled(task: "Task", model: str) -> list[Asked]:
    """A completion of each of ten problems, by a base model."""
    from lite_selfplay.data import BASE, Sampling
    from lite_selfplay.games.prompts import fill
    from lite_selfplay.models.backends import import_first
    from lite_selfplay.models.silence import quiet
    from lite_selfplay.models.sources import base_of
    from lite_selfplay.runs.targets import Target
    from lite_selfplay.training.interrupts import Interrupts
    from lite_selfplay.training.progress import PlainProgress, Poll

    target, problems = Target.of(model, None, 0), list(islice(task.problems, SAMPLES))
    if target.folder is not None:
        raise ConfigError(f"--model takes a base model; {model} is a run")
    import_first(target.config.model)
    tokens = min(MODEL_TOKENS, task.max_completion_tokens)
    progress = PlainProgress(lambda line: typer.echo(line, err=True))
    with quiet(), Interrupts() as interrupts:
        base = base_of(target.config.model, progress)
        with target.table(base, tokens, progress, Poll(progress, interrupts.poll)) as table:
            prompts = [fill("solver", problem=problem.text) for problem in problems]
            said = table.speak(BASE, prompts, 1, Sampling(max_tokens=tokens), [[i] for i in range(len(prompts))])
    return [("sampled", completion, problem) for (completion,), problem in zip(said, problems, strict=True)]


def _tried(reward: "RewardFunction", asked: Sequence[Asked]) -> list[Tried]:
    """What each completion earns. Raises RewardError where the function fails."""
    from lite_selfplay.config.guard import guarded
    from lite_selfplay.verify import Verifier
    from lite_selfplay.verify.reward_functions import call_reward, name_of

    pairs = [(completion, problem) for _, completion, problem in asked]
    with guarded(
        name_of(reward), RewardError, lambda sentence: typer.echo(f"warning: {sentence}", err=True), judges=True
    ):
        paid = call_reward(reward, pairs)
    known = [pair for pair in pairs if pair[1].answer is not None]
    with Verifier() as verifier:
        judged: Iterator[Verdict] = iter(verifier.verify(known))
        right = [None if problem.answer is None else next(judged).correct for _, problem in pairs]
    return [
        Tried(_short(problem.text), kind, completion.text, verdict.score, found)
        for (kind, completion, problem), verdict, found in zip(asked, paid, right, strict=True)
    ]


def _judged(found: Sequence[Tried], *, made_up: bool) -> str:
    """What the rewards mean for a run, in a sentence."""
    if len({each.reward for each in found}) == 1:
        return (
            f"Every completion earns {found[0].reward:g}: such a group has no variance, and nothing is learned from it."
        )
    right = [each.reward for each in found if (each.kind == "right" if made_up else each.right)]
    wrong = [each.reward for each in found if (each.kind == "wrong" if made_up else each.right is False)]
    if not right or not wrong:
        return "The rewards differ. There are not both right and wrong answers to compare them by."
    means = [sum(rewards) / len(rewards) for rewards in (right, wrong)]
    words = f"right answers earn {means[0]:.3g} in the mean, wrong ones {means[1]:.3g}"
    return f"As it should be, {words}." if means[0] > means[1] else f"Look at this: {words}."

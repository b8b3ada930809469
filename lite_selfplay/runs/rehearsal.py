"""Before a run is started: what it would ask each role, and what a reward function would pay.

No model is loaded for either, unless rewards are to be tried on what a model says. What other roles would have written
is made up by rule: a worked solution where a problem brings one.
"""

import random
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lite_selfplay.config.guard import guarded
from lite_selfplay.data import BASE, Completion, Problem, Sampling, StopReason, TokenScores, Turn, Verdict
from lite_selfplay.errors import ConfigError, GameError, RewardError
from lite_selfplay.games import Game
from lite_selfplay.games.prompts import fill
from lite_selfplay.games.worked_examples import draft, solution_of
from lite_selfplay.models.backends import import_first
from lite_selfplay.models.silence import quiet
from lite_selfplay.runs.plan import OPTIONAL, Plan
from lite_selfplay.runs.targets import Target
from lite_selfplay.tasks import Source, Task
from lite_selfplay.training.interrupts import Interrupts
from lite_selfplay.training.progress import Poll, Progress
from lite_selfplay.verify import Verifier
from lite_selfplay.verify.reward_functions import RewardFunction, call_reward, name_of

if TYPE_CHECKING:
    from lite_selfplay.models.chat import Chat

MOST_STEPS = 40
"""Steps of a made-up game after which a role that was not asked is given up."""
SAMPLES = 10
MODEL_TOKENS = 256
"""Tokens of a completion that a model is sampled for, unless the task suggests fewer."""

Thinking = Literal["auto", "on", "off"]


@dataclass(frozen=True)
class Rendered:
    """A role's prompt as the model reads it: under which thinking, its text with special tokens, how many tokens."""

    role: str
    seat: str
    thinking: str
    tokens: int
    text: str


def rendered_prompts(ready: Plan, progress: Progress) -> tuple[list[Rendered], list[str]]:
    """The first prompt of each role under each thinking that the model's template knows, and the roles that were not
    asked. Only the tokenizer is loaded. Raises ModelNotFoundError."""
    section = ready.config.model
    import_first(section)
    with quiet():
        from lite_selfplay.models.chat import Chat
        from lite_selfplay.models.sources import base_of

        path, trusted = base_of(section, progress).path, section.trust_remote_code
        plain = Chat.load(path, "auto", trust_remote_code=trusted)
        prompts = _prompts(ready, plain)
        kinds: tuple[Thinking, ...] = ("on", "off")
        try:
            chats: dict[Thinking, Chat] = {kind: Chat.load(path, kind, trust_remote_code=trusted) for kind in kinds}
        except ConfigError:  # the template knows no thinking
            chats = {"auto": plain}
    found = []
    for role, (seat, prompt) in prompts.items():
        for kind, chat in chats.items():
            ids = chat.encode(prompt).ids
            found.append(Rendered(role, seat, kind, len(ids), str(chat.tokenizer.decode(ids))))
    return found, [role for role in ready.game.roles if role not in prompts]


def _prompts(ready: Plan, chat: "Chat") -> dict[str, tuple[str, str]]:
    """The first prompt of each role in a made-up game, after the seat that plays it."""
    from lite_selfplay.training.rollout import LiveTable

    game, seed = ready.game, ready.config.run.seed
    say, drawn = _made_up_words(game, random.Random(seed)), list[Problem]()

    class Rehearsal(LiveTable):
        """A table at which everything is drawn, read and judged as in the run, and completions are made up."""

        asked: Mapping[str, tuple[str, str]] = {}

        def draw(self, source: str, n: int) -> list[Problem]:
            found = super().draw(source, n)
            drawn.extend(found)
            return found

        def ask(self, role: str, prompts: Sequence[str], *args: Any, **options: Any) -> list[list[Completion]]:
            self._note(role, prompts, options.get("seat"))
            return super().ask(role, prompts, *args, **options)

        def evaluate(self, role: str, prompts: Sequence[str], *args: Any, **options: Any) -> list[Verdict]:
            self._note(role, prompts, None)
            return super().evaluate(role, prompts, *args, **options)

        def _note(self, role: str, prompts: Sequence[str], seat: str | None) -> None:
            self._role = role
            if prompts:
                self.asked = {role: (seat or self._seat(role), prompts[0]), **self.asked}

        def speak(
            self,
            seat: str,
            prompts: Sequence[str | Sequence[Turn]],
            n: int,
            sampling: Sampling,
            seeds: Sequence[Sequence[int]],
            beginnings: Sequence[str] | None = None,
            hear: Callable[[int, int, int, int], bool] | None = None,
        ) -> list[list[Completion]]:
            starts = beginnings or [""] * len(prompts)
            return [
                [self._made_up(seat, str(prompt), start, sampling) for _ in range(n)]
                for prompt, start in zip(prompts, starts, strict=True)
            ]

        def _made_up(self, seat: str, prompt: str, start: str, sampling: Sampling) -> Completion:
            text, encoded = say(self._role, prompt, drawn), chat.encode(prompt, start)
            ids = tuple(chat.tokens(text))
            sampled = (-1.0,) * len(ids)
            return Completion(prompt, text, tuple(encoded.ids), ids, sampled, "eos", seat, 0, sampling, encoded.prefill)

        def score(self, role: str, completions: Sequence[Completion], **options: Any) -> list[TokenScores]:
            return [TokenScores(each.logprobs, each.logprobs) for each in completions]

    sources = {
        name: Source(problems, seed=seed, name=name, may_be_empty=name in OPTIONAL)
        for name, problems in ready.sources.items()
    }
    nobody: Any = None  # a backend is what is not there
    tokens = ready.max_completion_tokens
    with tempfile.TemporaryDirectory() as place, Verifier(deadline=ready.config.run.verify_timeout_s) as verifier:
        folder = Path(place) / "collections"
        table = Rehearsal(nobody, chat, verifier, sources, ready.config, max_completion_tokens=tokens, folder=folder)
        try:
            for step in range(MOST_STEPS):
                if game.over() or len(table.asked) == len(game.roles):
                    break
                table.open(step, game.seats(step))
                game.play(step, table)
        except GameError:  # it found nothing to play with in what was made up
            pass
    return {role: table.asked[role] for role in game.roles if role in table.asked}


def _made_up_words(game: Game, rng: random.Random) -> Callable[[str, str, Iterable[Problem]], str]:
    """What a role would say to a prompt: a worked example, a worked solution, or a question in the prompt's own tags.

    The problems are those that were drawn: one of them may stand in the prompt.
    """

    def say(role: str, prompt: str, drawn: Iterable[Problem]) -> str:
        number = rng.randrange(10, 1000)
        if game.accuracy_of(role).proposals:
            return _question(prompt, number)
        problem = next((each for each in drawn if each.text in prompt), None)
        example = None if problem is None else game.cold_start(role, problem, rng, thinks=False)
        if example is not None:
            return example.completion
        solution = None if problem is None else solution_of(problem)
        if problem is None or solution is None:
            return f"I work it out: {number} + 7 = {number + 7}. <answer>{number + 7}</answer>"
        return solution.replace(". ", ".\n\n") + f"\n\nThe answer is \\boxed{{{problem.answer}}}."

    return say


def _question(prompt: str, number: int) -> str:
    question, solved = f"What is {number} + 7?", f"{number} + 7 = {number + 7}, so \\boxed{{{number + 7}}}."
    if "begins with its number" in prompt:
        return "\n".join(f"{i}. What is {number} + {i}?" for i in range(1, 17))
    tag = next((tag for tag in ("problem", "question") if f"<{tag}>" in prompt), None)
    if tag is None:
        return question
    answered = f"<answer>{solved}</answer>" if "<answer>" in prompt else solved
    return f"<{tag}>{question}</{tag}>{answered}"


# Rewards

Asked = tuple[str, Completion, Problem]
"""What is known of a completion, itself, and the problem that it answers."""


@dataclass(frozen=True)
class Tried:
    """A completion and what it earned: `kind` says what is known of it, `right` whether the checker takes it for right
    (None where the problem has no answer)."""

    problem: str
    kind: str
    text: str
    reward: float
    right: bool | None


def made_up(task: Task) -> list[Asked]:
    """Five completions of each of two problems: right, right without its format, wrong, empty, cut off.

    Their token ids are bytes. Raises ConfigError where no problem has an answer.
    """
    answered = [problem for problem in islice(task.problems, 200) if problem.answer is not None][:2]
    if not answered:
        raise ConfigError(f"{task.name} has no problem with an answer to make completions up from: give --model")
    found = []
    for problem in answered:
        answer, solution = str(problem.answer), solution_of(problem) or "I work it out step by step."
        texts = {
            "right": draft(solution, answer),
            "right, no format": f"It is {answer}.",
            "wrong": draft("I guess.", "1" if answer == "0" else "0"),
            "empty": "",
            "cut off": solution[: max(1, len(solution) // 2)],
        }
        for kind, text in texts.items():
            prompt, ids = fill("solver", problem=problem.text), tuple(text.encode())
            stop: StopReason = "length" if kind == "cut off" else "eos"
            found.append((kind, Completion(prompt, text, (), ids, (), stop, "", -1, Sampling()), problem))
    return found


def sampled(task: Task, model: str, progress: Progress) -> list[Asked]:
    """A completion of each of ten problems, by a base model.

    Raises ModelNotFoundError, UnknownNameError, ConfigError (for a run's folder, too) or Interrupted.
    """
    target, problems = Target.of(model, None, 0), list(islice(task.problems, SAMPLES))
    if target.folder is not None:
        raise ConfigError(f"--model takes a base model; {model} is a run")
    import_first(target.config.model)
    tokens = min(MODEL_TOKENS, task.max_completion_tokens)
    with quiet(), Interrupts() as interrupts:
        from lite_selfplay.models.sources import base_of

        base = base_of(target.config.model, progress)
        with target.table(base, tokens, progress, Poll(progress, interrupts.poll)) as table:
            prompts = [fill("solver", problem=problem.text) for problem in problems]
            said = table.speak(BASE, prompts, 1, Sampling(max_tokens=tokens), [[i] for i in range(len(prompts))])
    return [("sampled", completion, problem) for (completion,), problem in zip(said, problems, strict=True)]


def tried(reward: RewardFunction, asked: Sequence[Asked], progress: Progress) -> list[Tried]:
    """What each completion earns, beside what the checker says. Raises RewardError where the function fails."""
    pairs = [(completion, problem) for _, completion, problem in asked]
    with guarded(name_of(reward), RewardError, progress.warn, judges=True):
        paid = call_reward(reward, pairs)
    with Verifier() as verifier:
        judged = iter(verifier.verify([pair for pair in pairs if pair[1].answer is not None]))
        right = [None if problem.answer is None else next(judged).correct for _, problem in pairs]
    return [
        Tried(problem.text, kind, completion.text, verdict.score, found)
        for (kind, completion, problem), verdict, found in zip(asked, paid, right, strict=True)
    ]


def in_a_sentence(found: Sequence[Tried]) -> str:
    """What some rewards mean for a run."""
    if len({each.reward for each in found}) == 1:
        return (
            f"Every completion earns {found[0].reward:g}: such a group has no variance, and nothing is learned from it."
        )
    known = any(each.kind == "right" for each in found)
    right = [each.reward for each in found if (each.kind == "right" if known else each.right)]
    wrong = [each.reward for each in found if (each.kind == "wrong" if known else each.right is False)]
    if not right or not wrong:
        return "The rewards differ. There are not both right and wrong answers to compare them by."
    means = [sum(rewards) / len(rewards) for rewards in (right, wrong)]
    words = f"right answers earn {means[0]:.3g} in the mean, wrong ones {means[1]:.3g}"
    return f"As it should be, {words}." if means[0] > means[1] else f"Look at this: {words}."

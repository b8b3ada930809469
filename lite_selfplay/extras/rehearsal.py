"""Shows the prompts of a planned run (`plan --prompts`) and tries its reward function (`plan --reward`), without
loading a model. Made-up completions stand in for sampled ones, also where a prompt quotes an earlier completion."""

import contextlib
import random
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any

from lite_selfplay.config.user_files import guarded
from lite_selfplay.data import Completion, Example, Problem, Sampling, StopReason, TokenScores
from lite_selfplay.errors import ConfigError, GameError, RewardError
from lite_selfplay.games import Game
from lite_selfplay.games.prompts import fill
from lite_selfplay.games.worked_examples import draft, solution_of
from lite_selfplay.models.backends import import_first
from lite_selfplay.models.chat_template import Chat
from lite_selfplay.models.silence import quiet
from lite_selfplay.models.sources import base_of
from lite_selfplay.runs.planning import OPTIONAL, Plan
from lite_selfplay.tasks import Source, Task, load_task
from lite_selfplay.training.progress import Progress
from lite_selfplay.verify import Verifier
from lite_selfplay.verify.reward_functions import RewardFunction, call_reward, name_of

MOST_STEPS = 40  # the most steps to play until every role has been asked


def rendered_prompts(ready: Plan, progress: Progress) -> tuple[list[dict[str, Any]], list[str]]:
    """The first prompt of each role in the planned run `ready`, as the model reads it, and the names of the roles that
    were never asked when the game was played with made-up completions.

    Each prompt has the `role`, the `seat` that plays it, the prompt's `text` with its special tokens, its number of
    `tokens`, and `thinking`, the chat template's reasoning switch: a role has two prompts, `on` and `off`, or one,
    `auto`, if the template has no such switch. Only the base model's tokenizer is loaded. Raises ModelNotFoundError if
    the base model's files are missing.
    """
    section = ready.config.model
    import_first(section)
    with quiet():
        load = partial(Chat.load, base_of(section, progress).path, trust_remote_code=section.trust_remote_code)
        auto = load("auto")
        said = _made_up_game(ready, auto)
        chats = {"on": load("on"), "off": load("off")} if auto.knows_thinking else {"auto": auto}
    found = []
    for role, first in said.items():
        for kind, chat in chats.items():
            ids = chat.encode(first.prompt).ids
            about = {"role": role, "seat": first.seat, "thinking": kind, "tokens": len(ids)}
            found.append({**about, "text": chat.tokenizer.decode(ids)})
    return found, [role for role in ready.game.roles if role not in said]


def _made_up_game(ready: Plan, chat: Chat) -> dict[str, Completion]:
    """Play the game of the planned run `ready` with made-up completions until every role has been asked, for at most 40
    training steps. Returns a dict from the name of each role that was asked to the role's first made-up completion; a
    completion also holds its prompt. `chat` holds the base model's tokenizer. No model is loaded."""
    from lite_selfplay.training.rollout import LiveTable, Loaded

    game, config = ready.game, ready.config
    said, drawn = dict[str, Completion](), list[Problem]()
    words = _made_up_words(game, random.Random(config.run.seed))

    class MadeUpTable(LiveTable):
        def draw(self, source: str, n: int) -> list[Problem]:
            found = super().draw(source, n)
            drawn.extend(found)
            return found

        def sample(
            self, seat: str, prompts: Any, n: int, sampling: Sampling, *others: Any, **how: Any
        ) -> list[list[Completion]]:
            found = [[self.made_up(seat, prompt, sampling) for _ in range(n)] for prompt in prompts]
            for first, *_ in found:
                said.setdefault(self.role, first)
            return found

        def made_up(self, seat: str, prompt: str, sampling: Sampling) -> Completion:
            made = self.completed(Example(prompt, words(self.role, prompt, drawn)))
            return replace(made, seat=seat, logprobs=(-1.0,) * len(made.token_ids), sampling=sampling)

        def score(self, role: str, completions: Sequence[Completion], **how: Any) -> list[TokenScores]:
            return [TokenScores(each.logprobs, each.logprobs) for each in completions]

    sources = {
        name: Source(problems, seed=config.run.seed, name=name, may_be_empty=name in OPTIONAL)
        for name, problems in ready.sources.items()
    }
    no_backend: Any = None
    with tempfile.TemporaryDirectory() as folder, Verifier(deadline=config.run.verify_timeout_s) as verifier:
        loaded, own = Loaded(chat, no_backend, verifier), Path(folder) / "own"
        table = MadeUpTable(loaded, sources, config, max_completion_tokens=ready.max_completion_tokens, folder=own)
        with contextlib.suppress(GameError):  # the game cannot continue with made-up completions
            for step in range(MOST_STEPS):
                if game.over() or len(said) == len(game.roles):
                    break
                table.open(step, game.seats(step))
                game.play(step, table)
    return {role: said[role] for role in game.roles if role in said}


def _made_up_words(game: Game, rng: random.Random) -> Callable[[str, str, Sequence[Problem]], str]:
    """A function that makes up a completion's text from a role's name, the prompt, and the problems drawn so far. The
    text is an answer in the form that the game's cold start (supervised steps before training) teaches the role. It
    answers the drawn problem whose text is in the prompt, or a problem of the library's task `stories` if there is
    none. If the cold start teaches the role no answers, the text has a random number as the answer. All random choices
    are made with `rng`."""
    stories = iter(load_task("stories").problems)

    def say(role: str, prompt: str, drawn: Sequence[Problem]) -> str:
        for problem in (*(each for each in drawn if each.text in prompt), next(stories)):
            if (example := game.cold_start(role, problem, rng, thinks=False)) is not None:
                return example.completion
        return f"I work it out. <answer>{rng.randrange(10, 1000)}</answer>"

    return say


# Rewards


def tried(reward: RewardFunction, task: Task, progress: Progress) -> list[dict[str, Any]]:
    """Call the reward function `reward` on made-up completions, and return one result for each. Five completions are
    made up for each of the first two problems of `task` that have a reference answer: right, right without the required
    format, wrong, empty, and cut off. A completion's token ids are the bytes of its text. `progress` receives a warning
    if `reward` changes global state, such as the working folder. Raises ConfigError if none of the first 200 problems
    has a reference answer. Raises RewardError if `reward` raises an exception or does not return one finite number for
    each completion.

    A result has the text of the `problem`, the `kind` of completion, its `text`, its `reward`, and whether the answer
    checker judges it as `right`.
    """
    answered = [problem for problem in islice(task.problems, 200) if problem.answer is not None][:2]
    if not answered:
        raise ConfigError(f"{task.name} has no problem with an answer, which made-up completions need")
    kinds, pairs = list[str](), list[tuple[Completion, Problem]]()
    for problem in answered:
        answer, solution = str(problem.answer), solution_of(problem) or "I work it out step by step."
        said = {
            "right": draft(solution, answer),
            "right, no format": f"It is {answer}.",
            "wrong": draft("I guess.", "1" if answer == "0" else "0"),
            "empty": "",
            "cut off": solution[: max(1, len(solution) // 2)],
        }
        prompt = fill("solver", problem=problem.text)
        for kind, text in said.items():
            stop: StopReason = "length" if kind == "cut off" else "eos"
            pairs.append((Completion(prompt, text, (), tuple(text.encode()), (), stop, "", -1, Sampling()), problem))
            kinds.append(kind)
    with guarded(name_of(reward), RewardError, progress.warn, judges=True):
        paid = call_reward(reward, pairs)
    with Verifier() as verifier:
        judged = verifier.verify(pairs)
    return [
        {
            "problem": problem.text,
            "kind": kind,
            "text": completion.text,
            "reward": verdict.score,
            "right": checked.correct,
        }
        for kind, (completion, problem), verdict, checked in zip(kinds, pairs, paid, judged, strict=True)
    ]


def in_a_sentence(found: Sequence[Mapping[str, Any]]) -> str:
    """A sentence on whether a reward function is fit for training, judged by its rewards `found` for made-up
    completions. It is fit if the rewards are not all equal, and right answers earn more than wrong ones on average."""
    if len({each["reward"] for each in found}) == 1:
        return f"Every completion earns {found[0]['reward']:g}: a group without variance gives no signal."
    right, wrong = (fmean(each["reward"] for each in found if each["kind"] == kind) for kind in ("right", "wrong"))
    words = f"right answers earn {right:.3g} on average, wrong ones {wrong:.3g}"
    return f"As it should be, {words}." if right > wrong else f"Check this reward: {words}."

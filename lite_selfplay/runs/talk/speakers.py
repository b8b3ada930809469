"""Who speaks of a run: its base, its seats and snapshots, and cascades such as `A->B`, where B answers after A.

Replies of one seat at one temperature share a generation; what each says is what it would say alone. The prompts are
those of the run's game: a problem in the words that seats were trained on, a rival's draft as the game shows it.
"""

import contextlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING

from lite_selfplay.config import RunConfig
from lite_selfplay.data import BASE, Completion, Problem, Turn
from lite_selfplay.errors import (
    ConfigError,
    Interrupted,
    LiteSelfPlayError,
    RequestError,
    RunFolderError,
    TrainingError,
    UnknownNameError,
)
from lite_selfplay.games.modes import find_mode
from lite_selfplay.games.prompts import asked
from lite_selfplay.games.table import Reader
from lite_selfplay.models.backends import import_first
from lite_selfplay.models.silence import quiet
from lite_selfplay.runs.folder import CHECKPOINTS
from lite_selfplay.runs.talk.reply import Question, Reply
from lite_selfplay.runs.targets import Target
from lite_selfplay.tasks import load_task
from lite_selfplay.training.progress import Poll, Progress

if TYPE_CHECKING:
    from lite_selfplay.runs.checkpoints import Checkpoint
    from lite_selfplay.training.rollout import LiveTable

MOST_AT_ONCE = 32
"""Replies of one generation."""
DEFAULT_TOKENS = 512
ARROW = "->"


@dataclass(frozen=True)
class Speakers:
    """Everybody who can be asked. `context` is the most tokens that a prompt and its completion may take.

    `reads`: see `Mode`; None where the game lets nobody read another's answer. `kind`: of the run's own problems.
    """

    table: "LiveTable"
    target: Target
    checkpoint: str
    most_tokens: int
    context: int
    kind: str
    reads: Callable[[Reader, Completion, Problem], tuple[str, str]] | None

    @property
    def alone(self) -> tuple[str, ...]:
        """The base, the seats, and the snapshots of a checkpoint."""
        return self.table.speakers if self.target.folder else (BASE,)

    @property
    def cascades(self) -> tuple[str, ...]:
        """The cascades that the game is evaluated in: each seat after each other one, or a single one after itself."""
        if self.reads is None:
            return ()
        seats = self.target.seats
        pairs = list(permutations(seats, 2)) or [(seats[0], seats[0])]
        return tuple(ARROW.join(pair) for pair in pairs)

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.alone, *self.cascades)

    def seats_of(self, name: str) -> tuple[str, ...]:
        """Who speaks, one after the other, under a name. Any two may meet in a cascade, whichever the game plays.

        Raises UnknownNameError with the near names, RequestError where the game knows no cascade.
        """
        seats = tuple(part.strip() for part in name.split(ARROW))
        if len(seats) > 2 or not all(seat in self.alone for seat in seats):
            raise UnknownNameError("speaker", name, self.names)
        if len(seats) == 2 and self.reads is None:
            raise RequestError(
                f"{self.target.name} knows no cascade such as {name}: nobody reads another's answer in its game. "
                f"There are {', '.join(self.alone)}"
            )
        return seats

    def prompt(self, text: str) -> str:
        """A problem of a user's own, asked in the words in which the seats were trained."""
        return asked(self.problem(text))

    def problem(self, text: str, kind: str | None = None) -> Problem:
        return Problem("yours", text, kind=kind or self.kind)

    def reply(
        self,
        question: Question,
        hear: Callable[[Reply, str], None] = lambda reply, piece: None,
        done: Callable[[Reply], None] = lambda reply: None,
    ) -> Reply:
        """A reply that is to be answered. Raises what `seats_of` raises, and RequestError for what cannot be said."""
        seats = self.seats_of(question.speaker)
        turns = [question.asked] if isinstance(question.asked, str) else [turn.text for turn in question.asked]
        if any(re.search("[\ud800-\udfff]", text) for text in turns):
            raise RequestError("the text holds half of a surrogate pair, which is no character")
        return Reply(question, seats, hear, done)

    def answer(self, replies: Sequence[Reply]) -> None:
        """Answer all of these, the first ones first. What cannot be answered has its `error` set."""
        waiting = list(replies)
        while waiting := [reply for reply in waiting if not reply.is_over]:
            self.step(waiting)

    def step(self, waiting: Sequence[Reply]) -> None:
        """One generation: the first of these, and whoever can share it.

        Whatever fails is the replies' `error`, so that others are answered; Interrupted alone passes.
        """
        for reply in waiting:
            if reply.is_cancelled and not reply.is_over:
                reply.close("cancelled")
        left = [reply for reply in waiting if not reply.is_over]
        if not left:
            return
        batch = [reply for reply in left if reply.key == left[0].key][:MOST_AT_ONCE]
        seat = batch[0].speaking
        try:
            self._generate(batch)
        except Interrupted:
            raise
        except LiteSelfPlayError as error:
            _fail(batch, error)
        except Exception as error:
            _fail(batch, TrainingError(f"{seat} could not answer: {type(error).__name__}: {error}"))

    def _generate(self, batch: Sequence[Reply]) -> None:
        prompts: list[str | tuple[Turn, ...]] = []
        ready: list[Reply] = []
        for reply in batch:
            try:
                saw, prompt = self._asked(reply)
                self._require_room(reply, prompt)
            except RequestError as error:
                reply.fail(error)
                continue
            reply.begin(self.table.detokenize, saw)
            prompts.append(prompt)
            ready.append(reply)
        if not ready:
            return
        seat, *_ = ready[0].key
        longest = max(reply.question.sampling.max_tokens for reply in ready)
        sampling = replace(ready[0].question.sampling, max_tokens=longest, stop=())
        seeds = [[reply.seed] for reply in ready]
        said = self.table.speak(
            seat, prompts, 1, sampling, seeds, hear=lambda p, k, number, token: ready[p].heard(number, token)
        )
        for reply, (completion,) in zip(ready, said, strict=True):
            if completion.stop == "prompt_too_long":
                reply.fail(self._too_long(len(completion.prompt_ids), 0))
            else:
                reply.ended(completion)

    def _asked(self, reply: Reply) -> tuple[str | None, str | tuple[Turn, ...]]:
        """What the next seat is shown of the answer before, and its prompt."""
        question = reply.question
        if len(reply.seats) == 1:
            return None, question.asked
        if not isinstance(question.asked, str):
            raise RequestError(f"{question.speaker} is asked one problem, not a conversation")
        problem = self.problem(question.asked, question.kind)
        if not reply.stages:
            return None, asked(problem)
        assert self.reads is not None
        return self.reads(self.table, reply.stages[0].completion, problem)

    def _require_room(self, reply: Reply, prompt: str | tuple[Turn, ...]) -> None:
        tokens = self.table.prompt_tokens(prompt)
        if tokens == 0:
            raise RequestError("there is nothing to answer: the prompt is empty")
        if tokens + reply.question.sampling.max_tokens > self.context:
            raise self._too_long(tokens, reply.question.sampling.max_tokens)

    def _too_long(self, prompt: int, completion: int) -> RequestError:
        return RequestError(
            f"the prompt has {prompt:,} tokens and asks for up to {completion:,} more; there is room for "
            f"{self.context:,} together"
        )


def _fail(replies: Sequence[Reply], error: LiteSelfPlayError) -> None:
    for reply in replies:
        if not reply.is_over:
            reply.fail(error)


@contextlib.contextmanager
def speakers_of(
    name: Path | str,
    *,
    checkpoint: str = "last",
    precision: str | None = None,
    max_tokens: int | None = None,
    trust_remote_code: bool = False,
    unsafe_code: bool = False,
    progress: Progress | None = None,
    poll: Callable[[], None] = lambda: None,
) -> Iterator[Speakers]:
    """A run's speakers, or a base model by any name it goes by, in memory for the length of a context.

    `checkpoint`: `last` (the seats as they were saved last), `best` (measured best in training), or a step, as
    `step-20` or `20`. `max_tokens`: of a completion, where nobody says; None takes the run's. `poll` is called once a
    token and may raise to stop. Raises UnknownNameError, ConfigError, ModelNotFoundError or RunFolderError.
    """
    shown = progress or Progress()
    target = Target.of(name, precision, 0, trust_remote_code, unsafe_code)
    target.require_adapters()
    chosen = find_checkpoint(target, checkpoint)
    import_first(target.config.model)
    with quiet():
        from lite_selfplay.models.sources import base_of

        model = base_of(target.config.model, shown)
        target.require_base(model.identity)
        shown.say(f"loading {model.name} in {target.config.model.precision}")
        context = min(_positions(model.path), target.config.run.generation_tokens)
        # Not the run's limit, which kept training cheap: whatever the base can read may be asked.
        config = RunConfig.of(target.config.model_dump(mode="json"), {"run": {"max_prompt_tokens": context}})
        target = replace(target, config=config)
        tokens = min(max_tokens or target.config.run.max_completion_tokens or DEFAULT_TOKENS, context - 1)
        with target.table(model, tokens, shown, Poll(shown, poll), checkpoint=chosen) as table:
            yield Speakers(
                table=table,
                target=target,
                checkpoint="last" if chosen is None else f"step-{chosen.step}",
                most_tokens=tokens,
                context=context,
                kind=_kind_of(target),
                reads=find_mode(target.mode).reads if target.folder else None,
            )


def find_checkpoint(target: Target, name: str) -> "Checkpoint | None":
    """A checkpoint of a run by its name (see `speakers_of`); None for `last`.

    Raises UnknownNameError with those there are, RunFolderError where none was measured, ConfigError for a base model.
    """
    if name == "last":
        return None
    if target.folder is None:
        raise ConfigError(f"{target.name} is a base model, which has no checkpoint {name!r}")
    from lite_selfplay.runs.checkpoints import find_checkpoints, read_best

    folder = target.folder.path / CHECKPOINTS
    found = {f"step-{checkpoint.step}": checkpoint for checkpoint in find_checkpoints(folder)}
    wanted = f"step-{name}" if name.isascii() and name.isdigit() else name
    if name == "best":
        best = read_best(folder)
        if best is None:
            raise RunFolderError(f"{target.name} has no best checkpoint: it was not evaluated where it was saved")
        wanted = f"step-{best['step']}"
    if wanted not in found:
        raise UnknownNameError("checkpoint", name, [*found, "best", "last"])
    return found[wanted]


def _positions(path: Path) -> int:
    """The most tokens that a base reads, by its configuration."""
    config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    found = config.get("max_position_embeddings") or config.get("text_config", {}).get("max_position_embeddings")
    return found if isinstance(found, int) and found > 1 else 2048


def _kind_of(target: Target) -> str:
    """The kind of problems that a run was trained on: a program is asked for in other words than a number."""
    section = target.config.tasks
    if target.folder is None or section.train is None:
        return "math"
    try:
        return next(iter(load_task(section.train, data_dir=section.data_dir).problems)).kind
    except (LiteSelfPlayError, StopIteration):  # its data are not here
        return "math"

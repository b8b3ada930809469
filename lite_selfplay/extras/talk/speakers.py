"""Who speaks of a run: its base, its seats, and cascades such as `A->B`, where B answers after reading of A's answer.

The prompts are those of the run's game: a problem in the words that seats were trained on, a rival's draft as the game
shows it.
"""

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING

from lite_selfplay.data import BASE, Completion, Problem, Sampling, Turn
from lite_selfplay.errors import LiteSelfPlayError, RequestError, UnknownNameError
from lite_selfplay.games.modes import find_mode
from lite_selfplay.games.prompts import asked
from lite_selfplay.games.table import Reader
from lite_selfplay.models.backends import import_first
from lite_selfplay.models.memory import TOKENS_ON_CPU
from lite_selfplay.models.silence import quiet
from lite_selfplay.runs.targets import Target
from lite_selfplay.tasks import load_task
from lite_selfplay.tasks.base import derived_seed
from lite_selfplay.training.interrupts import Interrupts
from lite_selfplay.training.progress import Poll, Progress

if TYPE_CHECKING:
    from lite_selfplay.training.rollout import LiveTable

DEFAULT_TOKENS = 512
ARROW = "->"


@dataclass(frozen=True)
class Stage:
    """What a seat said on the way to an answer. `saw`: what it was shown of the answer before; None at the first."""

    completion: Completion
    saw: str | None = None


@dataclass(frozen=True)
class Speakers:
    """Everybody who can be asked. `context` is the most tokens that a prompt and its completion may take.

    `kind`: of the run's own problems. `reads`: see `Mode`; None where the game lets nobody read another's answer.
    """

    table: "LiveTable"
    target: Target
    most_tokens: int
    context: int
    kind: str
    reads: Callable[[Reader, Completion, Problem], tuple[str, str]] | None
    _interrupts: list[Interrupts] = field(repr=False)

    @property
    def alone(self) -> tuple[str, ...]:
        """The base, the seats, and those of checkpoints that were asked for."""
        return self.table.speakers if self.target.folder else (BASE,)

    @property
    def cascades(self) -> tuple[str, ...]:
        """Those that the game is evaluated in: each seat after each other one, or a single one after itself."""
        if self.reads is None:
            return ()
        seats = self.target.seats
        return tuple(ARROW.join(pair) for pair in permutations(seats, 2)) or (f"{seats[0]}{ARROW}{seats[0]}",)

    def seats_of(self, name: str) -> tuple[str, ...]:
        """Who speaks, one after the other, under a name. Any two may meet in a cascade, whichever the game plays.

        Raises UnknownNameError with the near names, RequestError where the game knows no cascade.
        """
        seats = tuple(part.strip() for part in name.split(ARROW))
        if len(seats) > 2 or not all(seat in self.alone for seat in seats):
            raise UnknownNameError("speaker", name, [*self.alone, *self.cascades])
        if len(seats) == 2 and self.reads is None:
            raise RequestError(f"{name}: nobody reads another's answer in the game of {self.target.name}")
        return seats

    def prompt(self, text: str) -> str:
        """A problem of a user's own, asked in the words in which the seats were trained."""
        return asked(self._problem(text))

    def say(self, name: str, prompt: str | Sequence[Turn], sampling: Sampling, seed: int = 0) -> list[Stage]:
        """What a speaker says to a prompt or a conversation; of a cascade, `prompt` is the problem's own text, and both
        seats' completions come.

        Raises RequestError where it has no room, Interrupted after a signal, at the next token.
        """
        first, *others = self.seats_of(name)
        with Interrupts() as self._interrupts[0]:
            self._interrupts[0].poll()  # from here on a signal waits for the next call, which is between two tokens
            if not others:
                return [self._stage(first, prompt, sampling, seed)]
            assert self.reads is not None
            problem = self._problem(str(prompt))
            draft = self._stage(first, asked(problem), sampling, seed)
            saw, after = self.reads(self.table, draft.completion, problem)
            return [draft, self._stage(others[0], after, sampling, derived_seed(seed, "answer"), saw)]

    def _problem(self, text: str) -> Problem:
        return Problem("yours", text, kind=self.kind)

    def _stage(
        self, seat: str, prompt: str | Sequence[Turn], sampling: Sampling, seed: int, saw: str | None = None
    ) -> Stage:
        tokens = self.table.prompt_tokens(prompt)
        if tokens + sampling.max_tokens > self.context:
            raise RequestError(
                f"the prompt has {tokens:,} tokens and asks for up to {sampling.max_tokens:,} more; there is room for "
                f"{self.context:,} together"
            )
        ((completion,),) = self.table.speak(seat, [prompt], 1, sampling, [[seed]])
        return Stage(completion, saw)


@contextlib.contextmanager
def speakers_of(
    name: Path | str,
    *,
    past: Sequence[str] = (),
    precision: str | None = None,
    max_tokens: int | None = None,
    trust_remote_code: bool = False,
    unsafe_code: bool = False,
    progress: Progress | None = None,
) -> Iterator[Speakers]:
    """A run's speakers, or a base model by any name it goes by, in memory for the length of a context.

    `past`: names among which those of seats in checkpoints (`A@20`) are loaded as well. `max_tokens`: of a completion;
    None takes the run's. Raises UnknownNameError, ConfigError, ModelNotFoundError or RunFolderError.
    """
    shown = progress or Progress()
    target = Target.of(name, precision, 0, trust_remote_code, unsafe_code).at(past)
    target.require_adapters()
    import_first(target.config.model)
    with quiet():
        from lite_selfplay.models.sources import base_of

        model = base_of(target.config.model, shown)
        target.require_base(model.identity)
        shown.say(f"loading {model.name} in {target.config.model.precision}")
        context = min(_positions(model.path), target.config.run.generation_tokens or TOKENS_ON_CPU)
        # Not the run's limit, which kept training cheap: whatever the base can read may be asked.
        config = target.config.having({"run": {"max_prompt_tokens": context}})
        target = replace(target, config=config)
        tokens = min(max_tokens or target.config.run.max_completion_tokens or DEFAULT_TOKENS, context - 1)
        interrupts = [Interrupts()]  # another one for every answer
        with target.table(model, tokens, shown, Poll(shown, lambda: interrupts[0].poll())) as table:
            reads = find_mode(target.mode).reads if target.folder else None
            yield Speakers(table, target, tokens, context, _kind_of(target), reads, interrupts)


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

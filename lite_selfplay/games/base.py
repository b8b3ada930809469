"""What a game is: roles, who plays them, and one step of play.

A game is plain Python. It draws problems, asks roles and scores their completions; it never sees a tensor, an adapter
or a trainer. The whole contract is checked by `lite_selfplay.testing.check_game`.
"""

import random
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

from lite_selfplay.data import Episode, EvalSpec, Example, Problem, Snapshot
from lite_selfplay.errors import GameError
from lite_selfplay.games.presentation import Presentation
from lite_selfplay.games.table import Table


class GameOptions(BaseModel):
    """A game's own switches, set with `game.*`. Unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Game(Presentation):
    """The base of every game. Override `play`, and what else differs.

    `roles` are the parts in the game. `sources` are what it draws from: `problems`, `passages` (texts for a proposer,
    from `tasks.knowledge`), `validation` (what it measures a seat on while it plays), `solutions` (worked ones, from
    `tasks.solutions`; there may be none); a game may set them by its options. `needs_answers`: every problem must come
    with its answer. `own_labels`: it judges by labels of its own making, so that a reward function would have nothing
    to judge. `without_tasks`: it is about no problems, so that nobody has to name any. `runs_programs`: its rules run
    programs, whatever the tasks. `default_tasks` stands in where a user names no tasks; without it any problems do.
    `about` is a line for the list of games, `Options` its switches, `recipe` its paper's configuration, below a user's.
    `open_ended`: it ends by itself (see `over`), and `run.steps` bounds it. `Presentation`: how its runs are shown.
    """

    sources: tuple[str, ...] = ("problems",)
    needs_answers: bool = True
    own_labels: bool = False
    without_tasks: ClassVar[bool] = False
    runs_programs: bool = False
    default_tasks: str | None = None
    about: ClassVar[str] = ""
    Options: ClassVar[type[GameOptions]] = GameOptions
    recipe: ClassVar[Mapping[str, Any]] = {}
    open_ended: ClassVar[bool] = False

    def __init__(self, options: Any = None, *, group_size: int = 8, problems_per_step: int = 4):
        self.options: Any = options if options is not None else self.Options()
        self.group_size = group_size
        self.problems_per_step = problems_per_step

    def seats(self, step: int) -> Mapping[str, str]:
        """Which seat, snapshot or `base` plays each role at a step. By default every role has its own seat."""
        return {role: role for role in self.roles}

    def trained_seats(self) -> tuple[str, ...]:
        """The seats that this game moves: one adapter each."""
        return tuple(dict.fromkeys(self.seats(0).values()))

    def kept_at_start(self) -> Sequence[Snapshot]:
        """Copies of seats to keep as they enter training, for a game that may put one back."""
        return ()

    def play(self, step: int, table: Table) -> Episode:
        """One step: at most one optimizer update follows from it."""
        raise GameError(f"{type(self).__name__} does not say how it is played: override play()")

    def rewards(self) -> Mapping[str, str]:
        """What a completion of each role earns, in words that a run shows before its first step; empty: none."""
        return {}

    def over(self) -> bool:
        """Whether the game has ended: asked before every step, and answered by what `state` holds."""
        return False

    def cold_start(self, role: str, problem: Problem, rng: random.Random, *, thinks: bool) -> Example | None:
        """An example of what a role should write, for a problem that brings a solution; None without one."""
        return None

    def evaluation(self) -> EvalSpec:
        """How `eval` and `--eval-every` measure the game. Its pass@1 is what "best" means."""
        return EvalSpec("single", self.trained_seats())

    def other_evaluations(self) -> Mapping[str, tuple[str, ...]]:
        """The seats to measure in other modes, by their names, where they differ from those of `evaluation`."""
        return {}

    def rollouts_per_step(self) -> int | None:
        """Completions sampled in one step, where that is fixed."""
        return None

    def most_rollouts(self, steps: int) -> int | None:
        """The most completions that a run of so many steps samples, measurements apart; None where none is known."""
        each = self.rollouts_per_step()
        return None if each is None else each * steps

    def updates(self, steps: int) -> Mapping[str, int]:
        """How many of so many steps are expected to move each trained seat: its schedule goes over these."""
        return dict.fromkeys(self.trained_seats(), steps)

    def describe(self, steps: int) -> list[str]:
        """Lines for a dry run: phases, draws, and what else a run of so many steps would do."""
        return []

    def state(self) -> dict[str, Any]:
        """What the game remembers between steps, as JSON; taken at the start of a step."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take back what `state` gave."""

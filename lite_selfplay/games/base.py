"""A game: roles, the seats that play them, and one step of play.

A game is plain Python. It draws problems, asks roles and scores their completions, without tensors, adapters or
trainers. `lite_selfplay.testing.check_game` checks the whole contract.
"""

import random
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from lite_selfplay.config.sections import Numbers
from lite_selfplay.data import Episode, EvalSpec, Example, Problem, Snapshot
from lite_selfplay.errors import GameError
from lite_selfplay.games.presentation import Presentation
from lite_selfplay.games.table import Table


class GameOptions(Numbers):
    """A game's own options, set with `game.*`. Unknown keys are refused."""


class Game(Presentation):
    """The base of every game. Override `play`, and whatever else differs.

    `roles` are the parts in the game. `sources` are what it draws from: `problems`, `passages` (texts for a proposer,
    from `tasks.knowledge`), `validation` (problems that measure a seat during play), `solutions` (worked ones, from
    `tasks.solutions`; possibly none); a game may set them by its options. `needs_answers`: every problem must have a
    reference answer. `own_labels`: it makes its own labels, so that a reward function would have nothing to judge.
    `without_tasks`: it uses no problems, so no tasks need naming. `runs_programs`: its rules run programs, whatever the
    tasks. `default_tasks`: used if the user names none; None if any problems will do. `about` is its line in the
    list of games, `Options` its options, `recipe` its paper's configuration, which a user's overrides. `open_ended`: it
    ends by itself (see `over`), and `run.steps` is an upper bound. `Presentation`: how its runs are shown.
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
        """The seat, snapshot or `base` that plays each role at a step. By default every role has its own seat."""
        return {role: role for role in self.roles}

    def seats_of(self, role: str) -> tuple[str, ...]:
        """Every seat that may play a role; by default those of as many steps as there are roles, since seats rotate."""
        return tuple(dict.fromkeys(self.seats(step)[role] for step in range(max(2, len(self.roles)))))

    def trained_seats(self) -> tuple[str, ...]:
        """The seats that this game trains, one adapter each."""
        return tuple(dict.fromkeys(self.seats(0).values()))

    def kept_at_start(self) -> Sequence[Snapshot]:
        """Snapshots of seats to keep from the start of training, for a game that may restore one."""
        return ()

    def play(self, step: int, table: Table) -> Episode:
        """One step, followed by at most one optimizer update."""
        raise GameError(f"{type(self).__name__} does not say how it is played: override play()")

    def rewards(self) -> Mapping[str, str]:
        """The reward of each role's completions in words, shown before a run's first step; empty: none."""
        return {}

    def over(self) -> bool:
        """Whether the game has ended, according to its `state`: asked before every step."""
        return False

    def cold_start(self, role: str, problem: Problem, rng: random.Random, *, thinks: bool) -> Example | None:
        """An example of a role's completion, for a problem with a worked solution; None without one."""
        return None

    def evaluation(self) -> EvalSpec:
        """How `eval` and `--eval-every` measure the game. Its pass@1 decides which checkpoint is "best"."""
        return EvalSpec("single", self.trained_seats())

    def other_evaluations(self) -> Mapping[str, tuple[str, ...]]:
        """The seats to measure in other modes, by mode, if they differ from those of `evaluation`."""
        return {}

    def rollouts_per_step(self) -> int | None:
        """The number of completions sampled in one step, or the most, if it varies; None if unknown."""
        return None

    def most_rollouts(self, steps: int) -> int | None:
        """The largest number of completions that a run samples for training; None if unknown."""
        each = self.rollouts_per_step()
        return None if each is None else each * steps

    def updates(self, steps: int) -> Mapping[str, int]:
        """The expected number of updates of each trained seat, over which its learning rate schedule runs."""
        return dict.fromkeys(self.trained_seats(), steps)

    def describe(self, steps: int) -> list[str]:
        """Lines for a dry run: phases, draws, and whatever else a run of this many steps would do."""
        return []

    def state(self) -> dict[str, Any]:
        """The game's memory between steps, as JSON; taken at the start of a step."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the memory that `state` returned."""

"""A case: a step of a right solution, and what becomes of it from phase to phase. Each phase writes the cases anew."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from lite_selfplay.data import Completion, Problem, completion_from_json, completion_to_json
from lite_selfplay.games.collections import read_objects, write_objects
from lite_selfplay.games.spc.replies import Critique, Rewrite, read_critique, read_rewrite
from lite_selfplay.games.spc.rewards import STABLE, Attack, Fate, Trial, fate, is_stable, misleads
from lite_selfplay.games.spc.steps import beginning, replaced


@dataclass(frozen=True)
class Case:
    """A step under attack: the last of `steps`, which begin a solution of `problem`; `solver` goes on from it.

    `original` and `sneaky` say how often that ended well after the step as it was and after the rewrite in `attack`;
    `critiques` are of the rewrite, `untouched` of the step as it was. None or empty is what did not come to pass, or
    not yet. `unread`: the rewritten step made the solver's prompt too long.
    """

    id: str
    problem: Problem
    steps: tuple[str, ...]
    solver: str
    original: Trial | None = None
    attack: Completion | None = None
    sneaky: Trial | None = None
    critiques: tuple[Completion, ...] = ()
    untouched: tuple[Completion, ...] = ()
    unread: bool = False

    @property
    def step(self) -> str:
        """The step as it was."""
        return self.steps[-1].strip()

    @property
    def before(self) -> str:
        """The steps that lead to it."""
        return "".join(self.steps[:-1]).strip()

    @property
    def rewrite(self) -> Rewrite | None:
        """What the sneaky generator made of the step."""
        if self.attack is None:
            return None
        found = read_rewrite(self.attack, self.step)
        return replace(found, reason="prompt_too_long") if self.unread else found

    @property
    def start(self) -> str:
        """The beginning of a reply that is gone on with after the step as it was."""
        return beginning(self.steps)

    @property
    def sneaky_start(self) -> str:
        """The same after the rewritten step."""
        assert self.rewrite is not None
        return beginning(replaced(self.steps, len(self.steps) - 1, self.rewrite.step))

    @property
    def is_valid(self) -> bool:
        """Whether the rewrite is an error that misleads the solver."""
        return self.sneaky is not None and misleads(self.sneaky)

    def is_stable(self, at_least: float = STABLE) -> bool:
        return self.original is not None and is_stable(self.original, at_least)

    def judged(self) -> list[Critique]:
        """The critiques of the rewrite, read."""
        return [read_critique(completion) for completion in self.critiques]

    def fate(self, stable: float = STABLE) -> Fate:
        """What became of the step. Raises ValueError where something has not come to pass yet."""
        if self.original is None:
            raise ValueError("the original step was not tried")
        if not self.is_stable(stable):
            return "unstable"
        # The bar for a stable step is the game's own.
        passed = Trial(self.original.of, self.original.of)
        return fate(Attack(passed, self.rewrite, self.sneaky, self.judged()))

    def to_json(self) -> dict[str, Any]:
        return {
            **vars(self),
            "problem": asdict(self.problem),
            **{name: _trial_to_json(getattr(self, name)) for name in ("original", "sneaky")},
            "attack": None if self.attack is None else completion_to_json(self.attack),
            **{name: [*map(completion_to_json, getattr(self, name))] for name in ("critiques", "untouched")},
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Case":
        """The case that `to_json` wrote. Raises LookupError, TypeError or ValueError for anything else."""
        steps = tuple(values["steps"])
        if not steps or not all(isinstance(text, str) for text in (*steps, values["id"], values["solver"])):
            raise TypeError("steps, id and solver must be texts")
        return cls(
            **{
                **values,
                "problem": Problem(**values["problem"]),
                "steps": steps,
                **{name: _trial(values[name]) for name in ("original", "sneaky")},
                "attack": None if values["attack"] is None else completion_from_json(values["attack"]),
                **{name: tuple(map(completion_from_json, values[name])) for name in ("critiques", "untouched")},
            }
        )


def write_cases(path: Path, cases: Sequence[Case]) -> None:
    """Write cases, whole or not at all."""
    write_objects(path, (case.to_json() for case in cases))


def read_cases(path: Path) -> list[Case]:
    """Cases as they were written. Raises RunFolderError, with file and line, where they are damaged."""
    return read_objects(path, Case.from_json, "step under attack")


def _trial_to_json(trial: Trial | None) -> list[int] | None:
    return None if trial is None else [trial.right, trial.of]


def _trial(values: Any) -> Trial | None:
    return None if values is None else Trial(*values)

"""A case: a step of a right solution, what becomes of it from phase to phase, and what that earns.

Each phase writes the cases anew. Source: "SPC: Evolving Self-Play Critic via Adversarial Games for LLM Reasoning",
sections 3.2 to 3.4. Ours: how many completions validate a step (4; the paper says N), what a reply is worth that cannot
be read, and that the first of four critiques decides a game.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from lite_selfplay.data import Completion, Problem, completion_from_json, completion_to_json
from lite_selfplay.games.collections import read_objects, write_objects
from lite_selfplay.games.spc.replies import Critique, Rewrite, read_critique, read_rewrite
from lite_selfplay.games.spc.steps import beginning, replaced

CRITIQUES = 4
ROLLOUTS = 4
TRIALS = ("original", "sneaky")
STABLE = 0.75

Fate = Literal["unstable", "refused", "harmless", "undecided", "caught", "fooled"]
"""What becomes of a step: its original is solved too rarely from; the rewrite cannot be used; the rewrite misleads
nobody; the critic gives no judgement; the critic catches the error, or is fooled."""


@dataclass(frozen=True)
class Trial:
    """How many of the completions from a step reach the right answer."""

    right: int
    of: int

    def __post_init__(self) -> None:
        if not 0 <= self.right <= self.of or not self.of:
            raise ValueError(f"need 0 <= right <= of and at least one completion, got {self.right} of {self.of}")


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
        """Whether the rewrite is an error: no completion from it reaches the right answer (section 3.2)."""
        return self.sneaky is not None and self.sneaky.right == 0

    def is_stable(self, at_least: float = STABLE) -> bool:
        """Whether the step is solved from often enough to be called correct: in at least 75% (section 3.2)."""
        return self.original is not None and self.original.right >= at_least * self.original.of

    def fate(self, stable: float = STABLE) -> Fate:
        """What became of the step. Raises ValueError where something has not come to pass yet."""
        if self.original is None:
            raise ValueError("the original step was not tried")
        if not self.is_stable(stable):
            return "unstable"
        if self.rewrite is None:
            raise ValueError("a stable step has no rewrite")
        if self.rewrite.reason:
            return "refused"
        if self.sneaky is None:
            raise ValueError("a rewrite was not tried")
        if not self.is_valid:
            return "harmless"
        if not self.critiques:
            raise ValueError("a valid error was not judged")
        decisive = read_critique(self.critiques[0])
        if decisive.judgement is None:
            return "undecided"
        return "caught" if decisive.agrees(correct=False) else "fooled"

    def to_json(self) -> dict[str, Any]:
        return {
            **vars(self),
            "problem": asdict(self.problem),
            **{name: trial and [trial.right, trial.of] for name in TRIALS for trial in [getattr(self, name)]},
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
                **{name: None if values[name] is None else Trial(*values[name]) for name in TRIALS},
                "attack": None if values["attack"] is None else completion_from_json(values["attack"]),
                **{name: tuple(map(completion_from_json, values[name])) for name in ("critiques", "untouched")},
            }
        )


def sneaky_reward(found: Fate) -> float | None:
    """+1 for a critic that is fooled; -1 for an error that is caught, or for none; None where nothing was decided.

    A reply that cannot be read is no error either (ours).
    """
    if found in ("unstable", "undecided"):
        return None
    return 1.0 if found == "fooled" else -1.0


def critic_reward(critique: Critique, *, correct: bool) -> float:
    """+1 for a judgement that is right about the step, -1 for one that is wrong, or for none."""
    return 1.0 if critique.agrees(correct) else -1.0


def write_cases(path: Path, cases: Sequence[Case]) -> None:
    """Write cases, whole or not at all."""
    write_objects(path, (case.to_json() for case in cases))


def read_cases(path: Path) -> list[Case]:
    """Cases as they were written. Raises RunFolderError, with file and line, where they are damaged."""
    return read_objects(path, Case.from_json, "step under attack")

"""The arena: the base and the seats of a run, as they were in its checkpoints, meet on held-out problems.

Where the game's own evaluation lets one seat answer after another (Agon's cascade), that is a duel: one drafts, the
other reads what it may see of the draft and answers; who is right alone wins. Elsewhere both answer by themselves.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from lite_selfplay.data import BASE
from lite_selfplay.errors import ConfigError, RunFolderError
from lite_selfplay.evaluation.result import Evaluation
from lite_selfplay.evaluation.tables import with_interval
from lite_selfplay.games.agon.cascade import CascadeScore
from lite_selfplay.games.modes import find_mode
from lite_selfplay.games.presentation import MISSING, percent
from lite_selfplay.games.studies import share_with_interval
from lite_selfplay.runs.evaluating import Settings, evaluate_all
from lite_selfplay.runs.folder import ARENA, CHECKPOINTS, RunFolder
from lite_selfplay.runs.targets import Target
from lite_selfplay.stats import clopper_pearson
from lite_selfplay.tasks.files import require_no_link, write_whole
from lite_selfplay.training.progress import Progress

LIMIT = 50
"""Problems of an arena where nobody says how many: every two contestants meet on each of them, twice."""

Table = tuple[list[str], list[list[str]]]
"""The columns of a table, and its rows, whose first cell names them."""


@dataclass(frozen=True)
class Duels:
    """How `second` did against `first` on some problems: after reading its drafts, or beside it.

    `conversions`: problems that `second` alone had right, `regressions`: that `first` alone had.
    """

    first: str
    second: str
    conversions: int
    regressions: int
    both_right: int
    both_wrong: int


@dataclass(frozen=True)
class Arena:
    """Who met whom, on `n` problems of `tasks`, and how often each was right alone.

    `drafts`: the second of two read the first's draft, and every two met in both orders.
    """

    run: str
    tasks: str
    n: int
    drafts: bool
    contestants: tuple[str, ...]
    alone: Mapping[str, Mapping[str, Any]]
    duels: tuple[Duels, ...]
    settings: Mapping[str, Any]

    def wins(self, one: str, other: str | None = None) -> tuple[int, int]:
        """How many duels a contestant won against another (or against all), and how many of them one of two won."""
        won = lost = 0
        for each in self.duels:
            if each.second == one and other in (None, each.first):
                won, lost = won + each.conversions, lost + each.regressions
            elif each.first == one and other in (None, each.second):
                won, lost = won + each.regressions, lost + each.conversions
        return won, won + lost

    def ranking(self) -> list[str]:
        """The contestants, those that won the largest share of their decided duels first."""
        shares = {name: won / of if of else 0.5 for name in self.contestants for won, of in [self.wins(name)]}
        return sorted(self.contestants, key=lambda name: -shares[name])

    def win_table(self) -> Table:
        """Rows against columns: the share of decided duels that the row won with its 95% interval, and their number."""
        names = self.ranking()
        rows = [
            [
                name,
                with_interval(self.alone[name]),
                _share(*self.wins(name)),
                *(MISSING if name == other else _share(*self.wins(name, other)) for other in names),
            ]
            for name in names
        ]
        return ["", "alone, pass@1", "against all", *(f"against {name}" for name in names)], rows

    def conversion_table(self) -> Table:
        """Rows draft, columns answer: wrong drafts after which the answer was right, right ones after which it was
        wrong; empty where nobody read drafts."""
        met = {(each.first, each.second): each for each in self.duels} if self.drafts else {}
        names = self.ranking() if met else []
        rows = [[name, *(_converted(met.get((name, other))) for other in names)] for name in names]
        return ["draft by", *(f"answer by {name}" for name in names)], rows

    def to_json(self) -> dict[str, Any]:
        """The object that `arena/*.json` holds."""
        met = [
            {
                "first": each.first,
                "second": each.second,
                "conversions": each.conversions,
                "regressions": each.regressions,
                "both_right": each.both_right,
                "both_wrong": each.both_wrong,
            }
            for each in self.duels
        ]
        return {
            "run": self.run,
            "tasks": self.tasks,
            "n": self.n,
            "rule": "the second reads the first's draft" if self.drafts else "both answer alone",
            **self.settings,
            "alone": {name: dict(score) for name, score in self.alone.items()},
            "ranking": self.ranking(),
            "win_rates": {
                one: {other: _rate(*self.wins(one, other)) for other in self.contestants if other != one}
                for one in self.contestants
            },
            "duels": met,
        }


def hold(
    path: Path,
    *,
    tasks: str | None = None,
    checkpoints: str | None = None,
    limit: int = LIMIT,
    seed: int = 0,
    temperature: float = 0.6,
    trust_remote_code: bool = False,
    unsafe_code: bool = False,
    progress: Progress,
) -> tuple[Arena, Path]:
    """Let the base and the seats of a run's checkpoints meet; the arena, and where it was written.

    `tasks` None takes what the run is evaluated on, else its training tasks. `checkpoints`: steps separated by commas,
    `all`, or None for the first and the last that are there. A call that was stopped goes on where it was.
    Raises RequestError where the request is wrong, Interrupted where it was stopped by a signal.
    """
    folder = RunFolder.open(path)
    target = Target.of(path, None, seed, trust_remote_code, unsafe_code)
    steps = chosen_steps(folder, checkpoints)
    asked = tasks or target.config.eval.tasks or target.config.tasks.train
    if asked is None:
        raise ConfigError("the run names no tasks: give --tasks")
    if limit < 1:
        raise ConfigError(f"--limit must be at least 1, got {limit}")
    drafts = find_mode(target.mode).duels
    contestants = (BASE, *(f"{seat}@{step}" for step in steps for seat in target.config.seats))
    require_no_link(path / ARENA)
    settings = Settings(
        limit=limit,
        samples=1,
        temperature=temperature,
        seed=seed,
        seats=contestants,
        data_dir=target.config.tasks.data_dir,
    )
    (found,) = evaluate_all(
        path,
        [asked],
        [target.mode if drafts else "single"],
        settings,
        trust_remote_code=trust_remote_code,
        unsafe_code=unsafe_code,
        write=False,
        keep=True,
        progress=progress,
    )
    arena = arena_of(str(path), found, drafts=drafts)
    return arena, _write(path, arena)


def chosen_steps(folder: RunFolder, checkpoints: str | None) -> list[int]:
    """The steps of the checkpoints that meet. Raises ConfigError for a request that names none of those there."""
    from lite_selfplay.runs.checkpoints import find_checkpoints

    there = [found.step for found in find_checkpoints(folder.path / CHECKPOINTS)]
    if not there:
        raise RunFolderError(f"{folder.path} has no complete checkpoint whose seats could meet")
    if checkpoints is None:
        return sorted({there[0], there[-1]})
    if checkpoints.strip() == "all":
        return there
    try:
        asked = sorted({int(part) for part in checkpoints.split(",")})
    except ValueError:
        raise ConfigError(f"--checkpoints takes steps separated by commas, or all; got {checkpoints!r}") from None
    if missing := [step for step in asked if step not in there]:
        raise ConfigError(
            f"{folder.path} has no complete checkpoint of step {missing[0]}: it has {', '.join(map(str, there))}"
        )
    return asked


def arena_of(run: str, found: Evaluation, *, drafts: bool) -> Arena:
    """The arena of an evaluation of all contestants, one sample a problem."""
    names = tuple(found.seats)
    met = []
    if drafts:
        for direction, score in found.directions.items():
            first, _, second = direction.partition("->")
            assert isinstance(score, CascadeScore)
            met.append(Duels(first, second, score.conversions, score.regressions, score.both_right, score.both_wrong))
    else:
        met = [_beside(found, *pair) for pair in combinations(names, 2)]
    settings = {"temperature": found.sampling.temperature, "top_p": found.sampling.top_p, "seed": found.seed}
    scores = {name: score.to_json() for name, score in found.seats.items()}
    n = next(iter(found.seats.values())).n
    return Arena(run, found.tasks, n, drafts, names, scores, tuple(met), settings)


def _beside(found: Evaluation, first: str, second: str) -> Duels:
    pairs = [(bool(right[first]), bool(right[second])) for right in found.per_problem.values()]
    counts = [pairs.count(kind) for kind in ((False, True), (True, False), (True, True), (False, False))]
    return Duels(first, second, *counts)


def _share(won: int, of: int) -> str:
    return f"{share_with_interval(won, of)} of {of}" if of else MISSING


def _rate(won: int, of: int) -> dict[str, Any]:
    low, high = clopper_pearson(won, of)
    return {"won": won, "decided": of, "rate": won / of if of else None, "ci95": [low, high]}


def _converted(duels: Duels | None) -> str:
    if duels is None:
        return MISSING
    wrong, right = duels.conversions + duels.both_wrong, duels.regressions + duels.both_right
    return f"+{duels.conversions} of {wrong}, -{duels.regressions} of {right}"


def conversion_rate(duels: Duels) -> float | None:
    """The share of the first's wrong drafts after which the second was right; None where none was wrong."""
    wrong = duels.conversions + duels.both_wrong
    return duels.conversions / wrong if wrong else None


def summary(arena: Arena) -> str:
    """Who won most, in a sentence with its interval."""
    best, won, of = arena.ranking()[0], *arena.wins(arena.ranking()[0])
    if not of:
        return "No duel was decided: on every problem all were right, or all were wrong."
    low = clopper_pearson(won, of)[0]
    chance = "" if low > 0.5 else ", which may be chance"
    return f"{best} won {percent(won / of)} of its {of} decided duels{chance}."


def _write(path: Path, arena: Arena) -> Path:
    """Write an arena to `arena/<tasks>-<n>.json` of a run's folder, with -2, -3 after what is there."""
    tasks = re.sub(r"[^\w.-]+", "-", Path(arena.tasks).name).strip("-") or "tasks"
    stem = name = f"{tasks[:80]}-{arena.n}"
    number = 1
    while (place := path / ARENA / f"{name}.json").exists():
        number += 1
        name = f"{stem}-{number}"
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        write_whole(place, json.dumps(arena.to_json(), indent=1, allow_nan=False) + "\n")
    except OSError as error:
        raise RunFolderError(f"cannot write {place}: {error.strerror or error}") from None
    return place

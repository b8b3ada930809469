"""The report at the end of a run: its results, its folder, what to try next.

`metrics` are lines of `metrics.jsonl`. `evaluations` map moments (`untouched`, `after cold start`, `after 24 steps`),
in order, to results: `step` (0 or less before training), `mode`, `tasks`, `n`, `pass_at_1` in [0, 1] with `ci95` [low,
high], the same two for each of `seats`, and for each of the `directions` between seats if the mode has any.
"""

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

from lite_selfplay.config import RunConfig
from lite_selfplay.evaluation.result import BASE, cut_off, mean_label, mean_outcomes, outcomes_of, scores_of
from lite_selfplay.games import Game
from lite_selfplay.games.presentation import Row, percent
from lite_selfplay.runs.folder import RunFolder
from lite_selfplay.stats import paired, sign_flips

Metrics = Sequence[Mapping[str, Any]]
Evaluations = Mapping[str, Mapping[str, Any]]

# Changes with at least this p-value are attributed to chance.
SURE = 0.05
_problems = itemgetter("tasks", "n")  # of an evaluation


def closing_report(
    game: type[Game], config: RunConfig, metrics: Iterable[Row], evaluations: Evaluations, path: Path | str
) -> list[str]:
    """The lines of the final report: results, folder, what to try next. Reads `metrics` once.

    The change of pass@1 needs two comparable evaluations. A change that chance could explain is marked as such.
    """
    lines = [*_fallen(evaluations), *_evaluated(evaluations)] if evaluations else []
    last: Row = {}
    counts: Counter[str] = Counter()
    for last in metrics:
        counts["steps"] += 1
        counts["gave no signal (equal rewards in every group)"] += _is_silent(last, game)
        counts["met a number that is not finite"] += last.get("nonfinite_what") is not None
        counts["had completions sampled with other weights"] += last.get("sampler_what") is not None
    over, steps = last.get("over") is True, counts.pop("steps", 0)  # `over`: it ended by itself
    lines += game.closing(last["game"]) if last and (over or not game.open_ended) else []
    lines += [
        f"{count} of {counted(steps, 'step')} {what} and updated nothing" for what, count in counts.items() if count
    ]
    lines.append(f"run folder: {path}")
    silent = 2 * counts["gave no signal (equal rewards in every group)"] >= steps
    return lines + [f"{why}: {command}" for why, command in _next(game, config, steps, over, silent, evaluations, path)]


@dataclass(frozen=True)
class Change:
    """How a score changed: `way` shows it at each moment, `points` is the difference of the last two (None: it was
    not measured twice), and `test` its test's result. `sure`: chance does not explain it."""

    name: str
    way: str
    points: float | None = None
    sure: bool = False
    test: str = ""

    def __str__(self) -> str:
        told, points = "" if self.points is None else ", no change", self.points or 0.0
        if points:
            size, doubt = f"{abs(points):.1f}".removesuffix(".0"), "" if self.sure else ", which may be chance"
            told = f", {'up' if points > 0 else 'down'} {size} points{doubt} {self.test}".rstrip()
        return f"{self.name}: {self.way}{told}"


def changes(evaluations: Evaluations) -> list[Change]:
    """How the scores of every seat and direction, and their mean, changed over the moments of `_telling`."""
    results = [evaluations[moment] for moment in _telling(evaluations)]
    found = []
    for name in scores_of(results[-1]) if results else ():
        own = [scores_of(result).get(_named(result, name) or "") for result in results]
        way = " -> ".join("n/a" if score is None else percent(score["pass_at_1"]) for score in own)
        found.append(_change(name, way, results) if len(results) > 1 else Change(name, way))
    if len(results) > 1 and all(len(result.get("directions", {})) > 1 for result in results[-2:]):
        found.append(_mean_change(*results[-2:]))
    return found


def _fallen(evaluations: Evaluations) -> list[str]:
    """A line that says so if the run ended below its start."""
    ends = [evaluations[moment] for moment in _telling(evaluations)][-2:]
    if _overall(ends[-1]) > _overall(ends[0]) - 0.0005:
        return []
    sure = any(change.sure and (change.points or 0.0) < 0 for change in changes(evaluations))
    way = " -> ".join(f"{percent(_overall(each))} with {each['tokens_final_mean']:.0f} tokens" for each in ends)
    return [f"this run ended below its start{'' if sure else ', perhaps by chance'}: pass@1 {way}"]


def _evaluated(evaluations: Evaluations) -> list[str]:
    """Lines with the pass rate of every seat and direction at each moment of `_telling`, and its last change."""
    moments = _telling(evaluations)
    last, alone = evaluations[moments[-1]], len(moments) == 1
    return [
        f"pass@1 on {last['tasks']} ({counted(last['n'], 'problem')}), {' -> '.join(moments)}:",
        *(f"  {change}" for change in changes(evaluations)),
        *(["  no other evaluation of these problems to compare with"] if alone else []),
        *([f"  {said}"] if (said := cut_off(last)) else []),
    ]


def _telling(evaluations: Evaluations) -> list[str]:
    """The first moment, the one before training and the last, if they are on the same problems as the last."""
    moments = list(evaluations)
    before = [moment for moment in moments if evaluations[moment]["step"] <= 0]
    chosen = dict.fromkeys([*moments[:1], *before[-1:], *moments[-1:]])
    return [moment for moment in chosen if _problems(evaluations[moment]) == _problems(evaluations[moments[-1]])]


def _named(result: Mapping[str, Any], name: str) -> str | None:
    """The key of a seat's or direction's score in a result; the untouched base counts as every seat."""
    scores = scores_of(result)
    return name if name in scores else BASE if "->" not in name and BASE in scores else None


def _change(name: str, way: str, results: Sequence[Mapping[str, Any]]) -> Change:
    """The last change of a score, judged by the paired test if the same problems were answered once each, else by the
    intervals."""
    before, after = results[-2:]
    was, now = _named(before, name), _named(after, name)
    if was is None or now is None:
        return Change(name, way)
    old, new = scores_of(before)[was], scores_of(after)[now]
    points = 100 * (new["pass_at_1"] - old["pass_at_1"])
    if abs(points) < 0.05:
        return Change(name, way, 0.0)
    found = paired(outcomes_of(before, was), outcomes_of(after, now))
    if found is not None and found.p_value is not None:
        return Change(name, way, points, found.p_value < SURE, f"(p = {found.p_value:.2g})")
    (low, high), (new_low, new_high) = old["ci95"], new["ci95"]
    apart = high < new_low or new_high < low
    return Change(name, way, points, apart, "" if apart else "(the 95% intervals overlap)")


def _mean_change(before: Mapping[str, Any], after: Mapping[str, Any]) -> Change:
    """The change of the mean over directions, with its 95% interval by bootstrap over problems; sure by sign flips of
    the problems' changes, which do not take a few that change alike for certainty."""
    way = " -> ".join(percent(result["mean_of_directions"]) for result in (before, after))
    name, found = mean_label(after), paired(mean_outcomes(before), mean_outcomes(after))
    if found is None or abs(found.difference) < 0.0005:
        return Change(name, way, None if found is None else 0.0)
    p_value = sign_flips(found.changes)
    test = "[{:.0f}, {:.0f}]".format(*(100 * bound for bound in found.interval)) if found.interval else ""
    return Change(name, way, 100 * found.difference, p_value < SURE, test or f"(p = {p_value:.2g})")


def _next(
    game: type[Game],
    config: RunConfig,
    steps: int,
    over: bool,
    silent: bool,
    evaluations: Evaluations,
    path: Path | str,
) -> list[tuple[str, str]]:
    """At most two (reason, command) pairs, the most helpful first. `silent`: most steps gave no signal."""
    run = shlex.quote(str(path))
    report = f"lite-selfplay report {run} --duels 3"
    command, again = RunFolder(Path(path)).resume_command, config.rollouts.again
    if steps < config.run.steps and not over:
        return [("to finish it", command(again)), ("to read transcripts", report)]
    if silent:
        return [("to see why most steps gave no signal", report)]
    ways = []
    if not evaluations:
        task = config.tasks.train
        held_out = shlex.quote(task) if task and not re.search(r"\.(jsonl?|csv)\b", task) else "HELD_OUT.jsonl"
        measure = ("to measure it on problems it has not seen", f"lite-selfplay eval {run} --tasks {held_out}")
        ways.append(("to measure it", f"lite-selfplay eval {run}") if game.without_tasks else measure)
    *earlier, last = evaluations.values() or [{}]
    alike = [old for old in earlier if (old["mode"], *_problems(old)) == (last["mode"], *_problems(last))]
    gained = steps > 1 and any(change.sure and (change.points or 0.0) > 0 for change in changes(evaluations))
    if not over and gained and alike and all(_overall(old) < _overall(last) for old in alike):
        more = config.run.steps + max(10, config.run.steps // 2)
        ways.append(("still improving at the last step: more steps may help", command(again, f" --steps {more}")))
    return [*ways, ("to read transcripts", report)][:2]


def _overall(result: Mapping[str, Any]) -> float:
    """The mean of both directions if there are two: the better one alone would flatter."""
    return float(result.get("mean_of_directions") or result["pass_at_1"])


def _is_silent(row: Row, game: type[Game]) -> bool:
    usable = row.get("nonfinite_what") is None and row.get("sampler_what") is None
    trained = any(stream["rows_trained"] for stream in row["streams"].values())
    return game.trains(row.get("game", {})) and usable and not trained


def counted(n: int, noun: str) -> str:
    """`1 step`, `2 steps`."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"

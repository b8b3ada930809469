"""The report that a run closes with: what it achieved, where it lies, what to try next.

`metrics` are lines of `metrics.jsonl`. `evaluations` map a moment (`untouched`, `after cold start`, `after 24 steps`),
in order, to what an evaluation found: `mode`, `tasks`, `n`, `pass_at_1` in [0, 1] with `ci95` [low, high], the same two
for each of `seats`, and for each of the `directions` between seats where the mode has any.
"""

import math
import re
import shlex
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lite_selfplay.config import RunConfig
from lite_selfplay.evaluation.tables import BASE
from lite_selfplay.games import Game
from lite_selfplay.games.presentation import percent
from lite_selfplay.stats import paired_test

Metrics = Sequence[Mapping[str, Any]]
Evaluations = Mapping[str, Mapping[str, Any]]

DOUBTS = ("may be chance", "within the scatter", "too few to say", "no change")
"""What a line says of a change that is none for sure."""
FEWEST_STEPS, SURE = 8, 0.05
"""Fewer steps have no quarters worth comparing; a p-value from which on a change is put down to chance."""


def closing_report(
    game: type[Game], config: RunConfig, metrics: Metrics, evaluations: Evaluations, path: Path | str
) -> list[str]:
    """What a run achieved, where it lies and what to try next, a sentence or a command a line.

    Two comparable evaluations give the change of pass@1; without them the accuracy in training has to do, as the
    line says. Nothing is called a change that chance explains.
    """
    lines = _evaluated(evaluations) if evaluations else []
    own = game.closing(metrics[-1]["game"]) if metrics and metrics[-1].get("over") is True else []
    lines += own
    if len(_telling(evaluations)) < 2 and not own:
        lines += _trained(metrics, game)
    silent = _silent_steps(metrics, game)
    if silent:
        steps = counted(len(metrics), "step")
        lines.append(f"{silent} of {steps} gave no signal (equal rewards in every group) and moved nothing")
    bad = sum(row.get("nonfinite_what") is not None for row in metrics)
    if bad:
        lines.append(f"{bad} of {counted(len(metrics), 'step')} met a number that is not finite and moved nothing")
    foreign = sum(row.get("sampler_what") is not None for row in metrics)
    if foreign:
        steps = counted(len(metrics), "step")
        lines.append(f"{foreign} of {steps} held completions that other weights had sampled and moved nothing")
    lines.append(f"the run: {path}")
    return lines + [f"{why}: {command}" for why, command in _next(game, config, metrics, evaluations, path)]


def _evaluated(evaluations: Evaluations) -> list[str]:
    """The pass rate of every seat and direction at each moment of `_telling`, and its last change."""
    moments = _telling(evaluations)
    last = evaluations[moments[-1]]
    results = [evaluations[moment] for moment in moments]
    lines = [f"pass@1 on {last['tasks']} ({counted(last['n'], 'problem')}), {' -> '.join(moments)}:"]
    for name in {**last["seats"], **last.get("directions", {})}:
        rates = [_entry(result, name) for result in results]
        way = " -> ".join("n/a" if rate is None else percent(rate["pass_at_1"]) for rate in rates)
        lines.append(f"  {name}: {way}{_change(results[-2], results[-1], name) if len(results) > 1 else ''}")
    return lines if len(moments) > 1 else [*lines, "  no other evaluation on these problems to compare with"]


def _telling(evaluations: Evaluations) -> list[str]:
    """The first moment, the one before training and the last, as far as they are on the same problems."""
    if not evaluations:
        return []
    moments = list(evaluations)
    before = [moment for moment in moments if re.fullmatch(r"after \d+ steps?", moment) is None]
    chosen = dict.fromkeys([moments[0], *before[-1:], moments[-1]])
    return [moment for moment in chosen if _problems(evaluations[moment]) == _problems(evaluations[moments[-1]])]


def _problems(result: Mapping[str, Any]) -> tuple[Any, ...]:
    return result["tasks"], result["n"]


def _entry(result: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    """A seat's or direction's score; that of the untouched base stands for every seat."""
    found: Mapping[str, Any] | None = {**result["seats"], **result.get("directions", {})}.get(name)
    return found or (None if "->" in name else result["seats"].get(BASE))


def _change(before: Mapping[str, Any], after: Mapping[str, Any], name: str) -> str:
    """What became of a score, with a word of doubt where chance would explain it."""
    old, new = _entry(before, name), _entry(after, name)
    if old is None or new is None:
        return ""
    points = 100 * (new["pass_at_1"] - old["pass_at_1"])
    if abs(points) < 0.05:
        return ", no change"
    return f", {_points(points)}{_doubt(before, after, name)}"


def _doubt(before: Mapping[str, Any], after: Mapping[str, Any], name: str) -> str:
    """By the paired test, where the same problems were answered once each; else by the intervals."""
    old, new = _entry(before, name) or {}, _entry(after, name) or {}
    own = name if name in {**before["seats"], **before.get("directions", {})} else BASE
    first, second = before.get("per_problem", {}), after.get("per_problem", {})
    pairs = [(first[key].get(own), second[key].get(name)) for key in second if key in first]
    if pairs and all(isinstance(was, bool) and isinstance(now, bool) for was, now in pairs):
        *_, p_value = paired_test([bool(was) for was, _ in pairs], [bool(now) for _, now in pairs])
        return f" (p = {p_value:.2g})" if p_value < SURE else f", which may be chance (p = {p_value:.2g})"
    (low, high), (new_low, new_high) = old["ci95"], new["ci95"]
    return "" if high < new_low or new_high < low else ", which may be chance (the 95% intervals overlap)"


def _points(points: float) -> str:
    return f"{'up' if points > 0 else 'down'} {abs(points):.1f}".removesuffix(".0") + " points"


def _trained(metrics: Metrics, game: type[Game]) -> list[str]:
    """The accuracy of each role in the first and in the last quarter of the steps."""
    if len(metrics) < FEWEST_STEPS:
        return [f"{counted(len(metrics), 'step')}: too few to say whether anything improved"]
    quarter = len(metrics) // 4
    lines = []
    for role in _roles(metrics):
        first, last = _accuracies(metrics[:quarter], role), _accuracies(metrics[-quarter:], role)
        if first and last:
            before, after = statistics.fmean(first), statistics.fmean(last)
            word = game.accuracy_of(role).word
            lines.append(f"  {role}: {percent(before)} -> {percent(after)} {word}, {_drift(first, last)}")
    if not lines:
        return ["no completion was judged right or wrong, so there is no accuracy to compare"]
    return [f"on the problems it trained on, the first {quarter} steps against the last {quarter}:", *lines]


def _drift(first: Sequence[float], last: Sequence[float]) -> str:
    """A change in words: a difference of less than two standard errors between steps is not called one."""
    points = 100 * (statistics.fmean(last) - statistics.fmean(first))
    if abs(points) < 0.05:
        return "no change"
    return f"{_points(points)}{'' if _clear(first, last) else ', within the scatter of the steps'}"


def _clear(first: Sequence[float], last: Sequence[float]) -> bool:
    if min(len(first), len(last)) < 2:
        return False
    error = math.sqrt(statistics.variance(first) / len(first) + statistics.variance(last) / len(last))
    return abs(statistics.fmean(last) - statistics.fmean(first)) > 2 * error


def _next(
    game: type[Game], config: RunConfig, metrics: Metrics, evaluations: Evaluations, path: Path | str
) -> list[tuple[str, str]]:
    """Why and how: at most two commands, the one that helps most first."""
    run = shlex.quote(str(path))
    report = f"lite-selfplay report {run} --duels 3"
    over = bool(metrics) and metrics[-1].get("over") is True  # it ended by itself
    resume = f"lite-selfplay train --resume {run}{config.rollouts.again}"
    if len(metrics) < config.run.steps and not over:
        return [("to finish it", resume), ("to read transcripts", report)]
    if 2 * _silent_steps(metrics, game) >= len(metrics):
        return [("to see why most steps gave no signal", report)]
    ways = []
    if not evaluations:
        task = config.tasks.train or ""
        known = task and not re.search(r"\.(jsonl?|csv)\b", task)
        held_out = shlex.quote(task) if known else "HELD_OUT.jsonl"
        ways.append(("to measure it on problems it has not seen", f"lite-selfplay eval {run} --tasks {held_out}"))
    if not over and _rising(metrics, evaluations):
        more = config.run.steps + max(10, config.run.steps // 2)
        ways.append(("best at the end, so more steps may help", f"{resume} --steps {more}"))
    return [*ways, ("to read transcripts", report)][:2]


def _rising(metrics: Metrics, evaluations: Evaluations) -> bool:
    """Whether the last evaluation is the best of its kind; without an earlier one, whether training says so."""
    if evaluations:
        *earlier, last = evaluations.values()
        alike = [old for old in earlier if (old["mode"], *_problems(old)) == (last["mode"], *_problems(last))]
        if alike:
            return all(_overall(old) < _overall(last) for old in alike)
    quarter = len(metrics) // 4
    if len(metrics) < FEWEST_STEPS:
        return False
    for role in _roles(metrics):
        early = _accuracies(metrics[:quarter], role)
        third, late = _accuracies(metrics[-2 * quarter : -quarter], role), _accuracies(metrics[-quarter:], role)
        rises = early and third and late and statistics.fmean(late) > max(map(statistics.fmean, (early, third)))
        if rises and _clear(early, late):
            return True
    return False


def _overall(result: Mapping[str, Any]) -> float:
    """Both directions count where there are two: the better one alone flatters."""
    return float(result.get("mean_of_directions") or result["pass_at_1"])


def _silent_steps(metrics: Metrics, game: type[Game]) -> int:
    return sum(
        game.trains(row.get("game", {}))
        and row.get("nonfinite_what") is None
        and row.get("sampler_what") is None
        and not any(stream["rows_trained"] for stream in row["streams"].values())
        for row in metrics
    )


def _roles(metrics: Metrics) -> list[str]:
    return list(dict.fromkeys(role for row in metrics for role in row["streams"]))


def _accuracies(metrics: Metrics, role: str) -> list[float]:
    found = [row["streams"][role]["accuracy"] for row in metrics if role in row["streams"]]
    return [accuracy for accuracy in found if accuracy is not None]


def counted(n: int, noun: str) -> str:
    """`1 step`, `2 steps`."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"

"""The results of an experiment, as a Markdown table, a figure and a JSON object, made from the records of its arms."""

import importlib.util
import json
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from statistics import NormalDist, fmean, median, variance
from typing import Any, NamedTuple

from filelock import FileLock

from lite_selfplay.evaluation.result import as_markdown, asked_of, mean_outcomes, outcomes_of, scores_shown
from lite_selfplay.evaluation.suites import find_suite
from lite_selfplay.extras.reproduce.experiment import EVALUATION, Experiment
from lite_selfplay.games.modes import find_mode
from lite_selfplay.games.presentation import MISSING, as_words
from lite_selfplay.runs.report.closing import counted
from lite_selfplay.stats import clopper_pearson, crossed, holm, over_seeds, paired, paired_bootstrap, sign_flips
from lite_selfplay.tasks.files import write_errors, write_whole
from lite_selfplay.training.progress import clock

_MOST_STEPS = 10
TABLE, FIGURE, RESULTS = "table.md", "figure.png", "results.json"
Record = Mapping[str, Any]
Parts = Sequence[Sequence[Record]]  # an arm's evaluations: parts[task][seed]
Interval = tuple[float, float]


class Difference(NamedTuple):
    """A mean difference, its interval, its p-value, and the p-value corrected for the number of differences with which
    it is compared. Without spread, all but the mean are None."""

    mean: float
    interval: Interval | None
    p_value: float | None
    holm: float | None = None


@dataclass(frozen=True)
class Finding:
    """The result of an arm (training method) over its seeds, on one task, or as a mean over several tasks that its
    suite names.

    In some evaluation modes two seats (named LoRA adapters) answer in turn. Such a mode has directions: in `A->B`, seat
    B answers after reading seat A's answer. All intervals are 95% confidence intervals.

    - `arm`: the name of the arm.
    - `task`: the name of the task, or of the mean over tasks.
    - `n`: the number of problems. For a mean over tasks, the sum over these tasks.
    - `seeds`: the training seeds.
    - `values`: the pass@1 of each training seed, as a mean over the evaluated seats or directions.
    - `pass_at_1`: the mean of `values`.
    - `interval`: the interval of `pass_at_1`. With several training seeds it is Student's t over these. With one seed
      it is over problems: normal for a mean over tasks; for a single task the bootstrap if a problem was answered
      sometimes right and sometimes wrong, and otherwise Clopper-Pearson.
    - `std`: the standard deviation of `values`. None for one seed.
    - `better`: the pass@1 of the best seat or direction, chosen on these same problems, and its interval, widened for
      the choice (Bonferroni). None if there is only one.
    - `otherwise`: the pass@1 if the same completions are read by the other rule for reading answers (anywhere, or only
      in `<answer>`). None if no evaluation reports it, as for kinds of problems that no such rule applies to.
    - `difference`: the arm's pass@1 minus the baseline arm's, on the training seeds and problems that both arms have.
      None for the baseline itself, or if there are none.
    - `gain`: the same against the weights from which the arm was trained, evaluated in the same mode as the arm. None
      if the experiment has no such evaluation.
    - `own`: the values of pass@k for each k above 1 and of the columns that the evaluation mode adds, by name. Each is
      a mean over the evaluated seats or directions, seeds and tasks.
    - `final`: the mean number of tokens of the judged completions. In a direction `A->B`, these are B's.
    - `longer`: `final` minus the baseline arm's, on the problems of both, and its interval over these. None for the
      baseline or a mean over tasks.
    - `total`: as `final`, plus the tokens of the earlier completions that the judged one read. In a direction `A->B`,
      the tokens of A and B together.
    - `seconds`: the duration of the arm's evaluations, as a sum over seeds and tasks.
    - `trained_on`: whether any evaluation used only problems from the arm's training data, so that no problem was held
      out.
    """

    arm: str
    task: str
    n: int
    seeds: tuple[int, ...]
    values: tuple[float, ...]
    pass_at_1: float
    interval: Interval
    std: float | None
    better: tuple[float, Interval] | None
    otherwise: float | None
    difference: Difference | None
    gain: Difference | None
    own: Mapping[str, float]
    final: float
    longer: Difference | None
    total: float
    seconds: float
    trained_on: bool


def findings(experiment: Experiment, records: Sequence[Record]) -> list[Finding]:
    """The results of all arms (training methods): one `Finding` for each task and arm. Some suites (papers' evaluation
    protocols) also report means over tasks; there is one `Finding` for each such mean and arm, too. `records` has one
    record for each arm and seed, as `conduct` returns them."""
    of: dict[str, dict[str, list[Record]]] = {}
    for record in records:
        for result in record["evaluations"]:
            of.setdefault(result["tasks"], {}).setdefault(record["arm"], []).append({**result, "seed": record["seed"]})
    suites = [find_suite(evaluation.suite) for evaluation in experiment.evaluations if evaluation.suite]
    means = {name: tasks for suite in suites for name, tasks in suite.averages.items() if set(tasks) <= of.keys()}
    # A mean over only some of a suite's benchmarks is out of distribution: arms trained on one of them have none.
    apart = {name for suite in suites for name, tasks in suite.averages.items() if set(tasks) < suite.samples.keys()}
    found = []
    for name, tasks in {**{task: (task,) for task in of}, **means}.items():
        arms = {
            arm: parts
            for arm in experiment.arms
            if all(parts := [of[task].get(arm, []) for task in tasks])
            and (name not in apart or not any(map(_trained_on, parts)))
        }
        # The untouched base is evaluated once, but is the same for every training seed.
        every = arms | {
            arm: [[{**part[0], "seed": seed} for seed in experiment.seeds] for part in parts]
            for arm, parts in arms.items()
            if experiment.arms[arm].start == "base"
        }
        against = experiment.against
        between = corrected({arm: differences(every.get(against), every[arm]) for arm in arms if arm != against})
        gained = corrected({arm: differences(_start(experiment, arm, arms), every[arm]) for arm in arms})
        longer = {arm: _longer(arms.get(against), parts) for arm, parts in arms.items() if arm != against}
        found += [
            _finding(arm, name, parts, between.get(arm), gained.get(arm), longer.get(arm))
            for arm, parts in arms.items()
        ]
    return found


def differences(one: Parts | None, other: Parts) -> Difference | None:
    """The difference in pass@1 of two arms, `other` minus `one`, over the training seeds and problems of both. `one`
    and `other` have the evaluations of an arm: for each task, a list with one evaluation for each seed. None if `one`
    is, or if the arms share no seed or no problem."""
    grids = []
    for first, second in zip(one or [], other, strict=False):
        before, after = ({each["seed"]: mean_outcomes(each) for each in part} for part in (first, second))
        pairs = [(before[seed], after[seed]) for seed in after if seed in before]
        problems = [
            key for key in (pairs[0][1] if pairs else ()) if all(key in each for pair in pairs for each in pair)
        ]
        if not problems:
            return None
        grids.append([[new[key] - old[key] for key in problems] for old, new in pairs])
        if len(other) == len(pairs) == 1 and (found := paired(*pairs[0])) is not None:
            p_value = sign_flips(found.changes) if found.p_value is None else found.p_value
            return Difference(found.difference, found.interval, p_value)
    return Difference(*crossed(*grids)) if grids else None


def corrected(found: Mapping[str, Difference | None]) -> dict[str, Difference]:
    """The differences in `found` with their p-values corrected together, by Holm's method. Each None is left out."""
    own = {name: each for name, each in found.items() if each is not None}
    tested = [name for name, each in own.items() if each.p_value is not None]
    adjusted = dict(zip(tested, holm([own[name].p_value or 0.0 for name in tested]), strict=True))
    return {name: Difference(each.mean, each.interval, each.p_value, adjusted.get(name)) for name, each in own.items()}


def _start(experiment: Experiment, arm: str, arms: Mapping[str, Parts]) -> Parts | None:
    """The evaluations of the weights from which `arm` was trained, in the mode in which `arm` was evaluated: a second
    answer is no result of the training. `arms` has the evaluations of all arms, in the form of `differences`."""
    mode = arms[arm][0][0]["mode"]
    starts = (arms[name] for name in experiment.starts_of(arm) if name in arms)
    return next((parts for parts in starts if parts[0][0]["mode"] == mode), None)


def _finding(
    arm: str, task: str, parts: Parts, difference: Difference | None, gain: Difference | None, longer: Difference | None
) -> Finding:
    """The result of the arm (training method) named `arm`, over all evaluations in `parts`. `parts` has, for each task,
    a list with one evaluation for each seed. `task` is the label of the result: the task's name if `parts` has one
    task, otherwise the name of the mean over its tasks. `difference`, `gain` and `longer` are those of the result."""
    evaluations = [result for part in parts for result in part]
    rows, values = [_outcomes(part) for part in parts], _over_tasks(parts)
    scores = [score for result in evaluations for score in scores_shown(result).values()]
    # Win counts against several opponents have no meaningful mean.
    modes = [mode for result in evaluations if not (mode := find_mode(result["mode"])).matches]
    columns = dict.fromkeys(column for mode in modes for column in mode.columns)
    shares = (
        {column: _share(score, column)} for column in columns for score in scores if score.get(column) is not None
    )
    at_k = ({f"pass@{k}": share for k, share in score.get("pass_at_k", {}).items() if k != "1"} for score in scores)
    otherwise = [rate for result in evaluations for name, rate in result.get("otherwise", {}).items()
                 if name in scores_shown(result)]  # fmt: skip
    return Finding(
        arm=arm,
        task=task,
        n=sum(map(len, rows)),
        seeds=tuple(result["seed"] for result in parts[0]),
        values=tuple(values),
        pass_at_1=fmean(values),
        interval=_interval(values, rows),
        std=over_seeds(values).std,
        better=_better(parts),
        otherwise=fmean(otherwise) if otherwise else None,
        own=means_of([*shares, *at_k]),
        final=fmean(score["tokens_final_mean"] for score in scores),
        total=fmean(score["tokens_total_mean"] for score in scores),
        seconds=sum(result.get("seconds", 0.0) for result in evaluations),
        trained_on=any(map(_trained_on, parts)),
        difference=difference,
        gain=gain,
        longer=longer,
    )


def _trained_on(results: Sequence[Record]) -> bool:
    return any("trained_on" in result.get("overlap", {}) for result in results)


def _longer(one: Parts | None, other: Parts) -> Difference | None:
    """The difference in the mean number of tokens of the judged completions (in a cascade `A->B`, B's) of two arms,
    `other` minus `one`, and its interval over the problems of both. `one` and `other` are as for `differences`. None if
    `one` is, or if there are several tasks. An evaluation without the entry `lengths` is left out of the mean."""
    if one is None or len(other) > 1:
        return None
    found = paired(*(means_of(result.get("lengths", {}) for result in parts[0]) for parts in (one, other)))
    return None if found is None else Difference(found.difference, found.interval, None)


def _share(score: Record, column: str) -> float:
    """The value of `column` in `score`, the scores of a seat (LoRA adapter) or of a direction such as `A->B`, in which
    seat B answers after reading A's answer. An int is a count, and is divided by the number of judged completions;
    other values are returned unchanged."""
    value: float = score[column]
    return value / (score["n"] * score["samples"]) if isinstance(value, int) else value


def _outcomes(results: Sequence[Record], name: str | None = None) -> dict[str, float]:
    """For each problem, by the problem's id, the share of right answers. `results` has, for each seed, the evaluation
    of one arm on one task. The share is a mean over those evaluations that contain the problem, and over the evaluated
    seats, or over the evaluated directions, such as `A->B`, in which seat B answers after reading seat A's answer. With
    `name` it is the share of that seat or direction only."""
    return means_of(outcomes_of(result, name) if name else mean_outcomes(result) for result in results)


def _over_tasks(parts: Parts, name: str | None = None) -> list[float]:
    """The pass@1 of each seed, as an unweighted mean over tasks. `parts` has an arm's evaluations: for each task, a
    list with one for each seed. `name` chooses one seat, or one direction such as `A->B`, in which seat B answers after
    reading A's answer. None means the mean over all of them."""
    return [fmean(fmean(_outcomes([part[i]], name).values()) for part in parts) for i in range(len(parts[0]))]


def _better(parts: Parts) -> tuple[float, Interval] | None:
    """The pass@1 of the best of an arm's seats (LoRA adapters) and cascades (`A->B`: seat B answers after reading A's
    answer), and its 95% interval. The best one has the highest mean pass@1 over the training seeds; this mean is
    returned. The interval is widened (Bonferroni), because the best is chosen among several. Returns None if only one
    seat or cascade was evaluated. `parts` has the arm's evaluations: for each task (a set of problems), a list with one
    evaluation for each seed."""
    names = list(scores_shown(parts[0][0]))
    if len(names) == 1:
        return None
    values = {name: _over_tasks(parts, name) for name in names}
    best = max(names, key=lambda name: fmean(values[name]))
    rows = [_outcomes(part, best) for part in parts]
    return fmean(values[best]), _interval(values[best], rows, 1 - 0.05 / len(names))


def _interval(values: Sequence[float], rows: Sequence[Mapping[str, float]], confidence: float = 0.95) -> Interval:
    """The confidence interval, within [0, 1], of an arm's mean pass@1. `values` has the arm's pass@1 for each seed.
    `rows` has, for each task, the share of right answers to each problem, by the problem's id. The interval is over
    seeds if there are several seeds, otherwise over problems."""
    outcomes = list(rows[0].values())
    if (spread := over_seeds(values, confidence)).interval is not None:
        low, high = spread.interval
    elif len(rows) > 1:
        # By the normal distribution: each row has the values of one task's problems.
        error = sqrt(sum(variance(row.values()) / len(row) for row in rows if len(row) > 1)) / len(rows)
        mean, half = fmean(fmean(row.values()) for row in rows), NormalDist().inv_cdf((1 + confidence) / 2) * error
        low, high = mean - half, mean + half
    elif set(outcomes) <= {0.0, 1.0} or len(outcomes) < 2:
        return clopper_pearson(round(sum(outcomes)), len(outcomes), confidence)
    else:
        _, low, high = paired_bootstrap([0.0] * len(outcomes), outcomes, confidence=confidence)
    return max(0.0, low), min(1.0, high)


def table(experiment: Experiment, records: Sequence[Record]) -> str:
    """The contents of `table.md`: a Markdown table for each task and for each mean over several tasks, with a row for
    each arm (training method), and notes. `records` has one record for each arm and seed, as `conduct` returns
    them."""
    found, spent = findings(experiment, records), _spent(records)
    lines = [f"# {experiment.name}", "", experiment.about, ""]
    for task in dict.fromkeys(each.task for each in found):
        of = [each for each in found if each.task == task]
        own = dict.fromkeys(column for each in of for column in each.own)
        rows = [_row(experiment, each, own, spent.get(each.arm, {})) for each in of]
        trained = counted(len({seed for each in of for seed in each.seeds}), "seed")
        result = next((e for r in records for e in r["evaluations"] if e["tasks"] == task), None)
        lines += [
            f"## {task}: {of[0].n} held-out problems, {trained} of training, size `{experiment.scale}`",
            "",
            "An unweighted mean over tasks."
            if result is None
            else f"Sampled at temperature {result['temperature']:g}, top-p {result['top_p']:g}, at most "
            f"{result['max_completion_tokens']} tokens, "
            f"{counted(asked_of(result), 'completion')} per problem and stage.",
            "",
            as_markdown([title for title, _ in rows[0]], [[cell for _, cell in row] for row in rows]),
            "",
        ]
    lines += _by_step(experiment, records)
    rates = dict.fromkeys((record["arm"], record.get("rate")) for record in records)
    lines += [f"- {arm}: learning rate {rate:g}, chosen by the search" for arm, rate in rates if rate is not None]
    for arm in experiment.arms:
        trainings = [record["training"] for record in records if record["arm"] == arm]
        game, *used = (means_of(each.get(key, {}) for each in trainings) for key in ("game", "rows", "updates"))
        counts = [
            f"{key} {', '.join(f'{name} {n:,.0f}' for name, n in each.items())}"
            for key, each in zip(("rows", "updates"), used, strict=True)
            if each
        ]
        notes = {
            "means over steps and seeds": ", ".join(f"{as_words(key)} {value:.3g}" for key, value in game.items()),
            "used in training per seed": "; ".join(counts),
        }
        lines += [f"- {arm}, {title}: {said}" for title, said in notes.items() if said]
    lines += [
        f"- {record['arm']}, seed {record['seed']}: {line.strip()}"
        for record in records
        for line in record["training"].get("closing", ())
    ]
    otherwise = "in the `<answer>` block alone" if experiment.shared.tasks.answer_from == "anywhere" else "anywhere"
    lines += [
        "",
        "`pass@1`, with its 95% interval, is the mean over both directions if two seats answer one after the other; "
        "`better` is the better direction, chosen on these problems, with an interval valid for both at once; "
        f"`otherwise` is pass@1 with answers read {otherwise}. Differences to {experiment.against}, and gains over the "
        "seats before training, evaluated in the same mode, are in percentage points, on the "
        "seeds and problems of both arms, with 95% intervals over seeds and problems together; * marks those that "
        "Holm's correction for the column keeps at 5%. Times are sums over all seeds on this machine.",
        "",
        f"The last column is the paper's: {experiment.paper} ({experiment.source}).",
        "",
    ]
    return "\n".join(lines)


def means_of(logs: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """For each key, the mean of its numbers over the mappings in `logs`. Values that are not numbers are skipped."""
    found: dict[str, array[float]] = {}  # there may be a million
    for log in logs:
        for key, value in log.items():
            if isinstance(value, int | float):
                found.setdefault(key, array("d")).append(value)
    return {key: fmean(values) for key, values in found.items()}


def _by_step(experiment: Experiment, records: Sequence[Record]) -> list[str]:
    """A section of `table.md`, as lines of Markdown, that shows the values of the metric `experiment.curve` over the
    training steps. For each arm it has the mean and standard deviation over seeds, at up to ten steps, always including
    the last step. Empty if no record has values of the metric."""
    curves = {arm: found for arm in experiment.trained() if (found := _curves(records, arm))}
    steps = sorted({step for each in curves.values() for curve in each for step in curve})
    if not steps:
        return []
    shown = steps[::-1][:: -(-len(steps) // _MOST_STEPS)][::-1]
    rows = [
        [arm, *(_mean_and_spread(experiment, [curve[step] for curve in each if step in curve]) for step in shown)]
        for arm, each in curves.items()
    ]
    on = f" on {experiment.shared.eval.tasks}" if experiment.curve == EVALUATION else ""
    title = f"## {_label(experiment)} by step{on}, mean and standard deviation over seeds"
    return [title, "", as_markdown(["arm", *map(str, shown)], rows), ""]


def _curves(records: Sequence[Record], arm: str) -> list[dict[int, float]]:
    """The values of the metric `Experiment.curve`, recorded in the training of the arm (training method) named `arm`.
    The list has a mapping from training step to value for each seed whose record has such values."""
    return [dict(found) for each in records if each["arm"] == arm and (found := each["training"].get("curve"))]


def _label(experiment: Experiment) -> str:
    return "pass@1" if experiment.curve == EVALUATION else experiment.curve


def _mean_and_spread(experiment: Experiment, values: Sequence[float]) -> str:
    if not values:
        return MISSING
    show = _points if experiment.curve == EVALUATION else "{:.3g}".format
    spread = over_seeds(values).std
    return show(fmean(values)) + ("" if spread is None else f" ± {show(spread)}")


def _row(
    experiment: Experiment, found: Finding, own: Iterable[str], spent: Mapping[str, float]
) -> list[tuple[str, str]]:
    """A row of a table, as (title of the column, cell) pairs. `own` are the table's columns out of `Finding.own`.
    `spent` has the seconds and tokens of the arm's training, and is empty for an arm that is not trained."""
    # The paper's numbers are comparable only at full size.
    printed = experiment.arms[found.arm].paper if experiment.scale == "full" else {}
    longer = f" ({_shown(found.longer, '{:+.0f}'.format)})" if found.longer and found.longer.interval else ""
    return [
        ("arm", f"{found.arm} (training data among these)" if found.trained_on else found.arm),
        ("pass@1 [95%]", _shown((found.pass_at_1, found.interval), _points)),
        ("over seeds", MISSING if found.std is None else f"± {_points(found.std)}"),
        ("better", _shown(found.better, _points)),
        ("otherwise", MISSING if found.otherwise is None else _points(found.otherwise)),
        *((as_words(column), _points(found.own[column]) if column in found.own else MISSING) for column in own),
        (f"against {experiment.against}", _shown(found.difference, _signed)),
        ("gain over its start", _shown(found.gain, _signed)),
        ("tokens, final", f"{found.final:.0f}{longer}"),
        ("all stages", f"{found.total:.0f}"),
        ("training", clock(spent["seconds"]) if spent.get("tokens") else MISSING),
        ("tokens sampled", f"{spent['tokens']:,}" if spent.get("tokens") else MISSING),
        ("the paper's", printed.get(found.task, MISSING)),
    ]


def _shown(found: tuple[float, Interval] | Difference | None, show: Callable[[float], str]) -> str:
    """Format a table's cell: a number, followed by its interval if it has one, and by a star if it is a difference that
    Holm's correction keeps. A missing number (None) becomes `-`. `show` formats a single number."""
    if found is None:
        return MISSING
    value, interval = found[:2]
    kept = isinstance(found, Difference) and found.holm is not None and found.holm < 0.05
    return show(value) + (f" [{', '.join(map(show, interval))}]" if interval else "") + "*" * kept


def _points(share: float) -> str:
    return f"{100 * share:.1f}"


def _signed(share: float) -> str:
    return f"{100 * share:+.1f}"


def _spent(records: Sequence[Record]) -> dict[str, Counter[str]]:
    """For each trained arm (training method), by name, the `seconds` of its training and the number of `tokens` sampled
    in it, both as sums over seeds."""
    found: dict[str, Counter[str]] = {}
    for record in records:
        if training := record["training"]:
            found.setdefault(record["arm"], Counter()).update({key: training[key] for key in ("seconds", "tokens")})
    return found


def to_json(experiment: Experiment, records: Sequence[Record]) -> dict[str, Any]:
    """The contents of `results.json`: the experiment, the list of all `findings`, the training time and sampled tokens
    of each arm (training method), and the `records` themselves, one for each arm and seed."""
    return {
        "experiment": experiment.model_dump(mode="json"),
        "arms": list(map(_as_json, findings(experiment, records))),
        "training": _spent(records),
        "records": list(records),
    }


# The keys in `results.json` of those fields of a finding that have several values.
_KEYS = {
    "better": ("better", "better_interval"),
    "difference": ("difference", "difference_interval", "p_value", "holm"),
    "gain": ("gain", "gain_interval", "gain_p_value", "gain_holm"),
    "longer": ("longer", "longer_interval"),
}


def _as_json(found: Finding) -> dict[str, Any]:
    values = dict(vars(found))
    for field, keys in _KEYS.items():
        values |= dict(zip(keys, values[field] or (None,) * len(keys), strict=False))
    return values


def draw(experiment: Experiment, records: Sequence[Record], path: Path) -> None:
    """Draw the experiment's figure into the image file `path`. If `experiment.curve` names a metric, the figure shows
    the metric over the training steps. Otherwise it has a panel for each task and each mean over tasks, with a point
    for each arm (training method). Its height is pass@1, with the 95% interval as a bar, and its horizontal position is
    the mean number of tokens of the judged completions. `records` has one record for each arm and seed, as `conduct`
    returns them."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter

    if experiment.curve:
        figure = Figure(figsize=(8.4, 4.2), layout="constrained")
        _draw_curve(figure, experiment, records)
    else:
        found = findings(experiment, records)
        tasks = list(dict.fromkeys(each.task for each in found))
        figure = Figure(figsize=(5.5 * min(3, len(tasks)), 4.2 * -(-len(tasks) // 3)), layout="constrained")
        for index, task in enumerate(tasks, 1):
            panel = figure.add_subplot(-(-len(tasks) // 3), min(3, len(tasks)), index)
            panel.yaxis.set_major_formatter(PercentFormatter(1.0))
            _draw_task(panel, task, [each for each in found if each.task == task])
    figure.savefig(path, dpi=120)


def _draw_task(panel: Any, task: str, found: Sequence[Finding]) -> None:
    for number, each in enumerate(found):
        below, above = max(0.0, each.pass_at_1 - each.interval[0]), max(0.0, each.interval[1] - each.pass_at_1)
        style: dict[str, Any] = {"fmt": "os^Dvp"[number // 10 % 6], "color": f"C{number % 10}", "capsize": 3}
        panel.errorbar([each.final], [each.pass_at_1], yerr=[[below], [above]], label=each.arm, **style)
    panel.set_title(f"{task}: pass@1 of {found[0].n} problems", fontsize="medium")
    panel.set_xlabel("mean tokens of the final answer")
    panel.legend(fontsize="x-small")


def _draw_curve(figure: Any, experiment: Experiment, records: Sequence[Record]) -> None:
    """Draw the metric `experiment.curve` over the training steps into a matplotlib figure. Each trained arm (training
    method) whose records have values of the metric has a line for the median over seeds, and a faint line for each
    seed."""
    panel = figure.add_subplot()
    for number, arm in enumerate(experiment.trained()):
        curves = _curves(records, arm)
        for curve in curves:
            panel.plot(*zip(*curve.items(), strict=True), color=f"C{number % 10}", alpha=0.25, linewidth=0.8)
        if curves:
            steps = sorted(set.intersection(*map(set, curves)))
            medians = [median(curve[step] for curve in curves) for step in steps]
            panel.plot(steps, medians, color=f"C{number % 10}", label=f"{arm} ({counted(len(curves), 'seed')})")
    panel.set_xlabel("step")
    panel.set_ylabel(_label(experiment))
    panel.set_ylim(bottom=0)
    figure.legend(fontsize="small", loc="outside right upper")


def write_findings(experiment: Experiment, records: Sequence[Record], out: Path) -> list[Path]:
    """Write the experiment's results to `table.md`, `results.json` and `figure.png` in the folder `out`. Without
    matplotlib no figure is written, and one from an earlier call remains. Returns the paths of those of the three files
    that now exist. `records` has one record for each arm (training method) and seed, as `conduct` returns them."""
    with write_errors(f"to {out}"), FileLock(out / f".{TABLE}.lock"):  # two processes may finish at once
        write_whole(out / TABLE, table(experiment, records))
        text = json.dumps(to_json(experiment, records), indent=1, ensure_ascii=False, allow_nan=False)
        write_whole(out / RESULTS, text + "\n")
        if importlib.util.find_spec("matplotlib") is not None:
            draw(experiment, records, out / FIGURE)
    return [path for name in (TABLE, FIGURE, RESULTS) if (path := out / name).is_file()]

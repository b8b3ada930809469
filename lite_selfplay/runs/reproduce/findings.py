"""What an experiment found: one table, one figure and one JSON object, from the records of its arms."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from lite_selfplay.evaluation.overview import asked_of
from lite_selfplay.evaluation.tables import as_markdown
from lite_selfplay.games.presentation import MISSING
from lite_selfplay.runs.report.closing import counted
from lite_selfplay.runs.reproduce.experiment import Experiment
from lite_selfplay.stats import Spread, clopper_pearson, over_seeds, paired, paired_bootstrap
from lite_selfplay.tasks.files import write_errors, write_whole
from lite_selfplay.training.progress import clock

TABLE, FIGURE, RESULTS = "table.md", "figure.png", "results.json"
Record = Mapping[str, Any]


@dataclass(frozen=True)
class Finding:
    """An arm on one task, over its seeds.

    `pass_at_1` is the mean over directions where a mode has several, which no choice of the better one flatters;
    `better` is that choice, made on these very problems. `interval`: Clopper-Pearson's for single answers of one seed;
    the bootstrap's over problems for other figures of one seed; Student's t over several seeds. `difference` to the
    baseline, on the problems of both, in shares, with its bootstrap interval over problems; `p_value` is McNemar's for
    single answers of one seed. `final` and `total` are mean tokens of the last stage and of all.
    """

    arm: str
    task: str
    n: int
    seeds: tuple[int, ...]
    values: tuple[float, ...]
    pass_at_1: float
    interval: tuple[float, float]
    std: float | None
    better: float
    difference: float | None
    difference_interval: tuple[float, float] | None
    p_value: float | None
    final: float
    total: float
    seconds: float


def findings(experiment: Experiment, records: Sequence[Record]) -> list[Finding]:
    """Each arm on each task, task by task in the order of the arms."""
    tasks = list(dict.fromkeys(result["tasks"] for record in records for result in record["evaluations"]))
    found = []
    for task in tasks:
        of = {arm: [(r["seed"], e) for r in records if r["arm"] == arm for e in r["evaluations"] if e["tasks"] == task]
              for arm in experiment.arms}  # fmt: skip
        baseline = _outcomes([result for _, result in of[experiment.against]])
        for arm, results in of.items():
            if results:
                found.append(_finding(arm, task, results, baseline if arm != experiment.against else None))
    return found


def _finding(
    arm: str, task: str, results: Sequence[tuple[int, Record]], baseline: Mapping[str, float] | None
) -> Finding:
    evaluations = [result for _, result in results]
    outcomes = _outcomes(evaluations)
    values = [fmean(_outcomes([result]).values()) for result in evaluations]
    spread = over_seeds(values)
    # Those of the directions where a mode has any, else of the seats.
    scores = [score for result in evaluations for score in (result.get("directions") or result["seats"]).values()]
    against = paired(baseline or {}, outcomes)
    return Finding(
        arm,
        task,
        len(outcomes),
        tuple(seed for seed, _ in results),
        tuple(values),
        spread.mean,
        _interval(spread, list(outcomes.values())),
        spread.std,
        fmean(result["pass_at_1"] for result in evaluations),
        against and against.difference,
        against and against.interval,
        against and against.p_value,
        fmean(score["tokens_final_mean"] for score in scores),
        fmean(score["tokens_total_mean"] for score in scores),
        sum(result.get("seconds", 0.0) for result in evaluations),
    )


def _outcomes(results: Sequence[Record]) -> dict[str, float]:
    """Each problem's mean outcome over directions (or seats) and seeds."""
    rows: dict[str, list[float]] = {}
    for result in results:
        names = list(result.get("directions") or result["seats"])
        for key, outcome in result["per_problem"].items():
            rows.setdefault(key, []).append(fmean(float(outcome[name]) for name in names))
    return {key: fmean(row) for key, row in rows.items()}


def _interval(spread: Spread, outcomes: Sequence[float]) -> tuple[float, float]:
    if spread.interval is not None:
        return max(0.0, spread.interval[0]), min(1.0, spread.interval[1])
    if set(outcomes) <= {0.0, 1.0} or len(outcomes) < 2:
        return clopper_pearson(round(sum(outcomes)), len(outcomes))
    _, low, high = paired_bootstrap([0.0] * len(outcomes), outcomes)
    return low, high


def table(experiment: Experiment, records: Sequence[Record]) -> str:
    """The experiment as a page of Markdown: what was done, and a table for each task."""
    found, spent = findings(experiment, records), _spent(records)
    lines = [f"# {experiment.name}", "", experiment.about, ""]
    for task in dict.fromkeys(each.task for each in found):
        of = [each for each in found if each.task == task]
        seeds = sorted({seed for each in of for seed in each.seeds})
        result = next(e for r in records for e in r["evaluations"] if e["tasks"] == task)
        trained = counted(len(seeds), "seed")
        lines += [
            f"## {task}: {of[0].n} held-out problems, {trained} of training, size `{experiment.scale}`",
            "",
            f"Sampled at temperature {result['temperature']:g}, top-p {result['top_p']:g}, at most "
            f"{result['max_completion_tokens']} tokens, {counted(asked_of(result), 'completion')} a problem and stage.",
            "",
            as_markdown(*_rows(experiment, of, spent)),
            "",
        ]
    lines += [
        "`pass@1` with its 95% interval is the mean over both directions where two seats answer one after the other; "
        "`better` is the better direction, chosen on these problems. Differences are in percentage points, with 95% "
        f"bootstrap intervals over problems, to {experiment.against}. Times are those of all seeds on this machine.",
        "",
        f"The last column is not ours: {experiment.paper} ({experiment.source}).",
        "",
    ]
    return "\n".join(lines)


def _rows(
    experiment: Experiment, found: Sequence[Finding], spent: Mapping[str, tuple[float, int]]
) -> tuple[list[str], list[list[str]]]:
    columns = [
        "arm", "pass@1 [95%]", "over seeds", "better", f"against {experiment.against}", "tokens, final", "all stages",
        "training", "tokens sampled", "the paper's",
    ]  # fmt: skip
    rows = []
    for each in found:
        seconds, tokens = spent.get(each.arm, (0.0, 0))
        against = MISSING
        if each.difference is not None and each.difference_interval is not None:
            shown = [f"{100 * value:+.1f}" for value in (each.difference, *each.difference_interval)]
            exact = "" if each.p_value is None else f", p = {each.p_value:.2g}"
            against = f"{shown[0]} [{shown[1]}, {shown[2]}]{exact}"
        rows.append(
            [
                each.arm,
                f"{_points(each.pass_at_1)} [{_points(each.interval[0])}, {_points(each.interval[1])}]",
                MISSING if each.std is None else f"± {_points(each.std)}",
                MISSING if abs(each.better - each.pass_at_1) < 1e-12 else _points(each.better),
                against,
                f"{each.final:.0f}",
                f"{each.total:.0f}",
                clock(seconds) if tokens else MISSING,
                f"{tokens:,}" if tokens else MISSING,
                experiment.arms[each.arm].paper or MISSING,
            ]
        )
    return columns, rows


def _points(share: float) -> str:
    return f"{100 * share:.1f}"


def _spent(records: Sequence[Record]) -> dict[str, tuple[float, int]]:
    """Seconds and sampled tokens of each trained arm's training, all seeds together."""
    found: dict[str, tuple[float, int]] = {}
    for record in records:
        if training := record["training"]:
            seconds, tokens = found.get(record["arm"], (0.0, 0))
            found[record["arm"]] = (seconds + training["seconds"], tokens + training["tokens"])
    return found


def to_json(experiment: Experiment, records: Sequence[Record]) -> dict[str, Any]:
    """Everything: the experiment, each arm on each task, and what every seed was measured to be."""
    return {
        "experiment": experiment.model_dump(mode="json"),
        "arms": [each.__dict__ for each in findings(experiment, records)],
        "training": {arm: {"seconds": s, "tokens": t} for arm, (s, t) in _spent(records).items()},
        "records": list(records),
    }


def draw(experiment: Experiment, records: Sequence[Record], path: Path) -> None:
    """Accuracy against the length of final answers, a panel for each task, an arm a point with its interval."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter

    found = findings(experiment, records)
    tasks = list(dict.fromkeys(each.task for each in found))
    figure = Figure(figsize=(5.5 * min(3, len(tasks)), 4.2 * -(-len(tasks) // 3)), layout="constrained")
    for place, task in enumerate(tasks, 1):
        panel = figure.add_subplot(-(-len(tasks) // 3), min(3, len(tasks)), place)
        for number, each in enumerate(each for each in found if each.task == task):
            below, above = max(0.0, each.pass_at_1 - each.interval[0]), max(0.0, each.interval[1] - each.pass_at_1)
            style: dict[str, Any] = {"fmt": "os^Dvp"[number // 10 % 6], "color": f"C{number % 10}", "capsize": 3}
            panel.errorbar([each.final], [each.pass_at_1], yerr=[[below], [above]], label=each.arm, **style)
        panel.set_title(f"{task}: pass@1 of {found[0].n} problems", fontsize="medium")
        panel.set_xlabel("mean tokens of the final answer")
        panel.yaxis.set_major_formatter(PercentFormatter(1.0))
        panel.legend(fontsize="x-small")
    figure.savefig(path, dpi=120)


def write_findings(experiment: Experiment, records: Sequence[Record], out: Path) -> list[Path]:
    """Write the table, the figure (where matplotlib is installed) and the JSON; their paths."""
    from lite_selfplay.runs.report.drawn import can_draw

    with write_errors(f"to {out}"):
        write_whole(out / TABLE, table(experiment, records))
        text = json.dumps(to_json(experiment, records), indent=1, ensure_ascii=False, allow_nan=False)
        write_whole(out / RESULTS, text + "\n")
        if can_draw():
            draw(experiment, records, out / FIGURE)
    return [path for name in (TABLE, FIGURE, RESULTS) if (path := out / name).is_file()]

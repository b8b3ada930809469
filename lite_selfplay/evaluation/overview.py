"""Several evaluations side by side: by benchmark and mode, with means over the benchmarks. Pure functions.

They read the objects that `eval/*.json` holds.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from lite_selfplay.evaluation.result import AT_K
from lite_selfplay.evaluation.tables import scores_of, with_interval
from lite_selfplay.games.modes import find_mode
from lite_selfplay.games.presentation import MISSING, as_words, percent, value_in_words

Result = Mapping[str, Any]
_READINGS = ("strict", "lenient")
_SHOWN = {"pass_at_k": "pass@{}", "mean_at_k": "mean@{}", "maj_at_k": "maj@{}"}


def overview(results: Sequence[Result]) -> tuple[list[str], list[list[str]], int]:
    """A row for each benchmark, mode and seat, and one for each mean: (columns, rows, how many columns are labels).

    Shown are pass@1 with its 95% interval, beside it pass@1 of answers in the `<answer>` block alone (strict) and
    anywhere (lenient) where these differ, what the evaluations know of several samples, the shares that were
    well-formed and truncated, the mean lengths, and what a mode knows besides.
    """
    found = [{**score, **_readings(r, name, score), "tasks": r["tasks"], "mode": r["mode"], "name": name}
             for r in results for name, score in scores_of(r).items()]  # fmt: skip
    readings = _READINGS if any(len({score.get(each) for each in _READINGS}) > 1 for score in found) else ()
    staged = any(r.get("directions") for r in results) or any(
        score["tokens_total_mean"] != score["tokens_final_mean"] for score in found
    )
    own = list(dict.fromkeys(column for result in results for column in find_mode(result["mode"]).columns))
    labels = [key for key in ("tasks", "mode") if len({result[key] for result in results}) > 1]
    stats = _stats(found)
    columns = [
        *("benchmark" if key == "tasks" else key for key in labels),
        *("", "pass@1 [95%]", *readings),
        *(_SHOWN[stat].format(k) for stat, k in stats),
        *("well-formed", "truncated", "tokens, final" if staged else "tokens"),
        *(["all stages"] if staged else []),
        *map(as_words, own),
    ]
    rows = []
    for score in [*found, *({**mean, "tasks": f"mean of {mean['of']}"} for mean in means(results))]:
        at_k = (score.get(stat, {}).get(k) for stat, k in stats)
        shares = [*map(score.get, readings), *at_k, score.get("well_formed"), score.get("truncated")]
        final, total = score.get("tokens_final_mean"), score.get("tokens_total_mean")
        lengths = [final, None if total == final else total] if staged else [final]
        rows.append(
            [
                *(score[key] for key in [*labels, "name"]),
                with_interval(score) if "ci95" in score else percent(score["pass_at_1"]),
                *(MISSING if share is None else percent(share) for share in shares),
                *(MISSING if length is None else f"{length:.0f}" for length in lengths),
                *(value_in_words(score.get(column), "number") for column in own),
            ]
        )
    return columns, rows, len(labels) + 1


def _readings(result: Result, name: str, score: Result) -> dict[str, float]:
    other = result.get("otherwise", {}).get(name)
    if other is None:
        return {}
    both = [score["pass_at_1"], other]
    return dict(zip(_READINGS, both if result["answer_from"] == "block" else both[::-1], strict=True))


def means(results: Sequence[Result], of: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Plain means over the benchmarks named, or over all, of what each of them has: by mode and seat or direction.

    Each holds `mode`, `name`, the benchmarks `of` which it is a mean (their number), `pass_at_1`, and `pass_at_k`,
    `mean_at_k` and `maj_at_k` as far as all have them. None for a single benchmark, or where one was not measured.
    """
    tasks = set(of) or {result["tasks"] for result in results}
    found = []
    for mode in dict.fromkeys(result["mode"] for result in results) if len(tasks) > 1 else ():
        scores = [scores_of(result) for result in results if result["mode"] == mode and result["tasks"] in tasks]
        for name in scores[0] if len(scores) == len(tasks) else ():
            if all(name in each for each in scores):
                mean = _mean([each[name] for each in scores])
                found.append({"mode": mode, "name": name, "of": len(tasks), **mean})
    return found


def _mean(scores: Sequence[Result]) -> dict[str, Any]:
    mean: dict[str, Any] = {"pass_at_1": fmean(score["pass_at_1"] for score in scores)}
    for stat in AT_K:
        shared = [k for k in scores[0].get(stat, {}) if all(k in score.get(stat, {}) for score in scores)]
        mean[stat] = {k: fmean(score[stat][k] for score in scores) for k in shared}
    return mean


def settings_line(result: Result) -> str:
    """What was asked and how, in a line: `mawps, single: 40 problems, 4 samples each, temperature 0.6, ...`."""
    n = result["n"]
    parts = [
        f"{n} problem{'s' if n != 1 else ''} of {result['tasks']}, {asked_of(result)} each",
        *([f"{result['shots']} worked examples before each"] if result.get("shots") else []),
    ]
    sampling = (
        f"temperature {result['temperature']:g}, top-p {result['top_p']:g}, seed {result['seed']}, at most "
        f"{result['max_completion_tokens']} tokens"
    )
    read = {"block": ["answers read in the <answer> block (strict)"], "anywhere": ["answers read anywhere (lenient)"]}
    data = result.get("data", {})
    from_where = [f"{data['rows']:,} rows of {data['origin']}"] if data.get("origin") else []
    mark = [f"fingerprint {data['fingerprint'][:12]}"] if data.get("fingerprint") else []
    return "; ".join(
        [
            ", ".join(parts),
            sampling,
            *read.get(result.get("answer_from", ""), []),
            *([", ".join(from_where + mark)] if from_where or mark else []),
        ]
    )


def asked_of(result: Result) -> int:
    """How many answers to each problem were asked for."""
    return max(int(score.get("votes", score["samples"])) for score in scores_of(result).values())


def _stats(scores: Sequence[Result]) -> list[tuple[str, str]]:
    """The (statistic, k) that say something besides pass@1 in some score, k by k."""
    found = {
        (stat, k)
        for score in scores
        for stat in AT_K
        for k in score.get(stat, {})
        if int(k) > 1 and not (stat == "mean_at_k" and int(k) == score["samples"])
    }
    return sorted(found, key=lambda pair: (int(pair[1]), AT_K.index(pair[0])))

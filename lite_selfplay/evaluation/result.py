"""The result of an evaluation: scores of seats (named LoRA adapters) and of directions (`A->B`: B answers after A).
No torch.

The text functions are pure functions of `eval/*.json`. A moment is when something was measured: `untouched`, `after
cold start`, `after 24 steps`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from lite_selfplay.data import BASE, Problem, Sampling
from lite_selfplay.games.modes import Rows, Score, find_mode
from lite_selfplay.games.presentation import MISSING, as_words, percent, value_in_words, with_interval
from lite_selfplay.stats import Paired, maj_at_k, paired, pass_at_k

Result = Mapping[str, Any]
AT_K = ("pass_at_k", "mean_at_k", "maj_at_k")
# The share of answers cut off by the token limit above which a result's line says so.
MOST_CUT_OFF = 0.1
# The most characters of an answer in the JSON.
LONGEST_ANSWER = 200


@dataclass(frozen=True)
class Evaluation:
    """One measurement of some seats on some problems.

    `seats` has each seat's score alone; `directions`, if the mode has any, the scores of seats together by name
    (`A->B`: B answers after A). `per_problem[id][name]` is whether the answer was right (the share right, for several
    samples), so that two evaluations can be compared problem by problem; `answers` has the answers extracted from the
    samples. `at_k[name]` are pass@k, mean@k and maj@k, means over problems by k. `shots` worked examples preceded each
    problem. `about` is copied into the JSON.

    Equality ignores `seconds`, `rows` and `problems`.
    """

    mode: str
    tasks: str
    sampling: Sampling
    seed: int
    seats: Mapping[str, Score]
    directions: Mapping[str, Score]
    per_problem: Mapping[str, Mapping[str, bool | float]]
    about: Mapping[str, Any] = field(default_factory=dict)
    at_k: Mapping[str, Mapping[str, Mapping[int, float]]] = field(default_factory=dict)
    answers: Mapping[str, Mapping[str, Sequence[str | None]]] = field(default_factory=dict)
    shots: int = 0
    seconds: float = field(default=0.0, compare=False)
    rows: Mapping[str, Rows] = field(default_factory=dict, compare=False, repr=False)
    problems: Mapping[str, Problem] = field(default_factory=dict, compare=False, repr=False)

    @property
    def scores(self) -> Mapping[str, Score]:
        """The mode's main scores: of the directions if there are any, else of the seats."""
        return self.directions or self.seats

    @property
    def best(self) -> str:
        """The name with the highest pass@1; the first of equals."""
        return max(self.scores, key=lambda name: self.scores[name].pass_at_1)

    @property
    def mean_of_directions(self) -> float | None:
        """The mean pass@1 over directions, without the bias of choosing the better one; None without directions."""
        return fmean(score.pass_at_1 for score in self.directions.values()) if self.directions else None

    def __str__(self) -> str:
        """A table of every seat and direction, with 95% intervals."""
        return as_text(*comparison({self.tasks: self.to_json()}))

    def _repr_markdown_(self) -> str:
        return as_markdown(*comparison({self.tasks: self.to_json()}))

    def to_json(self) -> dict[str, Any]:
        """The contents of `eval/*.json`. Top-level pass@1, interval and lengths are those of `best`."""
        best = self.scores[self.best]
        together = {
            "directions": {name: self._score(name, score) for name, score in self.directions.items()},
            "mean_of_directions": self.mean_of_directions,
        }
        return {
            "mode": self.mode,
            "tasks": self.tasks,
            **self.about,
            "n": best.n,
            "samples": best.samples,
            "temperature": self.sampling.temperature,
            "top_p": self.sampling.top_p,
            "seed": self.seed,
            "max_completion_tokens": self.sampling.max_tokens,
            "shots": self.shots,
            "best": self.best,
            "pass_at_1": best.pass_at_1,
            "ci95": list(best.ci95),
            "tokens_final_mean": best.tokens_final_mean,
            "tokens_total_mean": best.tokens_total_mean,
            "seats": {name: self._score(name, score) for name, score in self.seats.items()},
            **(together if self.directions else {}),
            "per_problem": {key: dict(outcomes) for key, outcomes in self.per_problem.items()},
            "answers": {
                key: {who: [*map(_shortened, row)] for who, row in a.items()} for key, a in self.answers.items()
            },
        }

    def _score(self, name: str, score: Score) -> dict[str, Any]:
        found = self.at_k.get(name, {})
        return {**score.to_json(), **{stat: {str(k): v for k, v in by_k.items()} for stat, by_k in found.items()}}


def at_k(rows: Rows, ks: Sequence[int]) -> dict[str, dict[int, float]]:
    """pass@k, mean@k and maj@k, each a mean over problems, by k; a k above the number of answers is skipped."""
    n, few = len(rows), sorted({k for k in ks if k <= len(rows[0])})
    right = [[answer.correct for answer in row] for row in rows]
    classes = [[answer.key for answer in row] for row in rows]
    return {
        "pass_at_k": {k: sum(pass_at_k(sum(row), len(row), k) for row in right) / n for k in few},
        "mean_at_k": {k: sum(fmean(row[:k]) for row in right) / n for k in few},
        "maj_at_k": {k: sum(maj_at_k(c, row, k) for c, row in zip(classes, right, strict=True)) / n for k in few},
    }


def _shortened(answer: str | None) -> str | None:
    return answer if answer is None or len(answer) <= LONGEST_ANSWER else answer[: LONGEST_ANSWER - 1] + "…"


# As text


def scores_of(result: Result) -> dict[str, Result]:
    """All scores of an evaluation by name: of seats, then of directions."""
    return {**result["seats"], **result.get("directions", {})}


def _rate(score: Result) -> str:
    return with_interval(score["pass_at_1"], score["ci95"])


def headline(result: Result) -> str:
    """One line: `A 34%, B 38%, A->B 41%, B->A 44% [34, 54], mean of both 42.5%; 100 problems`.

    Only the best direction (or seat) has its interval.
    """
    parts = [
        f"{name} {_rate(score) if name == result['best'] else percent(score['pass_at_1'])}"
        for name, score in scores_of(result).items()
    ]
    several = len(result.get("directions", {})) > 1
    parts += [f"{mean_label(result)} {percent(result['mean_of_directions'])}"] if several else []
    n, samples = result["n"], result["samples"]
    repeated = f", {samples} samples each" if samples > 1 else ""
    cut = f"; {said}" if (said := cut_off(result)) else ""
    return f"{', '.join(parts)}; {n} problem{'s' if n != 1 else ''}{repeated}{cut}"


def cut_off(result: Result) -> str:
    """The share of answers that reached the token limit, in words, for the seat or direction with the most; empty if it
    is at most a tenth."""
    (share, name), limit = _most_cut_off(result), result.get("max_completion_tokens")
    return f"{percent(share)} of {name}'s answers were cut off at {limit} tokens" if share > MOST_CUT_OFF else ""


def _most_cut_off(result: Result) -> tuple[float, str]:
    return max((score.get("truncated") or 0.0, name) for name, score in scores_of(result).items())


def comparison(results: Mapping[str, Result]) -> tuple[list[str], list[list[str]]]:
    """A table of several moments side by side: (columns, rows), with each row's name in the first column.

    Rows are the untouched base, the seats, the directions and their mean, then the mean tokens of the final stage and
    of all stages, both of the moment's best direction or seat, and the share of answers cut off by the token limit
    where one is above a tenth. `-` marks missing values.
    """
    moments = list(results.values())
    names = list(dict.fromkeys(name for key in ("seats", "directions") for r in moments for name in r.get(key, {})))
    names.sort(key=lambda name: name != BASE)  # stable: only the base moves, to the front
    scores = [scores_of(result) for result in moments]
    several = [result for result in moments if len(result.get("directions", {})) > 1]
    means = [percent(result["mean_of_directions"]) if result in several else MISSING for result in moments]
    together = any(result.get("directions") for result in moments)
    final, total = ([f"{r[f'tokens_{which}_mean']:.0f}" for r in moments] for which in ("final", "total"))
    cut = [_most_cut_off(result)[0] for result in moments]
    return ["", *results], [
        *([_label(name), *(_rate(s[name]) if name in s else MISSING for s in scores)] for name in names),
        *([[mean_label(several[0]), *means]] if several else []),
        ["tokens, final stage" if together else "tokens", *final],
        *([["tokens, both stages", *total]] if together else []),
        *([["cut off", *map(percent, cut)]] if max(cut, default=0) > MOST_CUT_OFF else []),
    ]


def change(results: Mapping[str, Result]) -> str | None:
    """The change between the last two moments in percentage points, with the p-value of the exact paired test.

    Compares directions if both moments have them, else seats, else the best of each, on the problems of both. None if
    there are fewer than two moments, or they share no problem.
    """
    if len(results) < 2:
        return None
    (first, before), (last, after) = list(results.items())[-2:]
    if before["tasks"] != after["tasks"]:
        return None
    both = [
        [(name, name) for name in after.get(key, {}) if name in before.get(key, {})] for key in ("directions", "seats")
    ]
    pairs = both[0] or both[1] or [(before["best"], after["best"])]
    tests = [(old, new, paired(outcomes_of(before, old), outcomes_of(after, new))) for old, new in pairs]
    changes = [_changed(old, new, test) for old, new, test in tests if test is not None]
    shared = max((len(test.shared) for *_, test in tests if test is not None), default=0)
    partly = "" if shared == before["n"] == after["n"] else f", on the {shared} problems in both"
    return f"{first} -> {last}{partly}: {', '.join(changes)}" if changes else None


def as_markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in GitHub's Markdown: the first column left-aligned, the others right-aligned."""
    lines = [columns, ["---", *["---:"] * (len(columns) - 1)], *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def as_text(columns: Sequence[str], rows: Sequence[Sequence[str]], labels: int = 1) -> str:
    """A table in plain text: the first `labels` columns left-aligned, the others right-aligned."""
    lines = [columns, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    aligned = [[f"{cell:{'<' if i < labels else '>'}{widths[i]}}" for i, cell in enumerate(line)] for line in lines]
    return "\n".join("  ".join(line).rstrip() for line in aligned)


def _label(name: str) -> str:
    return "base model" if name == BASE else name


def mean_label(result: Result) -> str:
    """The label of the mean over an evaluation's directions."""
    directions = len(result["directions"])
    return "mean of both" if directions == 2 else f"mean of {directions} directions"


def outcomes_of(result: Result, name: str) -> dict[str, bool | float]:
    """A seat's or direction's outcome on each problem: whether it was right, or the share of answers that were."""
    return {key: found[name] for key, found in result.get("per_problem", {}).items() if name in found}


def scores_shown(result: Result) -> Result:
    """An evaluation's main scores: of the directions if its mode has any, else of the seats."""
    return result.get("directions") or result["seats"]


def mean_outcomes(result: Result) -> dict[str, float]:
    """Each problem's mean outcome over the evaluation's main scores."""
    names = scores_shown(result)
    return {key: fmean(found[name] for name in names) for key, found in result.get("per_problem", {}).items()}


def mean_pass_rate(result: Result) -> float:
    return fmean(score["pass_at_1"] for score in scores_shown(result).values())


def _changed(old: str, new: str, found: Paired) -> str:
    name = new if old == new else f"{_label(new)} against {_label(old)}"
    points = f"{100 * found.difference:+.1f}".removesuffix(".0")
    points = "no change" if points in ("+0", "-0") else f"{points} points"
    exact = "" if found.p_value is None else f" ({found.gained} gained, {found.lost} lost, p = {found.p_value:.2g})"
    return f"{name} {points}{exact}"


_READINGS = ("strict", "lenient")
_SHOWN = {"pass_at_k": "pass@{}", "mean_at_k": "mean@{}", "maj_at_k": "maj@{}"}


def overview(results: Sequence[Result]) -> tuple[list[str], list[list[str]], int]:
    """A row for each benchmark, mode and seat, and one for each mean: (columns, rows, number of label columns).

    Columns are pass@1 with its 95% interval; if they differ, pass@1 for answers only in the `<answer>` block (strict)
    and anywhere (lenient); the statistics over several samples; the shares well-formed, truncated and, if any, loops;
    the mean lengths; and the mode's own columns.
    """
    scores = [{**score, **_readings(r, name, score), "tasks": r["tasks"], "mode": r["mode"], "name": name}
             for r in results for name, score in scores_of(r).items()]  # fmt: skip
    readings = _READINGS if any(len({score.get(each) for each in _READINGS}) > 1 for score in scores) else ()
    staged = any(r.get("directions") for r in results) or any(
        score["tokens_total_mean"] != score["tokens_final_mean"] for score in scores
    )
    own = list(dict.fromkeys(column for result in results for column in find_mode(result["mode"]).columns))
    cut = ("truncated", "loops") if any(score.get("loops") for score in scores) else ("truncated",)
    labels = [key for key in ("tasks", "mode") if len({result[key] for result in results}) > 1]
    # The (statistic, k) pairs that add something to pass@1.
    added = {
        (stat, k)
        for score in scores
        for stat in AT_K
        for k in score.get(stat, {})
        if int(k) > 1 and not (stat == "mean_at_k" and int(k) == score["samples"])
    }
    stats = sorted(added, key=lambda pair: (int(pair[1]), AT_K.index(pair[0])))
    columns = [
        *("benchmark" if key == "tasks" else key for key in labels),
        *("", "pass@1 [95%]", *readings),
        *(_SHOWN[stat].format(k) for stat, k in stats),
        *("well-formed", *cut, "tokens, final" if staged else "tokens"),
        *(["all stages"] if staged else []),
        *map(as_words, own),
    ]
    rows = []
    for score in [*scores, *({**mean, "tasks": f"mean of {mean['of']}"} for mean in means(results))]:
        at_k = (score.get(stat, {}).get(k) for stat, k in stats)
        shares = [*map(score.get, readings), *at_k, score.get("well_formed"), *map(score.get, cut)]
        final, total = score.get("tokens_final_mean"), score.get("tokens_total_mean")
        lengths = [final, None if total == final else total] if staged else [final]
        rows.append(
            [
                *(score[key] for key in [*labels, "name"]),
                _rate(score) if "ci95" in score else percent(score["pass_at_1"]),
                *(value_in_words(share, "share") for share in shares),
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
    """Unweighted means over the benchmarks in `of`, or over all, for each mode and seat (or direction).

    Each has `mode`, `name`, `of` (the number of benchmarks), `pass_at_1`, and `pass_at_k`, `mean_at_k` and `maj_at_k`
    for each k that all benchmarks have. Empty for a single benchmark, or if one was not measured.
    """
    tasks = set(of) or {result["tasks"] for result in results}
    found = []
    for mode in dict.fromkeys(result["mode"] for result in results) if len(tasks) > 1 else ():
        scores = [scores_of(result) for result in results if result["mode"] == mode and result["tasks"] in tasks]
        for name in scores[0] if len(scores) == len(tasks) else ():
            if all(name in each for each in scores):
                found.append({"mode": mode, "name": name, "of": len(tasks), **_mean([each[name] for each in scores])})
    return found


def _mean(scores: Sequence[Result]) -> dict[str, Any]:
    mean: dict[str, Any] = {"pass_at_1": fmean(score["pass_at_1"] for score in scores)}
    for stat in AT_K:
        shared = [k for k in scores[0].get(stat, {}) if all(k in score.get(stat, {}) for score in scores)]
        mean[stat] = {k: fmean(score[stat][k] for score in scores) for k in shared}
    return mean


def settings_line(result: Result) -> str:
    """The problems and settings in a line: `40 problems of mawps, 4 answers each; temperature ...`."""
    n, data = result["n"], result.get("data", {})
    examples = f", {result['shots']} worked examples before each" if result.get("shots") else ""
    sampling = (
        f"temperature {result['temperature']:g}, top-p {result['top_p']:g}, seed {result['seed']}, at most "
        f"{result['max_completion_tokens']} tokens"
    )
    read = {"block": "answers read in the <answer> block (strict)", "anywhere": "answers read anywhere (lenient)"}
    from_where = f"{data['rows']:,} rows of {data['origin']}" if data.get("origin") else ""
    mark = f"fingerprint {data['fingerprint'][:12]}" if data.get("fingerprint") else ""
    parts = [
        f"{n} problem{'s' if n != 1 else ''} of {result['tasks']}, "
        f"{asked_of(result)} answer{'s' if asked_of(result) != 1 else ''} each{examples}",
        sampling,
        read.get(result.get("answer_from", ""), ""),
        ", ".join(filter(None, [from_where, mark])),
    ]
    return "; ".join(filter(None, parts))


def asked_of(result: Result) -> int:
    """The number of answers per problem."""
    return max(int(score.get("votes", score["samples"])) for score in scores_of(result).values())

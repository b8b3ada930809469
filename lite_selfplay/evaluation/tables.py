"""Evaluations as lines and tables of text, from the objects that `eval/*.json` holds. Pure functions.

A moment is when something was measured: `untouched`, `after cold start`, `after 24 steps`.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from lite_selfplay.data import BASE
from lite_selfplay.games.presentation import MISSING, percent
from lite_selfplay.stats import Paired, paired

Result = Mapping[str, Any]


def scores_of(result: Result) -> dict[str, Result]:
    """All scores of an evaluation by name: of seats, then of directions."""
    return {**result["seats"], **result.get("directions", {})}


def with_interval(score: Result) -> str:
    """A pass rate and its 95% interval: `41% [31, 52]`."""
    low, high = score["ci95"]
    return f"{percent(score['pass_at_1'])} [{100 * low:.0f}, {100 * high:.0f}]"


def headline(result: Result) -> str:
    """One line: `A 34%, B 38%, A->B 41%, B->A 44% [34, 54], mean of both 42.5%; 100 problems`.

    The interval stands at the best seat, or the best direction where there are any.
    """
    parts = [
        f"{name} {with_interval(score) if name == result['best'] else percent(score['pass_at_1'])}"
        for name, score in scores_of(result).items()
    ]
    if len(result.get("directions", {})) > 1:
        parts.append(f"{mean_label(result)} {percent(result['mean_of_directions'])}")
    n, samples = result["n"], result["samples"]
    repeated = f", {samples} samples each" if samples > 1 else ""
    return f"{', '.join(parts)}; {n} problem{'s' if n != 1 else ''}{repeated}"


def comparison(results: Mapping[str, Result]) -> tuple[list[str], list[list[str]]]:
    """Several moments side by side: (columns, rows), the first column holding each row's name.

    Rows are the untouched base, the seats, the directions and their mean, then the mean tokens of the final stage and
    of all stages, both of the moment's best direction or seat. `-` stands where a moment lacks the row.
    """
    moments = list(results.values())
    names = list(dict.fromkeys(name for key in ("seats", "directions") for r in moments for name in r.get(key, {})))
    names.sort(key=lambda name: name != BASE)  # stable: only the base moves, to the front
    scores = [scores_of(result) for result in moments]
    rows = [[_label(name), *(with_interval(s[name]) if name in s else MISSING for s in scores)] for name in names]
    paired = [result for result in moments if len(result.get("directions", {})) > 1]
    if paired:
        means = [percent(result["mean_of_directions"]) if result in paired else MISSING for result in moments]
        rows.append([mean_label(paired[0]), *means])
    together = any(result.get("directions") for result in moments)
    final, total = ([f"{r[f'tokens_{which}_mean']:.0f}" for r in moments] for which in ("final", "total"))
    rows.append(["tokens, final stage" if together else "tokens", *final])
    rows += [["tokens, both stages", *total]] if together else []
    return ["", *results], rows


def change(results: Mapping[str, Result]) -> str | None:
    """What changed between the last two moments, in percentage points, with the exact paired test's p.

    Directions are compared where both moments have them, else seats, else the best of each. Only problems that both
    were measured on count. None where there are no two moments, or where they share no problem.
    """
    if len(results) < 2:
        return None
    (first, before), (last, after) = list(results.items())[-2:]
    if before["tasks"] != after["tasks"]:
        return None
    pairs = [(name, name) for name in after.get("directions", {}) if name in before.get("directions", {})]
    pairs = pairs or [(name, name) for name in after["seats"] if name in before["seats"]]
    pairs = pairs or [(before["best"], after["best"])]
    found = [(old, new, paired(outcomes_of(before, old), outcomes_of(after, new))) for old, new in pairs]
    changes = [_changed(old, new, each) for old, new, each in found if each is not None]
    shared = max((len(each.shared) for *_, each in found if each is not None), default=0)
    partly = "" if shared == before["n"] == after["n"] else f", on the {shared} problems of both"
    return f"from {first} to {last}{partly}: {', '.join(changes)}" if changes else None


def as_markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in GitHub's Markdown: the first column to the left, the others to the right."""
    lines = [columns, ["---", *["---:"] * (len(columns) - 1)], *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def as_text(columns: Sequence[str], rows: Sequence[Sequence[str]], labels: int = 1) -> str:
    """A table in plain text, two blanks between columns: the first `labels` to the left, the others to the right."""
    lines = [columns, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    aligned = [[f"{cell:{'<' if i < labels else '>'}{widths[i]}}" for i, cell in enumerate(line)] for line in lines]
    return "\n".join("  ".join(line).rstrip() for line in aligned)


def _label(name: str) -> str:
    return "base model" if name == BASE else name


def mean_label(result: Result) -> str:
    """What the mean over an evaluation's directions is called."""
    directions = len(result["directions"])
    return "mean of both" if directions == 2 else f"mean of {directions} directions"


def outcomes_of(result: Result, name: str) -> dict[str, bool | float]:
    """Each problem's outcome of a seat or direction: whether it was right, or the share of its answers that were."""
    return {key: found[name] for key, found in result.get("per_problem", {}).items() if name in found}


def scores_shown(result: Result) -> Result:
    """The scores that an evaluation goes by: those of the directions where its mode has any, else of the seats."""
    scores: Result = result.get("directions") or result["seats"]
    return scores


def mean_outcomes(result: Result) -> dict[str, float]:
    """Each problem's mean outcome over the scores that the evaluation goes by."""
    names = scores_shown(result)
    return {key: fmean(found[name] for name in names) for key, found in result.get("per_problem", {}).items()}


def mean_pass_rate(result: Result) -> float:
    """The mean pass@1 of the scores that an evaluation goes by."""
    return fmean(score["pass_at_1"] for score in scores_shown(result).values())


def _changed(old: str, new: str, found: Paired) -> str:
    name = new if old == new else f"{_label(new)} against {_label(old)}"
    points = f"{100 * found.difference:+.1f}".removesuffix(".0")
    points = "no change" if points in ("+0", "-0") else f"{points} points"
    exact = "" if found.p_value is None else f" ({found.gained} gained, {found.lost} lost, p = {found.p_value:.2g})"
    return f"{name} {points}{exact}"

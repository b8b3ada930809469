"""The figures of docs/results.md and README.md, computed from the records in experiments/results.

    python experiments/claims.py            # every row and sentence; a `!` marks those that their page does not have

Differences are those of `reproduce`: paired by seed and problem, with one interval for both. Each group of claims, and
each column of a table, is corrected by Holm's method for the number of its differences. A sentence calls a difference
certain only if it is below 0.05 then; one that it calls chance has the reading `CHANCE`. tests/test_claims.py holds the
pages to this file.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean, median
from typing import Any

from lite_selfplay.evaluation.result import mean_outcomes, scores_shown
from lite_selfplay.extras.reproduce.findings import Difference, corrected, differences
from lite_selfplay.stats import crossed, over_seeds

ROOT = Path(__file__).parents[1]
RESULTS, README = "docs/results.md", "README.md"
FOLDERS = {"1x": "all-games", "3x": "all-games-longer", "search": "all-games/search", "Kuhn": "kuhn", "apart": "alone"}
FOLDERS |= {"few": "anchors", "SmolLM2": "smollm2", "half": "smollm2-half", "SmolLM2 search": "smollm2/search"}
RATES = {6e-5: "6e-5", 1.25e-4: "1.25e-4", 2.5e-4: "2.5e-4", 5e-4: "5e-4", 1e-3: "1e-3"}
SURE, CHANCE = "certain", "chance"
Part = Sequence[Mapping[str, Any]]  # an arm's evaluations on one task: one for each seed


@cache
def records(arm: str, size: str = "1x") -> list[dict[str, Any]]:
    """The records of an arm, one for each seed. `size` is a key of `FOLDERS`."""
    files = (ROOT / "experiments" / "results" / FOLDERS[size]).glob(f"seed-*/{arm}.json")
    found = sorted((json.loads(file.read_text(encoding="utf-8")) for file in files), key=lambda each: each["seed"])
    assert found, (arm, size)
    return found


def start_of(arm: str) -> str:
    """The cold start from which an arm was trained."""
    own = next((game for game in ("adv", "sqlm", "rzero", "cpmobius", "spice") if arm.startswith(game)), None)
    return f"cold start of {own}" if own else "cold start"


# What is measured of an arm: an evaluation for each seed.


def shown(arm: str, size: str, task: int = 0) -> Part:
    """As the arm answers: the mean of both directions, the second answer, or alone."""
    return [{**record["evaluations"][task], "seed": record["seed"]} for record in records(arm, size)]


def alone(arm: str, size: str) -> Part:
    """Each adapter alone."""
    return [{**each, "directions": None} for each in shown(arm, size)]


def of_sixteen(arm: str, size: str) -> Part:
    """Whether any of sixteen answers to each of 64 problems is right."""
    return [
        _made(
            each["seed"], {key: fmean(share > 0 for share in row.values()) for key, row in each["per_problem"].items()}
        )
        for each in shown(arm, size, 2)
    ]


def gained(arm: str, size: str) -> Part:
    """The change over the arm's cold start, alone."""
    start = {each["seed"]: mean_outcomes(each) for each in shown(start_of(arm), size)}
    return [
        _made(each["seed"], {key: right - start[each["seed"]][key] for key, right in mean_outcomes(each).items()})
        for each in alone(arm, size)
    ]


def _made(seed: int, outcomes: Mapping[str, float]) -> dict[str, Any]:
    return {"seed": seed, "seats": ("its",), "per_problem": {key: {"its": value} for key, value in outcomes.items()}}


@dataclass(frozen=True)
class Level:
    """A mean over seeds, with its interval over seeds; in percent."""

    values: tuple[float, ...]

    def __format__(self, how: str) -> str:
        return f"{100 * fmean(self.values):{how or '.1f'}}"

    def with_interval(self) -> str:
        low, high = over_seeds(self.values).interval or (0.0, 0.0)
        return f"{self} [{100 * low:.1f}, {100 * high:.1f}]"


@dataclass(frozen=True)
class Less:
    """How much higher the first measurement is than the second, and what a sentence makes of it: `SURE` or `CHANCE`."""

    name: str
    found: Difference
    reading: str = SURE

    def __format__(self, how: str) -> str:
        """`1.5 [0.5, 2.5]` in percentage points; with `+` signed, with `-` of the opposite difference."""
        sign, show = (-1 if how == "-" else 1), "{:+.1f}" if how == "+" else "{:.1f}"
        low, high = sorted(100 * sign * bound for bound in self.found.interval or (self.found.mean,) * 2)
        return f"{show.format(100 * sign * self.found.mean)} [{low:.1f}, {high:.1f}]".replace("-0.0", "0.0")


Measure = Callable[[str, str], Part]


def level(arm: str, size: str = "1x", of: Measure = shown, beside: str = "") -> Level:
    """The pass@1 of an arm; `beside` another one, over the seeds of that."""
    seeds = [record["seed"] for record in records(beside or arm, size)]
    return Level(tuple(fmean(mean_outcomes(each).values()) for each in of(arm, size) if each["seed"] in seeds))


def less(one: str, two: str, size: str = "1x", reading: str = SURE, of: Measure = shown) -> Less:
    """How much higher `one` ends than `two`."""
    found = differences([of(two, size)], [of(one, size)])
    assert found is not None
    return Less(f"{one} less {two}, {size}, {of.__name__}", found, reading)


def chance(one: str, two: str, size: str = "1x", of: Measure = shown) -> Less:
    return less(one, two, size, CHANCE, of)


def gain(arm: str, size: str = "1x", reading: str = SURE, of: Measure = alone) -> Less:
    return less(arm, start_of(arm), size, reading, of)


def starred(found: Mapping[str, Less]) -> dict[str, str]:
    """The cells of a table's differences, with a star where Holm's correction for all of them keeps one."""
    held = corrected({name: each.found for name, each in found.items()})
    return {name: f"{each:+}" + ("*" if (held[name].holm or 1.0) < 0.05 else "") for name, each in found.items()}


def families() -> Iterator[Mapping[str, Less]]:
    """The columns of differences that sentences repeat, each corrected by itself."""
    for size, order in (("1x", ARMS), ("3x", LONGER)):
        yield {arm: gain(arm, size) for arm in order}
        yield {arm: less(arm, "grpo", size) for arm in order[1:]}
        yield {arm: gain(arm, size, of=of_sixteen) for arm in order}
    yield {f"{arm}, {size}": _more(arm, size) for arm in WITHOUT for size in ("1x", "3x")}


# Tables


PAID = {
    "grpo": ("grpo", "labels, form"),
    "self-refine": ("self-refine", "labels, form"),
    "adv": ("Agon (`adv`)", "labels, form"),
    "majority": ("majority (TTRL)", "vote, form"),
    "rzero": ("R-Zero", "vote on its questions"),
    "sqlm": ("SQLM", "vote on its questions"),
    "labels alone": ("labels alone", "labels"),
    "vote alone": ("vote alone", "vote"),
    "format": ("form alone", "form"),
    "rent": ("RENT", "certainty"),
    "form and a coin": ("form and a coin", "form, a toss"),
    "coin alone": ("a coin alone", "a toss"),
    "coin alone, faster": ("a coin alone, at 1.25e-4", "a toss"),
    "cpmobius": ("CPMobius", "vote; labels of 60 others"),
    "cpmobius, larger rounds": ("CPMobius, larger rounds", "the same"),
    "rzero, surer votes": ("R-Zero, surer votes", "vote on its questions"),
    "sqlm, cooler, often": ("SQLM, cooler, often", "vote on its questions"),
    "sqlm, cooler": ("SQLM, cooler", "the same"),
    "sqlm, two seats": ("SQLM, two seats", "the same"),
    "spice": ("SPICE", "challenger's answers"),
    "spice, two seats": ("SPICE, two seats", "the same"),
}


# The arms over a base pretrained anew, each with the one that it is compared with.
FEW = {
    "labels alone": (*PAID["labels alone"], "5e-4", ""),
    "rzero": (*PAID["rzero"], "5e-4", ""),
    "rzero, anchors": ("R-Zero, 16 labels", "the vote; labels", "5e-4", "rzero"),
    "sqlm": (*PAID["sqlm"], "2.5e-4", ""),
    "sqlm, anchors": ("SQLM, 16 labels", "the vote; labels", "5e-4", "sqlm"),
}
ARMS = tuple(arm for arm in PAID if arm != "coin alone, faster")
LONGER = (
    *("grpo", "labels alone", "self-refine", "adv", "sqlm", "majority", "cpmobius", "sqlm, cooler, often"),
    *("sqlm, two seats", "vote alone", "format", "form and a coin", "rzero", "rent", "coin alone"),
    "coin alone, faster",
)
FORM = ARMS[:13]
FORM_LONGER = (*ARMS[:6], "sqlm, two seats", *ARMS[6:12], "coin alone, faster", "cpmobius")
WITHOUT = ("majority", "vote alone", "sqlm", "rzero", "rent", "cpmobius")
SMOLLM2 = {
    "grpo": ("labels, form", "4e-4", "grpo", "SmolLM2"),
    "grpo, at half of it": ("labels, form", "2e-4", "grpo", "half"),
    "Agon (`adv`)": ("labels, form", "2e-4", "adv", "SmolLM2"),
    "Agon, labels alone": ("labels", "2e-4", "adv, labels alone", "half"),
    "majority (TTRL)": ("vote, form", "1e-4", "majority", "SmolLM2"),
    "SQLM": ("vote on its questions", "1e-4", "sqlm", "SmolLM2"),
}


def compared(size: str, order: Sequence[str]) -> Iterator[str]:
    """The rows of the table of one size: pass@1, gain, the difference to GRPO, pass@16 at the start and at the end."""
    gains, sixteen = (starred({arm: gain(arm, size, of=of) for arm in order}) for of in (alone, of_sixteen))
    against = {"grpo": "", **starred({arm: less(arm, "grpo", size) for arm in order[1:]})}
    for arm in order:
        label, paid = PAID[arm]
        before = f"{level(start_of(arm), size, of_sixteen, beside=arm)}"
        after = f"{level(arm, size, of_sixteen)}" + ("*" if sixteen[arm].endswith("*") else "")
        tokens = f"{1000 * round(fmean(record['training']['tokens'] for record in records(arm, size)) / 1000):,}"
        about = [paid, RATES[records(arm, size)[0]["rate"]]] if size == "1x" else []
        ends = level(arm, size).with_interval()
        yield _row(label, *about, ends, gains[arm], against[arm], before, after, tokens)


def with_few_labels() -> Iterator[str]:
    """The rows of the table over a base pretrained anew: pass@1, gain, difference to the neighbour, and form."""
    gains = starred({arm: gain(arm, "few") for arm in FEW})
    against = starred({arm: less(arm, other, "few") for arm, (*_, other) in FEW.items() if other})
    for arm, (label, paid, rate, _) in FEW.items():
        formed = [[each[0] for each in shares(of, "few").values()] for of in (start_of(arm), arm)]
        form = " to ".join(f"{100 * fmean(each):.1f}" for each in formed)
        yield _row(label, paid, rate, level(arm, "few").with_interval(), gains[arm], against.get(arm, ""), form)


def beside_form() -> Iterator[str]:
    """How much more each arm without labels gains than form alone, at both sizes."""
    cells = starred({f"{arm}, {size}": _more(arm, size) for arm in WITHOUT for size in ("1x", "3x")})
    for arm in WITHOUT:
        yield _row(PAID[arm][0], cells[f"{arm}, 1x"], cells[f"{arm}, 3x"])


def shares(arm: str, size: str) -> dict[int, tuple[float, float]]:
    """For each seed the share of answers in form, and the share of these that are right."""
    return {
        each["seed"]: (
            fmean(score["well_formed"] for score in scores_shown(each).values()),
            fmean(score["pass_at_1"] / score["well_formed"] for score in scores_shown(each).values()),
        )
        for each in shown(arm, size)
    }


def by_form(size: str, order: Sequence[str]) -> Iterator[str]:
    """The rows of the table of form."""
    start, end = ({arm: shares(of(arm), size) for arm in order} for of in (start_of, str))
    changed = {arm: [end[arm][seed][1] - start[arm][seed][1] for seed in end[arm]] for arm in order}
    cells = starred({arm: Less(arm, Difference(*crossed([each]))) for arm, each in changed.items()})
    for arm in order:
        both = (start[arm], end[arm])
        cell = [f"{100 * fmean(each[seed][i] for seed in end[arm]):.1f}" for i in (0, 1) for each in both]
        label = PAID[arm][0] if size == "1x" or arm != order[0] else f"*at 3x:* {PAID[arm][0]}"
        yield _row(label, *cell, cells[arm])


def by_step(order: Sequence[str], steps: Sequence[int]) -> Iterator[str]:
    for arm in order:
        curves = [dict(record["training"]["curve"]) for record in records(arm, "3x")]
        yield _row(PAID[arm][0], *(f"{100 * fmean(curve[step] for curve in curves):.0f}" for step in steps))


def searched(order: Sequence[str]) -> Iterator[str]:
    for arm in order:
        found = [100 * fmean(level(f"{arm} at {rate:g}", "search").values) for rate in RATES]
        yield _row(PAID[arm][0], *(f"**{v:.1f}**" if v == max(found) else f"{v:.1f}" for v in found))


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |".replace("|  |", "| |").replace("|  |", "| |")


def of_smollm2() -> Iterator[str]:
    """The rows of SmolLM2's table: the start, end and gain of each seed, alone, with intervals over problems."""
    found, ways = {}, {}
    for label, (*_, arm, size) in SMOLLM2.items():
        start = {each["seed"]: each for each in alone(start_of(arm), "SmolLM2")}
        for each in alone(arm, size):
            before, name = start[each["seed"]], f"{label}, {each['seed']}"
            ways[name] = " to ".join(f"{100 * fmean(mean_outcomes(part).values()):.1f}" for part in (before, each))
            difference = differences([[before]], [[each]])
            assert difference is not None
            found[name] = Less(name, difference)
    cells = starred(found)
    for label, (paid, rate, *_) in SMOLLM2.items():
        names = [f"{label}, {seed}" for seed in (0, 1)]
        yield _row(label, paid, rate, *(cell for name in names for cell in (ways[name], cells[name])))


def tables() -> Iterator[str]:
    """The rows of all tables of docs/results.md."""
    yield from compared("1x", ARMS)
    yield from compared("3x", LONGER)
    yield from beside_form()
    yield from by_form("1x", FORM)
    yield from by_form("3x", FORM_LONGER)
    yield from by_step(("grpo", "self-refine", "adv", "majority"), (0, 20, 40, 60, 80, 100, 120))
    yield from of_smollm2()
    yield from searched(FORM)
    yield from with_few_labels()


def last_less_peak(arm: str) -> Less:
    """The last evaluation less that at the step with the highest mean of the other seeds."""
    curves = [dict(record["training"]["curve"]) for record in records(arm, "3x")]
    last, changed = max(curves[0]), []
    for i, own in enumerate(curves):
        others = [curve for j, curve in enumerate(curves) if j != i]
        peak = max(own, key=lambda step: fmean(curve[step] for curve in others))
        changed.append(own[last] - own[peak])
    return Less(f"last less peak, {arm}", Difference(*crossed([changed])), CHANCE)


def logged(arm: str, key: str, size: str = "1x", unit: float = 1) -> float:
    """A figure of the game, as a mean over steps and seeds."""
    return unit * fmean(record["training"]["game"][key] for record in records(arm, size))


def share(arm: str, column: str, size: str = "1x") -> float:
    """How often a second answer corrected or spoiled a first one, in percent of the answers."""
    scores = [score for each in shown(arm, size) for score in scores_shown(each).values()]
    return 100 * fmean(score[column] / (score["n"] * score["samples"]) for score in scores)


def minutes(arms: Sequence[str], size: str, ends: Callable[..., float]) -> float:
    return ends(record["training"]["seconds"] for arm in arms for record in records(arm, size)) / 60


# Sentences


Claim = tuple[str, str, Sequence[Any]]


def said() -> Iterator[Claim]:
    """The sentences with figures: the page, the sentence with braces for the figures, and the figures."""
    yield RESULTS, "from {}% to {}% at 1x, and to {}% at 3x", (level("cold start"), level("grpo"), level("grpo", "3x"))
    yield (
        RESULTS,
        "Agon ends {:-} points below GRPO at 1x; the {:-} at 3x may be chance",
        (less("adv", "grpo"), chance("adv", "grpo", "3x")),
    )
    yield (
        RESULTS,
        "At 3x Agon's adapters alone go from {}% to {}%",
        (level("cold start of adv", "3x"), _alone("adv", "3x")),
    )
    yield (
        RESULTS,
        "Agon's by {:+} at 1x and {:+} at 3x, self-refinement's by {:+} and {:+}, that of GRPO, not "
        "trained for it, by {:+} and {:+}",
        tuple(
            chance(both, one, size)
            for both, one in (("adv", "adv alone"), ("self-refine", "self-refine alone"), ("grpo self-cascade", "grpo"))
            for size in ("1x", "3x")
        ),
    )
    yield (
        RESULTS,
        "corrects {:.1f}% of the answers and spoils {:.1f}% ({:.1f} and {:.1f}% at 3x)",
        tuple(share("adv", column, size) for size in ("1x", "3x") for column in ("conversions", "regressions")),
    )
    begun = [
        Level(tuple(dict(record["training"]["curve"])[0] for record in records(arm, "3x")))
        for arm in ("grpo", "self-refine")
    ]
    yield RESULTS, "at the cold start one answer is right in {:.0f}%, the refiner's second in {:.0f}%", begun
    yield (
        RESULTS,
        "it adds {} points, Agon's {}",
        tuple(chance(f"{start}, two answers", start, "apart") for start in ("cold start", "cold start of adv")),
    )
    yield (
        RESULTS,
        "it ends alone at {}%, GRPO's at {}%: {:-} points below",
        (level("adv alone", "apart"), level("grpo", "apart"), less("adv alone", "grpo", "apart", CHANCE)),
    )
    start = [100 * fmean(each) for each in zip(*shares("cold start", "1x").values(), strict=True)]
    both = ("rzero, anchors", "rzero")
    yield (
        RESULTS,
        "has {:.1f} usable questions of {:.1f} a step, without them {:.1f} of {:.1f}",
        tuple(logged(arm, key, "few") for arm in both for key in ("usable", "proposals")),
    )
    yield (
        RESULTS,
        "check {:.0f}% are right, without them {:.0f}%; in SQLM {:.0f} and {:.0f}%",
        tuple(logged(arm, "label_accuracy", "few", 100) for arm in (*both, "sqlm, anchors", "sqlm")),
    )
    yield RESULTS, "{:.0f}% of the answers have a block, and {:.0f}% of these are right", start
    yield RESULTS, "gains {} points at 1x and {} at 3x", (gain("format"), gain("format", "3x"))
    yield (
        RESULTS,
        "the vote gains {} points more than that at 1x, and SQLM {} more at 3x",
        (_more("majority", "1x"), _more("sqlm", "3x")),
    )
    yield RESULTS, "R-Zero's {} more at 1x may be chance", (_more("rzero", "1x", CHANCE),)
    yield (
        RESULTS,
        "GRPO ends at {}% (1x) and {}% (3x)",
        (level("coin alone"), level("coin alone", "3x")),
    )
    yield RESULTS, "it loses {:-}", (gain("coin alone, faster", "3x"),)
    yield (
        RESULTS,
        "labels end as high ({}% instead of {}% at 1x, {}% and {}% at 3x)",
        tuple(level(arm, size, beside="labels alone") for size in ("1x", "3x") for arm in ("labels alone", "grpo")),
    )
    yield (
        RESULTS,
        "the vote ends at {}% instead of {}% at 1x ({:-} points lower), and at {}% instead of {}% at 3x ({:-})",
        tuple(
            figure
            for size in ("1x", "3x")
            for figure in (
                level("vote alone", size),
                level("majority", size, beside="vote alone"),
                chance("vote alone", "majority", size),
            )
        ),
    )
    yield RESULTS, "At 3x the vote lowers pass@16 by {:-} points", (gain("majority", "3x", of=of_sixteen),)
    yield (
        RESULTS,
        "GRPO ({:+}), self-refinement ({:+}) and Agon ({:+}), and those of RENT ({:+}) and R-Zero ({:+})",
        tuple(gain(arm, "3x", CHANCE, of_sixteen) for arm in ("grpo", "self-refine", "adv", "rent", "rzero")),
    )
    rates = [[level(f"{arm} at {rate:g}", "search").values for rate in RATES] for arm in FORM]
    spans = [100 * (max(map(fmean, each)) - min(map(fmean, each))) for each in rates]
    yield RESULTS, "the best and the worst of five rates differ by {:.0f} to {:.0f} points", (min(spans), max(spans))
    base = fmean(mean_outcomes(shown("base", "1x")[0]).values())
    low, high = shown("base", "1x")[0]["ci95"]
    yield RESULTS, "right on {:.1f}% [{:.1f}, {:.1f}] (one evaluation", (100 * base, 100 * low, 100 * high)
    yield (
        RESULTS,
        "right on {}% (solver and refiner), {}% (Agon's, alone), {}% (R-Zero's), {}% (CPMobius's), {}% "
        "(SQLM's) and {}% (SPICE's)",
        tuple(level(start_of(arm)) for arm in ("grpo", "adv", "rzero", "cpmobius", "sqlm", "spice")),
    )
    yield (
        RESULTS,
        "writes {:.0f} questions a step, the solver trains on {:.1f} of them, and {:.0f}% of the labels "
        "that a rule can check are right ({:.0f}% at 3x)",
        (
            logged("rzero", "proposals"),
            logged("rzero", "usable"),
            logged("rzero", "label_accuracy", unit=100),
            logged("rzero", "label_accuracy", "3x", 100),
        ),
    )
    yield (
        RESULTS,
        "If labels need half of the votes, {:.0f}% are right, and the gain does not differ beyond chance ({:+})",
        (logged("rzero, surer votes", "label_accuracy", unit=100), chance("rzero, surer votes", "rzero")),
    )
    yield (
        RESULTS,
        "writes {:.0f} questions a step, of which {:.1f} are valid; {:.1f} of these have no majority "
        "among four answers, and {:.0f}% of the labels are right ({:.1f} and {:.0f}% at 3x)",
        (
            *(logged("sqlm", key) for key in ("proposals", "usable", "without_majority")),
            logged("sqlm", "label_accuracy", unit=100),
            logged("sqlm", "without_majority", "3x"),
            logged("sqlm", "label_accuracy", "3x", 100),
        ),
    )
    yield (
        RESULTS,
        "On given questions {:.0f}% of the votes are right, {:.0f}% at 3x",
        tuple(logged("majority", "label_accuracy", size, 100) for size in ("1x", "3x")),
    )
    yield (
        RESULTS,
        "{:.0f}% of its solver's answers have no readable answer; at temperature 0.5 {:.0f}%, and {:.1f} "
        "questions have no majority",
        (
            logged("sqlm", "unread_answers", unit=100),
            logged("sqlm, cooler", "unread_answers", unit=100),
            logged("sqlm, cooler", "without_majority"),
        ),
    )
    low_ends = sorted(level("sqlm, cooler").values)[:3]
    yield RESULTS, "three of five seeds fell to {:.0f} to {:.0f}%", (100 * low_ends[0], 100 * low_ends[-1])
    yield (
        RESULTS,
        "the result differs from plain SQLM's by {:+} at 1x and {:+} at 3x",
        tuple(chance("sqlm, cooler, often", "sqlm", size) for size in ("1x", "3x")),
    )
    yield (
        RESULTS,
        "on {:.1f} tasks each, and rewards its coach for changes of {:.1f} points with a standard error of {:.1f}",
        tuple(logged("cpmobius", key) for key in ("usable", "delta", "delta_error")),
    )
    yield (
        RESULTS,
        "learns from {:.0f} tasks a round; the differences to smaller rounds ({:+}) and to form alone ({:+})",
        (
            logged("cpmobius, larger rounds", "usable"),
            chance("cpmobius, larger rounds", "cpmobius"),
            chance("cpmobius, larger rounds", "format"),
        ),
    )
    falls = sorted(level("rent", "3x").values)[:2]
    yield RESULTS, "Two of five seeds fall to {:.0f} and {:.0f}%", tuple(100 * value for value in falls)
    yield (
        RESULTS,
        "it gains {} points at 3x, and differs from form alone by {:+}, at 1x by {:+}",
        (gain("form and a coin", "3x"), *(chance("form and a coin", "format", size) for size in ("3x", "1x"))),
    )
    yield (
        RESULTS,
        "A coin alone ends {:-} points below *form and a coin* at 3x, and {:-} at the same rate",
        (less("coin alone", "form and a coin", "3x"), less("coin alone, faster", "form and a coin", "3x")),
    )
    yield (
        RESULTS,
        "SPICE's challenger is right about {:.0f}% of its questions",
        (logged("spice", "label_accuracy", unit=100),),
    )
    yield (
        RESULTS,
        "SQLM with two adapters ends {:-} points below a shared one",
        (chance("sqlm, two seats", "sqlm", "3x"),),
    )
    yield (
        RESULTS,
        "self-refinement {:+}, Agon {:+}, R-Zero {:+}, RENT {:+}",
        tuple(map(last_less_peak, ("self-refine", "adv", "rzero", "rent"))),
    )
    own = ("grpo", "adv", "majority", "sqlm")
    tried = {arm: [level(f"{arm} at {rate:g}", "SmolLM2 search") for rate in (1e-4, 2e-4, 4e-4)] for arm in own}
    yield (
        RESULTS,
        "GRPO had {}, {} and {}%, Agon {}, {} and {}%, the vote {}, {} and {}%, SQLM {}, {} and {}%",
        tuple(figure for arm in own for figure in tried[arm]),
    )
    yield (
        RESULTS,
        "{:.0f}% of its labels were right; of SQLM's that can be checked, {:.0f}%",
        tuple(logged(arm, "label_accuracy", "SmolLM2", 100) for arm in ("majority", "sqlm")),
    )
    formed = [
        score["well_formed"]
        for arm in ("cold start", "cold start of adv", "cold start of sqlm")
        for each in shown(arm, "SmolLM2")
        for score in each["seats"].values()
    ]
    yield RESULTS, "at least {:.0f}% of the answers have an answer block", (100 * min(formed),)
    trained = ("grpo", "labels alone", "adv")
    yield (
        README,
        "| GRPO; Agon; with labels, five seeds | {:.0f}% | {:.0f}%; {:.0f}% | {:.0f} to {:.0f} minutes, one core |",
        (
            level("cold start", "3x"),
            level("grpo", "3x"),
            _alone("adv", "3x"),
            minutes(trained, "3x", min),
            minutes(trained, "3x", max),
        ),
    )
    without = ("majority", "format", "coin alone")
    yield (
        README,
        "| without labels: majority vote; format only; a coin | {:.0f}% | {:.0f}%; {:.0f}%; {:.0f}% | "
        "{:.0f} to {:.0f} minutes, one core |",
        (
            level("cold start", "3x"),
            *(level(arm, "3x") for arm in without),
            minutes(without, "3x", min),
            minutes(without, "3x", max),
        ),
    )
    conv = [dict(record["training"]["curve"]) for record in records("entropy", "Kuhn")]
    yield (
        README,
        "| NashConv {:.2f} | {:.2f} (0: equilibrium) | {:.0f} to {:.0f} minutes, one core |",
        (
            median(each[min(each)] for each in conv),
            median(each[max(each)] for each in conv),
            minutes(["entropy"], "Kuhn", min),
            minutes(["entropy"], "Kuhn", max),
        ),
    )


def _alone(arm: str, size: str) -> Level:
    return level(arm, size, alone)


def _more(arm: str, size: str, reading: str = SURE) -> Less:
    return less(arm, "format", size, reading, gained)


# Checks


@dataclass(frozen=True)
class Checked:
    """A row or a sentence: its page, its text, whether the page has it, and the differences that it calls certain or
    chance although Holm's correction says otherwise."""

    page: str
    text: str
    found: bool
    misread: tuple[str, ...] = ()


def checked(pages: Mapping[str, str]) -> list[Checked]:
    """All rows and sentences, held to the texts of the pages by name."""
    plain = {name: " ".join(text.split()) for name, text in pages.items()}
    claims, held = list(said()), dict[str, float]()
    for family in families():
        of = corrected({each.name: each.found for each in family.values()})
        held |= {name: each.holm for name, each in of.items() if each.holm is not None}
    own = {each.name: each.found for *_, figures in claims for each in figures if isinstance(each, Less)}
    others = corrected({name: each for name, each in own.items() if name not in held})
    held |= {name: each.holm for name, each in others.items() if each.holm is not None}
    result = [Checked(RESULTS, row, row in plain[RESULTS]) for row in tables()]
    for page, sentence, figures in claims:
        text = sentence.format(*figures)
        differ = (each for each in figures if isinstance(each, Less))
        misread = tuple(each.name for each in differ if (held[each.name] < 0.05) is not (each.reading == SURE))
        result.append(Checked(page, text, text in plain[page], misread))
    return result


if __name__ == "__main__":
    for each in checked({name: (ROOT / name).read_text(encoding="utf-8") for name in (RESULTS, README)}):
        print(" " if each.found else "!", each.page, each.text, *each.misread)

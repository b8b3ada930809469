"""Each metric's meaning, its healthy values and how to change it; curves and charts of a run.

Keys are those of `metrics.jsonl`. A game declares its own figures (`Figure`).
"""

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isinf, nan
from typing import Any, Literal

from lite_selfplay.config.user_files import file_of, was_run
from lite_selfplay.errors import RequestError, UnknownNameError
from lite_selfplay.evaluation.result import scores_of
from lite_selfplay.games import Game, find_game, game_names
from lite_selfplay.games.presentation import Figure, Row, Unit, number_of, value_in_words, value_of
from lite_selfplay.runs.folder import RunFolder

# Groups of charts: the seats' results, and whether training is sound.
LEARNING, HEALTH = "Learning", "Health"
SILENT = "zero_variance_groups"


@dataclass(frozen=True)
class Meaning:
    """A metric: its `part` of `metrics.jsonl` (`streams`, `seats`, `game` or the `step` itself), its key and meaning.

    `healthy` describes the healthy values, `change` how to get there. `name` and `group` are those of its chart, empty
    without one. Above `most`, by rule of thumb, something is wrong. `figure` is the game's declaration of it.
    """

    part: str
    key: str
    meaning: str
    healthy: str
    change: str = ""
    unit: Unit = "number"
    name: str = ""
    group: str = ""
    most: float = inf
    figure: Figure | None = None


# fmt: off
_OF_A_RUN = (
    Meaning("streams", "reward_mean", "The mean reward of a role's completions.",
            "Rises, with noise from step to step.",
            "Flat from the start: look at well_formed, truncated and zero_variance_groups first.", name="reward",
            group=LEARNING),
    Meaning("streams", "reward_std", "The standard deviation of the rewards of a role's completions.",
            "Above 0: equal rewards give no gradient.",
            "Problems that are neither too easy nor too hard; a larger --group-size."),
    Meaning("streams", "accuracy",
            "The share of a role's judged completions that are right, agree with their label, or are accepted, "
            "depending on the game.",
            "Between 10% and 90%, where there is most to learn.",
            "Near 0: easier --tasks or --cold-start. Near 1: harder --tasks. Falling: a lower seats.*.lr.", "share",
            group=LEARNING),
    Meaning("streams", "well_formed", "The share of completions in the format that the prompt asks for.",
            "Above 80% after the first steps.", "--cold-start teaches the format; a larger --max-completion-tokens.",
            "share", name="well-formed", group=LEARNING),
    Meaning("streams", "truncated",
            "The share of completions that reached their token limit, or were stopped because they repeated "
            "themselves.",
            "Below 20%.",
            "A larger --max-completion-tokens, or a cold start with short solutions; for repetition see `loops`.",
            "share", name="truncated", group=HEALTH, most=0.5),
    Meaning("streams", "loops",
            "The share of completions that were stopped because they repeated themselves; they also count as "
            "truncated.",
            "Below 5%.",
            "A larger token limit does not help. From the start: --cold-start, or a temperature of 1. Growing: a "
            "lower seats.*.lr.",
            "share", name="loops", group=HEALTH, most=0.2),
    Meaning("streams", "tokens_mean", "The mean length of a role's completions, in tokens.",
            "Well below run.max_completion_tokens.", "A larger --max-completion-tokens if many reach it.",
            name="length in tokens", group=LEARNING),
    Meaning("streams", SILENT,
            "The share of groups whose completions all earned the same reward, which give no gradient; "
            "metrics.jsonl has their number.",
            "Below 50%.",
            "Problems that are neither too easy nor too hard; a larger --group-size; --cold-start for the format.",
            "share", name="groups without variance", group=HEALTH),
    Meaning("streams", "rows_trained", "The number of completions used in the update.", "Above 0.",
            "See zero_variance_groups."),
    Meaning("streams", "loss",
            "The loss of a role's update. A group's advantages sum to zero, so with one update per step its value "
            "is near 0; its gradient is not.",
            "Near 0 is normal, and says nothing about learning.", "Nothing: look at reward_mean and accuracy.",
            name="loss", group=HEALTH),
    Meaning("streams", "kl",
            "The mean KL divergence from the reference per token, in nats; null without a KL term (beta 0).",
            "Below 1, growing slowly.", "A lower seats.*.lr, or a larger roles.*.beta.", name="KL", group=HEALTH,
            most=1.0),
    Meaning("streams", "clipped",
            "The share of tokens whose probability ratio was clipped (of completions, if each has one ratio); "
            "null with one update per step.",
            "Below 20%.", "A lower seats.*.lr, or fewer run.minibatches.", "share", name="ratios cut off",
            group=HEALTH, most=0.5),
    Meaning("streams", "sampler_gap",
            "The mean difference between the log-probabilities of the sampler and of the update, in nats per "
            "token; with equal weights only rounding differs.",
            "About 1e-6 in fp32, 0.01 to 0.05 in half precision.",
            "docs/sampler.md explains larger values; compare with --backend transformers --precision fp32.",
            name="sampler gap", group=HEALTH, most=0.1),
    Meaning("streams", "base_gap", "The distance of a seat from the base model, in nats per token.",
            "Grows from 0; a few nats are much.", "If it grows while accuracy falls: a lower seats.*.lr.",
            name="base gap", group=HEALTH),
    Meaning("streams", "step_gap",
            "How far the step moved a seat, measured on a few of its own completions, in nats per token.",
            "Below 0.01 on a base of a million parameters; largest in the first steps.",
            "If accuracy does not rise with it: a lower seats.*.lr.", name="moved by the step", group=HEALTH),
    Meaning("streams", "completions", "Completions of a role at a step.", "As the game and its settings determine."),
    Meaning("streams", "groups", "Groups of a role at a step; the completions of a group share a baseline.",
            "As the game and its settings determine."),
    Meaning("streams", "tokens_generated", "Tokens that a role sampled at a step.", "As many as the answers need."),
    Meaning("streams", "tokens_trained", "Tokens of a role's completions used in the update.", "Above 0.",
            "See zero_variance_groups."),
    Meaning("seats", "grad_norm", "The norm of a seat's gradient before clipping; null if the seat was not updated.",
            "Steady; below about 10 times its first values.", "Exploding: a lower seats.*.lr.", name="gradient norm",
            group=HEALTH),
    Meaning("seats", "lr", "A seat's learning rate at this step.", "As the schedule says.",
            "seats.*.lr, seats.*.schedule."),
    Meaning("seats", "updates", "A seat's updates so far.", "Grows if the seat is trained.",
            "See zero_variance_groups."),
    Meaning("step", "skipped_steps", "Steps so far that updated nothing.", "Few.", "lite-selfplay why RUN says why."),
    Meaning("step", "nonfinite", "Steps so far that met a number that is not finite and updated nothing.", "0.",
            "A lower seats.*.lr; another --precision."),
    Meaning("step", "verify_timeouts",
            "Answers so far whose check took longer than run.verify_timeout_s; they count as wrong.", "0, or nearly.",
            "A larger run.verify_timeout_s; docs/answers.md."),
    Meaning("step", "not_judged",
            "Answers so far that could not be checked because the machine was too busy; they are masked.", "0.",
            "Fewer other processes on the machine."),
)
# fmt: on
# The figures of every run.
MEANINGS: Mapping[str, Meaning] = {meaning.key: meaning for meaning in _OF_A_RUN}


def find_meaning(name: str, game: type[Game] | None = None) -> Meaning:
    """A metric's meaning, by its key (`kl`, `streams.drafter.kl`) or its displayed name (`accuracy of labels`).

    The figures of `game` win over those of other games. Raises UnknownNameError with near names.
    """
    asked = name.strip().casefold().replace(" ", "_").replace("-", "_")
    asked = asked.rpartition(".")[2] or asked
    games = [*map(find_game, reversed(game_names())), *([game] if game is not None else [])]
    declared = [_of_figure(figure) for one in games for figure in reversed(one.figures)]
    # Later entries win: the game's own over other games', and those of every run over both.
    known = {
        name: meaning
        for meaning in [*declared, *MEANINGS.values()]
        for name in (meaning.name.casefold().replace(" ", "_"), meaning.key)
        if name
    }
    if asked not in known:
        raise UnknownNameError("metric", name, known, "docs/metrics.md lists the keys of metrics.jsonl.")
    return known[asked]


def _of_figure(figure: Figure) -> Meaning:
    bounds = zip(("from", "up to"), figure.healthy, (0, 1), strict=True)  # the last two are a share's own limits
    words = [
        f"{word} {value_in_words(bound, figure.unit)}"
        for word, bound, end in bounds
        if not isinf(bound) and not (figure.unit == "share" and bound == end)
    ]
    healthy = " ".join(words) or "the game declares no bounds"
    what = figure.about or f"The game's figure {figure.name!r}."
    sentence = figure.warning.partition(". ")[2].format(value=0.0) if figure.warning else ""
    healthy = f"{healthy[:1].upper()}{healthy[1:]}."
    return Meaning("game", figure.key, what, healthy, sentence, figure.unit, figure.name, figure=figure)


def values_of(meaning: Meaning, rows: Iterable[Row]) -> dict[str, list[float]]:
    """A metric's values over steps, by role or seat; under an empty name if it belongs to neither."""
    found: dict[str, list[float]] = {}
    for row in rows:
        values = {"": number_of(row.get(meaning.key))}
        if meaning.part in ("streams", "seats"):
            values = {name: value_in(meaning, part) for name, part in (row.get(meaning.part) or {}).items()}
        elif meaning.figure is not None:
            values = {"": value_of(meaning.figure, row.get("game") or {})}
        for name, value in values.items():
            if value is not None:
                found.setdefault(name, []).append(value)
    return found


def value_in(meaning: Meaning, part: Row) -> float | None:
    """A metric's value for a role or a seat, from its part of `metrics.jsonl`; None if it has none.

    The number of groups without variance becomes a share; None if every group has one completion.
    """
    value = number_of(part.get(meaning.key))
    if meaning.key != SILENT:
        return value
    groups = number_of(part.get("groups"))
    return value / groups if value is not None and groups and groups != part.get("completions") else None


def harmless(hurt: float, right: float | None) -> bool:
    """Whether a share `hurt` of truncated or ill-formed completions is harmless: with a share `right` of right ones, at
    least a tenth of all must be both, so the task needs neither the end of an answer nor a format.
    """
    return right is not None and right - (1 - hurt) >= 0.1


How = Literal["mean", "sum", "last"]

# The parts of a run besides roles: the game's own log, and the seats.
GAME, SEATS = "game", "seats"

# The group of the game's own curves; `Meaning.group` is that of others.
PLAY = "The game"


@dataclass(frozen=True)
class Curve:
    """One metric of a run over its steps.

    `part` is a role, `GAME` or `SEATS`; `kind` distinguishes curves of the same `name` (a reason, a bin, a seat).
    `values[i]` belongs to `steps[i]`, counted from 1; a share is in [0, 1]. `how` aggregates several steps.
    """

    part: str
    name: str
    steps: tuple[int, ...]
    values: tuple[float, ...]
    unit: Unit = "number"
    group: str = PLAY
    how: How = "mean"
    kind: str = ""

    @property
    def line(self) -> str:
        """Its label among curves of the same name: its kind, else its role; empty for a game's single curve."""
        return self.kind or ("" if self.part == GAME else self.part)


def curves_of(game: type[Game], metrics: Iterable[Row]) -> tuple[Curve, ...]:
    """Every curve of a run with at least one value: of roles, of the game, of seats. Of `metrics`, which are read once,
    only the points drawn are kept."""
    drawn = [known for known in MEANINGS.values() if known.part in ("streams", "seats") and known.group]
    steps: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    columns: defaultdict[tuple[str, str, str], array[float]] = defaultdict(lambda: array("d"))
    logged: list[tuple[Figure, list[tuple[int, Any, Any]]]] = [(figure, []) for figure in game.figures]
    for row in metrics:
        step, log = row["step"], row["game"]
        for part, name in [(each, name) for each in ("streams", "seats") for name in row[each]]:
            steps[part, name].append(step)
            for known in drawn:
                if known.part == part:
                    value = value_in(known, row[part][name])
                    columns[part, name, known.key].append(nan if value is None else value)
        for figure, here in logged:
            if figure.key in log:
                here.append((step, log[figure.key], _whole(figure, log)))
    declared = [(figure, list(_figure_curves(figure, here))) for figure, here in logged]
    # Breakdowns and counts of steps come last.
    declared.sort(key=lambda pair: pair[0].how == "zeros" or any(curve.kind for curve in pair[1]))
    of_the_game = [curve for _, curves in declared for curve in curves]
    found: dict[str, list[Curve]] = {"streams": [], "game": of_the_game, "seats": []}
    for (part, name, key), values in columns.items():
        known, (of, kind) = MEANINGS[key], (SEATS, name) if part == "seats" else (name, "")
        title = game.accuracy_of(name).name if key == "accuracy" else known.name
        points = zip(steps[part, name], values, strict=True)
        found[part].append(_curve(of, title, points, known.unit, group=known.group, kind=kind))
    return tuple(curve for curves in found.values() for curve in curves if curve.steps)


# The game's own log


def _figure_curves(figure: Figure, here: Sequence[tuple[int, Any, Any]]) -> Iterator[Curve]:
    """The curves of a declared figure, from its (step, value, denominator): one, or one per key of an object (the most
    frequent first), or one per bin of a list."""
    how: How = "sum" if figure.how == "zeros" else figure.how
    counts = [(step, value, of) for step, value, of in here if isinstance(value, Mapping)]
    size = max((len(value) for _, value, _ in here if isinstance(value, list)), default=0)
    kinds = [f"{100 * i // size} to {100 * (i + 1) // size}%" for i in range(size)]
    if counts:
        whole: Counter[str] = Counter()
        for _, values, _ in counts:
            whole.update({kind: count for kind, count in values.items() if number_of(count) is not None})
        kinds = [kind for kind, _ in whole.most_common()]
    elif size:
        bins = [(step, value, of) for step, value, of in here if isinstance(value, list) and len(value) == size]
        counts = [(step, dict(zip(kinds, value, strict=True)), of) for step, value, of in bins]
    if not kinds:
        kinds, counts = [""], [(step, {"": value}, of) for step, value, of in here]
    for kind in kinds:
        points = ((step, _value(figure, values.get(kind, 0), of)) for step, values, of in counts)
        yield _curve(GAME, figure.name, points, figure.unit, how=how, kind=kind)


def _whole(figure: Figure, log: Row) -> Any:
    """The denominator of a figure's value at a step; 0 if there is nothing to count."""
    none = 0 if figure.part or figure.how == "zeros" else 1
    found = log.get(figure.of, none) if figure.of else 1
    if not isinstance(found, list):
        return found
    return (sum(found) if None not in map(number_of, found) else 0) or none


def _value(figure: Figure, value: Any, whole: Any) -> Any:
    """A figure's value at a step; None if its denominator is 0."""
    if (number_of(whole) or 0.0) <= 0:
        return None
    if figure.how == "zeros":
        return float(not value)
    if not figure.part:
        return value
    return value / whole if number_of(value) is not None else None


def _curve(part: str, name: str, points: Iterable[tuple[int, Any]], unit: Unit = "number", **about: Any) -> Curve:
    """A curve of the (step, value) points whose value is a number."""
    kept = [(step, float(value)) for step, value in points if isinstance(value, bool) or number_of(value) is not None]
    steps, values = (tuple(column) for column in zip(*kept, strict=True)) if kept else ((), ())
    return Curve(part, name, steps, values, unit, **about)


# The seats' results; the game's own figures; whether training is sound.
GROUPS = (LEARNING, PLAY, HEALTH)


def charts_of(game: type[Game], folder: RunFolder, rows: Iterable[Row]) -> list[dict[str, Any]]:
    """A chart for each set of held-out problems and for each name among the curves of a run's `rows`, by group.

    A chart has `name`, `group`, `unit`, `how`, the `healthy` bounds that the game declares, and `lines`, one for each
    role, seat or kind: `name`, `steps` counted from 1 (0 is before training), `values`; for measurements `low` and
    `high`, the ends of the 95% interval; `within`, the bounds that the game declares for this line. A damaged
    line raises an error that `as_written` handles.
    """
    charts = _evaluations(folder.evaluations())
    named: dict[tuple[str, str], list[Curve]] = {}
    for curve in curves_of(game, rows):
        named.setdefault((curve.group, curve.name), []).append(curve)
    for (group, name), curves in named.items():
        figure = next((figure for figure in game.figures if figure.name == name), None)
        lines = [
            {"name": curve.line, "steps": curve.steps, "values": [round(value, 6) for value in curve.values]}
            | ({"within": figure.within[curve.line]} if figure and curve.line in figure.within else {})
            for curve in curves
        ]
        about = {"name": name, "group": group, "unit": curves[0].unit, "how": curves[0].how}
        bounds = figure.healthy if figure else (inf, inf)
        # The lowest and highest healthy values, if the game declares any.
        healthy = None if all(map(isinf, bounds)) else [None if isinf(bound) else bound for bound in bounds]
        charts.append(about | {"lines": lines, "healthy": healthy})
    return sorted(charts, key=lambda chart: GROUPS.index(chart["group"]))


def _evaluations(moments: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A chart for each set of held-out problems, a line for each seat or direction."""
    charts = []
    for tasks, n in dict.fromkeys((found["tasks"], found["n"]) for found in moments.values()):
        here = [
            (name, max(0, found["step"]), scores_of(found))
            for name, found in moments.items()
            if (found["tasks"], found["n"]) == (tasks, n)
        ]
        lines = [
            {
                "name": seat,
                "steps": [step for _, step, _ in scored],
                "values": [score["pass_at_1"] for *_, score in scored],
                "low": [score["ci95"][0] for *_, score in scored],
                "high": [score["ci95"][1] for *_, score in scored],
                "moments": [name for name, *_ in scored],
            }
            for seat in dict.fromkeys(seat for *_, scores in here for seat in scores)
            for scored in [[(name, step, scores[seat]) for name, step, scores in here if seat in scores]]
        ]
        about = {"name": f"pass@1, {n} held-out problems", "about": tasks, "group": LEARNING, "unit": "share"}
        charts.append(about | {"how": "measured", "healthy": None, "lines": lines})
    return charts


def game_of(folder: RunFolder) -> tuple[type[Game], str]:
    """The class of a run's game; or `Game` and a warning if the class is not available.

    The class is not available if its name is unknown, or if it is in a file that this user has not run: viewing a run
    must not run a stranger's code. With `Game`, the game's own figures and words are missing. Raises ConfigError for a
    damaged configuration.
    """
    name = folder.config().game.name
    without = f"{folder.path} is shown without its game's own figures and words:"
    try:
        if file_of(name) is not None and not was_run(name):
            return Game, f"{without} {name} is code that you have not run yourself"
        return find_game(name), ""
    except RequestError as error:  # the name is unknown, or the file cannot be read or imported
        return Game, f"{without} {error}"

"""The diagnosis of a run: findings as sentences, each with evidence and the next command.

The checks for every game are here; a game adds its own bounds and warnings (`Figure.healthy`, `Game.warnings`). All
bounds are rules of thumb: a finding says where to look first, and proves nothing.
"""

import heapq
import shlex
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from math import sqrt
from pathlib import Path
from typing import Any, Literal, NamedTuple

from lite_selfplay.config import RunConfig
from lite_selfplay.config.user_files import file_of
from lite_selfplay.errors import ConfigError, RunFolderError
from lite_selfplay.games import Game
from lite_selfplay.games.presentation import Row, as_words, number_of, percent, value_in_words, value_of
from lite_selfplay.runs.folder import METRICS, PREFLIGHT, RunFolder, as_written, last_step
from lite_selfplay.runs.report.closing import changes
from lite_selfplay.runs.report.figures import MEANINGS, SILENT, game_of, harmless
from lite_selfplay.runs.report.step_rows import warned
from lite_selfplay.tasks.files import read_json

# A finding is a share of well-formed completions below the first, or of groups without variance from the second.
FEWEST_WELL_FORMED, MOST_SILENT = 0.1, 0.8
# The KL term explodes if it has grown by this factor since the run's first quarter.
KL_GROWS = 10.0
# The most that a seat may move per step, in nats per token, without getting better. On the base of a million
# parameters the best rates moved it by 0.002 to 0.006 in the second half of a run, the next one by 0.008 to 0.018.
STEP_MOST = 0.01
# The share of right completions above which there is little left to learn.
NEARLY_ALL_RIGHT = 0.9
ALL_WRONG, ALL_RIGHT = 0.05, 0.95
# The last quarter of a run is diagnosed, at least this many steps.
FEWEST_STEPS = 5
# The fewest steps per part when the accuracies of a run's parts are compared.
FEWEST_TO_COMPARE = 10
# The first and the last steps of a run that are compared, and the share of their first length below which completions
# have lost something.
ENDS, SHRUNK = 3, 0.4
FORMLESS = "--set game.format_weight=0"


@dataclass(frozen=True)
class Cause:
    """A finding: its level, a sentence, its evidence, and what to do next (a command, or a page)."""

    name: str
    level: Literal["wrong", "watch", "normal"]
    sentence: str
    evidence: str = ""
    next: str = ""


@dataclass(frozen=True)
class Diagnosis:
    """The result of `diagnose`. `steps`: the first and the last, counted from 1; None before the first step.
    `moved_most`: the completions with the largest advantages. `preflight`: the lines of the small steps before it."""

    steps: tuple[int, int] | None
    causes: tuple[Cause, ...]
    moved_most: tuple[Row, ...]
    preflight: tuple[str, ...] = ()


def diagnose(path: Path, step: int | None = None) -> Diagnosis:
    """Diagnose the last quarter of a run, or one step (counted from 1); before its first step, the pre-flight.

    Raises RunFolderError if there is no run, or no step, or it is damaged; ConfigError if `step` does not exist.
    """
    folder = RunFolder.open(path)
    with as_written(path):
        config, row, (said, expected) = folder.config(), last_step(path), _before(path)
        if row is None and said and step is None:
            return Diagnosis(None, expected, (), said)
        if row is None:
            raise RunFolderError(f"{path / METRICS} has no steps yet: there is nothing to diagnose")
        count, last = row["step"], step or row["step"]
        if last > count:
            raise ConfigError(f"--step {step} is not in {path}: its steps are 1 to {count}")
        first = step or max(1, count + 1 - max(FEWEST_STEPS, count // 4))
        looked, early = folder.steps(first, last), folder.steps(last=max(1, count // 4))
        game, rows = game_of(folder)[0], folder.steps(last=last)
        about = _About(path, config, game, rows, _roles(early), looked, _roles(looked), last == count)
        causes = [cause for check in CHECKS for cause in check(about)]
        if not causes:
            view = f"lite-selfplay view {shlex.quote(str(path))}"
            causes = [Cause("nothing", "normal", "These steps look normal.", "; ".join(_facts(about)), view)]
        causes.sort(key=lambda cause: ("wrong", "watch", "normal").index(cause.level))
        within = (row for row in folder.episodes() if first <= row["step"] <= last)
        return Diagnosis((first, last), tuple(causes), tuple(moved_most(within)), said)


def foreseen(path: Path, config: RunConfig, game: type[Game], row: Row) -> list[Cause]:
    """Findings for a run that has not started, from its pre-flight: `row` holds its streams, like a line of
    `metrics.jsonl`."""
    roles = _roles([row])
    about = _About(path, config, game, [row], roles, [row], roles, True)
    return [cause for check in (_truncated, _format, _silent) for cause in check(about)]


def _before(path: Path) -> tuple[tuple[str, ...], tuple[Cause, ...]]:
    """The lines and findings of a run's pre-flight; empty if it had none. Raises RunFolderError for a damaged file."""
    if not (path / PREFLIGHT).exists():
        return (), ()
    values = read_json(path / PREFLIGHT)
    causes = [Cause(*(str(each[field.name]) for field in fields(Cause))) for each in values["findings"]]  # type: ignore[arg-type]
    if refused := values["refused"]:
        causes.insert(0, Cause("pre-flight", "wrong", f"The run was refused: {refused}"))
    return tuple(map(str, values["lines"])), tuple(causes)


def moved_most(rows: Iterable[Row], count: int = 5) -> list[Row]:
    """The completions with the largest absolute advantages, the largest first."""
    weighed = ((abs(number_of(row.get("advantage")) or 0.0), -index, row) for index, row in enumerate(rows))
    return [row for weight, _, row in heapq.nlargest(count, weighed) if weight > 0]


class _Means:
    """The means of a role's metrics over steps, weighed by their completions; `groups` and `silent` count those of
    several completions, and of these those without variance. No step is kept."""

    def __init__(self) -> None:
        self._sums, self._weights = defaultdict[str, float](float), defaultdict[str, float](float)
        self.groups = self.silent = 0.0

    def add(self, step: Row) -> None:
        weight = number_of(step.get("completions")) or 1.0
        for key, number in ((key, number_of(value)) for key, value in step.items()):
            if number is not None:
                self._sums[key] += number * weight
                self._weights[key] += weight
        if step.get("groups") != step.get("completions"):
            self.groups += number_of(step.get("groups")) or 0.0
            self.silent += number_of(step.get(SILENT)) or 0.0

    def mean(self, key: str) -> float | None:
        return self._sums[key] / self._weights[key] if self._weights[key] else None


def _means(steps: Iterable[tuple[Any, Row]]) -> defaultdict[Any, _Means]:
    """The means over the steps of each role, or of whatever else the steps belong to."""
    found = defaultdict[Any, _Means](_Means)
    for of, step in steps:
        found[of].add(step)
    return found


def _roles(rows: Iterable[Row]) -> defaultdict[Any, _Means]:
    return _means(pair for row in rows for pair in row["streams"].items())


@dataclass(frozen=True)
class _About:
    """The input of the checks: the steps to diagnose (`looked`), their means by role (`roles`) and those of the run's
    first quarter (`early`), and all up to the last one looked at (`rows`), which is the run's last if `at_end`."""

    path: Path
    config: RunConfig
    game: type[Game]
    rows: Iterable[Row]
    early: defaultdict[str, _Means]
    looked: Iterable[Row]
    roles: Mapping[str, _Means]
    at_end: bool

    def again(self, *flags: str) -> str:
        """The command for a new run with additional flags."""
        return " ".join(["lite-selfplay train --config", shlex.quote(str(self.path / "config.yaml")), *flags])

    def slower(self) -> str:
        """The flags for a third of each seat's learning rate."""
        return " ".join(f"--set seats.{name}.lr={seat.lr / 3:.2g}" for name, seat in self.config.seats.items())

    def taught(self) -> str:
        """The flag for a cold start, or for a longer one."""
        section = self.config.cold_start
        return f"--set cold_start.steps={2 * section.steps}" if section.enabled else "--cold-start"


def _truncated(about: _About) -> Iterator[Cause]:
    for role, steps in about.roles.items():
        loops, length, right = steps.mean("loops") or 0.0, steps.mean("tokens_mean"), steps.mean("accuracy")
        share = (steps.mean("truncated") or 0.0) - loops
        own = about.config.roles[role].max_completion_tokens if role in about.config.roles else None
        limit = own or about.config.run.max_completion_tokens or 0
        flag = f"--set roles.{role}.max_completion_tokens=" if own else "--max-completion-tokens "
        if share >= MEANINGS["truncated"].most and not harmless(share, right):
            yield Cause(
                "truncation",
                "wrong",
                f"{percent(share)} of the {role}'s completions hit the limit of {limit} tokens before they answer.",
                f"truncated {share:.2f}, mean length {length or 0:.0f} of {limit} tokens",
                about.again(f"{flag}{2 * limit}"),
            )
        if loops >= MEANINGS["loops"].most and not harmless(loops, right):
            first = about.early[role].mean("loops") or 0.0
            yield Cause(
                "loops",
                "wrong",
                f"{percent(loops)} of the {role}'s completions repeat themselves and are stopped.",
                f"loops {loops:.2f}, {first:.2f} at first",
                about.again(about.taught() if 2 * first > loops else about.slower()),
            )


def _format(about: _About) -> Iterator[Cause]:
    for role, steps in about.roles.items():
        share = steps.mean("well_formed")
        if share is not None and share < FEWEST_WELL_FORMED and not harmless(1 - share, steps.mean("accuracy")):
            few = "None" if share == 0 else f"Only {percent(share)}"
            sentence = f"{few} of the {role}'s completions are well-formed: the answer format is missing."
            yield Cause("format", "wrong", sentence, f"well_formed {share:.2f}", about.again(about.taught()))


def _silent(about: _About) -> Iterator[Cause]:
    for role, steps in about.roles.items():
        groups, silent, right = steps.groups, steps.silent, steps.mean("accuracy")
        if not groups or silent / groups < MOST_SILENT:
            continue
        judged = None if about.game.accuracy_of(role).proposals else right
        why, flag = "each group's rewards are equal", f"--group-size {2 * about.config.run.group_size}"
        if judged is not None and judged < ALL_WRONG:
            why, flag = "nearly all answers are wrong", about.taught()
        elif judged is not None and judged > ALL_RIGHT:
            why, flag = "nearly all answers are right", "--tasks HARDER"
        every = "All groups" if silent == groups else f"{silent:.0f} of {groups:.0f} groups"
        yield Cause(
            "no variance",
            "wrong" if silent == groups else "watch",
            f"{every} of the {role} give no signal: {why}.",
            f"{SILENT} {silent:.0f} of {groups:.0f}" + ("" if right is None else f", accuracy {right:.2f}"),
            about.again(flag),
        )


def _declared(about: _About) -> Iterator[Cause]:
    """The game's warnings, and its figures outside their healthy bounds."""
    sentences = warned(about.looked)
    page = f"docs/games/{about.config.game.name}.md" if file_of(about.config.game.name) is None else ""
    for said, count in sentences.items():
        evidence = f"warned at {count} of {sum(1 for _ in about.looked)} steps"
        yield Cause("warning", "wrong", f"{_capital(said).rstrip('.')}.", evidence, page)
    logs = (("game", {each.key: value_of(each, row["game"]) for each in about.game.figures}) for row in about.looked)
    means = _means(logs)["game"]
    for figure in about.game.figures:
        mean, (low, high) = means.mean(figure.key), figure.healthy
        said_already = figure.warning and sentences  # by the game's own warning
        if mean is None or figure.how == "zeros" or low <= mean <= high or said_already:
            continue
        side, bound = ("at least", low) if mean < low else ("at most", high)
        shown, healthy = (value_in_words(value, figure.unit) for value in (mean, bound))
        yield Cause(
            as_words(figure.key),
            "watch",
            f"{_capital(figure.name)}: {shown}; healthy is {side} {healthy}. {figure.about}".strip(),
            f"game.{figure.key} {mean:.2f}",
            f"lite-selfplay why {figure.key}",
        )


def _capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def _kl(about: _About) -> Iterator[Cause]:
    for role, steps in about.roles.items():
        now, first = steps.mean("kl"), about.early[role].mean("kl") or 0.0
        if now is not None and now > MEANINGS["kl"].most and now > KL_GROWS * first:
            sentence = f"The {role}'s KL explodes: {now:.2g} nats per token, {first:.2g} in the run's first quarter."
            yield Cause("kl", "wrong", sentence, f"kl {now:.2g}", about.again(about.slower()))


def too_fast(rows: Iterable[Row]) -> list[str]:
    """A sentence for each role whose seat moves far at every step of the last quarter, without being right nearly
    always or more often than in its best earlier part. Reads the streams of `rows`, in several passes."""
    found, size = list[str](), max(FEWEST_TO_COMPARE, sum(1 for _ in rows) // 4)
    steps = Counter(role for row in rows for role in row["streams"])
    left, parts = Counter(steps), defaultdict[tuple[str, int], _Means](_Means)
    row: Row = {}
    for row in rows:
        for role, stream in row["streams"].items():
            left[role] -= 1
            parts[role, left[role] // size].add(stream)
    for role in row["streams"]:
        last, right = (parts[role, 0].mean(key) for key in ("step_gap", "accuracy"))
        shares = (parts[role, part].mean("accuracy") for part in range(1, steps[role] // size))
        before = [share for share in shares if share is not None]
        if last and last > STEP_MOST and right is not None and before and right <= min(max(before), NEARLY_ALL_RIGHT):
            found.append(
                f"the {role} moves by {last:.2g} nats per token at every step without improving: its learning rate may "
                "be too high"
            )
    return found


class Stalled(NamedTuple):
    """A role that is not right more often in a run's last steps than in its first: whether its completions `shrank`,
    whether its reward rose `by_form` alone, and both in words."""

    shrank: bool
    by_form: bool
    said: str

    def remedy(self, options: Any, otherwise: str) -> str:
        """The flag that pays nothing for the form if that is the cause, by the game's `options`."""
        return FORMLESS if self.by_form and getattr(options, "format_weight", None) else otherwise


def stalled(rows: Iterable[Row]) -> Iterator[Stalled]:
    """The roles whose completions shrank, or whose reward rose, although no more of them are right. `rows`: a run's
    steps, of which the first three and the last three are compared."""
    found: dict[str, tuple[list[Row], deque[Row]]] = {}
    row: Row = {}
    for row in rows:
        for role, stream in row["streams"].items():
            first, last = found.setdefault(role, ([], deque(maxlen=ENDS)))
            (first if len(first) < ENDS else last).append(stream)
    for role in row["streams"]:
        ends = found[role]
        if len(ends[1]) < ENDS:
            continue
        means = _means((number, step) for number, end in enumerate(ends) for step in end)
        (was, now), (long, short), (low, high), (loose, formed) = (
            [means[number].mean(key) or 0.0 for number in (0, 1)]
            for key in ("accuracy", "tokens_mean", "reward_mean", "well_formed")
        )
        noise = sqrt(sum(1 / sum(number_of(step.get("completions")) or 1 for step in end) for end in ends))
        risen = now > was + sqrt(was * (1 - was)) * noise
        shrank, by_form = short < SHRUNK * long, high > low and formed > loose + noise / 2
        if risen or not (shrank or by_form) or all(each.mean("accuracy") is None for each in means.values()):
            continue
        more = f"{'no' if now <= was else 'hardly'} more of them are right ({was:.0%} -> {now:.0%})"
        short_of = f"the {role}'s completions shrank from {long:.0f} to {short:.0f} tokens, and {more}"
        form = f"reward rose from {low:.2f} to {high:.2f} by the form alone ({loose:.0%} -> {formed:.0%} in form)"
        if not shrank:
            said = f"the {role}'s {form}; {more.replace('them', 'its completions')}"
        else:
            said = f"{short_of}; its {form}" if by_form else short_of
        yield Stalled(shrank, by_form, said)


def _lost(about: _About) -> Iterator[Cause]:
    """Reasoning that is lost, and rewards that rise by the form alone."""
    for found in stalled(about.rows):
        yield Cause(
            "reasoning" if found.shrank else "form alone",
            "wrong" if found.shrank else "watch",
            f"{_capital(found.said)}.",
            f"the first {ENDS} steps and the last {ENDS}",
            about.again(found.remedy(about.game.Options(**about.config.game.options), about.slower())),
        )


def _rate(about: _About) -> Iterator[Cause]:
    for said in too_fast(about.rows):
        yield Cause("rate", "watch", f"{_capital(said)}.", f"step_gap above {STEP_MOST:g}", about.again(about.slower()))


def _measured(about: _About) -> Iterator[Cause]:
    """Whether held-out accuracy fell during training, if the run's last step is diagnosed."""
    found = changes(RunFolder.open(about.path).evaluations()) if about.at_end else []
    if lower := [str(change) for change in found if change.sure and (change.points or 0.0) < 0]:
        sentence = "Held-out accuracy is lower than before training: a lower learning rate may help."
        yield Cause("worse", "wrong", sentence, "; ".join(lower), about.again(about.slower()))


def _sampler(about: _About) -> Iterator[Cause]:
    for key, name, sentence, flags in (
        (
            "sampler_what",
            "sampler check",
            "completions sampled with other weights than those being trained, and updated nothing.",
            ["--backend transformers", "--precision fp32"],
        ),
        ("nonfinite_what", "not finite", "a number that is not finite, and updated nothing.", [about.slower()]),
    ):
        said = (str(row[key]) for row in about.looked if row.get(key))
        for count, last in deque(enumerate(said, 1), maxlen=1):
            had = f"{count} of {sum(1 for _ in about.looked)} steps had {sentence}"
            yield Cause(name, "wrong", had, last, about.again(*flags))


def _facts(about: _About) -> Iterator[str]:
    for role, steps in about.roles.items():
        reward, right = steps.mean("reward_mean"), steps.mean("accuracy")
        words = (
            "" if reward is None else f"reward {reward:.2f}",
            "" if right is None else f"{percent(right)} {about.game.accuracy_of(role).word}",
        )
        yield f"{role}: {', '.join(filter(None, words)) or 'recorded only'}"


# The checks, in the order of their findings.
CHECKS: tuple[Callable[[_About], Iterator[Cause]], ...] = (
    _lost, _truncated, _format, _silent, _declared, _kl, _rate, _measured, _sampler,
)  # fmt: skip

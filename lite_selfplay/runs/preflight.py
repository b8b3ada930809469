"""Before the first step: a little of the game is really played, and the largest microbatch really computed.

At most 16 completions or a minute say what a run has to learn from, whether its update fits into memory and how long a
step takes. Nothing of the run is changed by it: the game, its problems and its seeds are others, the gradient is thrown
away. A run that cannot learn is refused; what is only doubtful is said, in the words of `why`.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lite_selfplay.config import RunConfig
from lite_selfplay.config.guard import unnoticed
from lite_selfplay.data import Episode
from lite_selfplay.errors import GameError, PreflightError, SaveFailed, TrainingError
from lite_selfplay.games import Game
from lite_selfplay.games.presentation import percent
from lite_selfplay.models.chat import Chat
from lite_selfplay.runs.budget import sampling_speed
from lite_selfplay.runs.fit import Fit, Load, largest_computed, step_seconds
from lite_selfplay.runs.folder import PREFLIGHT
from lite_selfplay.runs.report.diagnosis import Cause, foreseen
from lite_selfplay.runs.report.steps import only_finite
from lite_selfplay.runs.small_step import NOBODYS_STEP, Enough, SmallTable, small_game, streams_of
from lite_selfplay.stats import clopper_pearson
from lite_selfplay.tasks import Source
from lite_selfplay.tasks.files import write_whole
from lite_selfplay.training.progress import OutOfTime, Poll, Progress, clock, printable
from lite_selfplay.training.trainer import SelfPlayTrainer
from lite_selfplay.verify import Verifier
from lite_selfplay.verify.reward_functions import RewardFunction

SAMPLES, LEAST, SECONDS = 16, 8, 60.0
"""The most completions that are sampled, the fewest that a run is refused by, and the most seconds that it takes."""
SAMPLING = 2 / 3
"""The share of these seconds that completions may take, by the speed that was measured."""
SHARE = 1 / 20
"""The most of `run.minutes` that it takes."""
NEARLY_FULL = 0.9


@dataclass(frozen=True)
class Lookout:
    """What a run is looked at with: its parts, none of which is changed. `guarded` is where its game plays."""

    config: RunConfig
    game: Game
    trainer: SelfPlayTrainer
    chat: Chat
    verifier: Verifier
    sources: Mapping[str, Source]
    max_completion_tokens: int
    reward: RewardFunction | None
    path: Path
    progress: Progress
    poll: Poll
    guarded: Callable[[], AbstractContextManager[None]]


@dataclass(frozen=True)
class Preflight:
    """What was seen before the first step.

    `streams` are as in `metrics.jsonl`, as far as they are known. `step_s`: seconds that a step is expected to take,
    None where that cannot be told; `steps` of them are asked for, None where the game ends by itself. `notes` say what
    could not be done. `refused` says why the run cannot learn and what mends it; empty where it may.
    """

    seconds: float
    group_size: int
    problems: int
    streams: Mapping[str, Mapping[str, Any]]
    fit: Fit | None
    step_s: float | None
    steps: int | None
    notes: Sequence[str] = ()
    findings: Sequence[Cause] = ()
    refused: str = ""

    @property
    def samples(self) -> int:
        return sum(stream["completions"] for stream in self.streams.values())

    def lines(self, game: type[Game]) -> list[str]:
        """What is told of it, a sentence a line."""
        of = f", {self.problems} problems in groups of {self.group_size}" if self.samples else ""
        lines = [f"pre-flight: {self.samples} completions{of}, in {self.seconds:.0f} s"]
        lines += [_stream_line(game, role, stream) for role, stream in self.streams.items()]
        lines += [self.fit.line()] if self.fit else []
        if self.step_s is not None:
            whole = f", {self.steps} of them about {clock(self.step_s * self.steps)}" if self.steps else ""
            lines.append(f"a step takes about {self.step_s:.1f} s{whole}; evaluations come on top")
        return [*lines, *self.notes]

    def to_json(self, game: type[Game]) -> dict[str, Any]:
        """The object that `preflight.json` holds; `lines` is what `why` shows of it."""
        found: dict[str, Any] = only_finite({"samples": self.samples, **asdict(self), "lines": self.lines(game)})
        return found


def wanted(config: RunConfig) -> bool:
    """Whether there is a pre-flight: where nobody says, for every base that is not random."""
    asked = config.run.preflight
    return config.model.name.strip().lower() != "tiny" if asked is None else asked


def preflight(run: Lookout) -> Preflight:
    """Look, write `preflight.json`, and say what was found.

    Raises PreflightError where the run cannot learn, SaveFailed where the file cannot be written.
    """
    run.progress.phase("pre-flight")
    with unnoticed():
        found = _looked(run)
    text = json.dumps(found.to_json(type(run.game)), indent=1, allow_nan=False) + "\n"
    try:
        write_whole(run.path / PREFLIGHT, text)
    except OSError as error:
        raise SaveFailed(f"cannot write {run.path / PREFLIGHT}: {error.strerror or error}") from None
    for line in found.lines(type(run.game)):
        run.progress.say(line)
    if found.refused:
        raise PreflightError(
            f"pre-flight: {found.refused}. To train all the same: lite-selfplay train --resume "
            f"{run.path}{run.config.rollouts.again}, or --no-preflight on a new run"
        )
    for cause in found.findings:
        run.progress.warn(f"pre-flight: {cause.sentence} {f'Try: {cause.next}' if cause.next else ''}".rstrip())
    return found


def _looked(run: Lookout) -> Preflight:
    """Play and compute what fits into the time, and judge it."""
    started, config = time.monotonic(), run.config
    limit = min(SECONDS, SHARE * 60 * config.run.minutes or SECONDS)
    rollouts, notes = run.game.rollouts_per_step(), list[str]()
    played = _Played(run.game)
    with TemporaryDirectory(prefix="lite-selfplay-") as aside, _uncounted(run.verifier):
        table = _table(run, Path(aside))
        try:
            with run.poll.within(limit):
                played.step(run, table, rollouts or SAMPLES, SAMPLING * limit)
        except Enough:
            pass
        except OutOfTime:
            notes.append(_too_slow(played.speed, rollouts, run))
        except GameError as error:
            notes.append(f"so small a step could not be played: {_short(error)}")
        streams = streams_of(table, played.seats, played.episode)
    load, fit = Load(run.trainer, config, run.max_completion_tokens, table.said, played.seats), None
    try:
        with run.poll.within(max(1.0, limit - (time.monotonic() - started))):
            fit = largest_computed(load)
    except OutOfTime:
        notes.append("the largest microbatch was not computed to its end: it takes longer than the time left for it")
    except TrainingError as error:
        notes.append(f"the largest microbatch could not be computed: {_short(error)}")
    found = Preflight(
        seconds=round(time.monotonic() - started, 2),
        group_size=played.game.group_size,
        problems=played.game.problems_per_step,
        streams=streams,
        fit=fit,
        step_s=step_seconds(load, rollouts, played.speed, fit),
        steps=None if run.game.open_ended else config.run.steps,
        notes=notes,
    )
    return _judged(run, found, played.episode)


def _too_slow(speed: float, rollouts: int | None, run: Lookout) -> str:
    """What is known where completions did not come to their end in time."""
    words = "not all completions came to their end in the time for this"
    if not speed:
        return f"{words}, nor could the speed of sampling be measured"
    most = (
        ""
        if rollouts is None
        else f": a step of {rollouts} completions may take {clock(_longest(run) * rollouts / speed)}"
    )
    return f"{words}; sampling makes about {speed:.0f} tokens/s{most}"


def _short(error: Exception) -> str:
    """What an error says on one line: that of a user's own game may be anything."""
    return " ".join(printable(str(error)[:2000]).split())[:500]


def _longest(run: Lookout) -> int:
    """The most tokens of any role's completion."""
    return max(role.sampling(run.max_completion_tokens).max_tokens for role in run.config.roles.values())


class _Played:
    """A small step, as far as it came: the game and its seats, the speed of sampling, and the episode at its end."""

    def __init__(self, game: Game):
        self.game, self.seats, self.speed = game, game.seats(0), 0.0
        self.episode: Episode | None = None

    def step(self, run: Lookout, table: SmallTable, rollouts: int, seconds: float) -> None:
        """Play as many completions, up to 16, as the time allows where each is as long as it may be."""
        table.open(NOBODYS_STEP, self.seats)
        backend, probe = run.trainer.backend, run.chat.encode("Count from one to one hundred.").ids
        self.speed = sampling_speed(backend, backend.adapters.seats[0], probe, min(SAMPLES, rollouts))
        table.most = int(min(SAMPLES, max(2, seconds * self.speed / _longest(run))))
        self.game = small_game(run.config, table.most)
        self.seats = self.game.seats(0)
        table.open(NOBODYS_STEP, self.seats)
        with run.guarded():
            episode = self.game.play(0, table)
        self.episode = episode if isinstance(episode, Episode) else None  # a user's own may return anything


@contextmanager
def _uncounted(verifier: Verifier) -> Iterator[None]:
    """A context after which the run's checker has counted nothing; its processes are the run's own, started early."""
    before = replace(verifier.counters)
    try:
        yield
    finally:
        verifier.counters = before


def _table(run: Lookout, aside: Path) -> SmallTable:
    """A table on the run's problems from the beginning, whose game writes elsewhere."""
    seed, sources = run.config.run.seed, run.sources.items()
    return SmallTable(
        run.trainer.backend,
        run.chat,
        run.verifier,
        {name: Source(own.problems, seed=seed, name=name, may_be_empty=True) for name, own in sources},
        run.config,
        max_completion_tokens=run.max_completion_tokens,
        reward=run.reward,
        progress=run.progress,
        poll=run.poll,
        folder=aside / "collections",
    )


# Judging


def _stream_line(game: type[Game], role: str, stream: Mapping[str, Any]) -> str:
    words = {"accuracy": game.accuracy_of(role).word, "well_formed": "well-formed", "truncated": "truncated"}
    said = [f"{percent(stream[key])} {word}" for key, word in words.items() if stream[key] is not None]
    if (groups := stream.get("groups")) is not None:
        said.append(f"{groups - stream['zero_variance_groups']} of {groups} groups with variance")
    said.append(f"{stream['tokens_mean']:.0f} tokens")
    return f"{role} {stream['seat']}: {', '.join(said)}"


def _judged(run: Lookout, found: Preflight, episode: Episode | None) -> Preflight:
    """The same with what is doubtful, and why the run is refused where it is."""
    row = {"step": 0, "streams": found.streams, "seats": {}, "game": dict(episode.log) if episode else {}}
    causes = foreseen(run.path, run.config, type(run.game), row)
    if _varied(found):  # the groups are few and small: that one role has none with variance says little
        causes = [cause for cause in causes if cause.name != "no variance"]
    if (fit := found.fit) and (fit.asked or fit.used > NEARLY_FULL * fit.of):
        tokens = fit.tokens if fit.asked else fit.tokens // 2
        causes.append(
            Cause("memory", "watch", f"Memory is short: {fit.line()}.", "", f"run.microbatch_tokens={tokens}")
        )
    return replace(found, findings=causes, refused=_refusal(found, causes))


def _varied(found: Preflight) -> bool:
    """Whether the rewards of any group differ."""
    return any(s.get("groups", 0) > s.get("zero_variance_groups", 0) for s in found.streams.values())


def _refusal(found: Preflight, causes: Sequence[Cause]) -> str:
    """Why nothing can be learned: no group has variance, and nothing is right or well-formed, or nothing ends."""
    streams = list(found.streams.values())
    if _varied(found) or found.samples < LEAST:
        return ""
    judged = [s for s in streams if s["accuracy"] is not None]
    count = sum(s["completions"] for s in judged)
    nothing = count >= LEAST and not any(s["accuracy"] or s["well_formed"] for s in judged)
    cut = all(s["truncated"] == 1.0 for s in streams)
    if not nothing and not cut:
        return ""
    named = [cause for cause in causes if cause.name == ("truncation" if cut else "format")]
    mended = f". What mends it: {named[0].next}" if named else ""
    if cut:
        return f"each of {found.samples} completions was cut off at the token limit, and no group has variance{mended}"
    high = percent(round(clopper_pearson(0, count)[1], 2))
    return (
        f"none of {count} completions was right or well-formed (with 95% confidence at most {high} are), and no group "
        f"has variance: there is nothing to learn from{mended}"
    )

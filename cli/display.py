"""What a run looks like on a terminal: a live region at the bottom, finished lines scrolling above it.

`Display` keeps what it is called with in one frozen `View`; `Screen` draws a view. Live draws in a thread of its own,
which only ever reads a whole view, so nothing here needs a lock. Completions are shown as plain text: what could drive
a terminal is taken out of them, and rich reads no markup in them.
"""

import contextlib
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from types import TracebackType
from typing import Any, Self

import typer
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from lite_selfplay.games import Game
from lite_selfplay.games.presentation import Row, Transcript, number_of, value_in_words
from lite_selfplay.runs.report.steps import agreement_lines
from lite_selfplay.runs.report.transcripts import earned, outcome
from lite_selfplay.training.progress import Pace, PlainProgress, Progress, clock, how_far, printable
from lite_selfplay.training.ranks import here
from lite_selfplay_cli.streams import outlast_readers

HEARTBEAT_S = 5.0
REFRESHES_PER_S = 4
RECENT = 10
"""Steps that running means are over."""

WIDE = 84
"""Columns from which a transcript's completions stand side by side."""

_CUT = "[…]"
_LONGEST = 4000


@contextlib.contextmanager
def make_progress(console: Console | None = None) -> Iterator[Progress]:
    """Where a run's progress is shown: a live display if stdout is a terminal that can show one, otherwise plain lines.

    Lines go to stdout and warnings to stderr, at least one every few seconds. However it is left, the terminal is as it
    was before. When the terminal or whoever else reads is gone, the run goes on unseen. Of several processes that play
    a run the first one shows it.
    """
    if not here().main:
        yield Progress()
        return
    if console is None:
        outlast_readers()
        console = Console()
    if console.is_interactive and console.file.isatty() and console.encoding.lower().startswith("utf"):
        with Display(console) as display:
            yield display
    else:
        yield PlainProgress(typer.echo, HEARTBEAT_S, warn=lambda line: typer.echo(line, err=True))


@dataclass(frozen=True)
class View:
    """All that the live region shows. Times are the display's clock's, in seconds."""

    game: type[Game] = Game
    phase: str = ""
    total: int | None = None
    done: int = 0
    note: str = ""
    phase_since: float = 0.0
    advanced_at: float = 0.0
    part_seconds: float | None = None
    activity: str = ""
    activity_since: float = 0.0
    tokens: str = ""
    metrics: Mapping[str, Any] | None = None
    accuracies: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    step_seconds: tuple[float, ...] = ()
    stepping: str = ""
    first_step: int = 0
    counted: Mapping[str, float] = field(default_factory=dict)
    transcript: Transcript | None = None
    evaluations: tuple[tuple[str, Mapping[str, Any]], ...] = ()

    def seconds_left(self, now: float) -> float | None:
        """Time left in the phase, from the last steps or from the parts of it that were done since it began here.

        None where nothing tells, and where it takes longer than that.
        """
        if self.total is None:
            return None
        steps = fmean(self.step_seconds) if self.step_seconds and self.phase == self.stepping else None
        each = self.part_seconds if steps is None else steps
        if each is None:
            return None
        left = each * (self.total - self.done) - (now - self.advanced_at)
        return left if left > 0 else None


class Display(Progress):
    """A run on a terminal, while the context is open."""

    def __init__(self, console: Console, time_now: Callable[[], float] = time.monotonic):
        self._console, self._now = console, time_now
        self._view = View()
        self._pace, self._worked = Pace(time_now()), False  # worked: whether there was a tick since the last part
        self._live = Live(
            console=console,
            get_renderable=lambda: Screen(self._view, self._now()),
            refresh_per_second=REFRESHES_PER_S,
            transient=True,
        )

    def __enter__(self) -> Self:
        self._live.start()
        # A second Ctrl-C ends the process at once, and must not leave a terminal without a cursor.
        self._console.show_cursor(True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def say(self, sentence: str) -> None:
        self._print(sentence)

    def warn(self, sentence: str) -> None:
        self._print(f"warning: {sentence}", "yellow")

    def phase(self, name: str, total: int | None = None) -> None:
        now = self._now()
        self._pace, self._worked = Pace(now), False
        self._view = replace(
            self._view,
            phase=name,
            total=total,
            done=0,
            part_seconds=None,
            note="",
            activity="",
            tokens="",
            phase_since=now,
            activity_since=now,
        )

    def advance(self, done: int, note: str = "") -> None:
        now = self._now()
        self._pace.at(now, done, free=not self._worked)
        self._worked = False
        self._view = replace(self._view, done=done, note=note, advanced_at=now, part_seconds=self._pace.each)

    def tick(self) -> None:
        self._worked = True

    def activity(self, text: str) -> None:
        self._view = replace(self._view, activity=text, tokens="", activity_since=self._now())

    def tokens(self, done: int, most: int | None) -> None:
        self._view = replace(self._view, tokens=how_far(done, most))

    def begin(self, game: type[Game]) -> None:
        self._view = replace(self._view, game=game)

    def step(self, metrics: Mapping[str, Any], transcript: Transcript | None, line: str) -> None:
        self._print(line)
        now, view, log = self._now(), self._view, metrics["game"]
        accuracies = dict(view.accuracies)
        for role, stream in metrics["streams"].items():
            if stream["accuracy"] is not None:
                accuracies[role] = (*accuracies.get(role, ()), stream["accuracy"])[-RECENT:]
        summed = [figure for figure in view.game.figures if figure.summed]
        new = {figure.word: value for figure in summed if (value := number_of(log.get(figure.key))) is not None}
        self._view = replace(
            view,
            done=metrics["step"] + 1,
            advanced_at=now,
            stepping=view.phase,
            step_seconds=(*view.step_seconds, metrics["wall_s"]["total"])[-RECENT:],
            first_step=view.first_step if view.metrics else metrics["step"],
            metrics=metrics,
            accuracies=accuracies,
            counted={word: view.counted.get(word, 0) + count for word, count in new.items()},
            transcript=transcript,
        )

    def evaluated(self, name: str, result: Mapping[str, Any], line: str) -> None:
        self._print(f"{name}: {line}")
        self._view = replace(self._view, evaluations=(*self._view.evaluations, (name, result)))

    def finished(self, report: Sequence[str]) -> None:
        self._live.stop()
        for sentence in report:
            self._console.print(_text(sentence), soft_wrap=True)  # a command stays whole when it is copied

    def _print(self, sentence: str, style: str = "") -> None:
        self._console.print(_text(sentence, style))


class Screen:
    """A view, drawn for the size a terminal has at that moment."""

    def __init__(self, view: View, now: float):
        self._view, self._now = view, now

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        view, width = self._view, options.max_width
        if not view.phase:
            return
        parts: list[RenderableType] = [Text(), self._progress(), self._doing()]
        room = console.size.height - 1 - len(parts)
        if view.evaluations:
            parts.append(_one_line(self._evaluations()))
            room -= 1
        if view.metrics is not None and room >= (
            needed := 4 + len(view.metrics["streams"]) + len(agreement_lines(view.metrics))
        ):
            parts += [Text(), _streams(view, view.metrics, width), *_counters(view, view.metrics)]
            room -= needed
            parts += _shown(console, view.game, view.transcript, width, room) if view.transcript else []
        yield Group(*parts)

    def _progress(self) -> RenderableType:
        view = self._view
        spent = clock(self._now - view.phase_since)
        if not view.total:
            return _one_line(_text(view.phase, "bold").append(f"  {spent}", "dim"))
        left = view.seconds_left(self._now)
        row = Table.grid(padding=(0, 1), expand=True)
        row.add_column(no_wrap=True, overflow="ellipsis", max_width=30)
        row.add_column(ratio=1)
        row.add_column(no_wrap=True, justify="right")
        times = f"{spent} gone" if left is None else f"{spent} gone, {clock(left)} left"
        name = _text(view.phase, "bold").append(f" {view.done}/{view.total}", "not bold")
        row.add_row(name, ProgressBar(view.total, view.done), Text(times))
        return row

    def _doing(self) -> Text:
        """What is being done now; its time goes on, so that long work does not look dead."""
        view = self._view
        spent = clock(self._now - view.activity_since)
        doing = _text(", ".join(filter(None, [view.activity or "at work", spent, view.tokens])), "cyan")
        return _one_line(doing.append(f"   {printable(view.note)}", "dim") if view.note else doing)

    def _evaluations(self) -> Text:
        latest = [f"{name} {result['pass_at_1']:.1%}" for name, result in self._view.evaluations[-3:]]
        return _text("best pass@1: " + " -> ".join(latest))


def _streams(view: View, metrics: Mapping[str, Any], width: int) -> Table:
    """A row a stream: who played which role, how well at this step and lately."""
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 1 if width < WIDE else 2))
    table.add_column("role", no_wrap=True, overflow="ellipsis")
    table.add_column("seat", no_wrap=True, overflow="ellipsis")
    right = min((view.game.accuracy_of(role).word for role in metrics["streams"]), default="right")
    names = [right, f"last {RECENT}", "reward", "well-formed" if width > 61 else "format", "tokens"]
    names = names if width > 55 else names[:3]
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    for role, stream in metrics["streams"].items():
        recent = view.accuracies.get(role)
        reward, tokens = stream["reward_mean"], stream["tokens_mean"]
        cells = [
            _share(stream["accuracy"]),
            _share(fmean(recent) if recent else None),
            "-" if reward is None else f"{reward:.2f}",
            _share(stream["well_formed"]),
            "-" if tokens is None else f"{tokens:.0f}",
        ]
        table.add_row(_text(role), _text(str(stream["seat"])), *cells[: len(names)])
    return table


def _counters(view: View, metrics: Mapping[str, Any]) -> list[Text]:
    """The game's figures at this step and in all, whose weights sampled, and the speed: a line each."""
    now = ", ".join(view.game.step_words(metrics["game"]))
    in_all = ", ".join(f"{word} {value_in_words(count, 'number')}" for word, count in view.counted.items())
    figures = "; ".join(filter(None, [now, in_all and f"since step {view.first_step + 1}: {in_all}"]))
    tokens, seconds = metrics["tokens"]["generated"], metrics["wall_s"]["generate"]
    speed = f"{tokens:,} tokens at {tokens / max(seconds, 1e-9):.0f}/s, {metrics['wall_s']['total']:.1f} s a step"
    return [_one_line(_text(line)) for line in (figures, *agreement_lines(metrics), speed) if line]


def _shown(console: Console, game: type[Game], transcript: Transcript, width: int, room: int) -> list[RenderableType]:
    """The problem, and below it the completions: side by side, or one below the other where it is narrow."""
    rows = transcript.rows
    beside = len(rows) == 2 and width >= WIDE
    lines = min(8, (room - 4) // (1 if beside else len(rows)) - 2)
    if lines < 1:
        return []
    title = f"step {transcript.step + 1}, {transcript.subject}: {transcript.kind}"
    inner = ((width - 1) // 2 if beside else width) - 4
    sides: list[RenderableType] = [_side(game, row, _excerpt(console, row["text"], inner, lines)) for row in rows]
    if beside:
        grid = Table.grid(expand=True, padding=(0, 1), pad_edge=False)
        grid.add_column(ratio=1)
        grid.add_column(ratio=1)
        grid.add_row(*sides)
        sides = [grid]
    return [Text(), _one_line(_text(title, "bold")), _excerpt(console, transcript.problem, width, 2), *sides]


def _side(game: type[Game], row: Row, completion: Text) -> Panel:
    """A completion in a frame. Right and wrong are a sign, a word and a colour."""
    sign, style = {True: ("\u2713 ", "green"), False: ("\u2717 ", "red")}.get(outcome(game, row), ("", ""))
    title = _text(f"{row['role']} {row['seat']}: ").append(f"{sign}{printable(game.verdict(row))}", style)
    return Panel(completion, title=title.append(earned(row)), title_align="left", border_style=style)


def _excerpt(console: Console, text: str, width: int, most: int) -> Text:
    """At most so many lines of a text: its beginning and, since answers stand last, its end, with a mark between."""
    text = re.sub(r"\n\s*\n", "\n", printable(text).strip())
    if not text:
        return Text("(nothing)", "dim")
    if len(text) > _LONGEST:
        text = text[: _LONGEST // 2] + "\n" + text[-_LONGEST // 2 :]
    lines = [line.plain.rstrip() for line in Text(text).wrap(console, width, overflow="fold")]
    if len(lines) > most:
        head, tail = lines[: most // 2], lines[most // 2 - most :]
        while cell_len(_CUT) + cell_len(tail[0]) > width and tail[0]:
            tail[0] = tail[0][1:]
        lines = [*head, _CUT + tail[0], *tail[1:]]
    return Text("\n".join(lines), no_wrap=True, overflow="crop")


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _text(sentence: str, style: str = "") -> Text:
    return Text(printable(sentence).replace("\n", " "), style)


def _one_line(text: Text) -> Text:
    text.no_wrap, text.overflow = True, "ellipsis"
    return text

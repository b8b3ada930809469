"""A run on a terminal: finished lines scroll above a progress bar.

Progress output that cannot be written (a terminal that is gone, a closed pipe, a full disk) does not end a run. If the
output is the result, a failed write is an error.

Text from models and files is shown as plain text: without control characters, and rich reads no markup in it.
"""

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self, TextIO, cast

import typer
from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.table import Column
from rich.text import Text

from lite_selfplay.training.progress import PlainProgress, Progress, how_far, printable
from lite_selfplay.training.ranks import here


@contextlib.contextmanager
def make_progress(console: Console | None = None, verbose: bool = False) -> Iterator[Progress]:
    """Show a run's progress: a bar if stdout is a terminal that can show one, otherwise plain lines. Lines go to stdout
    and warnings to stderr, at least one every half minute. The terminal is restored on every exit. If the terminal or
    the pipe's reader is gone, the run continues silently. Of several processes only the first prints."""
    if not here().main:
        yield Progress()
        return
    if console is None:
        outlast_readers()
        console = Console()
    if console.is_interactive and console.file.isatty() and console.encoding.lower().startswith("utf"):
        with Display(console, verbose) as display:
            yield display
    else:
        yield PlainProgress(typer.echo, warn=lambda line: typer.echo(line, err=True), verbose=verbose)


class Display(Progress):
    """A run on a terminal, while the context is open."""

    def __init__(self, console: Console, verbose: bool = False):
        self._console, self.verbose = console, verbose
        name, doing = (Column(no_wrap=True, overflow="ellipsis", ratio=part) for part in (2, 3))
        self._bars = Bars(
            TextColumn("{task.description}", style="bold", markup=False, table_column=name),
            BarColumn(bar_width=12),
            TextColumn("{task.fields[count]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[doing]}", style="cyan", markup=False, table_column=doing),
            console=console,
            refresh_per_second=4,
            speed_estimate_period=3600.0,  # seconds over which the pace is measured
            transient=True,
            expand=True,
        )
        self._task = self._bars.add_task("", visible=False, count="", doing="")
        self._total, self._activity, self._note = "", "", ""

    def __enter__(self) -> Self:
        self._bars.start()
        # A second Ctrl-C ends the process at once, and must not leave the cursor hidden.
        self._console.show_cursor(True)
        return self

    def __exit__(self, *error: object) -> None:
        self._bars.stop()

    def say(self, sentence: str) -> None:
        self._console.print(_text(sentence))

    def warn(self, sentence: str) -> None:
        self._console.print(_text(f"warning: {sentence}", "yellow"))

    def phase(self, name: str, total: int | None = None) -> None:
        self._bars.remove_task(self._task)
        self._total, self._activity, self._note = f"/{total}" if total else "", "", ""
        self._task = self._bars.add_task(_text(name).plain, total=total, count="", doing="")

    def advance(self, done: int, note: str = "") -> None:
        self._note = note
        self._bars.update(self._task, completed=done, count=f"{done}{self._total}")
        self._do()

    def activity(self, text: str) -> None:
        self._activity = text
        self._do()

    def tokens(self, done: int, most: int | None) -> None:
        self._do(how_far(done, most))

    def step(self, metrics: Mapping[str, Any], line: str) -> None:
        self.say(line)

    def evaluated(self, name: str, result: Mapping[str, Any], line: str) -> None:
        self.say(f"{name}: {line}")

    def finished(self, report: Sequence[str]) -> None:
        self._bars.stop()
        for sentence in report:
            self._console.print(_text(sentence), soft_wrap=True)  # so that commands can be copied whole

    def _do(self, tokens: str = "") -> None:
        doing = ", ".join(filter(None, [self._activity, tokens, self._note]))
        self._bars.update(self._task, doing=_text(doing).plain)


def _text(sentence: str, style: str = "") -> Text:
    return Text(printable(sentence).replace("\n", " "), style)


class Lasting:
    """A text stream that ignores failed writes."""

    def __init__(self, stream: TextIO):
        self._stream = stream

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            return self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def outlast_readers() -> None:
    """Let stdout and stderr ignore failed writes until the process ends."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if not isinstance(stream, Lasting):
            setattr(sys, name, cast("TextIO", Lasting(stream)))

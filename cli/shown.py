"""How a chat is shown: drawn on a terminal, or a line each as text or JSON. What a model said drives no terminal."""

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import typer

from lite_selfplay.training.progress import printable

if TYPE_CHECKING:
    from rich.table import Table

Entry = Mapping[str, Any]

NARROWEST = 30
"""Columns of the terminal that a speaker has at the least; with fewer, they stand one below the other."""
LONGEST = 20_000
"""Characters of a text that a terminal shows; a pipe has all."""


class Lines:
    """Standard output as a file or a pipe has it: text, or with `as_json` an object a line, in ASCII alone."""

    def __init__(self, as_json: bool):
        self._as_json = as_json

    def entry(self, entry: Entry) -> None:
        typer.echo(json.dumps(entry, allow_nan=False) if self._as_json else as_text(entry))

    def say(self, sentence: str) -> None:
        typer.echo(printable(sentence), err=True)

    def refuse(self, sentence: str) -> None:
        if self._as_json:
            typer.echo(json.dumps({"error": sentence}))
        else:
            self.say(f"error: {sentence}")

    def waits(self, name: str) -> None:
        """Say nothing of who speaks."""


class Screen:
    """A terminal: speakers side by side."""

    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console(highlight=False, markup=False)
        self._status = self._console.status("")

    def entry(self, entry: Entry) -> None:
        self._status.stop()
        self._console.print(drawn(entry, self._console.width))

    def say(self, sentence: str) -> None:
        self._console.print(printable(sentence), style="dim")

    def refuse(self, sentence: str) -> None:
        self._status.stop()
        self._console.print(printable(sentence), style="red")

    def waits(self, name: str) -> None:
        """Show who speaks, until the entry or the refusal."""
        self._status.update(f"{name} speaks")
        self._status.start()


def as_text(entry: Entry) -> str:
    """An entry as lines of text."""
    return printable("\n".join([f"> {_asked(entry)}", *(f"{title}: {text}" for title, text, _ in _parts(entry))]))


def drawn(entry: Entry, width: int) -> "Table":
    """An entry as panels side by side, as many as a terminal of so many columns has room for."""
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    cells = []
    for title, text, facts in _parts(entry):
        more = f"\u2026 ({len(text) - LONGEST:,} more characters)" if len(text) > LONGEST else ""
        body = Text(printable(text[:LONGEST]).strip("\n") + more or "(nothing)", overflow="fold")
        below = Text(printable(facts), "dim") if facts else None
        cells.append(
            Panel(body, title=Text(printable(title)), subtitle=below, title_align="left", subtitle_align="left")
        )
    across = max(1, min(len(cells), width // NARROWEST))
    grid = Table.grid(expand=True)
    for _ in range(across):
        grid.add_column(ratio=1)
    for start in range(0, len(cells), across):
        grid.add_row(*cells[start : start + across])
    return grid


def _asked(entry: Entry) -> str:
    kind = next(key for key in ("message", "follow", "duel") if key in entry)
    return f"{'' if kind == 'message' else f'/{kind} '}{entry[kind]}"


def _parts(entry: Entry) -> Iterator[tuple[str, str, str]]:
    """What is shown of an entry: title, text, and what is known of it; of a cascade also what the second seat saw."""
    for name, answer in entry["answers"].items():
        *drafts, last = answer.get("stages", [answer])
        for draft in drafts:
            yield f"{draft['seat']} drafts", draft["text"], _read(draft)
            yield f"what {last['seat']} saw of it", last["saw"] or "(nothing)", ""
        cut = {"length": ", cut off", "loop": ", ended as a loop"}.get(answer["finish"], "")
        title = f"{last['seat']} answers" if drafts else name
        yield title, answer["text"], f"{_read(answer)}, {answer['tokens']} tokens{cut}"


def _read(answer: Entry) -> str:
    return "no answer" if answer["answer"] is None else f"answer {answer['answer'][:40]}"

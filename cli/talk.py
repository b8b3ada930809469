"""What `chat` and `serve` share: their flags, where they say how loading goes; and conversations as text and files."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from lite_selfplay.errors import ConfigError

if TYPE_CHECKING:
    from lite_selfplay.runs.talk.conversation import Entry
    from lite_selfplay.training.progress import Progress

LONGEST_LINE = 2_000_000
"""Characters of a line of input that are read; more than may be asked, so that it is refused and not cut."""

Run = Annotated[str, typer.Argument(help="A run folder, or a base model by any name that train takes.", metavar="RUN")]
Checkpoint = Annotated[
    str,
    typer.Option(help="The seats as saved last, as measured best in training, or of a step: last, best, step-20."),
]
MaxCompletionTokens = Annotated[
    int | None, typer.Option(help="Cap of an answer.", min=1, max=1_000_000, show_default="the run's, else 512")
]
Precision = Annotated[
    str | None, typer.Option(help="4bit, bf16, fp16 or fp32.", show_default="the run's; 4bit for a base model")
]


def to_stderr() -> "Progress":
    """How loading goes, beside the conversation, which alone is on stdout; nothing while somebody speaks."""
    from lite_selfplay.training.progress import Progress, printable

    class Loading(Progress):
        def say(self, sentence: str) -> None:
            typer.echo(printable(sentence), err=True)

        def warn(self, sentence: str) -> None:
            self.say(f"warning: {sentence}")

    return Loading()


def read_line(stream: "TextIO") -> str | None:
    """The next line of a stream, without its end; None after the last. Of one that is endless, what fits."""
    line = stream.readline(LONGEST_LINE)
    rest = line
    while rest and not rest.endswith("\n") and len(rest) == LONGEST_LINE:
        rest = stream.readline(LONGEST_LINE)
    return line.rstrip("\r\n") if line else None


def echo_lines(entry: "Entry") -> None:
    """An entry as lines of text."""
    typer.echo(_as_text(entry).rstrip("\n"))


def save(path: Path, entries: "Sequence[Entry]", width: int) -> None:
    """Write a conversation, as its file's name asks: JSON lines, the screen as SVG, or text; never over another file.

    Raises ConfigError.
    """
    if not entries:
        raise ConfigError("there is nothing to save yet")
    if path.suffix in (".json", ".jsonl"):
        text = "".join(json.dumps(entry, allow_nan=False) + "\n" for entry in entries)
    elif path.suffix == ".svg":
        text = as_svg(entries, width)
    else:
        text = "\n".join(map(_as_text, entries))
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ConfigError(f"{path} exists already: choose another name") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot write {path}: {getattr(error, 'strerror', None) or error}") from None


def as_svg(entries: "Sequence[Entry]", width: int) -> str:
    """A conversation as it looks on a terminal of so many columns."""
    import io
    import re

    from rich.console import Console

    from lite_selfplay_cli.columns import drawn, heading

    console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True, highlight=False)
    for entry in entries:
        console.print(heading(entry))
        console.print(drawn(entry, width))
    svg: str = console.export_svg(title="lite-selfplay chat")
    return re.sub(r"@font-face\s*\{[^}]*\}\s*", "", svg, count=2)  # rich's own two, which a viewer would fetch


def _as_text(entry: "Entry") -> str:
    """An entry as plain text, without what could drive a terminal."""
    from lite_selfplay.training.progress import printable

    kind = next(key for key in ("message", "follow", "duel", "play") if key in entry)
    command = {"message": "", "duel": f"/duel {entry.get('pair', '')} "}.get(kind, f"/{kind} ")
    parts = [f"> {command}{entry[kind]}"]
    if "answers" in entry:
        parts += [f"{name}: {_said(answer)}" for name, answer in entry["answers"].items()]
    elif kind == "duel":
        for stage in entry.get("stages", ()):
            parts += [f"what {stage['seat']} saw: {stage['saw'] or '(nothing)'}"] if stage["saw"] is not None else []
            parts.append(f"{stage['seat']}: {stage['text']}")
        parts += [_said(entry)] if entry.get("error") else []
    else:
        for who, sample in [("you", entry["you"]), *((entry["in_place_of"], other) for other in entry["others"])]:
            parts.append(f"{who}: {sample['verdict']}, reward {sample['reward']}: {sample['text']}")
        advantage = entry["you"]["advantage"]
        parts.append("no advantage" if advantage is None else f"your advantage in the group: {advantage:+.2f}")
        parts += [] if entry["reference"] is None else [f"the answer is {entry['reference']}"]
    return printable("\n".join(parts)) + "\n"


def _said(answer: "Entry") -> str:
    return f"error: {answer['error']}" if answer.get("error") else str(answer["text"])

"""A conversation on a terminal: speakers side by side while they speak, and entries as they stay on the screen.

Whatever a model said is plain text here: what could drive a terminal is taken out, and rich reads no markup in it.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from lite_selfplay.training.progress import printable

if TYPE_CHECKING:
    from lite_selfplay.runs.talk.reply import Reply

NARROWEST = 30
"""Columns of the terminal that a speaker has at the least; with fewer, they stand one below the other."""
REFRESHES_PER_S = 8
LONGEST = 20_000
"""Characters of a text that stay on the screen; `/save` keeps all."""
_COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "red")


@contextlib.contextmanager
def shown_live(console: Console, replies: "Sequence[Reply]", *, duel: bool = False) -> Iterator[None]:
    """Replies on the screen as they grow, for the length of a context; nothing of them stays."""
    screen = _Screen(replies, duel)
    with Live(console=console, get_renderable=lambda: screen, refresh_per_second=REFRESHES_PER_S, transient=True):
        yield


class _Screen:
    """Replies as far as they are, for the size a terminal has at that moment: of each the last lines that fit."""

    def __init__(self, replies: "Sequence[Reply]", duel: bool):
        self._replies, self._duel = replies, duel

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        parts = [part for reply in self._replies for part in self._parts(reply)]
        across = _across(len(parts), options.max_width)
        down = -(-len(parts) // across)
        lines = max(1, (console.size.height - 2) // down - 2)
        width = options.max_width // across - 4
        cells: list[RenderableType] = [
            Panel(_tail(console, text, width, lines), title=_plain(title), title_align="left", border_style=colour)
            for title, text, colour in parts
        ]
        yield _grid(cells, across)

    def _parts(self, reply: "Reply") -> list[tuple[str, str, str]]:
        name = reply.question.speaker
        colour = colour_of(reply.seats[-1])
        if not self._duel:
            draft = f", {reply.speaking} speaks" if len(reply.seats) > 1 and not reply.is_over else ""
            return [(f"{name}{draft}", reply.text, colour)]
        first, last = reply.seats
        found = [(f"{stage.seat} drafts", stage.completion.text, colour_of(stage.seat)) for stage in reply.stages[:1]]
        if not found:
            return [(f"{first} drafts", reply.text, colour_of(first)), (f"{last} waits", "", colour)]
        return [
            *found,
            (f"{last} answers", reply.text if not reply.stages[1:] else reply.stages[1].completion.text, colour),
        ]


def drawn(entry: Mapping[str, Any], width: int) -> RenderableType:
    """An entry of a conversation, as it stays on the screen."""
    if "play" in entry:
        return _game(entry)
    if "duel" in entry:
        return _duel(entry, width)
    cells = [_answer(name, answer) for name, answer in entry["answers"].items()]
    return _grid(cells, _across(len(cells), width))


def heading(entry: Mapping[str, Any]) -> Text:
    """What the user wrote."""
    kind = next(key for key in ("message", "follow", "duel", "play") if key in entry)
    sign = {"message": "", "follow": "/follow ", "duel": f"/duel {entry.get('pair', '')} ", "play": "/play "}[kind]
    return _plain(f"> {sign}{_cut(str(entry[kind]))}", "bold")


def colour_of(seat: str) -> str:
    """The colour of a seat, the same wherever it speaks."""
    if seat == "base":
        return "white"
    return _COLOURS[sum(seat.encode()) % len(_COLOURS)]


def _answer(name: str, answer: Mapping[str, Any]) -> Panel:
    colour = colour_of(name.rpartition("->")[2])
    if answer.get("error"):
        return Panel(_plain(answer["error"], "red"), title=_plain(name), title_align="left", border_style="red")
    return Panel(
        _body(answer["text"]),
        title=_plain(name),
        subtitle=_plain(_facts(answer), "dim"),
        title_align="left",
        subtitle_align="left",
        border_style=colour,
    )


def _facts(answer: Mapping[str, Any]) -> str:
    """`answer 24, 31 tokens in 1.2 s, cut off`."""
    read = answer.get("answer")
    ending = {"length": ", cut off", "cancelled": ", stopped"}.get(answer.get("finish", ""), "")
    said = "no answer read" if read is None else f"answer {_cut(str(read), 40)}"
    return f"{said}, {answer['tokens']} tokens in {answer['seconds']:.1f} s{ending}"


def _duel(entry: Mapping[str, Any], width: int) -> RenderableType:
    if entry.get("error"):
        return _answer(entry["pair"], entry)
    if len(entry["stages"]) < 2:
        return _answer(entry["pair"], entry)
    first, last = entry["stages"]
    read = [
        f"answer {_cut(str(s['answer']), 40)}" if s["answer"] is not None else "no answer read" for s in (first, last)
    ]
    saw = last["saw"].strip()
    cells: list[RenderableType] = [
        Panel(_body(first["text"]), title=_plain(f"{first['seat']} drafts"), subtitle=_plain(read[0], "dim"),
              title_align="left", subtitle_align="left", border_style=colour_of(first["seat"])),
        Panel(_body(saw) if saw else Text("(nothing: the draft left no recap)", "dim"),
              title=_plain(f"what {last['seat']} saw of it"), title_align="left", border_style="dim"),
        Panel(_body(last["text"]), title=_plain(f"{last['seat']} answers"), subtitle=_plain(read[1], "dim"),
              title_align="left", subtitle_align="left", border_style=colour_of(last["seat"])),
    ]  # fmt: skip
    return _grid(cells, _across(3, width))


def _game(entry: Mapping[str, Any]) -> RenderableType:
    """What a person's completion earned, beside those of the seat."""
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2))
    for name, right in (("", False), ("answer", False), ("", False), ("format", False), ("reward", True)):
        table.add_column(name, justify="right" if right else "left")
    rows = [("you", entry["you"]), *((entry["in_place_of"], other) for other in entry["others"])]
    for who, sample in rows:
        formed = {True: "well-formed", False: "not well-formed", None: ""}[sample["well_formed"]]
        reward = "-" if sample["reward"] is None else f"{sample['reward']:.2f}"
        cells = (who, _cut(str(sample["answer"] or "-"), 40), sample["verdict"], formed, reward)
        table.add_row(*(_plain(cell) for cell in cells))
    advantage, reference = entry["you"]["advantage"], entry["reference"]
    beside = (
        "no advantage: all of the group earned the same"
        if advantage is None or not entry["others"]
        else f"your advantage in the group: {advantage:+.2f}"
    )
    lines = [_plain(f"as the {entry['play']}, in the place of {entry['in_place_of']}", "bold"), table, _plain(beside)]
    if reference is not None:
        lines.append(_plain(f"the answer is {_cut(reference, 200)}"))
    return Group(*lines)


def _grid(cells: Sequence[RenderableType], across: int) -> Table:
    grid = Table.grid(expand=True)
    for _ in range(across):
        grid.add_column(ratio=1)
    for start in range(0, len(cells), across):
        grid.add_row(*cells[start : start + across])
    return grid


def _across(parts: int, width: int) -> int:
    return max(1, min(parts, width // NARROWEST))


def _tail(console: Console, text: str, width: int, most: int) -> Text:
    """The last lines of a text that fit."""
    lines = _plain(text[-4000:]).wrap(console, max(1, width), overflow="fold")
    return Text("\n").join(lines[-most:])


def _body(text: str) -> Text:
    shown = printable(_cut(text)).strip("\n")
    return Text(shown) if shown.strip() else Text("(nothing)", "dim")


def _plain(text: str, style: str = "") -> Text:
    return Text(printable(text), style)


def _cut(text: str, most: int = LONGEST) -> str:
    return text if len(text) <= most else f"{text[:most]}… ({len(text) - most:,} more characters)"

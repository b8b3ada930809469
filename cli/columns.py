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

Entry = Mapping[str, Any]

NARROWEST = 30
"""Columns of the terminal that a speaker has at the least; with fewer, they stand one below the other."""
REFRESHES_PER_S = 8
LONGEST, LONGEST_ANSWER = 20_000, 40
"""Characters of a text, and of the answer read out of it, that stay on the screen; `/save` keeps all."""
_TAIL = 4000
_COLOURS = ("cyan", "magenta", "green", "yellow", "blue")


@contextlib.contextmanager
def shown_live(console: Console, replies: "Sequence[Reply]", *, duel: bool = False) -> Iterator[None]:
    """Replies on the screen as they grow, for the length of a context; nothing of them stays."""
    screen = Growing(replies, duel=duel)
    with Live(console=console, get_renderable=lambda: screen, refresh_per_second=REFRESHES_PER_S, transient=True):
        yield


class Growing:
    """Replies as far as they are, for the size a terminal has at that moment: of each the last lines that fit.

    Live draws in a thread of its own, which only reads what a reply has said.
    """

    def __init__(self, replies: "Sequence[Reply]", *, duel: bool = False):
        self._replies, self._duel = replies, duel

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        parts = [part for reply in self._replies for part in (_both(reply) if self._duel else [_alone(reply)])]
        across = _across(len(parts), options.max_width)
        lines = max(1, (console.size.height - 2) // -(-len(parts) // across) - 2)
        width = max(1, options.max_width // across - 4)
        yield _grid([_panel(title, _tail(console, text, width, lines), seat) for title, text, seat in parts], across)


def _alone(reply: "Reply") -> tuple[str, str, str]:
    """A reply's title, its text so far, and whose colour it has."""
    name = reply.question.speaker
    speaks = f": {reply.speaking} speaks" if len(reply.seats) > 1 and not reply.is_over else ""
    return f"{name}{speaks}", reply.text, reply.seats[-1]


def _both(reply: "Reply") -> list[tuple[str, str, str]]:
    """The draft of a cascade, and the answer after it."""
    first, last = reply.seats[0], reply.seats[-1]
    if not reply.stages:
        return [(f"{first} drafts", reply.text, first), (f"{last} waits", "", last)]
    answer = reply.text if reply.saw is not None else ""
    return [(f"{first} drafts", reply.stages[0].completion.text, first), (f"{last} answers", answer, last)]


def drawn(entry: Entry, width: int) -> RenderableType:
    """An entry of a conversation, as it stays on the screen."""
    if "play" in entry:
        return _game(entry)
    cells = _duel(entry) if "duel" in entry else [_answer(*each) for each in entry["answers"].items()]
    return _grid(cells, _across(len(cells), width))


def heading(entry: Entry) -> Text:
    """What the user wrote."""
    kind = next(key for key in ("message", "follow", "duel", "play") if key in entry)
    command = {"message": "", "duel": f"/duel {entry.get('pair', '')} "}.get(kind, f"/{kind} ")
    return plain(f"> {command}{_cut(str(entry[kind]))}", "bold")


def plain(text: str, style: str = "") -> Text:
    """A text that drives no terminal and holds no markup."""
    return Text(printable(text), style)


def _answer(name: str, answer: Entry) -> Panel:
    if answer.get("error"):
        return Panel(plain(answer["error"], "red"), title=plain(name), title_align="left", border_style="red")
    ending = {"length": ", cut off", "cancelled": ", stopped"}.get(answer["finish"], "")
    facts = f"{_read(answer['answer'])}, {answer['tokens']} tokens{ending}"
    return _panel(name, _body(answer["text"]), name.rpartition("->")[2], facts)


def _duel(entry: Entry) -> list[Panel]:
    """The draft, what the rival saw of it, and its answer."""
    if entry.get("error") or len(entry["stages"]) < 2:
        return [_answer(entry["pair"], entry)]
    first, last = entry["stages"]
    saw = _body(last["saw"]) if last["saw"].strip() else Text("(nothing: the draft left no recap)", "dim")
    return [
        _panel(f"{first['seat']} drafts", _body(first["text"]), first["seat"], _read(first["answer"])),
        Panel(saw, title=plain(f"what {last['seat']} saw of it"), title_align="left", border_style="dim"),
        _panel(f"{last['seat']} answers", _body(last["text"]), last["seat"], _read(last["answer"])),
    ]


def _read(answer: str | None) -> str:
    return "no answer" if answer is None else f"answer {_cut(answer, LONGEST_ANSWER)}"


def _game(entry: Entry) -> RenderableType:
    """What a person's completion earned, beside those of the seat."""
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2))
    for name in ("", "answer", "", "format"):
        table.add_column(name)
    table.add_column("reward", justify="right")
    for who, sample in [("you", entry["you"]), *((entry["in_place_of"], other) for other in entry["others"])]:
        formed = {True: "well-formed", False: "not well-formed", None: ""}[sample["well_formed"]]
        reward = "-" if sample["reward"] is None else f"{sample['reward']:.2f}"
        answer = _cut(str(sample["answer"] or "-"), LONGEST_ANSWER)
        table.add_row(*map(plain, (who, answer, sample["verdict"], formed, reward)))
    advantage = entry["you"]["advantage"]
    beside = (
        "no advantage: all of the group earned the same, and such a group teaches nothing"
        if advantage is None or not entry["others"]
        else f"your advantage in the group: {advantage:+.2f}"
    )
    asked = f": {_cut(entry['problem'], 200)}" if entry["problem"] else ""
    title = plain(f"as {entry['play']}, in the place of {entry['in_place_of']}{asked}")
    reference = [] if entry["reference"] is None else [plain(f"the answer is {_cut(entry['reference'], 200)}")]
    return Group(title, table, plain(beside), *reference)


def _panel(title: str, body: Text, seat: str, facts: str = "") -> Panel:
    """A text in a frame of its seat's colour, the same wherever that speaks."""
    colour = "white" if seat == "base" else _COLOURS[sum(seat.encode()) % len(_COLOURS)]
    below = plain(facts, "dim") if facts else None
    return Panel(
        body, title=plain(title), subtitle=below, title_align="left", subtitle_align="left", border_style=colour
    )


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
    lines = plain(text[-_TAIL:].strip("\n")).wrap(console, width, overflow="fold")
    return Text("\n").join(lines[-most:])


def _body(text: str) -> Text:
    shown = printable(_cut(text)).strip("\n")
    return Text(shown, overflow="fold") if shown.strip() else Text("(nothing)", "dim")


def _cut(text: str, most: int = LONGEST) -> str:
    return text if len(text) <= most else f"{text[:most]}\u2026 ({len(text) - most:,} more characters)"

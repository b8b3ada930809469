"""Transcripts of a run: completions that are read together, chosen by rule and put into words.

Which they are, and what came of them, is the game's to say (`Game.transcripts`).
"""

import re
from collections.abc import Iterable, Sequence
from itertools import zip_longest

from lite_selfplay.games import Game
from lite_selfplay.games.presentation import Row, Transcript
from lite_selfplay.runs.report.card import code, plain
from lite_selfplay.training.progress import printable

RULES = {
    "kinds": "the latest transcript of each kind in turn, the most telling kind first",
    "first": "the first transcripts of the run, in the order they were played",
    "spread": "the first transcript of evenly spaced steps, from the first step to the last",
}
"""How transcripts are chosen, so that nobody picks the nice ones by hand."""
LONGEST_NAME = 200
"""Characters of a problem's name in a title."""


def choose_transcripts(game: type[Game], rows: Iterable[Row], count: int, rule: str = "kinds") -> list[Transcript]:
    """At most `count` transcripts of a run by one of `RULES`."""
    found = game.transcripts(rows)
    if rule == "first":
        return found[:count]
    return _spread(found, count) if rule == "spread" else _latest_of_each_kind(game, found, count)


def _latest_of_each_kind(game: type[Game], found: Sequence[Transcript], count: int) -> list[Transcript]:
    by_kind: dict[str, list[Transcript]] = {kind: [] for kind in game.kinds()}
    for transcript in reversed(found):
        by_kind.setdefault(transcript.kind, []).append(transcript)
    return [each for turn in zip_longest(*by_kind.values()) for each in turn if each is not None][:count]


def _spread(found: Sequence[Transcript], count: int) -> list[Transcript]:
    """A single one is of the last step."""
    first: dict[int, Transcript] = {}
    for transcript in found:
        first.setdefault(transcript.step, transcript)
    steps, count = list(first), min(count, len(first))
    places = [round(i * (len(steps) - 1) / (count - 1)) for i in range(count)] if count > 1 else [-1] * count
    return [first[steps[place]] for place in places]


def transcripts_markdown(game: type[Game], title: str, chosen: Sequence[Transcript], rule: str) -> str:
    """Transcripts as a page of Markdown, with the rule they were chosen by at its top."""
    parts = [f"# {plain(title)}", f"Chosen by rule (`{rule}`): {RULES[rule]}. Nothing was picked by hand."]
    if not chosen:
        parts.append("There are no transcripts to show.")
    for number, transcript in enumerate(chosen, 1):
        parts += _parts(game, transcript, f"{number}. ")
    return "\n\n".join(parts) + "\n"


def _parts(game: type[Game], transcript: Transcript, number: str) -> list[str]:
    """The paragraphs of a transcript."""
    title = f"Step {transcript.step}, {plain(transcript.subject[:LONGEST_NAME])}: {transcript.kind}"
    parts = [f"## {number}{title}", "The problem:", fenced(transcript.problem)]
    posed = game.accuracy_of(transcript.rows[0]["role"]).proposals and len(transcript.rows) > 1
    for i, row in enumerate(transcript.rows):
        if not i and posed:
            parts += [f"What {plain(row['role'])} was asked:", fenced(row["prompt"])]
        elif i and not posed:
            sentence, text = seen(transcript.rows[0], row)
            parts += [sentence, fenced(text)] if text else [sentence]
        parts.append(
            f"{plain(row['role'])}, seat {code(row['seat'])}: {plain(game.verdict(row)[:LONGEST_NAME])}{earned(row)}"
        )
        parts.append(fenced(row["text"]))
    return parts


def seen(first: Row, later: Row) -> tuple[str, str]:
    """What a later role was asked, as far as it is not what the first one was asked: a sentence, and the text of it."""
    role, before, prompt = plain(later["role"]), first["prompt"], later["prompt"]
    if prompt == before:
        return f"The {role} saw the same, and nothing of what the {plain(first['role'])} wrote.", ""
    if prompt.startswith(before):
        return f"The {role} saw the same, and then:", prompt.removeprefix(before)
    return f"The {role} saw:", prompt


def fenced(text: str) -> str:
    """A block that shows text as it stands, whatever fences are in it."""
    text = printable(text).strip() or "(nothing)"
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}text\n{text}\n{fence}"


def earned(row: Row) -> str:
    """What a completion earned, to stand after its verdict; empty where it is there for the record alone."""
    return "" if row["reward"] is None else f", reward {row['reward']:g}"


def outcome(game: type[Game], row: Row) -> bool | None:
    """Whether an answer was right or agrees with its label; None for proposals, and where nobody judged that."""
    return None if game.accuracy_of(row["role"]).proposals else row["correct"]

"""The completions of a step as cases, which the page lists: what is read together, what came of it, what is odd.

Which completions belong together, and what came of them, is the game's to say (`Game.transcripts`).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from lite_selfplay.games import Game
from lite_selfplay.games.presentation import Row, Transcript, as_words, number_of
from lite_selfplay.runs.report.pages import outcome, seen

TRUNCATED, ILL_FORMED, NO_VARIANCE = "truncated", "not well-formed", "no variance"
"""What is odd about a completion of any game: it reached its limit, lacks the format, or its group teaches nothing."""

PREVIEW, SHOWN = 300, 20_000
"""Characters of a text in a list, and of one that is opened; the rest of a longer one is asked for by itself."""
_SHOWN_APART = {"step", "role", "seat", "problem_id", "group", "sample", "prompt", "text", "tokens", "stop", "reward"}
_SHOWN_APART |= {"advantage", "correct", "well_formed", "answer", "reason"}

Numbered = tuple[int, dict[str, Any]]
"""A completion after the number of its line."""


def filters_of(game: type[Game]) -> list[str]:
    """What cases can be filtered by: their kinds, what the game finds remarkable, and what is odd in any game."""
    return list(dict.fromkeys([*game.kinds(), *game.remarks, TRUNCATED, ILL_FORMED, NO_VARIANCE]))


def cases_of(
    game: type[Game], rows: Sequence[Numbered], *, chosen: str = "", whole: bool = False
) -> list[dict[str, Any]]:
    """A step's cases as JSON, in the order of their last lines; `whole`: with prompts and texts to read.

    `chosen`: those of this kind, or with this flag, alone. Every completion is in at least one case: those that the
    game shows no transcript of stand alone.
    """
    lines = {id(row): line for line, row in rows}
    found = game.transcripts([row for _, row in rows])
    shown = {id(row) for transcript in found for row in transcript.rows}
    found += [each for _, row in rows if id(row) not in shown for each in game.transcripts([row])]
    rewards: dict[tuple[str, int], list[float | None]] = {}
    for _, row in rows:
        rewards.setdefault((row["role"], row["group"]), []).append(number_of(row["reward"]))
    found.sort(key=lambda transcript: lines[id(transcript.rows[-1])])
    cases = []
    for transcript in found:
        groups = [rewards[row["role"], row["group"]] for row in transcript.rows]
        flags = [*game.remarks_on(transcript), *_odd(transcript.rows, groups)]
        if not chosen or chosen in (transcript.kind, *flags):
            cases.append(_case(game, transcript, lines, groups, flags, whole=whole))
    return cases


def _case(
    game: type[Game],
    transcript: Transcript,
    lines: Mapping[int, int],
    groups: Sequence[list[float | None]],
    flags: Sequence[str],
    *,
    whole: bool,
) -> dict[str, Any]:
    rows = transcript.rows
    parts = [
        {
            "line": lines[id(row)],
            "role": row["role"],
            "seat": row["seat"],
            "verdict": cut(game.verdict(row), PREVIEW),
            "right": outcome(game, row),
            "reward": number_of(row["reward"]),
            "advantage": number_of(row["advantage"]),
            "tokens": number_of(row["tokens"]),
            "stop": row["stop"],
            "place": row["sample"],
            "group": group,
            "preview": cut(row["text"], PREVIEW),
            **(_to_read(row, rows[0] if number else None) if whole else {}),
        }
        for number, (row, group) in enumerate(zip(rows, groups, strict=True))
    ]
    return {
        "id": "-".join(str(lines[id(row)]) for row in rows),
        "step": transcript.step,
        "kind": transcript.kind,
        "tone": _tone([outcome(game, row) for row in rows]),
        "subject": cut(transcript.subject, PREVIEW),
        "problem_id": rows[-1]["problem_id"],
        "problem": cut(transcript.problem, SHOWN if whole else PREVIEW),
        "flags": flags,
        "parts": parts,
    }


def _to_read(row: Row, first: Row | None) -> dict[str, Any]:
    """What is read of an opened completion; `first` is the one that was before it, for what it saw beyond that one."""
    sentence, extra = ("", row["prompt"]) if first is None else seen(first, row)
    more = {as_words(key): value for key, value in row.items() if key not in _SHOWN_APART}
    return {
        "text": cut(row["text"], SHOWN),
        "characters": len(row["text"]),
        "saw": sentence,
        "seen": cut(extra.strip("\n"), SHOWN),
        "prompt_characters": len(row["prompt"]),
        "answer": None if row["answer"] is None else cut(str(row["answer"]), PREVIEW),
        "reason": None if not row["reason"] else as_words(row["reason"]),
        "more": {cut(key, 60): cut(str(value), PREVIEW) for key, value in list(more.items())[:12]},
    }


def _odd(rows: Sequence[Row], groups: Sequence[Sequence[float | None]]) -> list[str]:
    paid = [[reward for reward in group if reward is not None] for group in groups]
    odd = {
        TRUNCATED: any(row["stop"] in ("length", "loop") for row in rows),
        ILL_FORMED: any(row["well_formed"] is False for row in rows),
        NO_VARIANCE: any(len(rewards) > 1 and len(set(rewards)) == 1 for rewards in paid),
    }
    return [name for name, is_so in odd.items() if is_so]


def _tone(outcomes: Sequence[bool | None]) -> str:
    """How a case is coloured: `up` and `down` where a later completion differs from the first, else by the last."""
    first, last = outcomes[0], outcomes[-1]
    if len(outcomes) > 1 and None not in (first, last) and first != last:
        return "up" if last else "down"
    return "open" if last is None else "good" if last else "bad"


def holds(rows: Sequence[Row], words: str) -> bool:
    """Whether a problem, a prompt, a text, an answer or a reason holds some words, in small letters."""
    keys = ("text", "prompt", "problem_id", "answer", "reason")
    return any(words in str(row[key]).casefold() for row in rows for key in keys if row[key] is not None)


def cut(text: str, limit: int) -> str:
    """The beginning of a text, with a mark where it goes on."""
    return text if len(text) <= limit else f"{text[:limit]}\u2026"

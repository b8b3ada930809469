"""Before the first step: a little of the game is really played, and what is doubtful is said before hours are spent.

Small steps are played until it is decided, by the bounds of what was counted, whether answers end, whether they have
the format and whether rewards differ, or until a minute is over. Nothing of the run is changed by it: the game, its
problems and its seeds are others. A run that cannot learn is refused; what is doubtful is said, in the words of `why`.
"""

import contextlib
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from lite_selfplay.config import RunConfig
from lite_selfplay.config.guard import unnoticed
from lite_selfplay.errors import GameError, Interrupted, PreflightError, SaveFailed
from lite_selfplay.games import Game
from lite_selfplay.games.presentation import percent
from lite_selfplay.models.adapters import BASE
from lite_selfplay.runs.aside import AsideTable, Enough, small_game
from lite_selfplay.runs.choices import LONGEST, Streams, after_a_look, seen_enough
from lite_selfplay.runs.folder import COLLECTIONS, PREFLIGHT, RunFolder
from lite_selfplay.runs.held import Held, leaving_as_an_error
from lite_selfplay.runs.report.diagnosis import FEWEST_WELL_FORMED, MOST_SILENT, Cause, foreseen
from lite_selfplay.runs.report.meanings import MEANINGS
from lite_selfplay.runs.report.steps import only_finite
from lite_selfplay.stats import clopper_pearson, is_above
from lite_selfplay.tasks.files import write_errors, write_whole
from lite_selfplay.training.loaded import load_chat
from lite_selfplay.training.progress import OutOfTime, printable

SECONDS, SHARE = 60.0, 1 / 20
"""The most seconds that it takes, and the most of `run.minutes`."""
FIRST, MOST = 8, 32
"""Completions of the first small step and of a later one: each has twice those of the one before it, up to the most."""
NOBODYS_STEP = -1
"""The first step that its seeds follow from, and the next ones below: none of the run's."""


@dataclass(frozen=True)
class Played:
    """What small steps showed: the seconds they took, `streams` as in `metrics.jsonl`, and what could not be done."""

    seconds: float
    streams: Streams
    notes: Sequence[str] = ()

    @property
    def samples(self) -> int:
        return sum(stream["completions"] for stream in self.streams.values())

    @property
    def varied(self) -> bool:
        """Whether the rewards of any group differ."""
        return any(s["groups"] > s["zero_variance_groups"] for s in self.streams.values())

    def lines(self, game: type[Game], name: str = "pre-flight") -> list[str]:
        """What is told of it, a sentence a line."""
        lines = [f"{name}: {self.samples} completions in {self.seconds:.0f} s"]
        return [*lines, *(_stream_line(game, role, stream) for role, stream in self.streams.items()), *self.notes]


@contextlib.contextmanager
def _saving_nothing() -> Iterator[None]:
    """A context in which a signal leaves no folder of a run behind, and says so."""
    try:
        with leaving_as_an_error():
            yield
    except Interrupted as error:
        raise Interrupted(f"{error}: nothing was saved") from None


@_saving_nothing()
def look_at_the_base(held: Held) -> None:
    """Let what the untouched base does decide whether it thinks, how long its answers may be, and whether it is taught
    the format: one after the other, each time with another look. Raises Interrupted where that is stopped."""
    limit = LONGEST * held.ready.max_completion_tokens
    # Whoever brings a reward of their own knows what an answer is to look like.
    asked = [what for what in held.ready.open if held.reward is None or what != "a cold start"]
    choice = None
    while (held.loaded.chat.thinks or asked != ["thinking"]) and (choice is None or choice.what != "cold start"):
        held.progress.phase("a look at the base")
        found = play(held, lambda game: dict.fromkeys(game.seats(0), BASE), seen_enough)
        for line in found.lines(type(held.game), "a look at the base"):
            held.progress.say(line)
        choice = after_a_look(asked, held.ready.max_completion_tokens, limit, held.loaded.chat.thinks, found.streams)
        if choice is None:
            return
        held.ready = held.ready.after(choice)
        held.progress.say(held.ready.chosen(choice.what)[-1])
        held.loaded.chat = load_chat(held.config, held.model)


def play(held: Held, seats: Callable[[Game], Mapping[str, str]], decided: Callable[[Streams], bool]) -> Played:
    """Play small steps of a run's game aside, always its first, until what they show decides, or its time is over.

    `seats` says who plays. What is checked meanwhile counts for nothing.
    """
    started, notes, most, played = time.monotonic(), list[str](), FIRST, dict[str, str]()
    config, counted = held.config, replace(held.loaded.verifier.counters)
    with tempfile.TemporaryDirectory(prefix="lite-selfplay-") as aside, unnoticed():
        sources = {name: copy(untouched) for name, untouched in held.sources.items()}
        table = held.table(AsideTable, sources=sources, folder=Path(aside) / COLLECTIONS)
        try:
            with held.loaded.poll.within(min(SECONDS, SHARE * 60 * config.run.minutes or SECONDS)):
                while not (table.samples and decided(table.streams(played))):
                    game, before = small_game(config, most), table.samples
                    played = dict(seats(game))
                    table.most = 10**9 if game.without_tasks else before + most  # of matches none is cut short
                    table.open(NOBODYS_STEP - before, played)
                    with contextlib.suppress(Enough), held.guarded():
                        table.note(game.play(0, table))
                    held.loaded.poll()
                    if table.samples == before:
                        break
                    most = min(2 * most, MOST)
        except OutOfTime:
            notes.append("the time for this was over before everything was decided")
        except GameError as error:  # what it says on one line: that of a user's own game may be anything
            words = " ".join(printable(str(error)[:2000]).split())[:500]
            notes.append(f"so small a step could not be played: {words}")
    held.loaded.verifier.counters = counted
    return Played(round(time.monotonic() - started, 2), only_finite(table.streams(played)), notes)


def settled(streams: Streams) -> bool:
    """Whether it is known of each role if its answers end and have the format, and if rewards differ in any group."""
    silent = [(s["zero_variance_groups"], s["groups"]) for s in streams.values() if s["groups"]]
    varied = any(equal < groups for equal, groups in silent)
    known = [is_above(s["truncated"], s["completions"], MEANINGS["truncated"].most) for s in streams.values()]
    known += [
        is_above(s["well_formed"], s["judged"], FEWEST_WELL_FORMED)
        for s in streams.values()
        if s["well_formed"] is not None
    ]
    known += [varied or is_above(equal / groups, groups, MOST_SILENT) for equal, groups in silent]
    return None not in known


def preflight(held: Held) -> None:
    """Play a little before the first step, and judge what the seats showed: write `preflight.json`, and say it.

    Raises PreflightError where the run cannot learn, SaveFailed where the file cannot be written.
    """
    config, game, path, progress = held.config, type(held.game), held.folder.path, held.progress
    progress.phase("pre-flight")
    found = play(held, lambda game: game.seats(0), settled)
    causes = doubts(found, config, game, path)
    refused = refusal(found, causes)
    about = {"samples": found.samples, **asdict(found), "lines": found.lines(game), "refused": refused}
    about |= {"findings": [asdict(cause) for cause in causes]}
    with write_errors(path / PREFLIGHT, SaveFailed):
        write_whole(path / PREFLIGHT, json.dumps(only_finite(about), indent=1, allow_nan=False) + "\n")
    for line in found.lines(game):
        progress.say(line)
    if refused:
        raise PreflightError(
            f"pre-flight: {refused}. To train all the same: {RunFolder(path).go_on(config.rollouts.again)}, or "
            "--no-preflight on a new run"
        )
    for cause in causes:
        progress.warn(f"pre-flight: {cause.sentence} {f'Try: {cause.next}' if cause.next else ''}".rstrip())


def doubts(found: Played, config: RunConfig, game: type[Game], path: Path) -> list[Cause]:
    """What is doubtful, as far as the counts bear it out. An answer that was cut off says nothing of the format."""
    causes = []
    for role, stream in found.streams.items():
        cut = is_above(stream["truncated"], stream["completions"], MEANINGS["truncated"].most)
        shaped = is_above(stream["well_formed"] or 0.0, stream["judged"], FEWEST_WELL_FORMED)
        groups = 0 if found.varied else stream["groups"]
        silent = is_above(stream["zero_variance_groups"] / max(groups, 1), groups, MOST_SILENT)
        certain = {"truncation": cut is True, "format": not cut and shaped is False, "no variance": silent is True}
        row = {"step": 0, "streams": {role: stream}, "seats": {}, "game": {}}
        causes += [cause for cause in foreseen(path, config, game, row) if certain[cause.name]]
    return causes


def refusal(found: Played, causes: Sequence[Cause]) -> str:
    """Why nothing can be learned, and what mends it: no group has variance, and answers do not end, or none is right
    or well-formed. Empty where that is not certain."""
    streams = found.streams.values()
    judged = sum(s["judged"] for s in streams)
    good = any(s["accuracy"] or s["well_formed"] for s in streams)
    cut = round(sum(s["truncated"] * s["completions"] for s in streams))
    cut_off = bool(found.samples) and is_above(cut / found.samples, found.samples, MEANINGS["truncated"].most)
    too_long = cut_off and any(cause.name == "truncation" for cause in causes)  # which is none where it does no harm
    if found.varied or not (too_long or (not good and is_above(0.0, judged, FEWEST_WELL_FORMED) is False)):
        return ""
    named = [cause for cause in causes if cause.name == ("truncation" if too_long else "format")]
    mended = f". What mends it: {named[0].next}" if named else ""
    if too_long:
        return (
            f"{cut} of {found.samples} completions were cut off at the token limit, and no group has variance{mended}"
        )
    high = percent(round(clopper_pearson(0, judged)[1], 2))
    return (
        f"none of {judged} completions was right or well-formed (with 95% confidence at most {high} are), and no group "
        f"has variance: there is nothing to learn from{mended}"
    )


def _stream_line(game: type[Game], role: str, stream: Mapping[str, Any]) -> str:
    words = {"accuracy": game.accuracy_of(role).word, "well_formed": "well-formed", "truncated": "truncated"}
    said = [f"{percent(stream[key])} {word}" for key, word in words.items() if stream[key] is not None]
    if groups := stream["groups"]:
        said.append(f"{groups - stream['zero_variance_groups']} of {groups} groups with variance")
    return f"{role} {stream['seat']}: {', '.join(said)}, {stream['tokens_mean']:.0f} tokens"

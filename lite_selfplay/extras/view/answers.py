"""Answers the requests of the page that shows a run. A request is for an overview, a step's cases, one case in full, or
a search. A case is a transcript (`Game.transcripts`): completions that belong together, such as a draft and its
challenge, or a single completion.

An index has the offset of each line of `episodes.jsonl`, and grows with the run; lines are not kept in memory. Lines
are parsed leniently, since they are only shown. Lines that do not begin like `{"step": 3,` are counted and skipped.
"""

import json
import os
import re
import threading
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from lite_selfplay.config.user_files import open_file
from lite_selfplay.errors import RunFolderError
from lite_selfplay.games import Game
from lite_selfplay.games.presentation import Row, Transcript, as_words, number_of
from lite_selfplay.runs.folder import EPISODES, EVALUATIONS, METRICS, RunFolder, as_written, state_of, writer
from lite_selfplay.runs.report.closing import counted
from lite_selfplay.runs.report.figures import charts_of, game_of
from lite_selfplay.runs.report.pages import outcome, seen
from lite_selfplay.runs.report.step_rows import only_finite, warned
from lite_selfplay.tasks.files import LINE_LIMIT

_STEP = re.compile(rb'\{"step": ?(\d{1,15})[,}]')
_DECODER = json.JSONDecoder(parse_constant=lambda _: None)
_DEFAULTS: dict[str, Any] = dict.fromkeys(
    ("problem_id", "tokens", "stop", "reward", "advantage", "correct", "well_formed", "answer", "reason")
)


class EpisodeIndex:
    """An index of the lines of a run's `episodes.jsonl`, by training step. Each line is a completion, and its number is
    its byte offset in the file, whose path is `path`. Every call first indexes the file's new lines, or all lines if
    the file was replaced when the run was resumed. `damaged` counts the skipped lines, which do not begin like
    `{"step": 3,`. The index is thread-safe. Calls raise RunFolderError if the file cannot be opened."""

    def __init__(self, path: Path):
        self._path, self._lock = path, threading.Lock()
        self._forget()

    def _forget(self) -> None:
        self._file: tuple[int, int] | None = None
        self._end = self.damaged = 0
        self._of_step: dict[int, array[int]] = {}

    def steps(self) -> dict[int, int]:
        """The number of lines (completions) of each training step in `episodes.jsonl`. The keys are the steps, in the
        order in which the file has them."""
        with self._lock, self._refreshed():
            return {step: len(lines) for step, lines in self._of_step.items()}

    def of_step(self, step: int) -> list[tuple[int, bytes]]:
        """The lines (completions) of a training step in `episodes.jsonl`, as (byte offset, line) pairs; empty if the
        file has none."""
        with self._lock, self._refreshed() as file:
            return list(self._read(file, self._of_step.get(step, ())))

    def line(self, number: int) -> bytes:
        """The line at the byte offset `number`. If no line begins there, the result is arbitrary bytes of the file."""
        with self._lock, self._refreshed() as file:
            return next(self._read(file, [number]))[1]

    def steps_holding(self, words: bytes) -> list[int]:
        """The training steps that have at least one line in `episodes.jsonl` with the bytes `words` in it."""
        with self._lock, self._refreshed() as file:
            return [
                step
                for step, lines in self._of_step.items()
                if any(words in line for _, line in self._read(file, lines))
            ]

    def _read(self, file: IO[bytes], numbers: Iterable[int]) -> Iterator[tuple[int, bytes]]:
        for number in numbers:
            file.seek(number)
            yield number, file.readline(LINE_LIMIT)

    def _refreshed(self) -> IO[bytes]:
        """Open `episodes.jsonl`, and add its new complete lines to the index, or all if the file was replaced.
        Returns an empty file if `episodes.jsonl` does not exist."""
        if not os.path.lexists(self._path):
            self._forget()
            return open(os.devnull, "rb")
        file = open_file(self._path, RunFolderError)
        about = os.fstat(file.fileno())
        if (about.st_dev, about.st_ino) != self._file or about.st_size < self._end:
            self._forget()
            self._file = (about.st_dev, about.st_ino)
        file.seek(self._end)
        while (line := file.readline(LINE_LIMIT)).endswith(b"\n") or len(line) == LINE_LIMIT:
            if found := _STEP.match(line):
                self._of_step.setdefault(int(found[1]), array("Q")).append(self._end)
            else:
                self.damaged += 1
            self._end += len(line)
        return file


def read_row(line: bytes) -> dict[str, Any] | None:
    """Parse a line of `episodes.jsonl` as a completion. Returns None unless the line is a JSON object with an integer
    `step` and a text `role`. If they are missing or no text, `prompt`, `text` and `seat` become empty, and `problem_id`
    and `stop` become None. If they are missing or no integer, `group` and `sample` become 0. The other keys that the
    page reads, such as `reward`, become None if they are missing, and otherwise may have any type. Invalid UTF-8 is
    replaced."""
    try:
        row = _DECODER.decode(line.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict) or type(row.get("step")) is not int or not isinstance(row.get("role"), str):
        return None
    texts = {key: row[key] if isinstance(row.get(key), str) else "" for key in ("prompt", "text", "seat")}
    names = {key: row[key] if isinstance(row.get(key), str) else None for key in ("problem_id", "stop")}
    indices = {key: row[key] if type(row.get(key)) is int else 0 for key in ("group", "sample")}
    return {**_DEFAULTS, **row, **texts, **names, **indices}


class ViewedRun:
    """A run as the page shows it. `path` is the path of the run folder, and the object `folder` reads its files. `game`
    is the class of the run's game; if that class is not available, it is the base class `Game`, and `without_game` says
    why. `index` is the index of the run's completions. The constructor raises RunFolderError if `path` is not a run
    folder or its `episodes.jsonl` is a symbolic link, and ConfigError if the run's configuration is damaged."""

    def __init__(self, path: Path):
        self.folder, self.path = RunFolder.open(path), path
        with as_written(path):
            self.game, self.without_game = game_of(self.folder)
        self.index = EpisodeIndex(path / EPISODES)

    def stamp(self) -> str:
        """A text that changes whenever the run writes something that the page shows; the page then reloads."""
        files = [self.path / METRICS, self.path / EPISODES, *sorted((self.path / EVALUATIONS).glob("*.json"))]
        sizes = [f"{file.name}:{file.stat().st_size}" for file in files if file.exists()]
        return f"{writer(self.path)} {' '.join(sizes)}"

    def overview(self) -> dict[str, Any]:
        """The data that the page shows before a step is opened, for JSON: the run's name and state, its charts,
        remarks, and a (step, number of completions) pair for each step in `episodes.jsonl`. Raises RunFolderError for
        damaged files of the run, and ConfigError if its configuration is damaged."""
        stamp = self.stamp()
        with as_written(self.path):
            state, config, counts = state_of(self.path), self.folder.config(), self.index.steps()
            steps = self.folder.steps()
            return only_finite(
                {
                    "name": self.path.resolve().name,
                    "game": config.game.label,
                    "model": config.model.name,
                    "tasks": config.tasks.train,
                    "stage": state.stage,
                    "played": state.step,
                    "asked_for": state.steps,
                    "best": state.best,
                    "stamp": stamp,
                    "filters": list(dict.fromkeys([*self.game.kinds(), *self.game.remarks, *ODD])),
                    "roles": list(getattr(self.game, "roles", ())),
                    "steps": [[step, count] for step, count in counts.items()],
                    "charts": charts_of(self.game, self.folder, steps),
                    "remarks": self._remarks(steps, len(counts)),
                }
            )

    def _remarks(self, rows: Iterable[Row], recorded: int) -> list[str]:
        """Sentences on missing or damaged data of the run, and its warnings. `rows` are the rows of `metrics.jsonl`,
        and `recorded` is the number of steps in `episodes.jsonl`."""
        sampled = sum(any(stream.get("completions") for stream in row["streams"].values()) for row in rows)
        found = {
            self.without_game: bool(self.without_game),
            f"episodes.jsonl holds the completions of {recorded} of {sampled} steps.": recorded < sampled,
            f"{self.index.damaged} lines of episodes.jsonl are damaged and not shown.": self.index.damaged > 0,
            **{f"At {counted(count, 'step')}: {text}": True for text, count in warned(rows).items()},
        }
        return [text for text, is_so in found.items() if is_so]


TRUNCATED, ILL_FORMED, NO_VARIANCE = ODD = ("truncated", "not well-formed", "no variance")
"""Flags of a case, for any game: a completion was truncated, lacks the format, or its group has equal rewards."""

PREVIEW, SHOWN = 300, 20_000
"""The most characters of a text in a list of cases, and in an opened case; the page requests the rest separately."""
_SHOWN_APART = {*_DEFAULTS, "step", "role", "seat", "group", "sample", "prompt", "text"}

Numbered = tuple[int, dict[str, Any]]  # (a line's byte offset, its completion)


def cases_of(
    game: type[Game], rows: Sequence[Numbered], *, chosen: str = "", whole: bool = False
) -> list[dict[str, Any]]:
    """The cases of a training step as dicts for JSON, in the order in which `episodes.jsonl` has each case's last
    completion.

    - `game`: the class whose transcripts (completions that belong together, such as a draft and its challenge) are the
      cases; a completion that is in no transcript is a case of its own
    - `rows`: the step's completions, each with the byte offset of its line in `episodes.jsonl`
    - `chosen`: an empty text for all cases, or a kind of transcript (one of `game.kinds()`) or a flag (one of
      `game.remarks` or `ODD`) for only the cases that have it
    - `whole`: whether to add prompts, and to cut texts after 20,000 characters instead of 300
    """
    lines = {id(row): line for line, row in rows}
    found = game.transcripts([row for _, row in rows])
    shown = {id(row) for transcript in found for row in transcript.rows}
    found += [each for _, row in rows if id(row) not in shown for each in game.transcripts([row])]
    rewards: dict[tuple[str, int], list[float | None]] = {}
    for _, row in rows:
        rewards.setdefault((row["role"], row["group"]), []).append(number_of(row["reward"]))
    found.sort(key=lambda transcript: lines[id(transcript.rows[-1])])
    cases = [_case(game, transcript, lines, rewards, whole=whole) for transcript in found]
    return [case for case in cases if not chosen or chosen in (case["kind"], *case["flags"])]


def _case(
    game: type[Game],
    transcript: Transcript,
    lines: Mapping[int, int],
    rewards: Mapping[tuple[str, int], list[float | None]],
    *,
    whole: bool,
) -> dict[str, Any]:
    rows = transcript.rows
    groups = [rewards[row["role"], row["group"]] for row in rows]
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
        "flags": [*game.remarks_on(transcript), *_odd(rows, groups)],
        "parts": parts,
    }


def _to_read(row: Row, first: Row | None) -> dict[str, Any]:
    """The fields of the completion `row` that the page gets only when the case of `row` (completions that belong
    together, such as a draft and its challenge) is opened. `first` is the case's first completion, or None if `row` is
    the first one. The field `seen` has the prompt of `row`. If this prompt begins with the whole prompt of `first`,
    `seen` has only the rest, and the field `saw` has a sentence that says so."""
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
    """The name of the colour of a case (completions that belong together, such as a draft and its challenge).
    `outcomes` is not empty, and says of each of these completions, in order, whether it is right; None means not
    judged. The colour is `up` if the first completion is wrong and the last is right, and `down` if the first is right
    and the last is wrong. Otherwise the last one decides between `good` (right), `bad` (wrong) and `open` (not
    judged)."""
    first, last = outcomes[0], outcomes[-1]
    if len(outcomes) > 1 and None not in (first, last) and first != last:
        return "up" if last else "down"
    return "open" if last is None else "good" if last else "bad"


def holds(rows: Sequence[Row], words: str) -> bool:
    """Whether one of the completions `rows` contains the whole text `words` in one field: problem id, prompt, text,
    answer or reason. Upper and lower case count as the same; the caller passes `words` in lower case."""
    keys = ("text", "prompt", "problem_id", "answer", "reason")
    return any(words in str(row[key]).casefold() for row in rows for key in keys if row[key] is not None)


def cut(text: str, limit: int) -> str:
    """The first `limit` characters of `text`, followed by an ellipsis if it is longer."""
    return text if len(text) <= limit else f"{text[:limit]}\u2026"


MOST_FOUND = 60  # a search pauses after the step that reaches this many cases; the page requests more
PATIENCE_S = 0.5  # a search pauses after this many seconds, to report its progress


class NotAsked(Exception):
    """A request of the page is invalid, or the case that it asks for (see `cases_of`) is no longer in the run."""


def answer(runs: Sequence[ViewedRun], question: str, about: Mapping[str, str]) -> Any:
    """Answer a request of the page with a value that can be written as JSON. `question` is the kind of request, such as
    `run`, `step`, `case` or `find`. `about` has the parameters of the request's URL; its `run` is an index in `runs`.
    Raises NotAsked for an unknown kind, an invalid number, or a case (see `cases_of`) that is not in the run;
    RunFolderError or ConfigError for damaged files."""
    run = runs[_number(about, "run", most=len(runs) - 1)]
    asked = json.dumps(about.get("id", ""), ensure_ascii=False)
    answers: dict[str, Callable[[], Any]] = {
        "stamp": lambda: {"stamps": [each.stamp() for each in runs]},
        "run": run.overview,
        "step": lambda: {"cases": _cases(run, _number(about, "step"))},
        "case": lambda: _opened(run, _number(about, "step"), about.get("id", "")),
        "text": lambda: _text(run, _number(about, "line"), about.get("part", "")),
        "problem": lambda: {"steps": run.index.steps_holding(f'"problem_id": {asked}'.encode(errors="replace"))},
        "find": lambda: find(run, about),
    }
    if question not in answers:
        raise NotAsked(f"there is no request {question!r}")
    return answers[question]()


def find(run: ViewedRun, about: Mapping[str, str], patience_s: float = PATIENCE_S) -> dict[str, Any]:
    """Search a run's cases (completions that belong together, such as a draft and its challenge), step by step. The
    search returns early at the end of the step in which `patience_s` seconds or 60 found cases are reached. `about` has
    the parameters of a URL, all optional: `from` and `to` are the first and last step to search, `filter` is a kind or
    flag (see `cases_of`), and `q` is a text to find (see `holds`). Returns a dict: `cases` are the cases found; `steps`
    is how many steps the run has; `next` is the step to continue from, or None if the search is complete; and `looked`
    is how many of the run's steps come before `next`, or all if it is None. Raises NotAsked if `from` or `to` is not a
    whole number."""
    steps = list(run.index.steps())
    first, last = _number(about, "from"), _number(about, "to") if "to" in about else None
    chosen, words = about.get("filter", ""), about.get("q", "").casefold()
    found: list[dict[str, Any]] = []
    stop = time.monotonic() + patience_s
    for looked, step in enumerate(steps):
        if step < first or (last is not None and step > last):
            continue
        if len(found) >= MOST_FOUND or time.monotonic() > stop:
            return {"cases": found, "next": step, "looked": looked, "steps": len(steps)}
        found += _cases(run, step, words, chosen)
    return {"cases": found, "next": None, "looked": len(steps), "steps": len(steps)}


def _cases(run: ViewedRun, step: int, words: str = "", chosen: str = "") -> list[dict[str, Any]]:
    lines = run.index.of_step(step)
    spelled = json.dumps(words)[1:-1].encode()
    if words.isascii() and not any(spelled in line.lower() for _, line in lines):
        return []
    with as_written(run.path):
        rows = dict(read_rows(lines))
        cases = cases_of(run.game, list(rows.items()), chosen=chosen)
        return [each for each in cases if not words or holds([rows[part["line"]] for part in each["parts"]], words)]


def _opened(run: ViewedRun, step: int, name: str) -> dict[str, Any]:
    with as_written(run.path):
        cases = cases_of(run.game, read_rows(run.index.of_step(step)), whole=True)
    found = next((case for case in cases if case["id"] == name), None)
    if found is None:
        raise NotAsked("this case is no longer in the run: it may have been resumed from an earlier step")
    return found


def _text(run: ViewedRun, line: int, part: str) -> dict[str, Any]:
    """The full text of a completion or of its prompt, as {"text": ...}. `line` is the byte offset of the completion's
    line in `episodes.jsonl`. `part` is `text` or `prompt`. Raises NotAsked if there is no such line or part."""
    row = read_row(run.index.line(line))
    if row is None or part not in ("text", "prompt"):
        raise NotAsked(f"there is no {part!r} in line {line}")
    return {"text": row[part]}


def read_rows(lines: Sequence[tuple[int, bytes]]) -> list[Numbered]:
    return [(number, row) for number, line in lines if (row := read_row(line)) is not None]


def _number(about: Mapping[str, str], key: str, most: int = 10**15) -> int:
    text = about.get(key, "0")
    if not (text.isascii() and text.isdigit() and len(text) < 17 and int(text) <= most):
        raise NotAsked(f"{key} must be a whole number of at most {most}, got {text!r}")
    return int(text)

"""How a game's runs are shown: declarations for progress lines, reports and charts.

`Accuracy` says what a role's correct completions are, `Figure` what a key of the log measures, and `Pairing` which
completions are read together; every game inherits `Presentation`. Nothing here knows a particular game.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, ClassVar, Literal

from lite_selfplay.errors import GameError
from lite_selfplay.games.prompts import problem_asked

Row = Mapping[str, Any]  # a line of `episodes.jsonl`

Unit = Literal["share", "number"]

RIGHT, WRONG, NOT_JUDGED, MISSING = "right", "wrong", "not judged", "-"
# Reasons for a reward, in the words that every game uses.
FOR_RIGHT, FOR_FORM, FOR_VOTE, BY_COIN = (
    "for a right answer",
    "for the format",
    "for agreeing with the majority vote",
    "by the toss of a coin",
)


@dataclass(frozen=True)
class Accuracy:
    """The meaning of `Verdict.correct` for a role's completions, in words.

    `word` follows the share of correct ones (`41% right`), `name` is that figure's name and `lack` the name of the
    rest's. `yes` and `no` describe one completion. `proposals`: completions pose problems instead of answering them.
    """

    word: str = RIGHT
    name: str = "accuracy"
    lack: str = "not right"
    yes: str = RIGHT
    no: str = WRONG
    proposals: bool = False


ANSWERS = Accuracy()  # answers that are compared with a reference answer

# Answers that are compared with a label made by the game.
ANSWERS_TO_LABELS = Accuracy(
    "agree", "agreement with labels", "no agreement", "agrees with the label", "does not agree with the label"
)

# Problems that a role poses; a correct one is a valid one.
PROPOSALS = Accuracy("accepted", "accepted proposals", "not accepted", "accepted", "not accepted", proposals=True)


@dataclass(frozen=True)
class Figure:
    """The meaning of a key of a game's log, and how values of several steps are combined.

    The log may hold a number, an object of numbers by kind, or a list of counts: the histogram of shares in [0, 1].
    `how` combines several steps: mean, sum, last value, or the number of steps at which the value was 0 (`zeros`).
    `of` names the key that weights the steps in a mean (a list there counts by its sum). `part`: the values are counts
    out of `of`, shown as shares of it. `word`: the name on a step's line; without one the figure is not on it.
    `healthy`: the lowest and highest value without a warning; `warning` is the sentence for other values, with
    `{value}` for the value. `within`: the target range of each kind, drawn as a band. `about`: one sentence on what the
    figure measures.
    """

    key: str
    name: str
    unit: Unit = "number"
    how: Literal["mean", "sum", "last", "zeros"] = "mean"
    of: str = ""
    part: bool = False
    word: str = ""
    healthy: tuple[float, float] = (-inf, inf)
    warning: str = ""
    within: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    about: str = ""


@dataclass(frozen=True)
class Transcript:
    """Completions to read together: a draft and its challenge, a question and an answer to it, or a single one.

    `kind` describes their outcome, `subject` names the problem, and `problem` is its text.
    """

    rows: tuple[Row, ...]
    kind: str
    subject: str
    problem: str

    @property
    def step(self) -> int:
        """The step of the last completion, counted from 1."""
        return int(self.rows[-1]["step"])


@dataclass(frozen=True)
class Pairing:
    """Two roles whose completions are read in pairs.

    `Sample.info[key]` of a later completion is the index, in the group of the same number, of the `first` role's
    completion that it belongs to. `kinds` names a pair by whether its first and second completion were correct, the
    most telling kind first.
    """

    first: str
    key: str
    kinds: Mapping[tuple[bool, bool], str]

    def __post_init__(self) -> None:
        if set(self.kinds) != {(first, second) for first in (False, True) for second in (False, True)}:
            raise GameError(
                "a pairing needs four kinds: wrong and right first completions, each with a wrong and a right second"
            )

    def pairs(self, rows: Sequence[Row]) -> list[tuple[Row, Row]]:
        """The pairs among some rows, in the order of their second completions."""
        firsts = {(row["step"], row["group"], row["sample"]): row for row in rows if row["role"] == self.first}
        named = [((row["step"], row["group"], row.get(self.key)), row) for row in rows if row["role"] != self.first]
        return [(firsts[name], row) for name, row in named if name in firsts]

    def kind(self, pair: tuple[Row, Row]) -> str:
        """The name of a pair's outcome; a pair may also be unjudged."""
        first, second = (row["correct"] for row in pair)
        return NOT_JUDGED if second is None else self.kinds[bool(first), bool(second)]


def number_of(value: Any) -> float | None:
    """A finite number from a log as a float; None for anything else, booleans included."""
    found = isinstance(value, int | float) and not isinstance(value, bool) and -inf < value < inf
    return float(value) if found else None


def value_in_words(value: Any, unit: Unit) -> str:
    """A value as text: a share in percent, a number with three significant digits."""
    number = number_of(value)
    if number is None:
        return MISSING
    return percent(number) if unit == "share" else f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.3g}"


def percent(share: float) -> str:
    """A share in [0, 1] as a percentage with at most one decimal."""
    return f"{100 * share:.1f}".removesuffix(".0") + "%"


def with_interval(share: float, interval: Sequence[float]) -> str:
    """A share and its 95% interval, in percent: `41% [31, 52]`."""
    low, high = interval
    return f"{percent(share)} [{100 * low:.0f}, {100 * high:.0f}]"


def priced(*parts: tuple[float, str]) -> str:
    """Amounts and their reasons in words: `2 for a right answer, 0.5 for the format`. Amounts of 0 are skipped."""
    return ", ".join(f"{amount:g} {what}" for amount, what in parts if amount)


def as_words(name: Any) -> str:
    """A name from a run folder, such as `off_format`, in words."""
    return str(name).replace("_", " ")


def value_of(figure: Figure, log: Mapping[str, Any]) -> float | None:
    """A figure's value in the log of one step; None if the log has no number for it."""
    value, whole = number_of(log.get(figure.key)), number_of(log.get(figure.of)) if figure.part else 1.0
    return value / whole if value is not None and whole else None


class Presentation:
    """How runs of a game are shown: declarations of the game, and methods to override.

    `accuracy` says for each role what its correct completions are (by default right answers), `figures` what the keys
    of its log measure, in the order in which they are shown. `pairing` says which completions of two roles are read
    together (by default none); `remarks` are further notes on transcripts (see `remarks_on`). Everything but the
    warnings belongs to the class, because a finished run has no game in memory.
    """

    roles: ClassVar[tuple[str, ...]] = ()
    accuracy: ClassVar[Mapping[str, Accuracy]] = {}
    figures: ClassVar[Sequence[Figure]] = ()
    pairing: ClassVar[Pairing | None] = None
    remarks: ClassVar[tuple[str, ...]] = ()

    def warnings(self, log: Mapping[str, Any]) -> list[str]:
        """Warnings about a step's `log`, for problems that would otherwise go unnoticed.

        By default those of figures outside their healthy range.
        """
        return [
            figure.warning.format(value=value)
            for figure in self.figures
            for value in [value_of(figure, log)]
            if figure.warning and value is not None and not figure.healthy[0] <= value <= figure.healthy[1]
        ]

    @classmethod
    def accuracy_of(cls, role: str) -> Accuracy:
        """The meaning of a role's correct completions."""
        return cls.accuracy.get(role, ANSWERS)

    @classmethod
    def step_words(cls, log: Mapping[str, Any]) -> list[str]:
        """The game's part of a step's progress line: by default the figures that have a `word`."""
        found = [(figure, value_of(figure, log)) for figure in cls.figures if figure.word]
        return [f"{figure.word} {value_in_words(value, figure.unit)}" for figure, value in found if value is not None]

    @classmethod
    def trains(cls, log: Mapping[str, Any]) -> bool:
        """Whether a step with this log should update a seat, rather than only play or measure."""
        return True

    @classmethod
    def closing(cls, log: Mapping[str, Any]) -> list[str]:
        """Lines on a finished run, from the log of its last step; for an open-ended game, once it is over."""
        return []

    @classmethod
    def why_skipped(cls, log: Mapping[str, Any]) -> str:
        """Why the game found nothing to train on in a step; empty if it did find something."""
        return ""

    @classmethod
    def kinds(cls) -> list[str]:
        """All kinds of transcripts, the most telling first."""
        roles = [cls.accuracy_of(role) for role in cls.roles] or [ANSWERS]
        pairs = list(cls.pairing.kinds.values()) if cls.pairing else []
        return list(dict.fromkeys([*pairs, *(each.yes for each in roles), *(each.no for each in roles), NOT_JUDGED]))

    @classmethod
    def transcripts(cls, rows: Iterable[Row]) -> list[Transcript]:
        """The transcripts among rows of `episodes.jsonl`, in order: pairs if there are any, otherwise each row."""
        rows = list(rows)
        if cls.pairing is not None and (pairs := cls.pairing.pairs(rows)):
            return [cls.transcript(pair, cls.pairing.kind(pair)) for pair in pairs]
        return [cls.transcript((row,), cls._kind(row)) for row in rows]

    @classmethod
    def transcript(cls, rows: tuple[Row, ...], kind: str) -> Transcript:
        """A transcript whose problem is the one in its first completion's prompt."""
        problem = cls.problem_in(str(rows[0]["prompt"]))
        return Transcript(rows, kind, str(rows[-1]["problem_id"] or "a problem"), problem)

    @classmethod
    def problem_in(cls, prompt: str) -> str:
        """The problem in a prompt of the game."""
        return problem_asked(prompt)

    @classmethod
    def remarks_on(cls, transcript: Transcript) -> list[str]:
        """The `remarks` that apply to a transcript."""
        return []

    @classmethod
    def _kind(cls, row: Row) -> str:
        meant = cls.accuracy_of(row["role"])
        return NOT_JUDGED if row["correct"] is None else meant.yes if row["correct"] else meant.no

    @classmethod
    def verdict(cls, row: Row) -> str:
        """A completion's outcome in words: `right`, `wrong (the reason)` or `not judged`."""
        reason = row.get("reason")
        because = row["correct"] is False and reason not in (None, "", WRONG)
        return f"{cls._kind(row)} ({as_words(reason)})" if because else cls._kind(row)

"""What a game declares of itself for those who show its runs: progress lines, reports, charts.

`Accuracy` says what the correct completions of a role are, `Figure` what a key of the log measures, `Pairing` which
completions are read together; `Presentation` is what every game inherits of this. Nothing here knows a single game.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, ClassVar, Literal

from lite_selfplay.errors import GameError
from lite_selfplay.games.prompts import problem_asked

Row = Mapping[str, Any]
"""A line of `episodes.jsonl`."""

Unit = Literal["share", "number"]

RIGHT, WRONG, NOT_JUDGED, MISSING = "right", "wrong", "not judged", "-"
# What completions are paid for, in the words that every game uses.
FOR_RIGHT, FOR_FORM, FOR_VOTE, BY_COIN = (
    "for a right answer",
    "for its form",
    "for agreeing with the majority vote",
    "by the toss of a coin",
)


@dataclass(frozen=True)
class Accuracy:
    """What `Verdict.correct` means of a role's completions, in words.

    `word` follows the share of the correct ones (`41% right`), `name` is that figure's name and `lack` the name of the
    others'. `yes` and `no` describe one completion. `proposals`: completions pose problems rather than answer them.
    """

    word: str = RIGHT
    name: str = "accuracy"
    lack: str = "not right"
    yes: str = RIGHT
    no: str = WRONG
    proposals: bool = False


ANSWERS = Accuracy()
"""Answers that are compared with the truth."""

ANSWERS_TO_LABELS = Accuracy(
    "agree", "agreement with labels", "no agreement", "agrees with the label", "does not agree with the label"
)
"""Answers that are compared with a label of the game's own making."""

PROPOSALS = Accuracy("accepted", "accepted proposals", "not accepted", "accepted", "not accepted", proposals=True)
"""Problems that a role poses; a correct one is a valid one."""


@dataclass(frozen=True)
class Figure:
    """What a key of a game's log measures, and how several steps give one value.

    The log may hold a number; an object of numbers by kind; or a list of counts, the histogram of shares in [0, 1].
    `how`: over several steps the mean, the sum, the last value, or the number of steps at which it was 0 (`zeros`).
    `of` names the key of what a step's value is a mean over, which weighs the steps (a list there counts by its sum).
    `part`: the values are counts out of `of`, and shown as shares of it.
    `word`: its name on the line of a step; without one it is not there.
    `healthy`: the lowest and the highest value that need no warning; `warning` is the sentence for others, in which
    `{value}` stands for the value. `within`: between which values each kind should lie in the end, drawn as a band.
    `about` says in a sentence what the figure measures.
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
    """Completions that are read together: a draft and its challenge, a question and an answer to it, or a single one.

    `kind` says what came of them, `subject` names the problem, and `problem` is its text.
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

    `Sample.info[key]` of a later completion is the place, in the group of the same number, of the completion of role
    `first` that it belongs to. `kinds` says what a pair is by whether the first and the second were correct, the most
    telling kind first.
    """

    first: str
    key: str
    kinds: Mapping[tuple[bool, bool], str]

    def __post_init__(self) -> None:
        if set(self.kinds) != {(first, second) for first in (False, True) for second in (False, True)}:
            raise GameError(
                "a pairing names four kinds: of wrong and right first completions, each with wrong and right"
            )

    def pairs(self, rows: Sequence[Row]) -> list[tuple[Row, Row]]:
        """The pairs among some rows, in the order of their second ones."""
        firsts = {(row["step"], row["group"], row["sample"]): row for row in rows if row["role"] == self.first}
        named = [((row["step"], row["group"], row.get(self.key)), row) for row in rows if row["role"] != self.first]
        return [(firsts[place], row) for place, row in named if place in firsts]

    def kind(self, pair: tuple[Row, Row]) -> str:
        """What a pair is; nobody may have judged it."""
        first, second = (row["correct"] for row in pair)
        return NOT_JUDGED if second is None else self.kinds[bool(first), bool(second)]


def number_of(value: Any) -> float | None:
    """A number from a log, None for anything else, true and false included."""
    found = isinstance(value, int | float) and not isinstance(value, bool) and -inf < value < inf
    return float(value) if found else None


def value_in_words(value: Any, unit: Unit) -> str:
    """A value as text: a share in percent, a number in three significant digits."""
    number = number_of(value)
    if number is None:
        return MISSING
    return percent(number) if unit == "share" else f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.3g}"


def percent(share: float) -> str:
    """A share in [0, 1] as a percentage with at most one decimal."""
    return f"{100 * share:.1f}".removesuffix(".0") + "%"


def priced(*parts: tuple[float, str]) -> str:
    """Amounts with what earns them, in words: `2 for a right answer, 0.5 for its form`. Amounts of 0 are left out."""
    return ", ".join(f"{amount:g} {what}" for amount, what in parts if amount)


def as_words(name: Any) -> str:
    """A name as a run writes it, such as `off_format`, in words."""
    return str(name).replace("_", " ")


def value_of(figure: Figure, log: Mapping[str, Any]) -> float | None:
    """A figure's value in the log of one step; None where that holds no number for it."""
    value = number_of(log.get(figure.key))
    if value is None or not figure.part:
        return value
    whole = number_of(log.get(figure.of))
    return value / whole if whole else None


class Presentation:
    """How runs of a game are shown: what a game declares of itself, and what may be overridden.

    `accuracy` says of each role what its correct completions are (by default right answers), `figures` what the keys of
    its log measure, in the order they are shown. `pairing` says which completions of two roles are read together (by
    default each by itself), `remarks` what else may be said of those (see `remarks_on`). All but the warnings is asked
    of the class: a finished run has no game in memory.
    """

    roles: ClassVar[tuple[str, ...]] = ()
    accuracy: ClassVar[Mapping[str, Accuracy]] = {}
    figures: ClassVar[Sequence[Figure]] = ()
    pairing: ClassVar[Pairing | None] = None
    remarks: ClassVar[tuple[str, ...]] = ()

    def warnings(self, log: Mapping[str, Any]) -> list[str]:
        """Sentences for the terminal about a step's `log`, for what would go wrong silently.

        By default the warnings of the figures that are not healthy.
        """
        found = [(figure, value_of(figure, log)) for figure in self.figures if figure.warning]
        return [
            figure.warning.format(value=value)
            for figure, value in found
            if value is not None and not figure.healthy[0] <= value <= figure.healthy[1]
        ]

    @classmethod
    def accuracy_of(cls, role: str) -> Accuracy:
        """What the correct completions of a role are."""
        return cls.accuracy.get(role, ANSWERS)

    @classmethod
    def step_words(cls, log: Mapping[str, Any]) -> list[str]:
        """What the line of a step says of its log: by default the figures that have a word for it."""
        found = [(figure, value_of(figure, log)) for figure in cls.figures if figure.word]
        return [f"{figure.word} {value_in_words(value, figure.unit)}" for figure, value in found if value is not None]

    @classmethod
    def trains(cls, log: Mapping[str, Any]) -> bool:
        """Whether a step with such a log was to move a seat; one that only plays or measures was not."""
        return True

    @classmethod
    def closing(cls, log: Mapping[str, Any]) -> list[str]:
        """What a game says of its run, one that ends by itself only then, from the log of its last step."""
        return []

    @classmethod
    def why_skipped(cls, log: Mapping[str, Any]) -> str:
        """Why the game found nothing to train on in a step; empty where it did."""
        return ""

    @classmethod
    def kinds(cls) -> list[str]:
        """What a transcript can be, the most telling kind first."""
        roles = [cls.accuracy_of(role) for role in cls.roles] or [ANSWERS]
        pairs = list(cls.pairing.kinds.values()) if cls.pairing else []
        return list(dict.fromkeys([*pairs, *(each.yes for each in roles), *(each.no for each in roles), NOT_JUDGED]))

    @classmethod
    def transcripts(cls, rows: Iterable[Row]) -> list[Transcript]:
        """The transcripts among rows of `episodes.jsonl`, in their order: pairs where there are any, else each row."""
        rows = list(rows)
        if cls.pairing is not None and (pairs := cls.pairing.pairs(rows)):
            return [cls.transcript(pair, cls.pairing.kind(pair)) for pair in pairs]
        return [cls.transcript((row,), cls._kind(row)) for row in rows]

    @classmethod
    def transcript(cls, rows: tuple[Row, ...], kind: str) -> Transcript:
        """A transcript whose problem is the one that its first completion was asked."""
        problem = cls.problem_in(str(rows[0]["prompt"]))
        return Transcript(rows, kind, str(rows[-1]["problem_id"] or "a problem"), problem)

    @classmethod
    def problem_in(cls, prompt: str) -> str:
        """The problem in a prompt of the game."""
        return problem_asked(prompt)

    @classmethod
    def remarks_on(cls, transcript: Transcript) -> list[str]:
        """Which of `remarks` hold of a transcript."""
        return []

    @classmethod
    def _kind(cls, row: Row) -> str:
        meant = cls.accuracy_of(row["role"])
        return NOT_JUDGED if row["correct"] is None else meant.yes if row["correct"] else meant.no

    @classmethod
    def verdict(cls, row: Row) -> str:
        """What became of a completion, in words: `right`, `wrong (the reason)` or `not judged`."""
        reason = row.get("reason")
        because = row["correct"] is False and reason not in (None, "", WRONG)
        return f"{cls._kind(row)} ({as_words(reason)})" if because else cls._kind(row)

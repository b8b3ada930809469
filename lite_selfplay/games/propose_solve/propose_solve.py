"""The base of a family of games: one role writes problems and another solves them.

It watches for signs of collapse and counts steps without a question. Such a step is skipped; after too many in a row
the game stops and shows the last proposals.
"""

import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self

from pydantic import Field, model_validator

from lite_selfplay.data import Blend, EvalSpec, Example, Problem, Sample, Verdict
from lite_selfplay.errors import GameError
from lite_selfplay.games.base import Game, GameOptions
from lite_selfplay.games.presentation import (
    ANSWERS_TO_LABELS,
    NOT_JUDGED,
    PROPOSALS,
    Accuracy,
    Figure,
    Row,
    Transcript,
    as_words,
)
from lite_selfplay.games.prompts import PROGRAM, asked, fill
from lite_selfplay.games.propose_solve.collapse import (
    FEWEST_RIGHT,
    MOST_REPEATED,
    CollapseWatch,
    collapse_warnings,
    label_is_right,
)
from lite_selfplay.games.propose_solve.population import Population
from lite_selfplay.games.propose_solve.questions import REASONS, Bounds, Candidate, Proposal
from lite_selfplay.games.table import Table
from lite_selfplay.games.worked_examples import worked_example

# The remark on an answer whose label is not the question's true value, if that can be computed.
LABEL_WRONG = "label wrong"

AGREES, DIFFERS = "the answer agrees with the label", "the answer does not agree with the label"
UNANSWERED, NO_QUESTION = "a question by itself", "no question"
_REFUSED = frozenset(REASONS) - {""}

# What an answer to an anchor is rewarded for, in a game that rewards the majority's answer.
OR_ANCHOR = ", or the label of an anchor"

FEWEST_VOTES = 0.5  # below this share, a typical question's label is not the answer of a majority

SHOWN_PROPOSALS, SHOWN_CHARACTERS = 3, 300

# The figures of every game of the family, in the order in which `family_figures` combines them with a game's own.
YIELD = (
    Figure("usable", "usable questions", "share", of="proposals", part=True, about="Proposals left to train on."),
    Figure("proposals", "proposals a step", about="Completions that should pose a question."),
    Figure("pass_rate", "pass rate", "share", of="pass_rates",
           about="How often answers to a question agree with its label: near 0 or 1 there is little to learn from."),
)  # fmt: skip
WATCHED = (
    Figure("repeated", "repeated questions", "share", of="questions", healthy=(0.0, MOST_REPEATED),
           about="Questions that are among the last 200; a growing share means that the proposer collapses."),
    Figure("distinct_tokens", "distinct tokens", "share", of="questions",
           about="Different tokens among all tokens of a step's questions; comparable only within a run."),
    Figure("vote_share", "vote share", "share", of="questions", healthy=(FEWEST_VOTES, 1.0),
           about="The share of a question's answers in the largest class of equal ones: "
           "split votes label nothing well."),
    Figure("label_accuracy", "accuracy of labels", "share", of="labels_checked", healthy=(FEWEST_RIGHT, 1.0),
           about="Labels that are the question's value, among questions that are bare calculations."),
)  # fmt: skip
BREAKDOWNS = (
    Figure("usable", "steps without a usable question", of="proposals", how="zeros",
           about="Steps without a proposal left to train on."),
    Figure("refused", "refused", "share", of="proposals", part=True, about="Invalid proposals, by their reason."),
    Figure("pass_rates", "questions by pass rate", "share", of="pass_rates", part=True,
           about="How many questions the solver hardly ever, sometimes, or nearly always answers as their label says."),
)  # fmt: skip


def family_figures(
    *own: Figure, early: Sequence[Figure] = (), watched: Sequence[Figure] = WATCHED
) -> tuple[Figure, ...]:
    """The family's figures with a game's own among them."""
    return (*YIELD, *early, *watched, *own, *BREAKDOWNS)


def well_formed(proposal: Proposal) -> bool:
    """Whether a proposal is a question with an answer, even if the question gives the answer away."""
    return proposal.reason in ("", "leaks")


def proposed(asked: Candidate, reward: float, rate: float | None, why: str | None = None, **info: Any) -> Sample:
    """A proposal with its reward. It counts as correct unless `why` gives a reason: by default `too_easy` if all of
    its answers are right (`rate` 1), `too_hard` if none are."""
    proposal, extreme = asked.proposal, "too_easy" if rate == 1 else "" if rate else "too_hard"
    reason = proposal.reason or (extreme if why is None else why)
    verdict = Verdict(not reason, float(not reason), proposal.answer, well_formed(proposal), reason)
    return Sample(proposal.completion, reward, verdict, info={"question": asked.name, "pass_rate": rate, **info})


def proposed_by_share(asked: Candidate, earns: Callable[[float], float], refused: float) -> Sample:
    """A proposal rewarded with `earns(share of right answers)`, or with `refused` if it is no question."""
    rate = asked.share if asked.group else None
    return proposed(asked, refused if rate is None else earns(rate), rate)


def turn_shares(steps: int, first: int, second: int) -> tuple[int, int]:
    """How many of a run's steps each of two alternating phases gets, `first` and `second` steps long."""
    rounds, rest = divmod(steps, first + second)
    own = rounds * first + min(rest, first)
    return own, steps - own


class ProposeSolveOptions(GameOptions):
    """The options of every game of the family. `max_empty_steps`: how many steps in a row may bring no question."""

    max_empty_steps: int = Field(10, ge=1)


class FilterOptions(ProposeSolveOptions):
    """Options of a `FilteredGame`: a question trains the solver if its majority's share lies in [`low`, `high`]."""

    low: float = Field(ge=0, le=1)
    high: float = Field(ge=0, le=1)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"low must not be above high, got {self.low} and {self.high}")
        return self


class AnchorOptions(ProposeSolveOptions):
    """Options of an `AnchoredGame`. `anchors`: the number of labelled problems, the first of the tasks (fewer if there
    are fewer). `shots`: the most of them that a proposer's prompt shows."""

    anchors: int = Field(0, ge=0)
    shots: int = Field(3, ge=1)


class ProposeSolve(Game):
    """The family's common part: roles and seats, evaluation, counting and watching, transcripts."""

    own_labels: bool = True
    sources: tuple[str, ...] = ()
    Options: ClassVar[type[GameOptions]] = ProposeSolveOptions
    solver: ClassVar[str] = "solver"
    """The role whose seat is evaluated: it answers, the others propose."""
    figures: ClassVar[Sequence[Figure]] = family_figures()
    remarks: ClassVar[tuple[str, ...]] = (LABEL_WRONG,)

    def __init__(self, options: Any = None, *, group_size: int = 8, problems_per_step: int = 4):
        super().__init__(options, group_size=group_size, problems_per_step=problems_per_step)
        self.watch = CollapseWatch()
        self._empty_steps = 0
        many = getattr(self.options, "population", 1) > 1
        self.population = Population(self.roles, self.options) if many else None

    def seats(self, step: int) -> Mapping[str, str]:
        """A seat for each role, one for all if the option `seats` is `shared`, or the next pair of a population."""
        if self.population is not None:
            return self.population.pair()
        shared = getattr(self.options, "seats", "two") == "shared"
        return dict.fromkeys(self.roles, "shared") if shared else super().seats(step)

    def seats_of(self, role: str) -> tuple[str, ...]:
        return self.population.seats[role] if self.population is not None else (self.seats(0)[role],)

    def trained_seats(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(seat for role in self.roles for seat in self.seats_of(role)))

    def updates(self, steps: int) -> Mapping[str, int]:
        """A seat of a population plays one step of each round."""
        return dict.fromkeys(self.trained_seats(), math.ceil(steps / len(self.seats_of(self.solver))))

    def evaluation(self) -> EvalSpec:
        return EvalSpec("single", self.seats_of(self.solver))

    def settle(self, step: int, asked: Sequence[Candidate], rng: random.Random) -> tuple[list[Blend], dict[str, Any]]:
        """What `Population.settle` returns; nothing without a population."""
        return ([], {}) if self.population is None else self.population.settle(step, asked, rng)

    def cold_start(self, role: str, problem: Problem, rng: random.Random, *, thinks: bool) -> Example | None:
        """An example from a task's problem: the solver solves it, the other role writes it."""
        if role == self.solver:
            return worked_example(problem, asked(problem), thinks=thinks)
        return self.worked_proposal(problem, thinks=thinks)

    def worked_proposal(self, problem: Problem, *, thinks: bool) -> Example | None:
        """An example whose reply proposes the problem; None if there can be none."""
        return None

    def warnings(self, log: Mapping[str, Any]) -> list[str]:
        return collapse_warnings(log)

    def question_yield(self, proposals: Sequence[Proposal], usable: int) -> dict[str, Any]:
        """Count a step's usable proposals and return their part of its log. `usable`: questions left to train on.

        Raises GameError, quoting the last proposals, after `max_empty_steps` steps in a row without one.
        """
        refused = dict(sorted(Counter(p.reason for p in proposals if p.reason).items()))
        self._empty_steps = empty = 0 if usable else self._empty_steps + 1
        if empty >= self.options.max_empty_steps:
            reasons = ", ".join(f"{count} {reason}" for reason, count in refused.items())
            texts = [repr(proposal.completion.text[:SHOWN_CHARACTERS]) for proposal in proposals[-SHOWN_PROPOSALS:]]
            raise GameError(
                f"{empty} step{'s' if empty > 1 else ''} in a row brought no question to train on (refused: "
                f"{reasons or 'none'}). The last proposals: {' | '.join(texts) or 'none'}. "
                "A cold start (--cold-start), a larger max_completion_tokens or another model helps"
            )
        return {"proposals": len(proposals), "usable": usable, "refused": refused, "empty_steps": empty}

    @classmethod
    def accuracy_of(cls, role: str) -> Accuracy:
        return ANSWERS_TO_LABELS if role == cls.solver else PROPOSALS

    @classmethod
    def step_words(cls, log: Mapping[str, Any]) -> list[str]:
        """The usable share of a step's proposals; nothing for a step without proposals."""
        if not log.get("proposals"):
            return []
        reason, count = max((log.get("refused") or {"": 0}).items(), key=lambda item: item[1])
        refused = f", most refused: {as_words(reason)} {count}" if count else ""
        return [f"{log.get('usable', 0)} of {log['proposals']} questions usable{refused}"]

    @classmethod
    def why_skipped(cls, log: Mapping[str, Any]) -> str:
        return "no question to train on" if log.get("skipped") is True else ""

    @classmethod
    def kinds(cls) -> list[str]:
        return [AGREES, DIFFERS, UNANSWERED, NO_QUESTION, NOT_JUDGED]

    @classmethod
    def transcripts(cls, rows: Iterable[Row]) -> list[Transcript]:
        """Proposals, each with at most one right and one wrong answer to it, possibly from a later step; proposals
        without answers alone.

        The rows of a proposal and of its answers share a question's name, `Sample.info["question"]`.
        """
        rows = list(rows)
        named = [row for row in rows if cls._proposes(row) and row.get("question") is not None]
        proposals = {row["question"]: row for row in reversed(named)}  # the first of each name
        answered = {row.get("question") for row in rows if not cls._proposes(row)}
        found, seen = list[Transcript](), set[tuple[str | None, bool]]()
        for row in rows:
            name, right = row.get("question"), row["correct"]
            if cls._proposes(row):
                if name is None or (name not in answered and proposals[name] is row):
                    kind = NO_QUESTION if _fate(row) in _REFUSED else UNANSWERED
                    found.append(cls.transcript((row,), kind))
            elif (name, bool(right)) not in seen:
                seen.add((name, bool(right)))
                kind = NOT_JUDGED if right is None else AGREES if right else DIFFERS
                found.append(cls.transcript((proposals[name], row) if name in proposals else (row,), kind))
        return found

    @classmethod
    def transcript(cls, rows: tuple[Row, ...], kind: str) -> Transcript:
        """A transcript whose problem is the answered question."""
        found = super().transcript(rows[-1:], kind)
        return replace(found, rows=rows, subject=str(rows[-1].get("question") or found.subject))

    @classmethod
    def verdict(cls, row: Row) -> str:
        """A proposal's outcome: `accepted`, `not accepted (too easy)`, `no question (off format)` or `not judged`."""
        fate = _fate(row)
        if not cls._proposes(row):
            return super().verdict(row)
        if fate == "kept" or row["correct"]:
            return PROPOSALS.yes
        return f"{NO_QUESTION if fate in _REFUSED else PROPOSALS.no} ({as_words(fate)})" if fate else NOT_JUDGED

    @classmethod
    def remarks_on(cls, transcript: Transcript) -> list[str]:
        """Whether an answer was judged by a label that is not the question's true value."""
        row, label = transcript.rows[-1], transcript.rows[-1].get("label")
        wrong = isinstance(label, str) and not cls._proposes(row) and label_is_right(transcript.problem, label) is False
        return [LABEL_WRONG] if wrong else []

    @classmethod
    def _proposes(cls, row: Row) -> bool:
        return cls.accuracy_of(row["role"]).proposals

    def state(self) -> dict[str, Any]:
        population = {} if self.population is None else {"population": self.population.state()}
        return {"empty_steps": self._empty_steps, "seen": list(self.watch.seen), **population}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._empty_steps = state["empty_steps"]
        self.watch = CollapseWatch(state["seen"])
        if self.population is not None:
            self.population.restore(state["population"])


class FilteredGame(ProposeSolve):
    """A game whose questions train the solver if their majority's share is within `bounds`."""

    bounds: Bounds

    def drawn_log(self, table: Table, drawn: Sequence[Candidate], used: Sequence[Problem]) -> dict[str, Any]:
        """Figures of drawn questions, of which `used` train a seat."""
        voted = [candidate for candidate in drawn if candidate.vote is not None]
        shares = [candidate.share for candidate in voted]
        fates = Counter(map(self.bounds.fate, drawn))
        observed = self.watch.observe(
            [candidate.proposal.question for candidate in voted],
            tokens=table.tokenize,
            pass_rates=shares,
            vote_shares=shares,
            labels=[(problem.text, problem.answer) for problem in used],
        )
        return {
            **self.question_yield([candidate.proposal for candidate in drawn], len(used)),
            **observed,
            **{fate: fates[fate] for fate in ("no_majority", "too_hard", "too_easy")},
        }


class AnchoredGame(ProposeSolve):
    """A game that may add a few labelled problems to those it writes: its anchors (R-Few, arXiv 2512.02472).

    `written` is a problem in the form in which the proposer replies; None if it has none.
    """

    written: Callable[[Problem], str | None]

    def __init__(self, options: Any = None, *, group_size: int = 8, problems_per_step: int = 4):
        super().__init__(options, group_size=group_size, problems_per_step=problems_per_step)
        self.sources = ("problems",) if self.options.anchors else ()

    def anchors(self, table: Table) -> list[Problem]:
        """The anchors. Raises GameError if one is of another kind than the game's own problems."""
        found = list(table.everything("problems")[: self.options.anchors]) if self.options.anchors else []
        other = (each for each in found if (each.kind == PROGRAM) != self.runs_programs or self.written(each) is None)
        if odd := next(other, None):
            own = "programming problems with tests of stdin" if self.runs_programs else "no programming problems"
            raise GameError(f"{odd.id} cannot be an anchor, since this game writes {own}: choose other tasks")
        return found

    def prompts(self, table: Table, prompt: str, count: int) -> list[str]:
        """`count` proposer's prompts, each with up to `shots` anchors as examples, drawn anew."""
        rng, anchors, most = table.rng, self.anchors(table), self.options.shots
        shown = [rng.sample(anchors, min(rng.randint(0, most), len(anchors))) if anchors else [] for _ in range(count)]
        examples = ["\n\n".join(filter(None, map(self.written, each))) for each in shown]
        return [fill("anchored", prompt=prompt, examples=each) if each else prompt for each in examples]


def _fate(row: Row) -> str:
    """A proposal's outcome in its row: a reason, or that it was kept."""
    return str(row.get("fate") or row.get("reason") or "")

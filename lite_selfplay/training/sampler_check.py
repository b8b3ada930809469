"""The sampler's check: whether completions were sampled from the weights that are trained on them.

A sampler notes the log-probability of each token it draws; the update computes it again, from the same weights. The two
differ by rounding. Where they differ by more, rollouts came from somewhere else: the base, another seat, weights that
have moved since, or a sampler that computes something else. Nothing else would tell: such runs train on, towards
nothing. At every update a few rows are read under other weights, and a step that came from them is ended.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import TypeVar

from scipy.special import bdtrc

from lite_selfplay.data import Completion, Sampling, TokenScores
from lite_selfplay.errors import TrainingError
from lite_selfplay.models.adapters import BASE, State
from lite_selfplay.models.backends.backend import Backend, is_out_of_memory, samples_elsewhere
from lite_selfplay.models.generation.sampling import GenerationRequest
from lite_selfplay.training.losses import LossRow

T = TypeVar("T")

Read = tuple[LossRow, Sequence[float]]
"""A row with its log-probabilities, one a token, as the trainer computed them."""

RARE = 20
"""One token in so many may differ by anything without being looked into."""
SURE = 1e-6
"""How likely it may be, at most, that weights which did not sample explain so many tokens better by chance."""

ONE_IN = 32
"""Of so many rows of a stream one is read under the base, and one at the least."""
# Distances from the base and by the step are measured in so many steps at first, then in the first two of so many: to
# read a few rows goes through all layers, in which a card hardly works.
FIRST_GAPS, GAPS_EVERY = 8, 8
LOOKED_INTO = 16
"""Rows of a stream that are read under all other weights, where its completions look foreign."""
LONGEST = 128
"""Tokens of a completion that are read for this at most: what follows a token does not change what it was given."""

HOPELESS = 5
"""So many times the most that is let pass without measuring, the base's own difference is no rounding any more."""
PROBES, PROBE_TOKENS = 8, 32
"""Completions, and tokens of each, by which rounding is measured before the first step."""


def gap_turn(step: int) -> int | None:
    """Which stream, modulo their number, is read again after the update of a step (from 0); None where no gaps are
    measured. All roles and seats have their turn, whether seats swap roles at every step or never."""
    later = step + step // GAPS_EVERY if step % GAPS_EVERY < 2 else None
    return step // 2 if step < FIRST_GAPS else later


class OffPolicyError(Exception):
    """Ends a step's update: its completions were sampled from other weights, and the message says what was seen."""


@dataclass(frozen=True)
class Tolerance:
    """Mean differences in nats a token: up to `rounding` nothing is looked into, beyond `most` nothing is let pass."""

    rounding: float
    most: float


BOUNDS = {"float32": Tolerance(1e-5, 1e-3), "float16": Tolerance(2e-3, 2e-2), "bfloat16": Tolerance(1e-2, 1e-1)}
"""The least of them, by the type that weights are multiplied in.

Measured on a CPU, as the largest mean of a stream in 300 steps of `tiny`: 2e-6 in float32, 1.4e-2 in bfloat16. float16
has an eighth of bfloat16's rounding and was not measured.
"""


ELSEWHERE = BOUNDS["bfloat16"].most
"""What is taken for rounding at the least where another program samples, before its own was measured."""


@dataclass
class Agreement:
    """What an update computed for one stream's rows, beside what the sampler noted of them.

    `rows` are those that reached the model, each with its log-probabilities; they are `compared` where their tokens
    were drawn by the seat as it is now and from its own probabilities. `few` of them are read under the base, whose
    log-probabilities differ by `base_gap` in the mean of `base_tokens` tokens.
    """

    role: str
    seat: str
    compared: bool = True
    rows: list[Read] = field(default_factory=list)
    few: list[Read] = field(default_factory=list)
    base_gap: float | None = None
    base_tokens: int = 0

    @property
    def noted(self) -> list[Read]:
        """The rows that are compared."""
        return self.rows if self.compared else []

    @property
    def gap(self) -> float | None:
        """Mean absolute difference between noted and computed log-probabilities; None without a row to compare."""
        return mean_gap(self.pairs)

    @property
    def pairs(self) -> list[tuple[Sequence[float], Sequence[float]]]:
        """What was noted of each row that is compared, and what was computed."""
        return [(row.completion.logprobs, logprobs) for row, logprobs in self.noted]


def mean_gap(pairs: Sequence[tuple[Sequence[float], Sequence[float]]]) -> float | None:
    """Mean over all tokens of the absolute difference between two rows' log-probabilities; None without a token."""
    differences = [abs(a - b) for one, other in pairs for a, b in zip(one, other, strict=True)]
    return math.fsum(differences) / len(differences) if differences else None


def usual_gap(pairs: Sequence[tuple[Sequence[float], Sequence[float]]]) -> float | None:
    """As `mean_gap`, over the nineteen tokens in twenty that differ least; None without a token.

    A token that was hardly possible can be off by ten nats in half precision, and says nothing of the others.
    """
    differences = sorted(abs(a - b) for one, other in pairs for a, b in zip(one, other, strict=True))
    usual = differences[: max(1, len(differences) - len(differences) // RARE)]
    return math.fsum(usual) / len(usual) if usual else None


def explained_better(noted: Sequence[float], own: Sequence[float], other: Sequence[float]) -> bool:
    """Whether other weights explain noted log-probabilities better than the seat's own, and not by chance.

    They are nearer at more tokens than at half of those at which the two differ: a sign test, one-sided, at `SURE`.
    Where both sets of weights say the same, up to rounding, either is nearer as often, so that a sound sampler fails
    it once in a million times at the most. It takes 20 tokens to tell at all.
    """
    nearer = sum(abs(n - b) < abs(n - a) for n, a, b in zip(noted, own, other, strict=True))
    further = sum(abs(n - b) > abs(n - a) for n, a, b in zip(noted, own, other, strict=True))
    return bool(bdtrc(nearer - 1, nearer + further, 0.5) < SURE)


def spread(rows: Sequence[T], count: int) -> list[T]:
    """`count` of the rows, evenly spaced; all of them where there are no more."""
    count = min(count, len(rows))
    return [rows[(2 * i + 1) * len(rows) // (2 * count)] for i in range(count)]


def at_own_temperature(
    read: Callable[[list[tuple[Sequence[int], Sequence[int]]], float], Sequence[TokenScores]],
    completions: Sequence[Completion],
    most: int | None = None,
) -> list[TokenScores]:
    """What `read` makes of completions (of their first `most` tokens), each at its temperature; of greedy ones at 1."""
    found: dict[int, TokenScores] = {}
    temperatures = [completion.sampling.temperature or 1.0 for completion in completions]
    for temperature in sorted(set(temperatures)):
        places = [i for i, each in enumerate(temperatures) if each == temperature]
        rows = [(completions[i].prompt_ids, completions[i].token_ids[:most]) for i in places]
        found.update(zip(places, read(rows, temperature), strict=True))
    return [found[i] for i in range(len(completions))]


class SamplerCheck:
    """What the trainer computed against what the sampler noted, the base's, and other weights'.

    `before[seat]` are the weights a seat had before they last changed, once they have.
    """

    def __init__(self, backend: Backend):
        self._backend = backend
        self.bounds = BOUNDS[str(backend.compute_dtype).removeprefix("torch.")]
        self.before: dict[str, State] = {}

    def calibrate(self, prompt_ids: Sequence[int]) -> float:
        """Measure what rounding makes of this base on this machine, and widen the bounds to it where it is more.

        The base completes a prompt a few times, and the completions are then read again: both by weights that are known
        to be the same. Returns the mean difference in nats a token. Raises TrainingError where rounding cannot explain
        it.
        """
        sampling, floor = Sampling(max_tokens=PROBE_TOKENS), 0.0
        request = GenerationRequest(BASE, [prompt_ids], PROBES, sampling, [range(PROBES)])
        (completions,) = self._backend.generate(request)
        with self.where_memory_allows():
            scores = self._read(BASE, [(prompt_ids, one.token_ids) for one in completions], sampling.temperature)
            pairs = [(one.logprobs, score.logprobs) for one, score in zip(completions, scores, strict=True)]
            floor = usual_gap(pairs) or 0.0
        # A server computes in its own precision, and over a base that it may hold otherwise.
        most = max(self.bounds.most, ELSEWHERE if samples_elsewhere(self._backend) else 0.0)
        if floor > HOPELESS * most:
            raise TrainingError(
                f"sampler and trainer do not agree on the base's own completions: {floor:.2g} nats a token, where "
                f"rounding makes less than {most:g}. Nothing that is sampled like this can be trained on: "
                "does --backend transformers agree, or another --precision? Do servers of --rollouts hold this base?"
            )
        # Larger models round more. A half above what was measured is still rounding; five times that is not.
        self.bounds = Tolerance(max(self.bounds.rounding, 1.5 * floor), max(self.bounds.most, 5 * floor))
        return floor

    def measure_base(self, agreements: Sequence[Agreement]) -> None:
        """Fill in each stream's mean difference from the base, on a few of its rows, which are read together."""
        for agreement in agreements:
            agreement.few = spread(agreement.rows, max(1, len(agreement.rows) // ONE_IN))
        with self.where_memory_allows():
            scores = iter(self._scores(BASE, [row for agreement in agreements for row in agreement.few]))
            for agreement in agreements:
                agreement.base_gap = mean_gap([(own[:LONGEST], next(scores)) for _, own in agreement.few])
                agreement.base_tokens = sum(len(own[:LONGEST]) for _, own in agreement.few)

    def step_gap(self, agreement: Agreement) -> float | None:
        """How far a stream's seat has moved since its rows were read: the mean difference of its own log-probabilities
        in nats a token, on the few rows that were read under the base."""
        with self.where_memory_allows():
            scores = self._scores(agreement.seat, agreement.few)
            return mean_gap([(own[:LONGEST], now) for (_, own), now in zip(agreement.few, scores, strict=True)])
        return None

    def judge(self, agreements: Sequence[Agreement]) -> None:
        """Raises OffPolicyError for the first stream whose completions were not sampled from the weights it trains.

        A difference that was looked into, and that no other weights explain, is rounding from then on.
        """
        for agreement in agreements:
            gap = usual_gap(agreement.pairs)
            if gap is None or gap <= self.bounds.rounding:
                continue
            who, found = f"{agreement.role} (seat {agreement.seat})", None
            with self.where_memory_allows():
                found = self._source(agreement)
            noted = f"the log-probabilities noted while sampling are {gap:.2g} nats a token from the trainer's own"
            if found is not None:
                raise OffPolicyError(
                    f"the completions of {who} come from other weights than it trains: {noted}, and {found[1]:.2g} "
                    f"from those of {found[0]}"
                )
            if gap > self.bounds.most:
                raise OffPolicyError(
                    f"the completions of {who} do not come from the weights it trains: {noted}, where rounding makes "
                    f"less than {self.bounds.most:.2g}, and no other weights at hand explain them"
                )
            self.bounds = replace(self.bounds, rounding=gap)

    def _source(self, agreement: Agreement) -> tuple[str, float] | None:
        """Whose weights explain better what was noted, and how far they are from it; None where none do."""
        chosen = spread(agreement.noted, LOOKED_INTO)
        noted = [row.completion.logprobs[:LONGEST] for row, _ in chosen]
        own = self._scores(agreement.seat, chosen)
        found = {}
        for name, theirs in self._others(agreement.seat, chosen).items():
            if explained_better(*([*chain.from_iterable(rows)] for rows in (noted, own, theirs))):
                found[name] = mean_gap(list(zip(noted, theirs, strict=True))) or 0.0
        return min(found.items(), key=lambda item: item[1], default=None)

    def _others(self, seat: str, chosen: Sequence[Read]) -> dict[str, list[Sequence[float]]]:
        """Log-probabilities of the rows under the base, the other seats, and the seat before it last changed."""
        adapters = self._backend.adapters
        scores = {"the base": self._scores(BASE, chosen)}
        scores |= {f"seat {other}": self._scores(other, chosen) for other in adapters.seats if other != seat}
        if seat in self.before:
            now = adapters.state(seat)
            try:
                adapters.load_state(seat, self.before[seat])
                scores[f"seat {seat} before its last update"] = self._scores(seat, chosen)
            finally:
                adapters.load_state(seat, now)
        return scores

    def _scores(self, name: str, chosen: Sequence[Read]) -> list[Sequence[float]]:
        """Log-probabilities of the first tokens of each row under a seat or the base, at the row's temperature."""
        read = at_own_temperature(partial(self._read, name), [row.completion for row, _ in chosen], LONGEST)
        return [score.logprobs for score in read]

    def _read(
        self, name: str, rows: Sequence[tuple[Sequence[int], Sequence[int]]], temperature: float
    ) -> list[TokenScores]:
        """The backend's scores, of half as many rows at once where memory runs out."""
        if len(rows) == 1:
            return self._backend.score(name, rows, temperature)
        with self.where_memory_allows():
            return self._backend.score(name, rows, temperature)
        middle = len(rows) // 2
        return [*self._read(name, rows[:middle], temperature), *self._read(name, rows[middle:], temperature)]

    @contextlib.contextmanager
    def where_memory_allows(self) -> Iterator[None]:
        """What is measured here is left open where there is no memory for a single row: the update will tell of it."""
        try:
            yield
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            self._backend.release_memory()

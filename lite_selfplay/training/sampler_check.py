"""The sampler's check: were completions sampled from the weights that are trained on them?

A sampler notes the log-probability of each token; the update computes it again from the same weights, with a difference
of rounding only. A larger difference means that completions came from elsewhere: the base, another seat, older weights,
or a sampler that computes something else. Nothing else would reveal it: such a run continues and learns nothing. If the
difference is suspicious, the check scores a few rows under other weights, and ends the step if those explain it.
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

Read = tuple[LossRow, Sequence[float]]  # a row and its tokens' log-probabilities, as the trainer computed them

RARE = 20  # one token in so many may differ by any amount
SURE = 1e-6  # the significance level of the sign test for other weights

ONE_IN = 32  # one in so many rows of a stream, at least one, is scored under the base
# Gaps to the base and by the step are measured in the first 8 steps, then in the first two of every 8: scoring a few
# rows takes a pass through all layers, with little work for the GPU.
FIRST_GAPS, GAPS_EVERY = 8, 8
SUSPECTS = 16  # rows of a suspicious stream that are scored under all other weights
LONGEST = 128  # score at most this many tokens of a completion: later tokens do not change earlier ones

HOPELESS = 5  # a difference of so many times `Tolerance.most` on the base's own completions is not rounding
PROBES, PROBE_TOKENS = 8, 32  # completions, and tokens of each, to measure rounding before the first step


def gap_turn(step: int) -> int | None:
    """Which stream to score after the update of a step (from 0), as an index modulo their number; None for no stream.

    All roles and seats have their turn, whether seats swap roles at every step or never.
    """
    later = step + step // GAPS_EVERY if step % GAPS_EVERY < 2 else None
    return step // 2 if step < FIRST_GAPS else later


class OffPolicyError(Exception):
    """Ends a step's update: its completions were sampled from other weights, and the message says which."""


@dataclass(frozen=True)
class Tolerance:
    """Mean differences in nats per token: up to `rounding` is accepted unchecked, above `most` always refused."""

    rounding: float
    most: float


# The smallest tolerances, by the type of matrix products. Measured on a CPU, as the largest mean of a stream in 300
# steps of `tiny`: 2e-6 in float32, 1.4e-2 in bfloat16. float16 has an eighth of bfloat16's rounding, not measured.
BOUNDS = {"float32": Tolerance(1e-5, 1e-3), "float16": Tolerance(2e-3, 2e-2), "bfloat16": Tolerance(1e-2, 1e-1)}
ELSEWHERE = BOUNDS["bfloat16"].most  # the smallest `most` if another program samples


@dataclass
class Agreement:
    """An update's log-probabilities of one stream's rows, for the comparison with the sampler's.

    `rows` are those that reached the model; they are `compared` if their tokens were sampled from the seat's current
    weights. `few` of them are scored under the base; `base_gap` is the mean difference over their `base_tokens` tokens.
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
        return self.rows if self.compared else []

    @property
    def gap(self) -> float | None:
        """Mean absolute difference between noted and computed log-probabilities; None without a row to compare."""
        return mean_gap(self.pairs)

    @property
    def pairs(self) -> list[tuple[Sequence[float], Sequence[float]]]:
        """The noted and the computed log-probabilities of each compared row."""
        return [(row.completion.logprobs, logprobs) for row, logprobs in self.noted]


def mean_gap(pairs: Sequence[tuple[Sequence[float], Sequence[float]]], *, usual: bool = False) -> float | None:
    """Mean absolute difference over all tokens between pairs of log-probabilities; None without a token.

    `usual`: over the nineteen in twenty tokens that differ least. In half precision a very unlikely token can differ by
    ten nats, which says nothing about the others.
    """
    differences = sorted(abs(a - b) for one, other in pairs for a, b in zip(one, other, strict=True))
    if usual:
        differences = differences[: max(1, len(differences) - len(differences) // RARE)]
    return math.fsum(differences) / len(differences) if differences else None


def explained_better(noted: Sequence[float], own: Sequence[float], other: Sequence[float]) -> bool:
    """Whether other weights explain the noted log-probabilities significantly better than the seat's own.

    A one-sided sign test at level `SURE`, over the tokens at which the two differ: are the other weights nearer at more
    than half of them? If both agree up to rounding, either is nearer equally often, so a sound sampler fails at most
    once in a million tests. At least 20 tokens are needed.
    """
    nearer = sum(abs(n - b) < abs(n - a) for n, a, b in zip(noted, own, other, strict=True))
    further = sum(abs(n - b) > abs(n - a) for n, a, b in zip(noted, own, other, strict=True))
    return bool(bdtrc(nearer - 1, nearer + further, 0.5) < SURE)


def spread(rows: Sequence[T], count: int) -> list[T]:
    """`count` of the rows, evenly spaced; all rows if there are fewer."""
    count = min(count, len(rows))
    return [rows[(2 * i + 1) * len(rows) // (2 * count)] for i in range(count)]


def at_own_temperature(
    read: Callable[[list[tuple[Sequence[int], Sequence[int]]], float], Sequence[TokenScores]],
    completions: Sequence[Completion],
    most: int | None = None,
) -> list[TokenScores]:
    """Score completions (their first `most` tokens) with `read`, each at its temperature (1 if greedy)."""
    found: dict[int, TokenScores] = {}
    temperatures = [completion.sampling.temperature or 1.0 for completion in completions]
    for temperature in sorted(set(temperatures)):
        indices = [i for i, each in enumerate(temperatures) if each == temperature]
        rows = [(completions[i].prompt_ids, completions[i].token_ids[:most]) for i in indices]
        found.update(zip(indices, read(rows, temperature), strict=True))
    return [found[i] for i in range(len(completions))]


class SamplerCheck:
    """Compares the trainer's log-probabilities with the sampler's, the base's and those of other weights.

    `before[seat]` holds a seat's weights from before their last change.
    """

    def __init__(self, backend: Backend):
        self._backend = backend
        self.bounds = BOUNDS[str(backend.compute_dtype).removeprefix("torch.")]
        self.before: dict[str, State] = {}

    def calibrate(self, prompt_ids: Sequence[int]) -> float:
        """Measure the rounding of this base on this machine, and widen the bounds if it exceeds them.

        The base samples a few completions of a prompt, which are then scored with the same weights. Returns the mean
        difference in nats per token. Raises TrainingError if rounding cannot explain it.
        """
        sampling, floor = Sampling(max_tokens=PROBE_TOKENS), 0.0
        request = GenerationRequest(BASE, [prompt_ids], PROBES, sampling, [range(PROBES)])
        (completions,) = self._backend.generate(request)
        with self.where_memory_allows():
            scores = self._read(BASE, [(prompt_ids, one.token_ids) for one in completions], sampling.temperature)
            pairs = [(one.logprobs, score.logprobs) for one, score in zip(completions, scores, strict=True)]
            floor = mean_gap(pairs, usual=True) or 0.0
        # A server has its own precision, and may hold the base in another form.
        most = max(self.bounds.most, ELSEWHERE if samples_elsewhere(self._backend) else 0.0)
        if floor > HOPELESS * most:
            raise TrainingError(
                f"sampler and trainer do not agree on the base's own completions: they differ by {floor:.2g} nats per "
                f"token, and rounding makes less than {most:g}. Training on such samples is impossible: try --backend "
                "transformers or another --precision, and check that the servers of --rollouts hold this base"
            )
        # Larger models round more. 1.5 times the measured difference is still rounding; 5 times is not.
        self.bounds = Tolerance(max(self.bounds.rounding, 1.5 * floor), max(self.bounds.most, 5 * floor))
        return floor

    def measure_base(self, agreements: Sequence[Agreement]) -> None:
        """Set each stream's mean difference from the base, on a few of its rows."""
        for agreement in agreements:
            agreement.few = spread(agreement.rows, max(1, len(agreement.rows) // ONE_IN))
        with self.where_memory_allows():
            scores = iter(self._scores(BASE, [row for agreement in agreements for row in agreement.few]))
            for agreement in agreements:
                agreement.base_gap = mean_gap([(own[:LONGEST], next(scores)) for _, own in agreement.few])
                agreement.base_tokens = sum(len(own[:LONGEST]) for _, own in agreement.few)

    def step_gap(self, agreement: Agreement) -> float | None:
        """How far the update moved a stream's seat: the mean change of its log-probabilities, on the `few` rows."""
        with self.where_memory_allows():
            scores = self._scores(agreement.seat, agreement.few)
            return mean_gap([(own[:LONGEST], now) for (_, own), now in zip(agreement.few, scores, strict=True)])
        return None

    def judge(self, agreements: Sequence[Agreement]) -> None:
        """Raises OffPolicyError for the first stream whose completions were not sampled from the weights it trains.

        A suspicious difference that no other weights explain counts as rounding from then on.
        """
        for agreement in agreements:
            gap = mean_gap(agreement.pairs, usual=True)
            if gap is None or gap <= self.bounds.rounding:
                continue
            who, found = f"{agreement.role} (seat {agreement.seat})", None
            with self.where_memory_allows():
                found = self._source(agreement)
            noted = f"the sampler's log-probabilities differ from the trainer's by {gap:.2g} nats per token"
            if found is not None:
                raise OffPolicyError(
                    f"the completions of {who} come from other weights than it trains: {noted}, but only by "
                    f"{found[1]:.2g} from those of {found[0]}"
                )
            if gap > self.bounds.most:
                raise OffPolicyError(
                    f"the completions of {who} do not come from the weights it trains: {noted}; rounding makes less "
                    f"than {self.bounds.most:.2g}, and no other known weights explain them"
                )
            self.bounds = replace(self.bounds, rounding=gap)

    def _source(self, agreement: Agreement) -> tuple[str, float] | None:
        """The name of the weights that explain the noted log-probabilities better, and their gap; None without any."""
        chosen = spread(agreement.noted, SUSPECTS)
        noted = [row.completion.logprobs[:LONGEST] for row, _ in chosen]
        own = self._scores(agreement.seat, chosen)
        found = {
            name: mean_gap(list(zip(noted, theirs, strict=True))) or 0.0
            for name, theirs in self._others(agreement.seat, chosen).items()
            if explained_better(*([*chain.from_iterable(rows)] for rows in (noted, own, theirs)))
        }
        return min(found.items(), key=lambda item: item[1], default=None)

    def _others(self, seat: str, chosen: Sequence[Read]) -> dict[str, list[Sequence[float]]]:
        """Log-probabilities of the rows under the base, the other seats, and the seat before its last change."""
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
        """Log-probabilities of each row's first tokens under a seat or the base, at the row's temperature."""
        read = at_own_temperature(partial(self._read, name), [row.completion for row, _ in chosen], LONGEST)
        return [score.logprobs for score in read]

    def _read(
        self, name: str, rows: Sequence[tuple[Sequence[int], Sequence[int]]], temperature: float
    ) -> list[TokenScores]:
        """The backend's scores; if memory runs out, of half as many rows at once."""
        if len(rows) == 1:
            return self._backend.score(name, rows, temperature)
        with self.where_memory_allows():
            return self._backend.score(name, rows, temperature)
        middle = len(rows) // 2
        return [*self._read(name, rows[:middle], temperature), *self._read(name, rows[middle:], temperature)]

    @contextlib.contextmanager
    def where_memory_allows(self) -> Iterator[None]:
        """A context that ends early if there is no memory for a single row: the update will report it."""
        try:
            yield
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            self._backend.release_memory()

"""A run's work, shared out over its processes: each does its part, all hold the whole, and all take one step.

Completions, scores and verdicts travel once, and are held as a process by itself holds them. In an update each process
has the gradients of its rows. What is decided for all there: whether a number was not finite, whether completions came
from other weights, how many tokens fit into a microbatch. What must be the same in all and is compared at every update:
weights, advantages and examples.
"""

import contextlib
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, get_args

import numpy as np
import torch
from pydantic import TypeAdapter

from lite_selfplay.data import Completion, Problem, StopReason, TokenScores, Verdict
from lite_selfplay.errors import TrainingError
from lite_selfplay.models.adapters import Adapters
from lite_selfplay.models.generation.sampling import Generation, GenerationRequest
from lite_selfplay.training.admission import NotFinite
from lite_selfplay.training.microbatches import TokenBudget
from lite_selfplay.training.optimizer import LossScale
from lite_selfplay.training.ranks import Arrays, Ranks
from lite_selfplay.training.sampler_check import Foreign
from lite_selfplay.training.updates import Learning, StepReport, StreamUpdate
from lite_selfplay.verify import Verifier

_GENERATIONS, _SCORES = {"ids": "<i4", "logprobs": "<f4"}, {"logprobs": "<f4", "entropies": "<f4"}
"""A row's columns of numbers, and as what they travel."""
_STOPS: tuple[StopReason, ...] = get_args(StopReason)
_VERDICTS = TypeAdapter(list[Verdict])
_SUMS = ("loss", "logprob", "kl", "clipped", "rows", "tokens")


# A table's work


def generate(
    ranks: Ranks,
    step: int,
    request: GenerationRequest,
    sample: Callable[[GenerationRequest], list[list[Generation]]],
) -> list[list[Generation]]:
    """The completions that are asked for, each process having sampled its part of them.

    Raises GameError where another process asks for others.
    """
    if ranks.alone:
        return sample(request)
    rows = ranks.part([(p, seed) for p, seeds in enumerate(request.seeds) for seed in seeds])
    mine: dict[int, list[int]] = {}
    for prompt, seed in rows:
        mine.setdefault(prompt, []).append(seed)
    prompts = [request.prompts[p] for p in mine]
    part = GenerationRequest(request.seat, prompts, request.n, request.sampling, list(mine.values()))
    own = list(chain.from_iterable(sample(part) if prompts else []))
    asked = zlib.crc32(repr((request.sampling, request.seeds)).encode(), _digest(request.prompts))
    what = f"completions of {len(request.prompts)} prompts by {request.seat} in step {step + 1} ({asked:08x})"
    arrays = pack_rows(_GENERATIONS, [(row.token_ids, row.logprobs) for row in own])
    arrays["stops"] = np.array([_STOPS.index(row.stop) for row in own], np.uint8)
    found = chain.from_iterable(ranks.gather(what, None, arrays, read_generations))
    return [[next(found) for _ in seeds] for seeds in request.seeds]


def score(
    ranks: Ranks,
    step: int,
    seat: str,
    completions: Sequence[Completion],
    read: Callable[[Sequence[Completion]], list[TokenScores]],
) -> list[TokenScores]:
    """Scores of completions, each process having read its part of them. Raises GameError as `generate` does."""
    if ranks.alone:
        return read(completions)
    own = read(ranks.part(completions, lambda c: len(c.prompt_ids) + len(c.token_ids)))
    digest = _digest(c.token_ids for c in completions)
    what = f"scores of {len(completions)} completions by {seat} in step {step + 1} ({digest:08x})"
    arrays = pack_rows(_SCORES, [(row.logprobs, row.entropies) for row in own])
    return list(chain.from_iterable(ranks.gather(what, None, arrays, read_scores)))


def verify(
    ranks: Ranks, step: int, verifier: Verifier, pairs: Sequence[tuple[Completion, Problem]], *, thinks: bool
) -> list[Verdict]:
    """Verdicts on completions, each by one process alone: at a deadline two could come to different ones.

    The verifier counts the answers that ran out of time in any process.
    """
    own = verifier.verify(ranks.part(pairs), thinks=thinks)
    if ranks.alone:
        return own
    what = f"verdicts on {len(pairs)} answers in step {step + 1}"
    verdicts = list(chain.from_iterable(ranks.gather(what, _VERDICTS.dump_python(own), None, read_verdicts)))
    late, own_late = (sum(v.reason == "timeout" for v in some) for some in (verdicts, own))
    verifier.counters.timeouts += late - own_late
    verifier.counters.checked += len(pairs) - len(own)
    return verdicts


def judge(ranks: Ranks, step: int, work: Callable[[], list[Verdict]], count: int) -> list[Verdict]:
    """Verdicts by a user's own function, which the first process alone calls."""
    if ranks.alone:
        return work()
    own = work() if ranks.main else []
    what = f"rewards of {count} completions in step {step + 1}"
    return list(chain.from_iterable(ranks.gather(what, _VERDICTS.dump_python(own), None, read_verdicts)))


def pack_rows(kinds: Mapping[str, str], rows: Sequence[Sequence[Sequence[float]]]) -> dict[str, Any]:
    """Rows as arrays: each of their columns one row after another, and how many numbers are each row's."""
    arrays = {n: np.array([x for row in rows for x in row[i]], kind) for i, (n, kind) in enumerate(kinds.items())}
    return {"lengths": np.array([len(row[0]) for row in rows], "<i4"), **arrays}


def unpack_rows(kinds: Mapping[str, str], arrays: Arrays) -> list[list[list[Any]]]:
    """The rows that `pack_rows` took, rounded to float32. Raises LookupError or ValueError where they do not fit."""
    lengths = arrays["lengths"].tolist()
    whole = all(arrays[name].dtype == kind and len(arrays[name]) == sum(lengths) for name, kind in kinds.items())
    if not whole or min(lengths, default=0) < 0:
        raise ValueError("rows whose numbers do not fit together")
    columns = [iter(arrays[name].tolist()) for name in kinds]
    return [[list(islice(column, length)) for column in columns] for length in lengths]


def read_generations(_: Any, arrays: Arrays) -> list[Generation]:
    pairs = zip(unpack_rows(_GENERATIONS, arrays), arrays["stops"].tolist(), strict=True)
    return [Generation(ids, logprobs, _STOPS[stop]) for (ids, logprobs), stop in pairs]


def read_scores(_: Any, arrays: Arrays) -> list[TokenScores]:
    return [TokenScores(logprobs, entropies) for logprobs, entropies in unpack_rows(_SCORES, arrays)]


def read_verdicts(value: Any, _: Arrays) -> list[Verdict]:
    return _VERDICTS.validate_python(value)


def _digest(rows: Iterable[Sequence[int]]) -> int:
    """A checksum of lists of ids."""
    found = 0
    for row in rows:
        found = zlib.crc32(np.asarray(row, "<i8").tobytes(), zlib.crc32(b"row", found))
    return found


# An update


@contextlib.contextmanager
def failing_together(
    ranks: Ranks, what: str, kind: type[Exception], facts: Callable[[], Any] = lambda: None
) -> Iterator[list[Any]]:
    """A context in which an error of a kind in one process is one in all; `what` is done in it.

    It gives a list that holds the `facts` of all processes afterwards, of several.
    """
    odd, told = None, list[Any]()
    try:
        yield told
    except kind as error:
        if ranks.alone:
            raise
        odd = str(error)
    if not ranks.alone:
        answers = ranks.gather(what, [odd, facts()])
        told += [theirs for _, theirs in answers]
        for first in (theirs for theirs, _ in answers if theirs is not None):
            raise kind(first)


@contextlib.contextmanager
def nonfinite_in_any(
    ranks: Ranks,
    adapters: Adapters,
    report: StepReport,
    budget: TokenBudget,
    scale: LossScale,
    found: list[StreamUpdate],
) -> Iterator[None]:
    """A context in which gradients are computed, and NotFinite in one process is NotFinite in all.

    `found` is what was done with each stream: of this process's rows in the context, of all rows afterwards. Raises
    TrainingError where processes are no longer the same.
    """
    step = report.step + 1

    def facts() -> dict[str, Any]:
        return {
            "weights": {seat: checksum(adapters, seat) for seat in adapters.seats},
            "rewards": zlib.crc32(repr(report.advantages).encode()),
            "budget": budget.tokens,
            "scale": scale.exponent,
            "found": [{key: getattr(update, key) for key in _SUMS} for update in found],
        }

    with failing_together(ranks, f"the update of step {step}", NotFinite, facts) as told:
        yield
    for rank, theirs in enumerate(told):
        for seat in (seat for seat in adapters.seats if theirs["weights"][seat] != told[0]["weights"][seat]):
            raise TrainingError(
                f"at step {step} process {rank} of this run has other weights in seat {seat} than process 0: cards "
                "must be of one kind, with one set of packages"
            )
        if theirs["rewards"] != told[0]["rewards"]:
            raise TrainingError(
                f"at step {step} process {rank} of this run came to other rewards than process 0: a game may "
                "depend on its table and its own state alone (lite_selfplay.testing.check_game)"
            )
    if told:
        budget.lower(min(int(theirs["budget"]) for theirs in told))
        scale.agree([theirs["scale"] for theirs in told])
        streams = zip(found, zip(*(theirs["found"] for theirs in told), strict=True), strict=True)
        found[:] = [_added(own, parts) for own, parts in streams]


def checksum(adapters: Adapters, seat: str) -> int:
    """The sum of the bits of a seat's weights, which is another one for other weights, whatever the order."""
    return sum(int(p.detach().view(torch.int32).sum(dtype=torch.int64)) for p in adapters.parameters(seat).values())


def add_up(ranks: Ranks, adapters: Adapters, seats: Iterable[str]) -> None:
    """Make each seat's gradient that of all rows; one that has none here, because its rows are elsewhere, too."""
    for seat in () if ranks.alone else sorted(seats):
        parameters = list(adapters.parameters(seat).values())
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        ranks.add_up([p.grad for p in parameters if p.grad is not None])


@contextlib.contextmanager
def foreign_in_any(ranks: Ranks, learning: Sequence[Learning]) -> Iterator[None]:
    """A context in which what was sampled is judged, and Foreign in one process is Foreign in all.

    Each judges its own rows; the mean differences in the streams' reports are those of all rows.
    """

    def gaps() -> list[Any]:
        return [[(x.gap, x.tokens), (x.base_gap, x.base_tokens)] for x in (one.agreement for one in learning)]

    told: list[Any] = []
    try:
        with failing_together(ranks, "whose completions these are", Foreign, gaps) as told:
            yield
    finally:
        for x, parts in zip(learning, zip(*told, strict=True), strict=bool(told)):
            sampler, base = (_mean(kind) for kind in zip(*parts, strict=True))
            if sampler is not None or base is not None:
                x.update.sampler_gap, x.update.base_gap = sampler, base


def _added(own: StreamUpdate, parts: Sequence[Mapping[str, Any]]) -> StreamUpdate:
    """A stream's figures from those of all processes' parts, each of which is by its share of the whole stream."""
    found = StreamUpdate(own.role, own.seat)
    for key in _SUMS:
        values = [part[key] for part in parts if part[key] is not None]
        setattr(found, key, sum(values) if values else None)
    return found


def _mean(parts: Iterable[tuple[float | None, int]]) -> float | None:
    """The mean over all tokens, from means and numbers of tokens."""
    seen = [(gap, tokens) for gap, tokens in parts if gap is not None]
    total = sum(tokens for _, tokens in seen)
    return sum(gap * tokens for gap, tokens in seen) / total if total else None

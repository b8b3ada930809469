"""A table's work, shared out over the processes of a run: each does its part, and all hold the whole.

What is held is what a process by itself holds, the completions of a step. They travel once, as arrays.
"""

import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import numpy as np

from lite_selfplay.data import Completion, Problem, TokenScores, Verdict
from lite_selfplay.models.generation.sampling import Generation, GenerationRequest
from lite_selfplay.training import wire
from lite_selfplay.training.ranks import Ranks
from lite_selfplay.verify import Verifier

T = TypeVar("T")


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
    own = sample(part) if prompts else []
    asked = zlib.crc32(repr((request.sampling, request.seeds)).encode(), _digest(request.prompts))
    what = f"completions of {len(request.prompts)} prompts by {request.seat} in step {step + 1} ({asked:08x})"
    told = ranks.gather(what, arrays=wire.pack_generations([row for group in own for row in group]))
    found = iter(_all(wire.unpack_generations(arrays) for _, arrays in told))
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
    return _all(wire.unpack_scores(arrays) for _, arrays in ranks.gather(what, arrays=wire.pack_scores(own)))


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
    told = ranks.gather(what, [wire.verdict_to_json(verdict) for verdict in own])
    verdicts = [wire.verdict_from_json(values) for theirs, _ in told for values in theirs]
    late, own_late = (sum(v.reason == "timeout" for v in some) for some in (verdicts, own))
    verifier.counters.timeouts += late - own_late
    verifier.counters.checked += len(pairs) - len(own)
    return verdicts


def judge(ranks: Ranks, step: int, work: Callable[[], list[Verdict]], count: int) -> list[Verdict]:
    """Verdicts by a user's own function, which the first process alone calls."""
    if ranks.alone:
        return work()
    what = f"rewards of {count} completions in step {step + 1}"
    told = ranks.from_main(what, lambda: [wire.verdict_to_json(verdict) for verdict in work()])
    return [wire.verdict_from_json(values) for values in told]


def _digest(rows: Iterable[Sequence[int]]) -> int:
    """A checksum of lists of ids."""
    found = 0
    for row in rows:
        found = zlib.crc32(np.asarray(row, "<i8").tobytes(), zlib.crc32(b"row", found))
    return found


def _all(parts: Iterable[list[T]]) -> list[T]:
    return [item for part in parts for item in part]

"""Splits sampling, scoring and verification over a run's processes: each does its part, and all get all results.

The results are the same as in one process. Gradients are summed in `atomic_update.py`.
"""

import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, groupby
from typing import Any, TypeVar

import numpy as np
from pydantic import StrictInt, TypeAdapter

from lite_selfplay.data import Completion, Problem, StopReason, TokenScores, Verdict
from lite_selfplay.models.generation.sampling import Generation, GenerationRequest
from lite_selfplay.training.ranks import Ranks
from lite_selfplay.verify import Verifier

T = TypeVar("T")
_GENERATIONS = TypeAdapter(list[tuple[list[StrictInt], list[float], StopReason]])
_SCORES = TypeAdapter(list[TokenScores])
_VERDICTS = TypeAdapter(list[Verdict])


def generate(
    ranks: Ranks, step: int, request: GenerationRequest, sample: Callable[[GenerationRequest], list[list[Generation]]]
) -> list[list[Generation]]:
    """The requested completions; each process samples a part. Raises GameError if processes request different ones."""
    if ranks.alone:
        return sample(request)
    rows = ranks.part([(p, seed) for p, seeds in enumerate(request.seeds) for seed in seeds])
    mine = {prompt: [seed for _, seed in own] for prompt, own in groupby(rows, lambda row: row[0])}
    prompts = [request.prompts[p] for p in mine]
    part = GenerationRequest(request.seat, prompts, request.n, request.sampling, list(mine.values()))
    own = list(chain.from_iterable(sample(part) if prompts else []))
    asked = zlib.crc32(repr((request.sampling, request.seeds)).encode(), _digest(request.prompts))
    what = f"completions of {len(request.prompts)} prompts by {request.seat} in step {step + 1} ({asked:08x})"
    found = iter(_of_all(ranks, what, [(row.token_ids, row.logprobs, row.stop) for row in own], read_generations))
    return [[next(found) for _ in seeds] for seeds in request.seeds]


def score(
    ranks: Ranks,
    step: int,
    seat: str,
    completions: Sequence[Completion],
    read: Callable[[Sequence[Completion]], list[TokenScores]],
) -> list[TokenScores]:
    """Scores of completions; each process computes a part. Raises GameError as `generate` does."""
    if ranks.alone:
        return read(completions)
    own = read(ranks.part(completions, lambda c: len(c.prompt_ids) + len(c.token_ids)))
    digest = _digest(c.token_ids for c in completions)
    what = f"scores of {len(completions)} completions by {seat} in step {step + 1} ({digest:08x})"
    return _of_all(ranks, what, _SCORES.dump_python(own), _SCORES.validate_python)


def verify(
    ranks: Ranks, step: int, verifier: Verifier, pairs: Sequence[tuple[Completion, Problem]], *, thinks: bool
) -> list[Verdict]:
    """Verdicts on completions, each by one process only: near a deadline, two could come to different ones.

    The verifier counts the reasons of all processes.
    """
    own = verifier.verify(ranks.part(pairs), thinks=thinks)
    verdicts = _verdicts_of_all(ranks, f"verdicts on {len(pairs)} answers in step {step + 1}", own)
    verifier.reasons += Counter(v.reason for v in verdicts) - Counter(v.reason for v in own)
    return verdicts


def judge(ranks: Ranks, step: int, work: Callable[[], list[Verdict]], count: int) -> list[Verdict]:
    """Verdicts by a user's own function, which only the first process calls."""
    own = work() if ranks.main or ranks.alone else []
    return _verdicts_of_all(ranks, f"rewards of {count} completions in step {step + 1}", own)


def _verdicts_of_all(ranks: Ranks, what: str, own: list[Verdict]) -> list[Verdict]:
    return own if ranks.alone else _of_all(ranks, what, _VERDICTS.dump_python(own), _VERDICTS.validate_python)


def read_generations(value: Any) -> list[Generation]:
    """Completions in the form in which another process sends them. Raises ValueError for anything else."""
    return [
        Generation([i for i, _ in pairs], [x for _, x in pairs], stop)
        for ids, logprobs, stop in _GENERATIONS.validate_python(value)
        for pairs in [list(zip(ids, logprobs, strict=True))]
    ]


def _of_all(ranks: Ranks, what: str, own: Sequence[Any], read: Callable[[Any], list[T]]) -> list[T]:
    return list(chain.from_iterable(ranks.gather(what, own, read)))


def _digest(rows: Iterable[Sequence[int]]) -> int:
    found = 0
    for row in rows:
        found = zlib.crc32(np.asarray(row, "<i8").tobytes(), zlib.crc32(b"row", found))
    return found

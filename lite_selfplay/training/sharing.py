"""A run's work, shared out over its processes: each does its part, all hold the whole, and all take one step.

Completions, scores and verdicts travel once, and are held as a process by itself holds them. An update's gradients:
`guarded.py`.
"""

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, islice
from typing import Any, get_args

import numpy as np
from pydantic import TypeAdapter

from lite_selfplay.data import Completion, Problem, StopReason, TokenScores, Verdict
from lite_selfplay.models.generation.sampling import Generation, GenerationRequest
from lite_selfplay.training.ranks import Arrays, Ranks
from lite_selfplay.verify import Verifier

_GENERATIONS, _SCORES = {"ids": "<i4", "logprobs": "<f4"}, {"logprobs": "<f4", "entropies": "<f4"}
"""A row's columns of numbers, and as what they travel."""
_STOPS: tuple[StopReason, ...] = get_args(StopReason)
_VERDICTS = TypeAdapter(list[Verdict])


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

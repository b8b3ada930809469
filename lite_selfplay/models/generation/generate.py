"""Sampling completions from a causal language model, a whole step's prompts at once.

A shared prompt is read once and its cache expanded to the group's rows; finished rows leave the batch, and waiting rows
join. Shapes: `P` prompts, `n` completions of each, `R` rows in the batch, `T` positions read so far, `V` vocabulary.
"""

import torch
from torch import nn

from lite_selfplay.models.generation.fixed import JOIN_AT, can_be_fixed, sample_fixed, taken
from lite_selfplay.models.generation.rows import SamplingCall, prefill
from lite_selfplay.models.generation.sampling import Decoding, Generation, GenerationRequest, SampledRow

LEAVE_AT = 1 / 16
"""Finished rows leave the batch once they are this share of it."""


@torch.inference_mode()
def generate(model: nn.Module, request: GenerationRequest, decoding: Decoding) -> list[list[Generation]]:
    """Sample a request's completions with the active seat, in the order of its prompts.

    The plain loop is below, the other is `fixed.sample_fixed`. Raises ValueError for an empty prompt, and for stop
    strings without `decoding.decode`.
    """
    decoding.check(request)
    results, waiting = request.start()
    call = SamplingCall(model, request.sampling, decoding)
    sample = sample_fixed if decoding.loop != "plain" and can_be_fixed(call) else _sample
    while waiting:
        sample(call, waiting)
    return results


def _sample(call: SamplingCall, waiting: list[SampledRow]) -> None:
    """Sample the rows at the head of `waiting` that fit at once, and those that can join meanwhile."""
    batch = prefill(call, _take(call, waiting, 0))
    most = len(batch.rows)
    while True:
        call.decoding.poll()
        token = batch.sample()
        if sum(row.over for row in batch.rows) >= LEAVE_AT * len(batch.rows):
            token = token[batch.leave()]
            if not batch.rows:
                return
        batch.advance(token)
        if waiting and call.rows_may_join and len(batch.rows) <= (1 - JOIN_AT) * most:
            if rows := _take(call, waiting, len(batch.rows)):
                batch.join(prefill(call, rows))
            most = len(batch.rows)


def _take(call: SamplingCall, waiting: list[SampledRow], beside: int) -> list[SampledRow]:
    """Remove and return as many rows from the head of `waiting` as the cache holds besides `beside` others."""
    count, most = 0, call.decoding.cache_tokens
    while count < len(waiting) and (
        beside + count == 0 or (beside + count + 1) * (len(waiting[count].prompt) + call.sampling.max_tokens) <= most
    ):
        count += 1
    return taken(waiting, count)

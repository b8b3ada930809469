"""Sampling completions from a causal language model, a whole step's prompts at once.

A prompt that a group shares is read once and its cache expanded to the group's rows; rows leave the batch when they
finish, and rows that did not fit at first take their places. Shapes: `P` prompts, `n` completions of each, `R` rows in
the batch, `T` columns read so far, `V` vocabulary.
"""

import torch
from torch import nn

from lite_selfplay.models.generation.fixed import can_be_fixed, sample_fixed, taken
from lite_selfplay.models.generation.rows import Speaker, read
from lite_selfplay.models.generation.sampling import Decoding, Generation, GenerationRequest, SampledRow

LEAVE_AT = 1 / 16
"""Finished rows leave the batch once they are this share of it."""
JOIN_AT = 1 / 4
"""Waiting rows join the batch once this share of its places is free: their prompts are read by themselves."""


@torch.inference_mode()
def generate(model: nn.Module, request: GenerationRequest, decoding: Decoding) -> list[list[Generation]]:
    """The completions that a request asks for, in the order of its prompts, by the seat that is active.

    The plain loop is below, the others are `fixed.sample_fixed`. Raises ValueError for an empty prompt, and for stop
    strings without `decoding.decode`.
    """
    decoding.check(request)
    results = request.empty()
    waiting = request.rows(results)
    speaker = Speaker(model, request.sampling, decoding)
    sample = sample_fixed if decoding.loop != "plain" and can_be_fixed(speaker) else _sample
    while waiting:
        sample(speaker, waiting)
    return results


def _sample(speaker: Speaker, waiting: list[SampledRow]) -> None:
    """Finish the rows at the head of `waiting` that fit at once, and those that find a place while they run."""
    batch = read(speaker, _take(speaker, waiting, 0))
    places = len(batch.rows)
    while True:
        speaker.decoding.poll()
        token = batch.choose()
        if sum(row.over for row in batch.rows) >= LEAVE_AT * len(batch.rows):
            token = token[batch.leave()]
            if not batch.rows:
                return
        batch.advance(token)
        if waiting and speaker.rows_may_join and len(batch.rows) <= (1 - JOIN_AT) * places:
            if rows := _take(speaker, waiting, len(batch.rows)):
                batch.join(read(speaker, rows))
            places = len(batch.rows)


def _take(speaker: Speaker, waiting: list[SampledRow], beside: int) -> list[SampledRow]:
    """Rows from the head of `waiting`, in order of their prompts' lengths, as many as the cache holds beside others."""
    count, max_tokens, cache_tokens = 0, speaker.sampling.max_tokens, speaker.decoding.cache_tokens
    while count < len(waiting):
        if beside + count and (beside + count + 1) * (len(waiting[count].prompt) + max_tokens) > cache_tokens:
            break
        count += 1
    return taken(waiting, count)

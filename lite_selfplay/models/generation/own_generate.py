"""Sampling through a model's own `generate`, each row still by its own seed.

Whoever made that method fast keeps what makes it fast; only the choice of a token is ours: a logits processor, the last
of all, draws it and leaves it as the only one that greedy decoding can take. Rows of one call are padded to its
longest prompt, and finished rows stay until the call ends. Shapes: `R` rows of a call, `P` its longest prompt, `L` what
it has read so far, `V` vocabulary.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList, StoppingCriteria, StoppingCriteriaList

from lite_selfplay.data import Sampling
from lite_selfplay.models.generation.sampling import Decoding, Generation, GenerationRequest, SampledRow, Sampler
from lite_selfplay.models.logprobs.batch import pad
from lite_selfplay.models.transfers import placed


def generate_through(
    own_generate: Callable[..., Any], request: GenerationRequest, decoding: Decoding
) -> list[list[Generation]]:
    """The completions that a request asks for: the result of `generation.generate`, by the seat that is active.

    `own_generate` is the `generate` of a model whose generation settings are neutral. At most `decoding.cache_tokens`
    padded tokens are in a call (a single row may exceed it). Raises ValueError for an empty prompt, and for stop
    strings without `decoding.decode`.
    """
    decoding.check(request)
    sampling, results = request.sampling, request.empty()
    rows = request.rows(results)
    while rows:
        # How many of the longest prompts, at the end of `rows`, go into one call.
        size = max(1, min(len(rows), decoding.cache_tokens // (len(rows[-1].prompt) + sampling.max_tokens)))
        call, rows = rows[-size:], rows[:-size]
        chooser = _Chooser(sampling, decoding, call)
        own_generate(
            **chooser.inputs(),
            max_new_tokens=sampling.max_tokens,
            do_sample=False,
            eos_token_id=sorted(set(decoding.eos_ids)),
            pad_token_id=0,
            logits_processor=LogitsProcessorList([chooser]),
            stopping_criteria=StoppingCriteriaList([_Stopped(chooser)]),
        )
    return results


class _Chooser(Sampler, LogitsProcessor):
    """Draws the next token of every row and leaves no other with a finite score."""

    def __init__(self, sampling: Sampling, decoding: Decoding, rows: Sequence[SampledRow]):
        super().__init__(sampling, decoding)
        self.rows = rows

    def inputs(self) -> dict[str, Tensor]:
        """Ids and mask (R, P), padded on the left."""
        ids, mask = (t.to(self.decoding.device) for t in pad([row.prompt for row in self.rows], left=True))
        return {"input_ids": ids, "attention_mask": mask}

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores (R, V) that are 0 for the token each row drew and minus infinity for the others."""
        self.decoding.poll()
        token = self.draw(self.rows, scores, self.seen(self.rows, scores.shape[-1]))
        return torch.full_like(scores, -torch.inf).scatter_(1, token[:, None], 0.0)


class _Stopped(StoppingCriteria):
    """Ends the rows that are over; end-of-sequence tokens and the limit are the library's own."""

    def __init__(self, chooser: _Chooser):
        self._chooser = chooser

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Any:
        return placed([row.over for row in self._chooser.rows], input_ids.device)

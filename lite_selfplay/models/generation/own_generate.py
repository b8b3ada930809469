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
from lite_selfplay.models.generation.sampling import Decoding, Generation, GenerationRequest, Sampler
from lite_selfplay.models.logprobs.batch import pad

Row = tuple[Sequence[int], int, Generation]
"""A prompt's ids, the row's seed, and where its completion goes."""


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
    rows = [
        (prompt, seed, out)
        for prompt, seeds, outs in zip(request.prompts, request.seeds, results, strict=True)
        for seed, out in zip(seeds, outs, strict=True)
    ]
    rows.sort(key=lambda row: len(row[0]))
    while rows:
        # How many of the longest prompts, at the end of `rows`, go into one call.
        size = max(1, min(len(rows), decoding.cache_tokens // (len(rows[-1][0]) + sampling.max_tokens)))
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
        chooser.hand_over(torch.ones_like(chooser.ended), [out for _, _, out in call])
    return results


class _Chooser(Sampler, LogitsProcessor):
    """Draws the next token of every row and leaves no other with a finite score."""

    def __init__(self, sampling: Sampling, decoding: Decoding, rows: Sequence[Row]):
        super().__init__(sampling, decoding, [seed for _, seed, _ in rows])
        self.prompts = [prompt for prompt, _, _ in rows]
        self.outs = [out for _, _, out in rows]
        self.seen: Tensor | None = None

    def inputs(self) -> dict[str, Tensor]:
        """Ids and mask (R, P), padded on the left."""
        ids, mask = (t.to(self.decoding.device) for t in pad(self.prompts, left=True))
        return {"input_ids": ids, "attention_mask": mask}

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores (R, V) that are 0 for the token each row drew and minus infinity for the others."""
        self.decoding.poll()
        if self.sampling.repetition_penalty != 1.0 and self.seen is None:
            self.seen = torch.zeros(scores.shape, dtype=torch.bool, device=scores.device)
            for i, prompt in enumerate(self.prompts):
                self.seen[i, list(prompt)] = True
        token = self.draw(scores, self.seen)[:, None]
        self.tell(self.outs)
        if self.seen is not None:
            self.seen.scatter_(1, token, True)
        return torch.full_like(scores, -torch.inf).scatter_(1, token, 0.0)


class _Stopped(StoppingCriteria):
    """Ends the rows that met a stop string, and those that nobody wants more of; end-of-sequence tokens and the limit
    are the library's own."""

    def __init__(self, chooser: _Chooser):
        self._chooser = chooser

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Any:
        return self._chooser.stopped | self._chooser.full

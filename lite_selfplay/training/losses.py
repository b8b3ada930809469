"""What a loss is computed from, and losses of a user's own.

A loss is a function of log-probabilities, old ones, the reference's, advantages and a mask: it returns what is to
become small, a term a completion or a term a token. The mean of a stream's terms is its loss, however many
microbatches, updates and processes share them: see `microbatches`. TRL's losses (`trl.py`) start from the same numbers.
Shapes: `B` rows, `T` tokens of the longest completion, `N` tokens of all completions, row after row.
"""

from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from typing import Any, Self

import torch
from torch import Tensor

from lite_selfplay.config import RoleConfig
from lite_selfplay.config.guard import guarded
from lite_selfplay.config.user_files import short_name
from lite_selfplay.errors import LossError
from lite_selfplay.models.backends.base import is_out_of_memory
from lite_selfplay.models.transfers import placed
from lite_selfplay.training.microbatches import MicroBatch

_LARGEST = 20.0
"""Bound of a completion's log-ratio, far beyond any clip, at which exp is still finite (verl has the same)."""


@dataclass(frozen=True)
class Loss:
    """A microbatch's loss, a differentiable scalar; the mean KL per token; the share of tokens whose ratio was clipped,
    or of completions where each has one ratio.

    The latter two, scalars as well, are None where there is no such term. A KL that is taken off the advantages is the
    mean of log p - log p_reference.
    """

    value: Tensor
    kl: Tensor | None
    clipped: Tensor | None


@dataclass(frozen=True)
class Given:
    """What a microbatch's loss is computed from, (B, T) each, 0 behind a completion; `advantages` are a number a row.

    `logprobs - old` is the log-ratio of the role's kind at every token (`old_logprobs`); None stands for `logprobs`.
    `stored` are the log-probabilities of another policy, where the ratio is to one. `reference` are those of a KL term.
    Where that is taken off the advantages, it has been, and `gaps` are the differences from the reference instead.
    """

    logprobs: Tensor
    mask: Tensor
    advantages: list[float]
    stored: Tensor | None
    old: Tensor | None
    reference: Tensor | None
    gaps: Tensor | None

    @classmethod
    def of(cls, micro: MicroBatch, logprobs: Tensor, reference: Tensor | None) -> Self:
        """From log-probabilities and the reference's (N,), which are needed where the role has a KL term."""
        role, device = micro.role, logprobs.device
        mask, stored, gaps = placed(completion_mask(micro), device), None, None
        advantages = [row.advantage for row in micro.rows]
        if reference is not None and role.kl == "advantage":
            gaps, reference = padded(logprobs.detach() - reference, micro), None
            sums = zip(gaps.sum(-1).tolist(), micro.rows, strict=True)
            advantages = [row.advantage - role.beta * total / row.tokens for total, row in sums]
        if micro.has_old:
            stored = padded(placed([value for row in micro.old for value in row], device), micro)
        now = padded(logprobs, micro)
        against = None if reference is None else padded(reference, micro)
        return cls(now, mask, advantages, stored, old_logprobs(role, now, stored, mask), against, gaps)

    def kl(self) -> Tensor | None:
        """The KL term at every token: k3, an estimate that is never negative."""
        if self.reference is None:
            return None
        gap = self.reference - self.logprobs
        return gap.exp() - gap - 1


def own_terms(loss: Callable[..., Any], micro: MicroBatch, given: Given) -> Tensor:
    """The terms (B,) or (B, T) that a user's own loss returns. Raises LossError where it fails or they are none."""
    name, role = f"the loss {short_name(micro.role.loss)}", micro.role
    values = {
        **{key: getattr(role, key) for key in RoleConfig.model_fields},
        "logprobs": given.logprobs,
        "old": given.logprobs.detach() if given.old is None else given.old,
        "reference": given.reference,
        "advantages": placed(given.advantages, given.logprobs.device),
        "mask": given.mask.bool(),
    }
    try:
        with guarded(name, LossError):
            terms = loss(**{key: values[key] for key in signature(loss).parameters})
    except LossError as error:
        if (cause := error.__cause__) is not None and is_out_of_memory(cause):
            raise cause from None
        raise
    rows, tokens = given.mask.shape
    shape = tuple(terms.shape) if isinstance(terms, Tensor) else type(terms).__name__
    if shape not in ((rows,), (rows, tokens)):
        raise LossError(
            f"{name} must return a term for each completion, a tensor of shape ({rows},), or for each token, "
            f"({rows}, {tokens}), got {shape}: the mean over all of a step is taken afterwards"
        )
    if not terms.requires_grad:
        raise LossError(
            f"{name} returned terms without a gradient, so nothing would be learned: use `logprobs` as given"
        )
    return terms


def loss_of(micro: MicroBatch, given: Given, terms: Tensor, entropies: Tensor) -> Loss:
    """A microbatch's loss from terms (B,) or (B, T) and entropies (N,)."""
    value = micro.part_of_mean(terms, given.mask) - micro.role.entropy * micro.token_share * entropies.mean()
    kl = given.kl() if given.gaps is None else given.gaps
    return Loss(value, None if kl is None else (kl.detach() * given.mask).sum() / given.mask.sum(), None)


def completion_mask(micro: MicroBatch) -> Tensor:
    """Which of (B, T) are tokens of a completion, int64."""
    lengths = torch.tensor([[row.tokens] for row in micro.rows])
    return (torch.arange(int(lengths.max()))[None] < lengths).long()


def padded(values: Tensor, micro: MicroBatch) -> Tensor:
    """Values (N,) of the completions' tokens as (B, T), 0 behind a completion."""
    lengths = [row.tokens for row in micro.rows]
    width = max(lengths)
    places = placed([i * width + t for i, length in enumerate(lengths) for t in range(length)], values.device)
    return values.new_zeros(len(lengths) * width).index_copy(0, places, values).unflatten(0, (len(lengths), width))


def old_logprobs(role: RoleConfig, logprobs: Tensor, old: Tensor | None, mask: Tensor) -> Tensor | None:
    """Old log-probabilities (B, T) such that `logprobs - result` is the log-ratio of the role's kind at every token.

    `logprobs` and `old` (B, T): those of the policy that learns, with their graph, and of the one the ratio is to; None
    stands for the former itself, at which every ratio is 1. `mask` (B, T) marks completion tokens. The result carries a
    gradient where the ratio is one of a whole completion: exp of the sum over its tokens of the log-ratio with
    `loss=sequence`, exp of the mean with `ratio=sequence`.
    """
    if not role.one_ratio:
        return old
    total = ((logprobs - (logprobs.detach() if old is None else old)) * mask).sum(-1, keepdim=True)
    if role.loss != "sequence":
        total = total / mask.sum(-1, keepdim=True).clamp(min=1)
    return logprobs - total.clamp(-_LARGEST, _LARGEST)

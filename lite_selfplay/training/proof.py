"""Whether a backend's gradients are those of plain torch: asked once, of a microbatch, before a run's first update.

The sampler's check reads forward passes only. A backend whose log-probabilities, kernels or recomputed activations lose
the way back reports a plausible loss and moves towards nothing. transformers' own is left out: it is what is compared
with. Shapes: `N` tokens of all completions, `B` rows of `T` tokens.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from lite_selfplay.errors import TrainingError
from lite_selfplay.models.backends.base import Backend
from lite_selfplay.models.transfers import placed
from lite_selfplay.training.microbatches import MicroBatch
from lite_selfplay.training.trl import completion_mask, old_logprobs, padded, row_advantages

COSINE = 0.99
"""What the two gradients of a seat must have at the least: rounding in bfloat16 leaves 0.999."""
NOISE = {torch.float32: 1e-6}
"""The norm of a gradient up to which it may be nothing but rounding; in halves of float32, a thousandth."""


def plain_gradients(backend: Backend, micro: MicroBatch, reference: Tensor | None, factor: float) -> dict[str, Tensor]:
    """The gradients of a seat's adapter by `factor` times a microbatch's loss, row by row through the whole model
    without recomputing, and by formula. The seat must be active; `reference` (N,) are the log-probabilities of a KL
    term."""
    model: Any = backend.adapters.model
    parameters = backend.adapters.parameters(micro.seat)
    model.train(False)
    try:
        with backend.adapters.cast_together(backend.compute_dtype), backend.autocast():
            loss = plain_loss(micro, *_plain_logprobs(model, micro), reference)
        found = torch.autograd.grad(factor * loss, list(parameters.values()), allow_unused=True)
    finally:
        model.train(True)
    return {
        name: torch.zeros_like(p) if g is None else g for (name, p), g in zip(parameters.items(), found, strict=True)
    }


def _plain_logprobs(model: Any, micro: MicroBatch) -> tuple[Tensor, Tensor]:
    base = getattr(model, "get_base_model", lambda: model)()
    cap = getattr(base.config.get_text_config(), "final_logit_softcapping", None)
    logprobs, entropies = [], []
    for row in micro.rows:
        prompt, rest = row.completion.prompt_ids, row.completion.token_ids
        ids = placed([[*prompt, *rest]], base.device)
        hidden = base.base_model(input_ids=ids, use_cache=False).last_hidden_state[0, len(prompt) - 1 : -1]
        logits = base.get_output_embeddings()(hidden).float()
        logits = (logits if cap is None else cap * (logits / cap).tanh()) / micro.temperature
        each = logits.log_softmax(-1)
        logprobs.append(each.gather(1, ids[0, len(prompt) :, None])[:, 0])
        entropies.append(-(each.exp() * each).sum(-1))
    return torch.cat(logprobs), torch.cat(entropies)


def plain_loss(micro: MicroBatch, logprobs: Tensor, entropies: Tensor, reference: Tensor | None) -> Tensor:
    """A microbatch's loss from log-probabilities and entropies (N,): `trl.TrlLoss.of` without TRL."""
    role, mask = micro.role, placed(completion_mask(micro), logprobs.device)
    each, differences, kl = padded(logprobs, micro), None, torch.zeros(())
    if reference is not None and role.kl == "advantage":
        differences = padded(logprobs.detach() - reference, micro)
    elif reference is not None:
        gap = padded(reference, micro) - each
        kl = gap.exp() - gap - 1
    stored = None
    if micro.has_old:
        stored = padded(placed([value for row in micro.old for value in row], logprobs.device), micro)
    old = old_logprobs(role, each, stored, mask)
    ratio = (each - (each.detach() if old is None else old)).exp()
    advantages = placed(row_advantages(micro, differences), logprobs.device)[:, None]
    clipped = ratio.clamp(1 - role.clip_ratio, 1 + role.clip_ratio)
    terms = (role.beta * micro.scale * kl - torch.minimum(ratio * advantages, clipped * advantages)) * mask
    lengths = mask.sum(-1, keepdim=True)
    loss = {
        "grpo": lambda: (terms / lengths).sum() / len(mask),
        "sequence": lambda: terms.sum() / len(mask),
        "dr_grpo": lambda: terms.sum() / (len(mask) * micro.max_tokens),
        "dapo": lambda: terms.sum() / micro.stream_tokens,
    }[role.loss]()
    return loss - role.entropy * micro.token_share * entropies.mean()


def require_alike(found: Mapping[str, Tensor], right: Mapping[str, Tensor], who: str) -> None:
    """Raises TrainingError, naming the tensors that are off, where two gradients of an adapter point apart."""
    whole = [torch.cat([x.flatten().double() for x in side.values()]) for side in (found, right)]
    if (cosine := _cosine(*whole)) >= COSINE:
        return
    off = [name for name in right if _cosine(found[name], right[name]) < COSINE]
    more = f" and {len(off) - 3} more" if len(off) > 3 else ""
    raise TrainingError(
        f"the gradient of {who} is not that of plain torch: their cosine is {cosine:.2f}, with {', '.join(off[:3])}"
        f"{more} off. Nothing was updated; use --backend transformers"
    )


def _cosine(one: Tensor, other: Tensor) -> float:
    """Of two tensors, 1 where both are 0."""
    a, b = one.double(), other.double()
    norms = float(a.norm() * b.norm())
    return float((a * b).sum()) / norms if norms else float(not a.any() and not b.any())

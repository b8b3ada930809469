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
from lite_selfplay.training.losses import Given, loss_of
from lite_selfplay.training.microbatches import MicroBatch
from lite_selfplay.training.optimizer import gradient_norm
from lite_selfplay.training.trl import TrlLoss

COSINE = 0.99
"""What the two gradients of a seat must have at the least: rounding in bfloat16 leaves 0.999."""
NOISE = {torch.float32: 1e-6}
"""The norm of a gradient up to which it may be nothing but rounding; in halves of float32, a thousandth."""


def prove(backend: Backend, loss: TrlLoss, micro: MicroBatch, reference: Tensor | None, factor: float) -> bool:
    """Hold the gradients of the microbatch's seat, of `factor` times its loss, to those of plain torch.

    False where rounding alone is left of them. Raises TrainingError where they are others.
    """
    parameters = backend.adapters.parameters(micro.seat)
    found = {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in parameters.items()}
    right = plain_gradients(backend, loss, micro, reference, factor)
    if not all(x.isfinite().all() for x in (*found.values(), *right.values())):
        return True
    if float(gradient_norm(list(right.values()))) <= NOISE.get(backend.compute_dtype, 1e-3) * factor:
        return False
    require_alike(found, right, f"seat {micro.seat}")
    return True


def plain_gradients(
    backend: Backend, loss: TrlLoss, micro: MicroBatch, reference: Tensor | None, factor: float
) -> dict[str, Tensor]:
    """The gradients of a seat's adapter by `factor` times a microbatch's loss, row by row through the whole model
    without recomputing, and by formula. The seat must be active; `reference` (N,) are the log-probabilities of a KL
    term."""
    model: Any = backend.adapters.model
    parameters = backend.adapters.parameters(micro.seat)
    model.train(False)
    try:
        with backend.adapters.cast_together(backend.compute_dtype), backend.autocast():
            logprobs, entropies = _plain_logprobs(model, micro)
            given = Given.of(micro, logprobs, reference)
            terms = loss.own_terms(micro, given) if micro.role.own_loss else plain_terms(micro, given)
            value = loss_of(micro, given, terms, entropies).value
        found = torch.autograd.grad(factor * value, list(parameters.values()), allow_unused=True)
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


def plain_terms(micro: MicroBatch, given: Given) -> Tensor:
    """The terms of a microbatch's loss, a row's or a token's each: TRL's arithmetic by formula."""
    role, logprobs, lengths = micro.role, given.logprobs, given.mask.sum(-1)
    ratio = (logprobs - (logprobs.detach() if given.old is None else given.old)).exp()
    advantages = placed(given.advantages, logprobs.device)[:, None]
    if role.loss == "sequence":  # one term a completion, of which each token carries its share
        advantages = advantages / lengths[:, None]
    clipped = ratio.clamp(1 - role.clip_ratio, 1 + role.clip_ratio)
    terms = -torch.minimum(ratio * advantages, clipped * advantages)
    if (kl := given.kl()) is not None:
        terms = terms + role.beta * kl
    if role.loss == "dapo":
        return terms
    sums = (terms * given.mask).sum(-1)
    return {"grpo": sums / lengths, "sequence": sums, "dr_grpo": sums / micro.max_tokens}[role.loss]


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

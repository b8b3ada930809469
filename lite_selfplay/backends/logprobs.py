"""Log-probabilities of given completions: what the update, the scores and the checks share.

Only positions that predict a completion token reach the output head, in pieces that are recomputed in the backward
pass, so that the logits of a long batch never exist at once. Shapes: `B` rows, `L` padded length of prompt and
completion, `T` the completion's part of it, `H` hidden size, `V` vocabulary.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

HEAD_ELEMENTS = 2**25
"""Logits that are held at once: 128 MiB in float32."""

_SCALED_HEADS = ("logit_scale", "logits_scaling", "lm_head_multiplier", "output_multiplier")


def token_logprobs(
    model: nn.Module,
    input_ids: Tensor,
    attention_mask: Tensor,
    keep: int,
    temperature: float = 1.0,
    *,
    entropy_gradient: bool = False,
) -> tuple[Tensor, Tensor]:
    """Log-probabilities and entropies of the last `keep` tokens of each row.

    `input_ids` and `attention_mask` (B, L), padded on either side; `keep` = T < L. Both results are (B, T) in float32,
    0 where the mask is 0. The log-probabilities are differentiable, the entropies only where `entropy_gradient` asks
    for it. `temperature` > 0 divides the logits.
    """
    base: Any = getattr(model, "get_base_model", lambda: model)()
    positions = (attention_mask.cumsum(-1) - 1).clamp(min=0)
    mask = attention_mask[:, -keep:].bool()
    targets = input_ids[:, -keep:][mask]
    inputs = {"input_ids": input_ids, "attention_mask": attention_mask, "position_ids": positions, "use_cache": False}
    config = base.config.get_text_config()
    if any(getattr(config, name, None) not in (None, 1, 1.0) for name in _SCALED_HEADS):
        logits = base(**inputs, logits_to_keep=keep + 1).logits[:, :-1][mask]
        scores = _scores(logits, targets, temperature, entropy_gradient)
    else:
        hidden = base.base_model(**inputs).last_hidden_state[:, -keep - 1 : -1][mask]
        softcap = getattr(config, "final_logit_softcapping", None)
        head = base.get_output_embeddings()

        def piece(h: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            logits = head(h).float()
            if softcap is not None:
                logits = softcap * torch.tanh(logits / softcap)
            return _scores(logits, y, temperature, entropy_gradient)

        scores = _in_pieces(piece, hidden, targets, max(1, HEAD_ELEMENTS // head.weight.shape[0]))
    logprobs, entropies = (torch.zeros_like(mask, dtype=torch.float32).masked_scatter(mask, s) for s in scores)
    return logprobs, entropies


def _in_pieces(
    piece: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], hidden: Tensor, targets: Tensor, size: int
) -> tuple[Tensor, Tensor]:
    """`piece` over (N, H) hidden states and (N,) targets, `size` at a time, recomputed in the backward pass."""
    parts = [
        checkpoint(piece, h, y, use_reentrant=False, preserve_rng_state=False) if h.requires_grad else piece(h, y)
        for h, y in zip(hidden.split(size), targets.split(size), strict=True)
    ]
    logprobs, entropies = zip(*parts, strict=True)
    return torch.cat(logprobs), torch.cat(entropies)


def _scores(logits: Tensor, targets: Tensor, temperature: float, entropy_gradient: bool) -> tuple[Tensor, Tensor]:
    """Log-probability of each target and entropy of each distribution, from logits (N, V)."""
    log_p = (logits.float() / temperature).log_softmax(-1)
    chosen = log_p.gather(-1, targets[:, None])[:, 0]
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
        entropy = -(log_p.exp() * log_p).sum(-1)
    return chosen, entropy

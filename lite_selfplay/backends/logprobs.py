"""Log-probabilities of given completions: what the update, the scores and the checks share.

Only positions that predict a completion token reach the output head, in pieces that are recomputed in the backward
pass, so that the logits of a long batch never exist at once. Shapes: `B` rows, `L` padded length of prompt and
completion, `T` the completion's part of it, `H` hidden size, `V` vocabulary.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lite_selfplay.prefixes import Reading

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

    `input_ids` and `attention_mask` (B, L), padded on either side; `keep` = T < L. Prompts of neighbouring rows that
    begin alike are read once where the model allows it. Both results are (B, T) in float32,
    0 where the mask is 0. The log-probabilities are differentiable, the entropies only where `entropy_gradient` asks
    for it. `temperature` > 0 divides the logits.
    """
    base: Any = getattr(model, "get_base_model", lambda: model)()
    mask = attention_mask[:, -keep:].bool()
    targets = input_ids[:, -keep:][mask]
    config = base.config.get_text_config()
    if any(getattr(config, name, None) not in (None, 1, 1.0) for name in _SCALED_HEADS):
        logits = base(**_inputs(input_ids, attention_mask), logits_to_keep=keep + 1).logits[:, :-1][mask]
        scores = _scores(logits, targets, temperature, entropy_gradient)
    else:
        rows = _rows(input_ids, attention_mask, keep) if shares_prefixes(model) else []
        reading = Reading.of((prompt, len(rest)) for prompt, rest in rows)
        if reading.shares:
            hidden = _hidden_over_prefixes(base, rows, reading, input_ids.device)
        else:
            hidden = base.base_model(**_inputs(input_ids, attention_mask)).last_hidden_state[:, -keep - 1 : -1][mask]
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


def shares_prefixes(model: nn.Module) -> bool:
    """Whether prompts that begin alike can be read once: the cache must hold every position, and be allowed."""
    base: Any = getattr(model, "get_base_model", lambda: model)()
    config = base.config.get_text_config()
    kinds = getattr(config, "layer_types", None)
    whole = all(kind == "full_attention" for kind in kinds) if kinds else not getattr(config, "sliding_window", None)
    return whole and not (base.training and base.is_gradient_checkpointing)


def _inputs(input_ids: Tensor, attention_mask: Tensor) -> dict[str, Any]:
    positions = (attention_mask.cumsum(-1) - 1).clamp(min=0)
    return {"input_ids": input_ids, "attention_mask": attention_mask, "position_ids": positions, "use_cache": False}


def _rows(input_ids: Tensor, attention_mask: Tensor, keep: int) -> list[tuple[list[int], list[int]]]:
    """Each row's own tokens, without padding: its prompt, and what follows in the last `keep` columns."""
    split = input_ids.shape[1] - keep
    return [
        (row[:split][mask[:split]].tolist(), row[split:][mask[split:]].tolist())
        for row, mask in zip(input_ids.cpu(), attention_mask.bool().cpu(), strict=True)
    ]


def _hidden_over_prefixes(
    base: Any, rows: Sequence[tuple[list[int], list[int]]], reading: Reading, device: torch.device
) -> Tensor:
    """Hidden states (N, H) that predict the N completion tokens of all rows, shared prefixes read once."""
    prefixes = [prefix.prompt[: prefix.length] for prefix in reading.prefixes]
    ids, mask = (t.to(device) for t in _left(prefixes))
    first = base.base_model(**{**_inputs(ids, mask), "use_cache": True})
    owner = [i for i, prefix in enumerate(reading.prefixes) for _ in range(prefix.rows)]
    index = torch.tensor(owner, device=device)
    first.past_key_values.batch_select_indices(index)
    own = [prompt[len(prefixes[i]) :] + rest for i, (prompt, rest) in zip(owner, rows, strict=True)]
    width = max(map(len, own))
    own_ids = torch.tensor([row + [0] * (width - len(row)) for row in own], device=device)
    own_mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in own], device=device)
    lengths = mask.sum(-1)[index]
    out = base.base_model(
        input_ids=own_ids,
        attention_mask=torch.cat([mask[index], own_mask], dim=1),
        position_ids=lengths[:, None] + torch.arange(width, device=device),
        past_key_values=first.past_key_values,
        use_cache=True,
    )
    # The last token of a prompt predicts the first of the completion, whose own last token predicts nothing here.
    ends = [(len(row) - len(rest) - 1, len(row) - 1) for row, (_, rest) in zip(own, rows, strict=True)]
    places = [i * width + k for i, (start, end) in enumerate(ends) for k in range(start, end)]
    return out.last_hidden_state.flatten(0, 1)[torch.tensor(places, device=device)]


def _left(rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Ids (B, L) padded on the left with 0, and their mask."""
    width = max(map(len, rows))
    ids = [[0] * (width - len(row)) + list(row) for row in rows]
    return torch.tensor(ids), torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])


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

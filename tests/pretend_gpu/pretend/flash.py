"""torch's flash attention of sequences one behind the other, as a formula in the type of its inputs."""

import torch
from torch import Tensor


def forward(
    q: Tensor, k: Tensor, v: Tensor, ends_q: Tensor, ends_k: Tensor, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """The result (N, H, D) and the log-sums (H, N) of exponentials of scores."""
    found = [_scores(q, k, *place, causal, scale) for place in _places(ends_q, ends_k)]
    log_sums = torch.cat([scores.logsumexp(-1) for scores in found], 1)
    groups = q.shape[1] // k.shape[1]
    out = [
        scores.softmax(-1) @ _of_heads(v, keys, groups)
        for scores, (_, keys) in zip(found, _places(ends_q, ends_k), strict=True)
    ]
    return torch.cat(out, 1).transpose(0, 1).to(q.dtype).contiguous(), log_sums  # as the kernel writes it


def backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    log_sums: Tensor,
    ends_q: Tensor,
    ends_k: Tensor,
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v by the paper's formulas, with weights from the given log-sums."""
    groups = q.shape[1] // k.shape[1]
    to_q, to_k, to_v = (torch.zeros_like(x, dtype=log_sums.dtype) for x in (q, k, v))
    for queries, keys in _places(ends_q, ends_k):
        weights = (_scores(q, k, queries, keys, causal, scale) - log_sums[:, queries, None]).exp()
        g, result = (_of_heads(x, queries, 1) for x in (grad, out))
        to_weights = g @ _of_heads(v, keys, groups).mT
        to_scores = weights * (to_weights - (g * result).sum(-1, keepdim=True)) * scale
        to_q[queries] = (to_scores @ _of_heads(k, keys, groups)).transpose(0, 1)
        for whole, part in ((to_k, to_scores.mT @ _of_heads(q, queries, 1)), (to_v, weights.mT @ g)):
            whole[keys] = part.unflatten(0, (-1, groups)).sum(1).transpose(0, 1)
    return to_q.to(q.dtype), to_k.to(k.dtype), to_v.to(v.dtype)


def _places(ends_q: Tensor, ends_k: Tensor) -> list[tuple[slice, slice]]:
    pairs = [list(map(slice, ends.tolist(), ends[1:].tolist())) for ends in (ends_q, ends_k)]
    return list(zip(*pairs, strict=True))


def _of_heads(x: Tensor, place: slice, groups: int) -> Tensor:
    """Some tokens of (N, K, D) for each of K * G heads, at least in float32: (H, T, D)."""
    found = x[place].transpose(0, 1).repeat_interleave(groups, 0)
    return found if x.dtype == torch.float64 else found.float()


def _scores(q: Tensor, k: Tensor, queries: slice, keys: slice, causal: bool, scale: float) -> Tensor:
    found = scale * _of_heads(q, queries, 1) @ _of_heads(k, keys, q.shape[1] // k.shape[1]).mT
    hidden = torch.ones(found.shape[1:], dtype=torch.bool).triu(1 + found.shape[2] - found.shape[1])
    return found.masked_fill(hidden, -torch.inf) if causal else found

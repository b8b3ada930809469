"""Log-probabilities of given completions, for the update, scores and checks.

Only positions that predict a completion token reach the frozen output head, piece by piece, so that the logits of a
long batch never exist at once: their gradient is left, a vector (H,) for each position. Another head computes all
logits at once. Shapes: `N` positions that predict a token, `n` of them in a piece, `H` hidden size, `V` vocabulary.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from lite_selfplay.models.logprobs.batch import Batch, pad
from lite_selfplay.models.logprobs.reading import hidden_states, pick
from lite_selfplay.models.memory import HEAD_ELEMENTS
from lite_selfplay.models.transfers import placed

# Lifts probabilities above what fp16 rounds to 0 (3e-8); sums over weights up to 40 still stay below 65504.
_FP16_SCALE = 64.0

_SCALED_HEADS = ("logit_scale", "logits_scaling", "lm_head_multiplier", "output_multiplier")


def token_logprobs(
    model: nn.Module,
    batch: Batch,
    temperature: float = 1.0,
    *,
    entropy_gradient: bool = False,
    head_elements: int = HEAD_ELEMENTS,
) -> tuple[Tensor, Tensor]:
    """Log-probabilities and entropies of a batch's completion tokens: (N,) each, row after row, in float32.

    The log-probabilities are differentiable, the entropies only with `entropy_gradient`; without it they may be 0 if a
    gradient is taken. `temperature` > 0 divides the logits, of which `head_elements` are held at once.
    """
    base: Any = getattr(model, "get_base_model", lambda: model)()
    targets = placed(batch.completion_ids, base.device)
    if not goes_by_hidden_states(base):
        return scores_of(_logits(base, batch), targets, temperature, entropy_gradient=entropy_gradient)
    hidden = hidden_states(base, batch)
    softcap = getattr(base.config.get_text_config(), "final_logit_softcapping", None)
    head = base.get_output_embeddings()
    if is_frozen(head):
        size = max(1, head_elements // head.weight.shape[0])
        return FrozenHead.of(head, size, softcap, temperature).scores(hidden, targets, entropy_gradient)
    logits = head(hidden).float()
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    return scores_of(logits, targets, temperature, entropy_gradient=entropy_gradient)


def goes_by_hidden_states(model: nn.Module) -> bool:
    """Whether a model's logits are its hidden states times the head, perhaps capped; otherwise the whole model is
    run."""
    base: Any = getattr(model, "get_base_model", lambda: model)()
    config = base.config.get_text_config()
    return all(getattr(config, name, None) in (None, 1, 1.0) for name in _SCALED_HEADS)


def _logits(base: Any, batch: Batch) -> Tensor:
    """The logits (N, V) that predict the completions' tokens, from the whole model."""
    ids, _ = pad([[*prompt, *completion] for prompt, completion in batch.rows])
    first = min(len(prompt) for prompt, _ in batch.rows) - 1
    kept = torch.arange(first, ids.shape[1], device=base.device)
    out = base(input_ids=placed(ids, base.device), use_cache=False, logits_to_keep=kept)
    return pick(out.logits, [(len(prompt) - 1 - first, len(completion)) for prompt, completion in batch.rows])


def is_frozen(head: nn.Module) -> bool:
    """Whether `head` is a dense, untrained matrix: no adapter, no quantised weight, no hook."""
    return (
        type(head) is nn.Linear
        and type(head.weight) is nn.Parameter
        and not any(p.requires_grad for p in head.parameters())
        and not (head._forward_hooks or head._forward_pre_hooks or "forward" in vars(head))
    )


@dataclass(frozen=True)
class FrozenHead:
    """An untrained output head: `weight` (V, H) and `bias` (V,) in the type of the product.

    Logits are capped by `softcap` (softcap * tanh(logits / softcap)) and then divided by `temperature`. `size`
    positions are read at a time.
    """

    weight: Tensor
    bias: Tensor | None
    size: int
    softcap: float | None = None
    temperature: float = 1.0

    @classmethod
    def of(cls, head: nn.Linear, size: int, softcap: float | None, temperature: float) -> "FrozenHead":
        device = head.weight.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else head.weight.dtype
        bias = None if head.bias is None else head.bias.to(dtype)
        return cls(head.weight.to(dtype), bias, size, softcap, temperature)

    def scores(self, hidden: Tensor, targets: Tensor, entropy_gradient: bool) -> tuple[Tensor, Tensor]:
        """Log-probabilities of `targets` (N,) and entropies, both (N,) in float32, from `hidden` (N, H). Differentiable
        once in `hidden`, the entropies only with `entropy_gradient`: without it they are 0."""
        if torch.is_grad_enabled() and hidden.requires_grad:
            return _FrozenScores.apply(hidden, targets, self, entropy_gradient)
        logprobs, entropies = self.compute(hidden, targets)
        return logprobs, entropies

    def compute(self, hidden: Tensor, targets: Tensor, gradients: int = 0) -> list[Tensor]:
        """Log-probabilities and entropies (N,), then the gradients (N, H) of the first `gradients` of these two. All in
        float32. With one gradient, entropies are 0, because nothing uses them."""
        count = max(1, -(-len(hidden) // self.size))
        pieces = list(zip(hidden.tensor_split(count), targets.tensor_split(count), strict=True))
        # Allocated once: on a CPU the system would map such large buffers page by page for every piece.
        buffers = hidden.new_empty(2, len(pieces[0][1]), len(self.weight), dtype=torch.float32)
        parts = [self._piece(h, y, gradients, buffers[:, : len(y)]) for h, y in pieces]
        return [torch.cat(part) for part in zip(*parts, strict=True)]

    def _piece(self, hidden: Tensor, targets: Tensor, gradients: int, buffers: Tensor) -> list[Tensor]:
        """`compute` for (n, H) and (n,), in two buffers (2, n, V) in float32 and, with a softcap, a third."""
        logits, slope = self._logits(hidden, gradients > 0, buffers[0])
        if logits.is_cuda:  # with and without gradients to the bit, so that a ratio or a KL term is free of rounding
            p = torch.softmax(logits, -1, out=buffers[1])
            most = logits.max(-1, keepdim=True)  # exact for tokens whose probability is too small for a float32
            log_sum = most.values - p.gather(-1, most.indices).log()
            logprobs = logits.gather(-1, targets[:, None]) - log_sum
            log_p = logits if gradients == 1 else logits.sub_(log_sum)
        else:
            log_p = torch.log_softmax(logits, -1, out=buffers[1])
            logprobs = log_p.gather(-1, targets[:, None])
            p = torch.exp(log_p, out=logits)
        entropies, vectors = torch.zeros_like(logprobs), []
        if gradients != 1:
            p_log_p = log_p.mul_(p)
            entropies = -p_log_p.sum(-1, keepdim=True)
        if gradients > 1:
            vectors.append(self._toward_hidden(p_log_p.addcmul_(p, entropies), slope))
        if gradients > 0:
            vectors.append(self._toward_hidden(p.scatter_(-1, targets[:, None], logprobs.expm1()), slope))
        return [logprobs[:, 0], entropies[:, 0], *reversed(vectors)]

    def _logits(self, hidden: Tensor, with_slope: bool, out: Tensor) -> tuple[Tensor, Tensor | None]:
        """Capped and divided logits (n, V) in float32, written to `out`, and the cap's derivative, if any."""
        logits, slope = self._product(hidden.to(self.weight.dtype), out), None
        if self.softcap is not None:
            logits.div_(self.softcap).tanh_()
            slope = 1 - logits.square() if with_slope else None
            logits.mul_(self.softcap)
        return logits if self.temperature == 1 else logits.div_(self.temperature), slope

    def _product(self, hidden: Tensor, out: Tensor) -> Tensor:
        if self.weight.dtype != out.dtype:
            if out.is_cuda and self.bias is None:
                return torch.mm(hidden, self.weight.T, out_dtype=out.dtype, out=out)
            return out.copy_(nn.functional.linear(hidden, self.weight, self.bias))
        if self.bias is None:
            return torch.mm(hidden, self.weight.T, out=out)
        return torch.addmm(self.bias, hidden, self.weight.T, out=out)

    def _toward_hidden(self, descent: Tensor, slope: Tensor | None) -> Tensor:
        """The gradient (n, H) in hidden states, from the negative one in the divided logits (n, V), a reused buffer."""
        scale = _FP16_SCALE if self.weight.dtype == torch.float16 else 1.0
        if slope is not None:
            descent.mul_(slope)
        if scale != 1:
            descent.mul_(scale)
        return (descent.to(self.weight.dtype) @ self.weight).float().mul_(-1 / (self.temperature * scale))


class _FrozenScores(torch.autograd.Function):
    """`FrozenHead.read` with its gradient computed along with the logits: nothing is computed twice."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, targets: Tensor, head: FrozenHead, entropy_gradient: bool
    ) -> tuple[Tensor, Tensor]:
        logprobs, entropies, *vectors = head.compute(hidden, targets, 2 if entropy_gradient else 1)
        if not entropy_gradient:
            ctx.mark_non_differentiable(entropies)
        ctx.save_for_backward(*vectors)
        ctx.dtype = hidden.dtype
        return logprobs, entropies

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        terms = [g[:, None] * vector for g, vector in zip(gradients, ctx.saved_tensors, strict=False)]
        return sum(terms[1:], terms[0]).to(ctx.dtype), None, None, None


def scores_of(logits: Tensor, targets: Tensor, temperature: float, *, entropy_gradient: bool) -> tuple[Tensor, Tensor]:
    """Log-probability of each target and entropy of each distribution, from logits (N, V)."""
    log_p = (logits.float() if temperature == 1 else logits.float() / temperature).log_softmax(-1)
    chosen = log_p.gather(-1, targets[:, None])[:, 0]
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
        entropy = -(log_p.exp() * log_p).sum(-1)
    return chosen, entropy

"""TRL's GRPO loss over log-probabilities that are computed here, and the settings that make it a role's loss.

TRL clips a ratio at every token and adds the terms up. How they are added up is its `loss_type`; whose ratio stands at
a token is decided here, by the old log-probabilities it is handed: less those, a token's log-probability is its
log-ratio. Nothing else of TRL's trainer is used. Shapes: `B` rows, `T` tokens of the longest completion, `N` tokens of
all completions, row after row.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lite_selfplay.config import RoleConfig, RunConfig
from lite_selfplay.models import private_names
from lite_selfplay.models.backends.base import Backend
from lite_selfplay.models.transfers import placed
from lite_selfplay.training.microbatches import MicroBatch

_TRL_NAMES = {"sequence": "luspo"}
"""Where TRL calls a sum over a completion's tokens and a mean over completions by another name."""
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


class _Unread:
    """TRL's accelerator while a loss is computed: the means that TRL logs stay on the card.

    TRL reads each of them, which makes the host wait a dozen times a microbatch. It is handed the place of a mean in
    `means` instead, as a sum of 1 number. Whatever else it asks for is the accelerator's own.
    """

    def __init__(self, accelerator: Any):
        self._accelerator = accelerator
        self.means: list[Tensor] = []

    def reduce(self, sum_and_count: Tensor, reduction: str = "sum") -> Tensor:
        total, count = sum_and_count
        self.means.append(total / count.clamp(min=1.0))
        return torch.tensor([len(self.means) - 1.0, 1.0])

    def gather(self, values: Tensor) -> Tensor:
        return torch.zeros(1)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._accelerator, name)


class TrlLoss:
    """The loss of a GRPO trainer class, mixed into it: see `make_loss`."""

    def __init__(self, backend: Backend, config: RunConfig, tokenizer: Any, output_dir: str):
        from datasets import Dataset
        from transformers import PrinterCallback

        private_names.require("trl")
        model: Any = backend.adapters.model
        # TRL rounds whatever is trainable over a 4-bit base to bfloat16: for now, nothing is.
        model.requires_grad_(False)
        parent: Any = super()
        parent.__init__(
            model=model,
            reward_funcs=[_unused_reward],
            args=grpo_config(config, backend, output_dir),
            train_dataset=Dataset.from_dict({"prompt": [""] * 2}),
            processing_class=tokenizer,
        )
        private_names.require("trl", instance=self)
        parent.remove_callback(PrinterCallback)
        self._scores: tuple[Tensor, Tensor] | None = None

    def of(self, micro: MicroBatch, logprobs: Tensor, entropies: Tensor, reference: Tensor | None) -> Loss:
        """The loss of a microbatch from log-probabilities, entropies and the reference's log-probabilities, (N,) each.

        `reference` is needed where the role has a KL term.
        """
        role, device = micro.role, logprobs.device
        mask = placed(completion_mask(micro), device)
        differences = None  # from the reference, of the KL that is taken off the advantages
        if reference is not None and role.kl == "advantage":
            differences, reference = padded(logprobs.detach() - reference, micro), None
        self._tell(
            temperature=micro.temperature,
            beta=role.beta * micro.scale if differences is None else 0.0,
            loss_type=_TRL_NAMES.get(role.loss, role.loss),
            max_completion_length=micro.max_tokens,
            entropy_coef=role.entropy * micro.token_share,
            epsilon_low=role.clip_ratio,
            epsilon_high=role.clip_ratio,
            aux_loss_enabled=False,
            current_gradient_accumulation_steps=1,
            _entropy_bonus_enabled=role.entropy != 0.0,
        )
        # The ids serve TRL to compute log-probabilities, which it is given: zeros stand for them.
        nothing = mask.new_zeros((len(mask), 0))
        tensors = {
            "prompt_ids": nothing,
            "prompt_mask": nothing,
            "completion_ids": torch.zeros_like(mask),
            "completion_mask": mask,
            "advantages": placed(row_advantages(micro, differences), device),
            "num_items_in_batch": torch.tensor(float(micro.stream_tokens)),
        }
        if reference is not None:
            tensors["ref_per_token_logps"] = padded(reference, micro)
        self._scores = padded(logprobs, micro), padded(entropies, micro)
        stored = None
        if micro.has_old:
            stored = padded(placed([value for row in micro.old for value in row], device), micro)
        old = old_logprobs(role, self._scores[0], stored, mask)
        if old is not None:
            tensors["old_per_token_logps"] = old
        scores = self._scores[0].detach()
        # Not `compute_loss`: Unsloth's class has another there, which knows no entropy bonus. This one is TRL's on both
        # classes.
        trl: Any = self
        unread = _Unread(trl.accelerator)
        trl.accelerator = unread
        try:
            value = trl._compute_loss(trl.model, tensors)
        finally:
            trl.accelerator = unread._accelerator
        places = {name: int(values[-1]) for name, values in trl._metrics["train"].items()}
        self.forget()
        kl = None
        if role.beta:
            kl = unread.means[places["kl"]] if differences is None else differences.sum() / mask.sum()
        clipped = None
        if stored is not None:
            clipped = unread.means[places["clip_ratio/region_mean"]]
            if role.one_ratio and old is not None:
                # One ratio a completion: a long one counts no more than a short one.
                ratio, signs = (scores - old.detach())[:, 0].exp(), tensors["advantages"].sign()
                clipped = ((ratio - 1) * signs > role.clip_ratio).float().mean()
        return Loss(value, kl, clipped)

    def forget(self) -> None:
        """Drop what a loss that was not finished holds."""
        trl: Any = self
        trl._metrics["train"].clear()
        self._scores = None

    def _tell(self, **settings: Any) -> None:
        for key, value in settings.items():
            setattr(self, key, value)

    def _get_per_token_logps_and_entropies(self, *_: Any, **__: Any) -> tuple[Tensor, Tensor, None]:
        """What TRL's loss asks for has been computed, so that the ratio could be chosen by it."""
        assert self._scores is not None
        return *self._scores, None


def make_loss(backend: Backend, config: RunConfig, tokenizer: Any, output_dir: str) -> TrlLoss:
    """The loss of the backend's GRPO trainer class: TRL's own, or what Unsloth made of it."""
    kind: Any = type("TrlLoss", (TrlLoss, backend.trainer_parent()), {})
    loss: TrlLoss = kind(backend, config, tokenizer, output_dir)
    return loss


def grpo_config(config: RunConfig, backend: Backend, output_dir: str) -> Any:
    """TRL's configuration: only what its constructor needs; the loss is configured per microbatch."""
    from trl import GRPOConfig

    return GRPOConfig(
        output_dir=output_dir,
        max_steps=config.run.steps,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=1,
        num_generations=2,
        max_completion_length=config.run.max_completion_tokens or 1,
        beta=0.0,
        use_bias_correction_kl=False,  # the papers' KL term; TRL's default multiplies it by the importance ratio
        gradient_checkpointing=False,  # the backend's own concern
        seed=config.run.seed,
        report_to=[],
        disable_tqdm=True,
        **backend.trainer_arguments(),
    )


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


def row_advantages(micro: MicroBatch, differences: Tensor | None = None) -> list[float]:
    """The advantages (B,) that TRL is handed.

    `differences` (B, T), 0 behind a completion, are those of the log-probabilities from the reference's: beta times
    their mean over a completion's tokens is taken off its advantage. With `loss=sequence` a completion's one term
    stands at each of its tokens and is added up over them, so that each token carries its share of it.
    """
    values = [row.advantage for row in micro.rows]
    if differences is not None:
        sums = differences.sum(-1).tolist()
        values = [a - micro.role.beta * s / row.tokens for a, s, row in zip(values, sums, micro.rows, strict=True)]
    whole = micro.role.loss == "sequence"
    return [a * micro.scale / (row.tokens if whole else 1) for a, row in zip(values, micro.rows, strict=True)]


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


def _unused_reward(completions: Sequence[Any], **kwargs: Any) -> list[float]:
    raise AssertionError("rewards come from the game")

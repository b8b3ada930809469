"""TRL's GRPO loss over log-probabilities that are computed here, and the settings that make it a role's loss.

TRL clips a ratio at every token and adds the terms up. How they are added up is its `loss_type`; whose ratio stands at
a token is decided here, by the old log-probabilities it is handed: less those, a token's log-probability is its
log-ratio. Nothing else of TRL's trainer is used. Shapes: `B` rows, `T` tokens of the longest completion, `N` tokens of
all completions, row after row.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lite_selfplay.config import RunConfig, load_loss
from lite_selfplay.models import private_names
from lite_selfplay.models.backends.base import Backend
from lite_selfplay.models.transfers import placed
from lite_selfplay.training.losses import Given, Loss, loss_of, own_terms, padded
from lite_selfplay.training.microbatches import MicroBatch

_TRL_NAMES = {"sequence": "luspo"}
"""Where TRL calls a sum over a completion's tokens and a mean over completions by another name."""


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
        from trl import GRPOConfig

        private_names.require("trl")
        model: Any = backend.adapters.model
        # TRL rounds whatever is trainable over a 4-bit base to bfloat16: for now, nothing is.
        model.requires_grad_(False)
        # Only what the constructor needs: the loss is configured per microbatch.
        settings = GRPOConfig(
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
        parent: Any = super()
        parent.__init__(
            model=model,
            reward_funcs=[_unused_reward],
            args=settings,
            train_dataset=Dataset.from_dict({"prompt": [""] * 2}),
            processing_class=tokenizer,
        )
        private_names.require("trl", instance=self)
        parent.remove_callback(PrinterCallback)
        self.own = {role.loss: load_loss(role.loss) for role in config.roles.values() if role.own_loss}
        self._scores: tuple[Tensor, Tensor] | None = None

    def of(self, micro: MicroBatch, logprobs: Tensor, entropies: Tensor, reference: Tensor | None) -> Loss:
        """The loss of a microbatch from log-probabilities, entropies and the reference's log-probabilities, (N,) each.

        `reference` is needed where the role has a KL term.
        """
        role, given = micro.role, Given.of(micro, logprobs, reference)
        if role.own_loss:
            return loss_of(micro, given, self.own_terms(micro, given), entropies)
        vars(self).update(
            temperature=micro.temperature,
            beta=0.0 if given.reference is None else role.beta * micro.scale,
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
        nothing = given.mask.new_zeros((len(given.mask), 0))
        tensors = {
            "prompt_ids": nothing,
            "prompt_mask": nothing,
            "completion_ids": torch.zeros_like(given.mask),
            "completion_mask": given.mask,
            "advantages": placed(micro.scaled(given.advantages), logprobs.device),
            "num_items_in_batch": torch.tensor(float(micro.stream_tokens)),
        }
        if given.reference is not None:
            tensors["ref_per_token_logps"] = given.reference
        if given.old is not None:
            tensors["old_per_token_logps"] = given.old
        self._scores = given.logprobs, padded(entropies, micro)
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
            kl = unread.means[places["kl"]] if given.gaps is None else given.gaps.sum() / given.mask.sum()
        clipped = None
        if given.stored is not None:
            clipped = unread.means[places["clip_ratio/region_mean"]]
            if role.one_ratio and given.old is not None:
                # One ratio a completion: a long one counts no more than a short one.
                ratio = (given.logprobs - given.old).detach()[:, 0].exp()
                clipped = ((ratio - 1) * tensors["advantages"].sign() > role.clip_ratio).float().mean()
        return Loss(value, kl, clipped)

    def own_terms(self, micro: MicroBatch, given: Given) -> Tensor:
        """What a user's own loss makes of a microbatch."""
        return own_terms(self.own[micro.role.loss], micro, given)

    def forget(self) -> None:
        """Drop what a loss that was not finished holds."""
        trl: Any = self
        trl._metrics["train"].clear()
        self._scores = None

    def _get_per_token_logps_and_entropies(self, *_: Any, **__: Any) -> tuple[Tensor, Tensor, None]:
        """What TRL's loss asks for has been computed, so that the ratio could be chosen by it."""
        assert self._scores is not None
        return *self._scores, None


def make_loss(backend: Backend, config: RunConfig, tokenizer: Any, output_dir: str) -> TrlLoss:
    """The loss of the backend's GRPO trainer class: TRL's own, or what Unsloth made of it."""
    kind: Any = type("TrlLoss", (TrlLoss, backend.trainer_parent()), {})
    loss: TrlLoss = kind(backend, config, tokenizer, output_dir)
    return loss


def _unused_reward(completions: Sequence[Any], **kwargs: Any) -> list[float]:
    raise AssertionError("rewards come from the game")

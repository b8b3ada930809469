"""The losses: TRL's, with a role's settings, and a user's own.

A loss is a function of log-probabilities (current, old and the reference's), advantages and a mask. It returns terms to
minimise, one for each completion or each token. A stream's loss is the mean of its terms: over its n rows (grpo,
dr_grpo, sequence, and a user's loss with one term for each row) or over its tokens (dapo, and a user's loss with one
term for each token), so the gradient does not depend on the number of microbatches. TRL averages over the k rows it
gets, so advantages and beta are scaled by k/n; this is exact because the clipped objective is positively homogeneous in
the advantage. For dapo TRL gets the stream's token count instead.

TRL's GRPO loss clips a ratio at every token and sums the terms as its `loss_type` says. The old log-probabilities
passed to it decide which ratio that is: the log-ratio is `logprobs - old`. Nothing else of TRL's trainer is used.
Shapes: `B` rows, `T` tokens of the longest completion, `N` tokens of all completions, row after row. Advantages are
(B,), or (B, T) if a row has one for each token.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from operator import sub
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from lite_selfplay.config import RoleConfig, RunConfig, load_loss
from lite_selfplay.config.user_files import guarded, short_name
from lite_selfplay.credit import each, numbers_of
from lite_selfplay.data import Advantage, Completion
from lite_selfplay.errors import LossError
from lite_selfplay.models import packages
from lite_selfplay.models.backends.backend import Backend, is_out_of_memory
from lite_selfplay.models.logprobs.batch import Batch
from lite_selfplay.models.transfers import placed

_RECOMPUTING = ("activation_checkpointing", "gradient_checkpointing")  # as named from transformers 5.24 on, and before
_LARGEST = 20.0  # bound of a completion's log-ratio: far beyond any clip, and exp is still finite (as in verl)


@dataclass(frozen=True)
class LossRow:
    """A completion in the loss, with its advantage, or with one for each token.

    `old` are the log-probabilities of the ratio's denominator, if given: from before a step's first update, or the
    sampler's, for a replay or if another program samples. `dropped`: its group is in no policy term, only in the KL
    term. `example`: it is trained on by likelihood.
    """

    completion: Completion
    advantage: Advantage
    old: Sequence[float] | None = None
    dropped: bool = False
    example: bool = False

    @property
    def tokens(self) -> int:
        return len(self.completion.token_ids)


def with_gradient(rows: Sequence[LossRow], role: RoleConfig) -> list[LossRow]:
    """The rows that can have a gradient: all if there is a KL or entropy term or a user's own loss, else those with an
    advantage."""
    every_row_counts = role.beta != 0 or role.entropy != 0 or role.own_loss
    return [row for row in rows if every_row_counts or any(numbers_of(row.advantage))]


def over_the_kept(rows: Sequence[LossRow], role: RoleConfig) -> list[LossRow]:
    """The rows with advantages scaled so that the policy term's mean over all rows is its mean over those not dropped.

    The KL term remains a mean over all rows.
    """
    sizes = [row.tokens if role.loss == "dapo" else 1 for row in rows]
    kept = sum(size for size, row in zip(sizes, rows, strict=True) if not row.dropped)
    if not kept or kept == sum(sizes):
        return list(rows)
    return [replace(row, advantage=each(row.advantage, lambda a: a * sum(sizes) / kept)) for row in rows]


@dataclass(frozen=True)
class MicroBatch:
    """Rows for one forward and backward pass under one seat, and the model's input `batch`.

    `row_share` and `token_share` are its shares (0, 1] of its stream's rows and tokens, `stream_tokens` the completion
    tokens of the stream, including rows without a gradient. All rows were sampled at `temperature` with at most
    `max_tokens` tokens.
    """

    rows: Sequence[LossRow]
    batch: Batch
    seat: str
    role: RoleConfig
    temperature: float
    max_tokens: int
    row_share: float
    token_share: float
    stream_tokens: int

    @property
    def tokens(self) -> int:
        return sum(row.tokens for row in self.rows)

    @property
    def scale(self) -> float:
        """The factor of advantages and beta for TRL, so that a stream's microbatches sum to its loss."""
        return 1.0 if self.role.loss == "dapo" else self.row_share

    def scaled(self, advantages: Sequence[Advantage]) -> list[Advantage]:
        """The advantages of the rows for TRL.

        With `loss=sequence` TRL adds up a completion's term over its tokens, so each token gets its share of it.
        """
        sizes = [row.tokens if self.role.loss == "sequence" else 1 for row in self.rows]
        return [each(a, lambda a, n: a * self.scale / n, n) for a, n in zip(advantages, sizes, strict=True)]


@dataclass(frozen=True)
class Loss:
    """A microbatch's loss (differentiable), mean KL per token, and share of clipped ratios, each a scalar.

    Ratios are of tokens, or of completions if each has one ratio. `kl` and `clipped` are None without such a term. A KL
    that is subtracted from the advantages is the mean of log p - log p_reference.
    """

    value: Tensor
    kl: Tensor | None
    clipped: Tensor | None


@dataclass(frozen=True)
class Given:
    """The inputs of a microbatch's loss, (B, T) each, 0 after a completion's end; `advantages` are those of the rows.

    `logprobs - old` is the role's log-ratio at every token (see `old_logprobs`); an `old` of None stands for
    `logprobs`. `stored` are the log-probabilities of another policy, if the ratio is to one, `reference` those of a KL
    term. If the KL is subtracted from the advantages, that is already done, and `gaps` are the differences from the
    reference instead.
    """

    logprobs: Tensor
    mask: Tensor
    advantages: list[Advantage]
    stored: Tensor | None
    old: Tensor | None
    reference: Tensor | None
    gaps: Tensor | None

    @classmethod
    def of(cls, micro: MicroBatch, logprobs: Tensor, reference: Tensor | None) -> Self:
        """Build it from log-probabilities (N,) and, for a KL term, the reference's (N,)."""
        role, device = micro.role, logprobs.device
        mask, stored, gaps = placed(padded(torch.ones(micro.tokens, dtype=torch.long), micro), device), None, None
        advantages: list[Advantage] = [row.advantage for row in micro.rows]
        if reference is not None and role.kl == "advantage":
            gaps, reference = padded(logprobs.detach() - reference, micro), None
            means = [role.beta * total / n.tokens for total, n in zip(gaps.sum(-1).tolist(), micro.rows, strict=True)]
            advantages = [each(own, sub, m) for own, m in zip(advantages, means, strict=True)]
        if all(row.old is not None for row in micro.rows):
            stored = padded(placed([value for row in micro.rows for value in row.old or ()], device), micro)
        now = padded(logprobs, micro)
        against = None if reference is None else padded(reference, micro)
        return cls(now, mask, advantages, stored, old_logprobs(role, now, stored, mask), against, gaps)

    def kl(self) -> Tensor | None:
        """The KL term at every token: the k3 estimate, which is never negative."""
        if self.reference is None:
            return None
        gap = self.reference - self.logprobs
        return gap.exp() - gap - 1

    def clipped(self, role: RoleConfig) -> Tensor | None:
        """The share of clipped ratios, of tokens or, if each has one ratio, of completions; None if every ratio is
        1."""
        if self.stored is None or self.old is None:
            return None
        sign = tensor_of(self.advantages, self.mask).sign().reshape(len(self.mask), -1)
        beyond = ((self.logprobs - self.old).detach().exp() - 1) * sign > role.clip_ratio
        return beyond[:, 0].float().mean() if role.one_ratio else (beyond * self.mask).sum() / self.mask.sum()

    def mean_kl(self) -> Tensor | None:
        """The mean KL per token, for the report."""
        kl = self.kl() if self.gaps is None else self.gaps
        return None if kl is None else (kl.detach() * self.mask).sum() / self.mask.sum()


def own_terms(loss: Callable[..., Any], micro: MicroBatch, given: Given) -> Tensor:
    """The terms (B,) or (B, T) of a user's own loss. Raises LossError if it fails or returns something else."""
    name, role = f"the loss {short_name(micro.role.loss)}", micro.role
    values = {
        **{key: getattr(role, key) for key in RoleConfig.model_fields},
        "logprobs": given.logprobs,
        "old": given.logprobs.detach() if given.old is None else given.old,
        "reference": given.reference,
        "advantages": tensor_of(given.advantages, given.mask),
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


def loss_of(micro: MicroBatch, given: Given, terms: Tensor, entropies: Tensor) -> Tensor:
    """A microbatch's part of its stream's loss: a mean over rows for terms (B,), over tokens for (B, T)."""
    if terms.dim() == 1:
        mean = terms.mean() * micro.row_share
    else:
        mean = terms.where(given.mask.bool(), 0.0).sum() / micro.stream_tokens
    return mean - micro.role.entropy * micro.token_share * entropies.mean()


def tensor_of(advantages: Sequence[Advantage], mask: Tensor) -> Tensor:
    """Advantages as (B,), or as (B, T) if one has a number for each token, beside a `mask` (B, T)."""
    if not any(isinstance(own, tuple) for own in advantages):
        return placed(advantages, mask.device)
    longest = mask.shape[1]
    rows = [own if isinstance(own, tuple) else (own,) * longest for own in advantages]
    return placed([[*row, *[0.0] * (longest - len(row))] for row in rows], mask.device)


def padded(values: Tensor, micro: MicroBatch) -> Tensor:
    """Values (N,) of the completions' tokens as (B, T), 0 after a completion's end."""
    return pad_sequence(values.split([row.tokens for row in micro.rows]), batch_first=True)


def old_logprobs(role: RoleConfig, logprobs: Tensor, old: Tensor | None, mask: Tensor) -> Tensor | None:
    """Old log-probabilities (B, T) such that `logprobs - result` is the role's log-ratio at every token.

    `logprobs` (B, T) are the current policy's, with their graph, `old` (B, T) the old policy's (None: the same, so
    every ratio is 1); `mask` (B, T) marks completion tokens. The result has a gradient if a completion has one ratio:
    exp of the sum of its tokens' log-ratios with `loss=sequence`, exp of their mean with `ratio=sequence`.
    """
    if not role.one_ratio:
        return old
    total = ((logprobs - (logprobs.detach() if old is None else old)) * mask).sum(-1, keepdim=True)
    if role.loss != "sequence":
        total = total / mask.sum(-1, keepdim=True).clamp(min=1)
    return logprobs - total.clamp(-_LARGEST, _LARGEST)


class _Unread:
    """TRL's accelerator, except that TRL gets 0 for each figure that it would log: it reads a dozen, and the host would
    wait for each."""

    def __init__(self, accelerator: Any):
        self._accelerator = accelerator

    def reduce(self, sum_and_count: Tensor, reduction: str = "sum") -> Tensor:
        return torch.zeros(2)

    def gather(self, values: Tensor) -> Tensor:
        return torch.zeros(1)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._accelerator, name)


class TrlLoss:
    """The loss of a GRPO trainer class, as a mixin: see `make_loss`."""

    def __init__(self, backend: Backend, config: RunConfig, tokenizer: Any, output_dir: str):
        from datasets import Dataset
        from trl import GRPOConfig

        packages.require("trl")
        model: Any = backend.adapters.model
        # TRL rounds trainable weights over a 4-bit base to bfloat16: for now, there are none.
        model.requires_grad_(False)
        # The backend recomputes activations, if anything does.
        recomputing = next(name for name in _RECOMPUTING if hasattr(GRPOConfig, name))
        # Only what the constructor needs: `of` configures the loss for each microbatch.
        settings = GRPOConfig(
            output_dir=output_dir,
            max_steps=config.run.steps,
            per_device_train_batch_size=2,
            gradient_accumulation_steps=1,
            num_generations=2,
            max_completion_length=config.run.max_completion_tokens or 1,
            beta=0.0,
            use_bias_correction_kl=False,  # the papers' KL term; TRL's default multiplies it by the importance ratio
            seed=config.run.seed,
            report_to=[],
            disable_tqdm=True,
            **{recomputing: False, **backend.trainer_arguments()},
        )
        parent: Any = super()
        parent.__init__(
            model=model,
            reward_funcs=[_unused_reward],
            args=settings,
            train_dataset=Dataset.from_dict({"prompt": [""] * 2}),
            processing_class=tokenizer,
        )
        packages.require("trl", instance=self)

        vars(self)["accelerator"] = _Unread(vars(self)["accelerator"])
        self.own = {role.loss: load_loss(role.loss) for role in config.roles.values() if role.own_loss}
        self._scores: tuple[Tensor, Tensor] | None = None

    def of(self, micro: MicroBatch, logprobs: Tensor, entropies: Tensor, reference: Tensor | None) -> Loss:
        """The loss of a microbatch. `logprobs`, `entropies` and, for a KL term, `reference` are (N,)."""
        role, given = micro.role, Given.of(micro, logprobs, reference)
        if role.own_loss:
            terms = own_terms(self.own[role.loss], micro, given)
            return Loss(loss_of(micro, given, terms, entropies), given.mean_kl(), None)
        vars(self).update(
            temperature=micro.temperature,
            beta=0.0 if given.reference is None else role.beta * micro.scale,
            loss_type="luspo" if role.loss == "sequence" else role.loss,
            max_completion_length=micro.max_tokens,
            entropy_coef=role.entropy * micro.token_share,
            epsilon_low=role.clip_ratio,
            epsilon_high=role.clip_ratio,
            aux_loss_enabled=False,
            current_gradient_accumulation_steps=1,
            _entropy_bonus_enabled=role.entropy != 0.0,
        )
        # TRL uses ids only to compute log-probabilities, which are given: zeros suffice.
        no_ids = given.mask.new_zeros((len(given.mask), 0))
        tensors = {
            "prompt_ids": no_ids,
            "prompt_mask": no_ids,
            "completion_ids": torch.zeros_like(given.mask),
            "completion_mask": given.mask,
            "advantages": tensor_of(micro.scaled(given.advantages), given.mask),
            "num_items_in_batch": torch.tensor(float(micro.stream_tokens)),
        }
        if given.reference is not None:
            tensors["ref_per_token_logps"] = given.reference
        if given.old is not None:
            tensors["old_per_token_logps"] = given.old
        self._scores = given.logprobs, padded(entropies, micro)
        # Not `compute_loss`: Unsloth replaces it with one that has no entropy bonus.
        trl: Any = self
        value = trl._compute_loss(trl.model, tensors)
        self.forget()
        return Loss(value, given.mean_kl(), given.clipped(role))

    def forget(self) -> None:
        """Free the memory of an unfinished loss."""
        vars(self)["_metrics"]["train"].clear()
        self._scores = None

    def _get_per_token_logps_and_entropies(self, *_: Any, **__: Any) -> tuple[Tensor, Tensor, None]:
        """Return the computed log-probabilities to TRL's loss."""
        assert self._scores is not None
        return *self._scores, None


def make_loss(backend: Backend, config: RunConfig, tokenizer: Any, output_dir: str) -> TrlLoss:
    """The loss of the backend's GRPO trainer class: TRL's own, or Unsloth's version of it."""
    kind: type[TrlLoss] = type("TrlLoss", (TrlLoss, backend.trainer_parent()), {})
    return kind(backend, config, tokenizer, output_dir)


def _unused_reward(completions: Sequence[Any], **kwargs: Any) -> list[float]:
    raise AssertionError("rewards come from the game")

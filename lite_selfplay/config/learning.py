"""The sections about learning: roles with their losses, seats, and the cold start."""

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from lite_selfplay.config.sections import Problems, Section, Unit, key
from lite_selfplay.config.user_files import file_of, load
from lite_selfplay.data import FILTERS, Sampling

# How each loss reduces the terms of the tokens to one number.
LOSSES = {
    "grpo": "the mean over completions of their means over tokens",
    "dr_grpo": "a sum over tokens, divided by a fixed length",
    "dapo": "a mean over all tokens",
    "sequence": "one term per completion",
}
# Parameters that a user's own loss may have, besides keys of its role: see `training.losses`.
ARGUMENTS = ("logprobs", "old", "reference", "advantages", "mask")


class RoleConfig(Section):
    """How a role samples, and how its stream becomes a loss. Only the temperature can be set: filters such as top_p
    would make the samples off-policy.

    `loss` reduces the tokens' terms to one number: `grpo` by a mean over each completion's tokens and then over
    completions, `dr_grpo` by a sum over tokens divided by completions and the token limit, `dapo` by a mean over the
    stream's tokens. `sequence` is the mean of one term per completion, min(r A, clip(r) A) with r the probability ratio
    of the whole completion, and sums the KL over a completion's tokens (CPMobius, equation 2). `FILE.py:FUNCTION` is a
    user's own loss. For the first three, `ratio` says which ratio is clipped: that of each `token`, or one per
    completion (`sequence`), the exp of the mean log-ratio of its tokens (Zheng et al. 2025, GSPO).

    `kl=advantage` subtracts beta times the mean of log p - log p_reference over a completion's tokens from its
    advantage, without a gradient (SPC, section 3.5); the loss then has no KL term.
    """

    temperature: float = key(1.0, "Temperature of sampling", ge=1e-3)
    max_completion_tokens: int | None = key(None, "Cap of this role's completions", unset="the run's", ge=1)
    stop: tuple[str, ...] = key((), "Texts that end a completion")
    beta: float = key(0.0, "Weight of the KL term towards the reference", ge=0)
    reference: Literal["seat", "base"] = key(
        "seat", "Reference of the KL term: the seat at the start of training, or the base"
    )
    loss: str = key(
        "grpo",
        f"How token terms become one number: {', '.join(f'{about} ({name})' for name, about in LOSSES.items())}; "
        "or a loss of your own, FILE.py:FUNCTION",
    )
    ratio: Literal["token", "sequence"] = key(
        "token", "Which probability ratio is clipped: one per token, or one per completion (GSPO)"
    )
    kl: Literal["loss", "advantage"] = key(
        "loss",
        "Where the KL term acts: in the loss, with its own gradient, or subtracted from each completion's advantage",
    )
    clip_ratio: Unit = key(0.2, "How far that ratio may lie from 1 before it is clipped")
    mask_truncated: bool = key(
        False,
        "Exclude completions that the token limit cut off from the loss, as DAPO does; their rewards still count in "
        "the mean of their group",
    )
    entropy: float = key(
        0.0, "Coefficient c of an entropy bonus: the loss minus c times the mean entropy of the stream's tokens"
    )

    @model_validator(mode="before")
    @classmethod
    def _only_temperature(cls, values: Any) -> Any:
        """Accept filters that are switched off: papers and older runs' files name them."""
        if not isinstance(values, Mapping):
            return values
        filters = {key: values[key] for key in FILTERS if key in values}
        if any(value != getattr(Sampling, key) for key, value in filters.items()):
            raise PydanticCustomError(
                "filters",
                "completions sampled with top_p, top_k, min_p or a repetition penalty are off-policy, and training "
                "would silently treat them as on-policy: only the temperature can be set",
            )
        return {key: value for key, value in values.items() if key not in filters}

    @field_validator("loss")
    @classmethod
    def _a_loss(cls, value: str) -> str:
        if value not in LOSSES and file_of(value) is None:
            raise PydanticCustomError("loss", "should be {names} or FILE.py:FUNCTION", {"names": ", ".join(LOSSES)})
        return value

    @field_validator("ratio")
    @classmethod
    def _one_ratio(cls, value: str, info: ValidationInfo) -> str:
        """The loss `sequence` has a ratio of its own. `loss` is declared before `ratio`, so its value is known."""
        if value != "token" and info.data.get("loss") == "sequence":
            raise PydanticCustomError(
                "ratio", "cannot be chosen with loss=sequence, whose ratio is the whole completion's"
            )
        return value

    @property
    def own_loss(self) -> bool:
        """Whether the loss is a user's own function."""
        return self.loss not in LOSSES

    @property
    def one_ratio(self) -> bool:
        """Whether there is one ratio per completion instead of one per token."""
        return "sequence" in (self.loss, self.ratio)

    def sampling(self, default_max_tokens: int) -> Sampling:
        """How this role samples; `default_max_tokens` is the cap if it has none of its own."""
        return Sampling(
            temperature=self.temperature, max_tokens=self.max_completion_tokens or default_max_tokens, stop=self.stop
        )


def load_loss(place: str) -> Callable[..., Any]:
    """A user's own loss from `FILE.py:FUNCTION`. Raises ConfigError if it cannot be loaded, or has a parameter that is
    neither in `ARGUMENTS` nor a key of its role."""
    return load(place, "roles.*.loss", "function", _is_a_loss, f" of {', '.join(ARGUMENTS)}")


def _is_a_loss(value: Any) -> bool:
    names = inspect.signature(value).parameters.keys() if inspect.isfunction(value) else set()
    return "logprobs" in names and names <= {*ARGUMENTS, *RoleConfig.model_fields}


class SeatConfig(Section):
    """A LoRA adapter and its optimizer."""

    lr: float = key(5e-5, "Learning rate", flag="lr", ge=0, le=10)
    schedule: Literal["linear", "cosine", "constant"] = key("linear", "How the learning rate falls after the warm-up")
    warmup: float = key(0.1, "The share of its own updates over which the learning rate rises", ge=0, lt=1)
    clip: float = key(1.0, "Bound of the gradient's norm", gt=0)
    weight_decay: float = key(0.0, "AdamW's: each update also takes the share lr * weight_decay off every weight", ge=0)
    rank: int = key(16, "Rank of the adapter", ge=1, le=8192)
    alpha: int = key(32, "LoRA's alpha: the adapter is scaled by alpha / rank", ge=1)
    init: Literal["zero", "gaussian"] = key(
        "zero",
        "How the adapter starts: at zero, equal to the base, or from noise, so that two seats differ from the start",
    )
    init_std: float = key(1e-3, "Standard deviation of that noise, in the up-projection", gt=0)
    full_finetune_lr: float | None = key(
        None, "For the record: the rate at which the game's paper trained all weights; for adapters it is too low", gt=0
    )


class ColdStartSection(Section):
    """Supervised learning of the output format before the first step, without a teacher.

    `source` says where the examples come from:

    - `worked`: worked solutions of the tasks (`stories` and GSM8K's files have some), written in the game's format;
    - `self`: the base plays the game by itself; right, well-formed completions are kept;
    - a path to a `.jsonl` file: lines of `prompt`, `completion` and possibly `role` (without it, every role);
    - `auto`: `worked` if the tasks have solutions, else `self`.
    """

    enabled: bool | None = key(
        None,
        "Teach the format first, by worked solutions or by the base's own right completions",
        flag="cold_start",
        unset="if a probe finds that the base never follows it",
    )
    source: str = key("auto", "Source of examples: worked, self, a .jsonl file of prompt and completion, or auto")
    roles: tuple[str, ...] | None = key(
        None, "The roles that are taught; a seat that plays none of them is not changed", unset="all", min_length=1
    )
    tasks: Problems = key(None, "The problems of worked and self", unset="the run's own")
    top_up: str | None = key(
        "stories", "A task whose worked solutions complete `self` if the base gives too few right completions"
    )
    steps: int = key(20, "Batches that a seat learns from", ge=1)
    examples_per_step: int = key(16, "Examples in a batch", ge=1)
    lr: float = key(2e-4, "Learning rate after a short warm-up; it falls to a tenth at the end", gt=0, le=10)
    temperature: float = key(1.0, "Temperature of the base while it plays the game by itself", ge=1e-3)
    rounds: int = key(8, "The most steps of the game that the base plays", ge=1)

    @field_validator("source", mode="before")
    @classmethod
    def _a_source(cls, value: Any) -> Any:
        value = str(value) if isinstance(value, Path) else value
        if isinstance(value, str) and value not in ("auto", "worked", "self") and not value.endswith(".jsonl"):
            raise PydanticCustomError("source", "should be auto, worked, self or a path to a .jsonl file")
        return value

"""What this library uses of others beyond what they document: every such name, in one place.

A release may rename any of them. Each is looked for when a run starts, so that it ends with a sentence instead of a
number that is silently wrong. `tests/models/test_private_names.py` holds the list to the code.
"""

from dataclasses import dataclass
from importlib import metadata
from pkgutil import resolve_name
from typing import Any

from packaging.requirements import Requirement

from lite_selfplay.errors import RequestError

TORCH, TRANSFORMERS = Requirement("torch>=2.10,<2.15"), Requirement("transformers>=5.4,<5.25")
TRL, PEFT = Requirement("trl>=1.10,<1.17"), Requirement("peft>=0.20,<0.22")
"""The releases that were tried (`make test-versions`). pip refuses older ones; newer ones are named at the start."""


@dataclass(frozen=True)
class Private:
    """Names that the tried releases of a package have: attributes of `owner` (`module:Class`, or a module).

    `of_instance`: they are set by the class's constructor, and looked for on an object.
    """

    package: Requirement
    owner: str
    names: tuple[str, ...]
    of_instance: bool = False


PRIVATE = (
    Private(TORCH, "torch", ("_foreach_copy_", "_foreach_mul", "_foreach_mul_", "_softmax_backward_data")),
    Private(TORCH, "torch.cpu", ("_is_avx512_bf16_supported",)),
    Private(TORCH, "torch.ops.aten", ("_flash_attention_forward",)),
    Private(TORCH, "torch:Tensor", ("_version",)),
    Private(TORCH, "torch.nn:Linear", ("_forward_hooks", "_forward_pre_hooks"), of_instance=True),
    Private(TRANSFORMERS, "transformers:PreTrainedConfig", ("_attn_implementation",)),
    Private(TRANSFORMERS, "transformers.cache_utils", ("DynamicLayer",)),
    Private(TRANSFORMERS, "transformers.masking_utils", ("sdpa_mask",)),
    Private(TRANSFORMERS, "transformers.integrations.sdpa_attention", ("sdpa_attention_forward",)),
    Private(TRANSFORMERS, "transformers.modeling_layers", ("GradientCheckpointingLayer",)),
    Private(TRL, "trl:GRPOTrainer", ("_compute_loss", "_get_per_token_logps_and_entropies")),
    Private(
        TRL,
        "trl:GRPOTrainer",
        (
            *("_metrics", "_entropy_bonus_enabled", "aux_loss_enabled", "beta", "entropy_coef"),
            *("epsilon_high", "epsilon_low", "loss_type", "max_completion_length", "temperature"),
        ),
        of_instance=True,
    ),
)


def require(*packages: str, instance: Any = None) -> None:
    """Raises RequestError, saying what to install, where an installed package lacks one of its names.

    With an `instance` those are looked for that its constructor sets.
    """
    for private in PRIVATE:
        if private.package.name in packages and private.of_instance is (instance is not None):
            owner = _owner(private.owner) if instance is None else instance
            lacking = [f".{name}" for name in private.names if not hasattr(owner, name)] if owner is not None else [""]
            if lacking:
                raise RequestError(
                    f"{private.package.name} {metadata.version(private.package.name)} has no "
                    f"{private.owner.replace(':', '.')}{lacking[0]}, which this library uses: "
                    f'pip install "{private.package}"'
                )


def untried() -> str | None:
    """A sentence about installed releases that are newer than any that was tried; None where there are none."""
    newer = {
        each: f"{each.name} {version}"
        for each in (TORCH, TRANSFORMERS, TRL, PEFT)
        if not each.specifier.contains(version := metadata.version(each.name), prereleases=True)
    }
    if not newer:
        return None
    back = " ".join(f'"{each}"' for each in newer)
    return f"not tried yet with {' and '.join(newer.values())}: if anything fails, pip install {back}"


def _owner(place: str) -> Any:
    try:
        return resolve_name(place)
    except (ImportError, AttributeError):
        return None

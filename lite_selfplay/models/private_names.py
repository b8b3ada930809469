"""What this library uses of others beyond what they document: every such name, in one place.

A release may rename any of them. Each is looked for when a run starts, so that it ends with a sentence instead of a
number that is silently wrong. `tests/models/test_private_names.py` holds the list to the code.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module, metadata
from typing import Any

from packaging.requirements import Requirement

from lite_selfplay.errors import RequestError


@dataclass(frozen=True)
class Private:
    """Names of a package: attributes of `owner` (`module:Class`, or a module).

    `of_instance`: they are set by the class's constructor, and looked for on an object.
    """

    package: str
    owner: str
    names: tuple[str, ...]
    of_instance: bool = False


PRIVATE = (
    Private("torch", "torch", ("_foreach_copy_", "_foreach_mul", "_foreach_mul_", "_softmax_backward_data")),
    Private("torch", "torch.cpu", ("_is_avx512_bf16_supported",)),
    Private("torch", "torch:Tensor", ("_version",)),
    Private("torch", "torch.nn:Linear", ("_forward_hooks", "_forward_pre_hooks"), of_instance=True),
    Private("transformers", "transformers:PreTrainedConfig", ("_attn_implementation",)),
    Private("transformers", "transformers.cache_utils", ("DynamicLayer",)),
    Private("transformers", "transformers.masking_utils", ("sdpa_mask",)),
    Private("transformers", "transformers.integrations.sdpa_attention", ("sdpa_attention_forward",)),
    Private("transformers", "transformers.modeling_layers", ("GradientCheckpointingLayer",)),
    Private("trl", "trl:GRPOTrainer", ("_compute_loss", "_get_per_token_logps_and_entropies")),
    Private(
        "trl",
        "trl:GRPOTrainer",
        (
            *("_metrics", "_entropy_bonus_enabled", "aux_loss_enabled", "beta", "entropy_coef"),
            *("epsilon_high", "epsilon_low", "loss_type", "max_completion_length", "temperature"),
        ),
        of_instance=True,
    ),
)


def require(*packages: str) -> None:
    """Raises RequestError, saying what to install, where an installed package lacks one of its names."""
    for private in PRIVATE:
        if private.package in packages and not private.of_instance:
            _require_on(_owner(private), private)


def require_of(instance: Any, package: str) -> None:
    """The same of an object, for the names that its constructor sets."""
    for private in PRIVATE:
        if private.package == package and private.of_instance:
            _require_on(instance, private)


def _require_on(owner: Any, private: Private) -> None:
    for name in private.names:
        if not hasattr(owner, name):
            raise _lacking(private, f".{name}")


def _owner(private: Private) -> Any:
    module, _, name = private.owner.partition(":")
    try:
        found = import_module(module)
        return getattr(found, name) if name else found
    except (ImportError, AttributeError):
        raise _lacking(private) from None


def _lacking(private: Private, name: str = "") -> RequestError:
    package, installed = private.package, metadata.version(private.package)
    return RequestError(
        f"{package} {installed} has no {private.owner.replace(':', '.')}{name}, which this library uses: "
        f'pip install "{_requirement(package)}"'
    )


def _requirement(package: str) -> str:
    """What this library asks of a package, as pip takes it."""
    return next((f"{r.name}{r.specifier}" for r in _requirements() if r.name == package), package)


def _requirements() -> Iterator[Requirement]:
    return (Requirement(line) for line in metadata.requires("lite-selfplay") or ())

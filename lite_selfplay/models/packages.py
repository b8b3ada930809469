"""The packages this library uses: installed releases, tried releases, and undocumented names that the code relies on.

A release may rename any of these. Each name is checked when a run starts, so that it ends with a sentence instead of
silently wrong numbers; `tests/models/test_packages.py` compares the list with the code. The rest comes from package
metadata, without imports.
"""

import contextlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from packaging.requirements import Requirement

from lite_selfplay.errors import RequestError

OWN = "lite-selfplay"


def version_of(name: str) -> str | None:
    """An installed package's version; None if it is not installed, `unknown` if its metadata is damaged."""
    try:
        return metadata.version(name) or "unknown"
    except metadata.PackageNotFoundError:
        return None
    except Exception:  # damaged metadata
        return "unknown"


def versions(names: Iterable[str]) -> dict[str, str]:
    """The installed versions of these packages, by name."""
    return {name: found for name in names if (found := version_of(name)) is not None}


def install(extras: str) -> str:
    """The command that installs this library with `extras` (`unsloth`, or `unsloth,plots`) from its own source: a
    checkout, a wheel's file or another address in its metadata (PEP 610), or PyPI."""
    try:
        found = json.loads(metadata.distribution(OWN).read_text("direct_url.json") or "{}")
    except (metadata.PackageNotFoundError, ValueError):
        found = {}
    checkout = Path(__file__).parents[2]
    if found.get("dir_info", {}).get("editable"):
        return f'pip install -e "{checkout}[{extras}]"'
    url = found.get("url") or (checkout.as_uri() if (checkout / "pyproject.toml").is_file() else "")
    if "vcs_info" in found:
        url = f"{found['vcs_info']['vcs']}+{url}"
    return f'pip install "{OWN}[{extras}]{url and f" @ {url}"}"'


# Names used from them


TORCH, TRANSFORMERS = Requirement("torch>=2.10,<2.15"), Requirement("transformers>=5.4,<5.25")
TRL, PEFT = Requirement("trl>=1.10,<1.17"), Requirement("peft>=0.20,<0.22")
"""The releases that were tried (`make test-versions`). pip refuses older ones; newer ones are named at the start."""


@dataclass(frozen=True)
class Private:
    """Names in the tried releases of a package: attributes of `owner` (`module:Class`, or a module). `of_instance`: the
    class's constructor sets them, so they are checked on an object. Without those that are not `needed` a run is only
    slower."""

    package: Requirement
    owner: str
    names: tuple[str, ...]
    of_instance: bool = False
    needed: bool = True


PRIVATE = (
    Private(TORCH, "torch", ("_foreach_copy_", "_foreach_mul", "_foreach_mul_", "_softmax_backward_data")),
    Private(TORCH, "torch.cpu", ("_is_avx512_bf16_supported",)),
    Private(TORCH, "torch.cuda.jiterator", ("_create_jit_fn", "_create_multi_output_jit_fn")),
    Private(TORCH, "torch.ops.aten", ("_flash_attention_backward", "_flash_attention_forward")),
    Private(
        TORCH,
        "torch.ops.mkldnn",
        ("_is_mkldnn_bf16_supported", "_linear_pointwise", "_reorder_linear_weight"),
        needed=False,
    ),
    Private(TORCH, "torch:Tensor", ("_version",)),
    Private(TORCH, "torch:UntypedStorage", ("_cdata",)),
    Private(TORCH, "torch.nn:Linear", ("_forward_hooks", "_forward_pre_hooks"), of_instance=True),
    Private(TRANSFORMERS, "transformers:PreTrainedConfig", ("_attn_implementation",)),
    Private(TRANSFORMERS, "transformers.quantizers:HfQuantizer", ("_dequantize",)),
    Private(TRANSFORMERS, "transformers.cache_utils", ("DynamicLayer", "LinearAttentionLayer")),
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
    """Raises RequestError, with the remedy, if an installed package lacks one of its names; with an `instance`, one
    that its constructor sets."""
    for private in PRIVATE:
        if private.needed and private.package.name in packages and private.of_instance is (instance is not None):
            owner = instance
            if instance is None:
                with contextlib.suppress(ImportError, AttributeError):  # it has no such module or class
                    owner = resolve_name(private.owner)
            lacking = [f".{name}" for name in private.names if not hasattr(owner, name)] if owner is not None else [""]
            if lacking:
                raise RequestError(
                    f"{private.package.name} {metadata.version(private.package.name)} has no "
                    f"{private.owner.replace(':', '.')}{lacking[0]}, which this library uses: "
                    f'pip install "{private.package}"'
                )


def untried() -> str | None:
    """A warning about installed releases newer than the tested ones; None if there are none."""
    newer = {
        each: f"{each.name} {version}"
        for each in (TORCH, TRANSFORMERS, TRL, PEFT)
        if not each.specifier.contains(version := metadata.version(each.name), prereleases=True)
    }
    if not newer:
        return None
    back = " ".join(f'"{each}"' for each in newer)
    return f"not tried yet with {' and '.join(newer.values())}: if anything fails, pip install {back}"

"""What this machine is, what would run on it, and why. Nothing raises: a half-installed package is a fact as well."""

import os
import platform
import shutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass

from lite_selfplay.errors import RequestError
from lite_selfplay.models.backends import availability, why_auto
from lite_selfplay.models.memory import GIB
from lite_selfplay.models.packages import version_of, versions
from lite_selfplay.models.sources.cache import cache_dir
from lite_selfplay.runs.folder import PACKAGES
from lite_selfplay.verify import programs

BESIDE = ("triton", "xformers", "flash-attn", "flash-linear-attention")
"""Packages that only some backends or bases use."""


@dataclass(frozen=True)
class Check:
    """One part of what was looked at: its state in a sentence, and whether that state is fine."""

    part: str
    text: str
    fine: bool = True


def machine() -> list[Check]:
    """This machine, part by part."""
    every = (*PACKAGES, *BESIDE)
    found = versions(every)
    looks: dict[str, Callable[[], str]] = {
        "python": lambda: f"{platform.python_version()} on {platform.platform()}",
        "packages": lambda: ", ".join(f"{name} {found.get(name, 'not installed')}" for name in every),
        "device": _device,
        "backend": lambda: f"transformers; {why_auto() or availability.package_problem()}",
        "precision": _precision,
        "attention": _attention,
        "models": _models,
        "sandbox": _sandbox,
    }
    if version_of("xformers") is not None:
        # Unsloth takes it where there is no flash-attn; the transformers backend has torch's own attention.
        fine = "its operators load; Unsloth takes them where flash-attn is not installed"
        problem = availability.xformers_problem
        looks["xformers"] = lambda: f"{why}: Unsloth takes torch's own attention" if (why := problem()) else fine
    with warnings.catch_warnings():  # torch warns about drivers; what is found covers them
        warnings.simplefilter("ignore")
        return [_look(part, look) for part, look in looks.items()]


def _look(part: str, look: Callable[[], str]) -> Check:
    try:
        return Check(part, look())
    except RequestError as wrong:
        return Check(part, str(wrong), fine=False)
    except Exception as error:  # torch in pieces raises nearly anything
        return Check(part, f"what is installed cannot be used ({availability.first_line(error)})", fine=False)


def _device() -> str:
    import torch

    if (problem := availability.device_problem()) is not None:
        raise RequestError(f"{problem}; {availability.ON_PURPOSE}")
    if not torch.cuda.is_available():
        threads = torch.get_num_threads()
        return f"no CUDA card; {threads} CPU thread{'s' if threads > 1 else ''}"
    found = [f"{card.name}, {card.memory / GIB:.1f} GiB" for card in availability.cards()]
    capability = availability.dotted(torch.cuda.get_device_capability())
    first = "; a run uses the first, CUDA_VISIBLE_DEVICES chooses another" if len(found) > 1 else ""
    return (
        f"{' | '.join(found)}; compute capability {capability}, driver {availability.driver() or 'unknown'}, torch for "
        f"CUDA {torch.version.cuda}{first}"
    )


def _precision() -> str:
    """What `model.compute_dtype=auto` takes over 4-bit weights."""
    card = next(iter(availability.cards()), None)
    if card is not None and (problem := availability.quantised_problem()) is not None:
        raise RequestError(f"{problem}: take --precision {'bf16' if card.bf16 else 'fp16'}")
    if availability.cpu_has_bf16() if card is None else card.bf16:
        return "over 4-bit weights bf16; adapters are float32"
    kind, which = ("fp32", "torch finds none on this CPU") if card is None else ("fp16", f"{card.name} has none")
    return f"over 4-bit weights {kind}, since of bf16 {which}; adapters are float32"


def _attention() -> str:
    """Which kernels a run of a half precision would have, tried with heads like Qwen2.5-0.5B's."""
    import torch

    from lite_selfplay.models import attention, packed_on_card

    card = next(iter(availability.cards()), None)
    if card is None:
        return "this library's own, on a CPU"
    with_14_heads = 14, 2, 64, torch.bfloat16 if card.bf16 else torch.float16, torch.device("cuda", 0)
    sampling, update = attention.why_no_flash(*with_14_heads), packed_on_card.why_no_flash(*with_14_heads)
    said = ["flash attention" if why is None else f"no flash attention, since {why}" for why in (sampling, update)]
    return f"sampling: {said[0]}; update: {said[1]}" if said[0] != said[1] else said[0]


def _models() -> str:
    cache = cache_dir()
    place = next(parent for parent in (cache, *cache.parents) if os.path.exists(parent))
    return f"{cache}, {shutil.disk_usage(place).free / 1e9:.1f} GB free"


def _sandbox() -> str:
    """How programs that a model wrote would be run: the sandbox opened, and tried with a canary."""
    try:
        sandbox = programs.open_sandbox(size=1)
    except RequestError as error:
        return f"none: {error}"
    sandbox.close()
    return sandbox.sentence()

"""Describes this machine, such as its packages, GPU and sandbox. No check raises: a broken package is a result, too."""

import contextlib
import os
import platform
import shutil
import warnings
from collections.abc import Callable
from typing import Any

from lite_selfplay.errors import RequestError
from lite_selfplay.models.backends import availability, why_auto
from lite_selfplay.models.memory import GIB
from lite_selfplay.models.packages import version_of, versions
from lite_selfplay.models.sources.cache import cache_dir
from lite_selfplay.runs.folder import PACKAGES
from lite_selfplay.verify import programs

BESIDE = ("triton", "xformers", "flash-attn", "flash-linear-attention")  # packages that only some backends or bases use


def machine() -> list[dict[str, Any]]:
    """The result of checking each `part` of this machine: Python, packages, device, backend, precision, sandbox and
    others. `text` describes its state, and `fine` is false if it has a problem."""
    every = (*PACKAGES, *BESIDE)
    found = versions(every)
    parts: dict[str, Callable[[], str]] = {
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
        # Only Unsloth uses it, if flash-attn is missing; the transformers backend has torch's own attention.
        fine = "its operators load; Unsloth uses them if flash-attn is not installed"
        parts["xformers"] = lambda: (
            f"{why}: Unsloth uses torch's own attention" if (why := availability.xformers_problem()) else fine
        )
    with warnings.catch_warnings():  # torch warns about drivers; the checks cover them
        warnings.simplefilter("ignore")
        return [{"part": part, **_checked(check)} for part, check in parts.items()]


def _checked(check: Callable[[], str]) -> dict[str, Any]:
    try:
        return {"text": check(), "fine": True}
    except RequestError as wrong:
        return {"text": str(wrong), "fine": False}
    except Exception as error:  # a broken torch raises nearly anything
        return {"text": f"cannot be checked: a package is broken ({availability.first_line(error)})", "fine": False}


def _device() -> str:
    import torch

    if (problem := availability.device_problem()) is not None:
        raise RequestError(f"{problem}; {availability.ON_PURPOSE}")
    if not torch.cuda.is_available():
        threads = torch.get_num_threads()
        return f"no CUDA GPU; {threads} CPU thread{'s' if threads > 1 else ''}"
    found = [f"{gpu.name}, {gpu.memory / GIB:.1f} GiB" for gpu in availability.cards()]
    capability = availability.dotted(torch.cuda.get_device_capability())
    first = "; a run uses the first, CUDA_VISIBLE_DEVICES chooses another" if len(found) > 1 else ""
    return (
        f"{' | '.join(found)}; compute capability {capability}, driver {availability.driver() or 'unknown'}, torch for "
        f"CUDA {torch.version.cuda}{first}"
    )


def _precision() -> str:
    """A sentence on the number type (bf16, fp16 or fp32) in which a model with 4-bit weights would compute on this
    machine. Raises RequestError if this machine's GPU cannot run 4-bit weights; its message suggests 16-bit weights
    (`--precision bf16` or `fp16`) instead."""
    gpu = next(iter(availability.cards()), None)
    if gpu is not None and (problem := availability.quantised_problem()) is not None:
        raise RequestError(f"{problem}: use --precision {'bf16' if gpu.bf16 else 'fp16'}")
    if availability.cpu_has_bf16() if gpu is None else gpu.bf16:
        return "4-bit weights compute in bf16; adapters are float32"
    kind, which = ("fp32", "this CPU") if gpu is None else ("fp16", gpu.name)
    return f"4-bit weights compute in {kind}, since {which} has no bf16; adapters are float32"


def _attention() -> str:
    """A sentence on the attention code that this machine would use. For the first GPU it says whether an example model,
    Qwen2.5-0.5B in 16 bits, would get flash attention in sampling and in the update, and if not, why; then which
    kernels compute SwiGLU."""
    import torch

    from lite_selfplay.models import attention, fused, packed_on_gpu

    gpu = next(iter(availability.cards()), None)
    if gpu is None:
        return "this library's own, on a CPU"
    with_14_heads = 14, 2, 64, torch.bfloat16 if gpu.bf16 else torch.float16, torch.device("cuda", 0)
    sampling, update = attention.why_no_flash(*with_14_heads), packed_on_gpu.why_no_flash(*with_14_heads)
    said = ["flash attention" if why is None else f"no flash attention, since {why}" for why in (sampling, update)]
    flash = f"sampling: {said[0]}; update: {said[1]}" if said[0] != said[1] else said[0]
    return f"{flash}; {fused.gated_kernel(with_14_heads[4], with_14_heads[3])}"


def _models() -> str:
    cache = cache_dir()
    existing = next(parent for parent in (cache, *cache.parents) if os.path.exists(parent))
    return f"{cache}, {shutil.disk_usage(existing).free / 1e9:.1f} GB free"


def _sandbox() -> str:
    """A sentence on how programs written by a model would run on this machine. It describes the sandbox that this
    function opens as a test, or says why none can be opened."""
    try:
        with contextlib.closing(programs.open_sandbox(size=1)) as sandbox:
            return sandbox.sentence()
    except RequestError as error:
        return f"none: {error}"

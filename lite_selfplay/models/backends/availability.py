"""What this machine can do: a run's device, which backend works on it, and why another cannot.

Reads package metadata: imports nothing of Unsloth, and torch only on demand, since `doctor` must work with a
half-installed torch.
"""

import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

from lite_selfplay.errors import RequestError
from lite_selfplay.models.memory import Card
from lite_selfplay.models.packages import install, version_of

if TYPE_CHECKING:
    import torch

    from lite_selfplay.config import ModelSection

OLDEST_CAPABILITY = (7, 0)
"""Compute capability of the oldest GPUs that Unsloth and Triton compile for: Volta; a T4 is 7.5."""
# Where Windows puts the Linux program, which has no driver file there and may lack this path.
WSL_SMI = "/usr/lib/wsl/lib/nvidia-smi"
ON_PURPOSE = "to compute on the CPU on purpose: --device cpu, or CUDA_VISIBLE_DEVICES= before any command"


def cpu_has_bf16() -> bool:
    """Whether the CPU has instructions for bf16 products that torch may use: `ATEN_CPU_CAPABILITY` can forbid them, to
    try an AVX2 machine."""
    import torch

    bound_below = torch.backends.cpu.get_cpu_capability() in ("NO AVX", "DEFAULT", "AVX2")
    return bool(torch.cpu._is_avx512_bf16_supported()) and not bound_below


# The device


def device_of(section: "ModelSection") -> "torch.device":
    """A run's device: the first GPU that torch sees, or the CPU if there is none or it is requested. Raises
    RequestError for a GPU that torch cannot use: a CPU would silently take hours."""
    import torch

    if section.device == "cpu":
        return torch.device("cpu")
    if (problem := device_problem()) is not None:
        raise RequestError(f"{problem}; {ON_PURPOSE}")
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def device_problem() -> str | None:
    """Why torch cannot use the GPU, for a message; None if it can, or if there is no GPU."""
    import torch

    if torch.cuda.is_available():
        return None if torch.version.hip else _kernels_problem()
    found = driver() if os.environ.get("CUDA_VISIBLE_DEVICES") not in ("", "-1") else None
    if found is None:
        return None
    why = (
        f"torch {torch.__version__} is built without CUDA: install a CUDA build of it (pytorch.org)"
        if torch.version.cuda is None
        else f"torch for CUDA {torch.version.cuda} may be too new for it: update the driver, or take an older build"
    )
    return f"NVIDIA's driver {found} is there and torch can use no GPU: {why}"


def _kernels_problem() -> str | None:
    """Why torch has no kernels for the first GPU; None if it has kernels for this generation, or PTX to compile."""
    import torch

    capability, archs = torch.cuda.get_device_capability(), torch.cuda.get_arch_list()
    known = [divmod(int("".join(filter(str.isdigit, arch.partition("_")[2]))), 10) for arch in archs]
    older = [(arch, has) for arch, has in zip(archs, known, strict=True) if has <= capability]
    if not known or any(arch.startswith("compute_") or has[0] == capability[0] for arch, has in older):
        return None
    build = "the build of torch for CUDA 12.6" if capability < (7, 5) else "a build of torch for this GPU"
    return (
        f"{torch.cuda.get_device_name()} has compute capability {dotted(capability)}, and torch {torch.__version__} is "
        f"built for {dotted(min(known))} to {dotted(max(known))}: install {build} (pytorch.org)"
    )


def cards() -> list[Card]:
    """The GPUs that torch sees, of which a run uses the first; empty without any."""
    import torch

    found = []
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        properties = torch.cuda.get_device_properties(index)
        with torch.cuda.device(index):
            bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
        found.append(Card(properties.name, properties.total_memory, bf16))
    return found


def driver() -> str | None:
    """The version of NVIDIA's driver, from the kernel or from nvidia-smi (not torch); None if there is none."""
    with contextlib.suppress(OSError, IndexError, UnicodeDecodeError):
        first = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8").splitlines()[0]
        return next((word for word in first.split() if word.count(".") >= 1 and word[0].isdigit()), None)
    for program in ("nvidia-smi", WSL_SMI):
        with contextlib.suppress(OSError, subprocess.SubprocessError, UnicodeDecodeError):
            command = [program, "--query-gpu=driver_version", "--format=csv,noheader"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
            return next(iter(done.stdout.split()), None)
    return None


def quantised_problem() -> str | None:
    """Why the GPU cannot use 4-bit weights, by a try on a few numbers; None if it can."""
    import torch
    from bitsandbytes.functional import dequantize_4bit, quantize_4bit

    try:
        ones = torch.ones(64, 64, dtype=torch.float16, device="cuda")
        right = bool((dequantize_4bit(*quantize_4bit(ones, quant_type="nf4")) == 1).all())
    except Exception as error:  # the library does not load, or has no code for the GPU
        return f"bitsandbytes {version_of('bitsandbytes')} does not run on this GPU ({first_line(error)})"
    return None if right else f"bitsandbytes {version_of('bitsandbytes')} computes wrong numbers on this GPU"


def xformers_problem() -> str | None:
    """Why the installed xformers has no operators for this torch; None if they load."""
    import torch

    found = importlib.util.find_spec("xformers")
    for folder in (found.submodule_search_locations or ()) if found is not None else ():
        for library in Path(folder).glob("_C*.so"):
            try:
                torch.ops.load_library(library)
            except OSError as error:
                return f"its operators do not load beside torch {torch.__version__} ({first_line(error)})"
            return None
    return "it has no compiled operators"


# Unsloth


def unsloth_problem() -> str | None:
    """Why the Unsloth backend cannot work here, for a message; None if it can. Loads torch, and nothing
    else that is heavy. A broken installation only shows when it is imported."""
    return card_problem() or package_problem() or compiler_problem()


def card_problem() -> str | None:
    """Why Unsloth cannot use the GPU: there is none, or it is too old. None if it can."""
    import torch

    if not torch.cuda.is_available():
        build = "" if torch.version.cuda else f": torch {torch.__version__} is built without CUDA"
        return f"it needs a CUDA GPU, and torch finds none{build}"
    capability = torch.cuda.get_device_capability()
    if not torch.version.hip and capability < OLDEST_CAPABILITY:
        return (
            f"{torch.cuda.get_device_name()} is too old for it: compute capability {dotted(capability)}, and it needs "
            f"{dotted(OLDEST_CAPABILITY)} or later"
        )
    return device_problem()


def package_problem() -> str | None:
    """Why the installed packages do not suffice for Unsloth; `pip check` says whether versions fit together."""
    return None if version_of("unsloth") else f"the package unsloth is not installed ({install('unsloth')})"


def compiler_problem() -> str | None:
    """Why Triton, the language of Unsloth's kernels, could not build its launchers. It looks for a compiler and for
    Python.h in the same way (`triton/runtime/build.py`); on Windows it includes both."""
    if sys.platform == "win32":
        return None
    if not os.environ.get("CC") and not any(map(shutil.which, ("gcc", "clang"))):
        return "Triton needs a C compiler, and neither CC, gcc nor clang is there (apt-get install gcc)"
    header = Path(sysconfig.get_paths(scheme="posix_prefix")["include"], "Python.h")
    return None if header.is_file() else f"Triton needs {header}, which is not there (apt-get install python3-dev)"


def dotted(capability: tuple[int, int]) -> str:
    """A compute capability as NVIDIA writes it: 7.5."""
    return f"{capability[0]}.{capability[1]}"


def first_line(error: Exception) -> str:
    """An error's kind and the first line of its message."""
    return f"{type(error).__name__}: {error}".splitlines()[0]

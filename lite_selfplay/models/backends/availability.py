"""What this machine can do: which backend can work on it, why another cannot, and whether its CPU multiplies in bf16.

Reads package metadata: nothing of Unsloth is imported here.
"""

from packaging.requirements import Requirement

from lite_selfplay.models.packages import OWN, fits, requirements, version_of

INSTALL = 'pip install "lite-selfplay[unsloth]"'
OLDEST_CAPABILITY = (7, 0)
"""Compute capability of the oldest cards that its compiled code runs on: Volta; a T4 is 7.5."""
CHECKED = ("torch", "transformers", "trl", "peft", "bitsandbytes", "accelerate", "datasets", "triton", "unsloth_zoo")
"""Packages whose versions Unsloth has to agree with, or that it cannot run without. Others it can do without."""


def best_backend() -> str:
    """What `auto` chooses here: `unsloth` where it can work, otherwise `transformers`."""
    return "transformers" if unsloth_problem() else "unsloth"


def cpu_has_bf16() -> bool:
    """Whether the CPU has instructions for bf16 products that torch may use: `ATEN_CPU_CAPABILITY` can keep it from
    them, as one does to try what a machine with AVX2 would do."""
    import torch

    bound_below = torch.backends.cpu.get_cpu_capability() in ("NO AVX", "DEFAULT", "AVX2")
    return bool(torch.cpu._is_avx512_bf16_supported()) and not bound_below


def unsloth_problem() -> str | None:
    """Why the Unsloth backend cannot work here, a clause without a full stop; None where it can.

    Loads torch, and nothing else that is heavy. What is installed may still be broken: that shows when it is imported.
    """
    return card_problem() or package_problem()


def card_problem() -> str | None:
    """Why the card does not serve: there is none, or it is too old. None where it serves."""
    import torch

    if not torch.cuda.is_available():
        build = "" if torch.version.cuda else f": torch {torch.__version__} is built without CUDA"
        return f"it needs a CUDA card, and torch finds none{build}"
    if torch.version.hip:
        return None
    capability = torch.cuda.get_device_capability()
    if capability < OLDEST_CAPABILITY:
        return (
            f"{torch.cuda.get_device_name()} is too old for it: compute capability {dotted(capability)}, and it needs "
            f"{dotted(OLDEST_CAPABILITY)} or later"
        )
    return None


def package_problem() -> str | None:
    """Why what is installed does not serve: Unsloth is missing, too old, or does not go with a version beside it."""
    if version_of("unsloth") is None:
        return f"the package unsloth is not installed ({INSTALL})"
    if version_of("unsloth_zoo") is None:
        return f"unsloth is installed without unsloth_zoo ({INSTALL})"
    needed = [(OWN, one) for one in requirements(OWN, extra="unsloth") if one.name == "unsloth"]
    for owner in ("unsloth", "unsloth_zoo"):
        needed += [(owner, one) for one in requirements(owner) if one.name in CHECKED]
    return next((problem for owner, one in needed if (problem := _unmet(owner, one)) is not None), None)


def _unmet(owner: str, requirement: Requirement) -> str | None:
    name, bounds = requirement.name, requirement.specifier
    found = version_of(name)
    if found is None:
        return f"{owner} {version_of(owner)} needs {name}, which is not installed ({INSTALL})"
    if not fits(found, requirement):
        return (
            f"{name} {found} is out of the bounds of {owner} {version_of(owner)}: it needs {name}{bounds} "
            f'(pip install "{name}{bounds}")'
        )
    return None


def dotted(capability: tuple[int, int]) -> str:
    """A compute capability as NVIDIA writes it: 7.5."""
    return f"{capability[0]}.{capability[1]}"

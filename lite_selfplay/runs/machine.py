"""What this machine can do: its cards, the installed versions, and which of them a run would use.

`facts` looks at whatever may be missing or broken; `findings` judges what was seen and looks at nothing itself.
"""

import os
import platform
import shutil
import subprocess
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from lite_selfplay.models.backends.availability import INSTALL, cpu_has_bf16, dotted, unsloth_problem
from lite_selfplay.models.packages import OWN, fits, requirements, versions
from lite_selfplay.models.sources.cache import cache_dir
from lite_selfplay.runs.folder import PACKAGES
from lite_selfplay.verify.programs.sandbox import SandboxError, open_sandbox

ATTENTION = ("flash-attn", "xformers")
"""Packages whose attention Unsloth uses where they are installed; it prefers the first."""
FLASH_CAPABILITY = (8, 0)
"""Compute capability from which flash-attn works: Ampere."""
GIB = 2**30


@dataclass(frozen=True)
class Finding:
    """One part of what was looked at: its state in a sentence, and whether that state is fine."""

    part: str
    text: str
    fine: bool = True


@dataclass(frozen=True)
class Card:
    """A GPU as torch sees it: memory in bytes, compute capability, and whether it multiplies in bf16."""

    name: str
    memory: int
    capability: tuple[int, int]
    bf16: bool


@dataclass(frozen=True)
class Facts:
    """A machine as it was found.

    `installed` maps packages to versions, `needed` maps a package to what it requires: this library, and each package
    that this library requires. `torch_problem` says why torch could not be imported, `torch_cuda` the CUDA version it
    was built for, `driver` NVIDIA's driver, found without torch. `unsloth_problem` is None where that backend can work.
    `free` is the room for models in bytes, None where it is unknown. `allocator` is who manages this process's memory,
    empty where that is unknown. `sandbox` says how programs that a model wrote would be run, or why they would not.
    """

    python: str
    system: str
    installed: Mapping[str, str] = field(default_factory=dict)
    needed: Mapping[str, Sequence[Requirement]] = field(default_factory=dict)
    torch_problem: str | None = None
    torch_cuda: str | None = None
    driver: str | None = None
    cards: tuple[Card, ...] = ()
    threads: int = 1
    cpu_bf16: bool = False
    unsloth_problem: str | None = None
    cache: Path = Path()
    free: int | None = None
    allocator: str = ""
    sandbox: str = ""


def machine() -> list[Finding]:
    """This machine, part by part."""
    return findings(facts())


# Looking


def facts() -> Facts:
    """Look at this machine. Raises nothing: a half-installed package is a fact as well."""
    own = requirements(OWN)
    needed = {OWN: own, **{requirement.name: requirements(requirement.name) for requirement in own}}
    names = {*PACKAGES, *ATTENTION, *(requirement.name for asked in needed.values() for requirement in asked)}
    about: dict[str, Any] = {"cache": cache_dir(), "free": _free(cache_dir()), "driver": _driver()}
    try:
        with warnings.catch_warnings():  # torch warns about drivers; the findings cover them
            warnings.simplefilter("ignore")
            about |= _seen_by_torch()
    except Exception as error:  # torch in pieces raises nearly anything
        about["torch_problem"] = _first_line(error)
    about["unsloth_problem"] = _unsloth()
    about["allocator"] = _allocator()
    about["sandbox"] = _sandbox()
    return Facts(
        python=platform.python_version(),
        system=platform.platform(),
        installed=versions(sorted(names)),
        needed=needed,
        **about,
    )


def _seen_by_torch() -> dict[str, Any]:
    import torch

    cards = []
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        found = torch.cuda.get_device_properties(index)
        with torch.cuda.device(index):
            bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
        cards.append(Card(found.name, found.total_memory, (found.major, found.minor), bf16))
    return {
        "torch_cuda": torch.version.cuda,
        "cards": tuple(cards),
        "threads": torch.get_num_threads(),
        "cpu_bf16": cpu_has_bf16(),
    }


def _allocator() -> str:
    """The allocator that was loaded in glibc's place, or glibc; nothing on systems without it."""
    if platform.libc_ver()[0] != "glibc":
        return ""
    try:
        loaded = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return next((name for name in ("tcmalloc", "jemalloc", "mimalloc") if name in loaded), "glibc")


def _unsloth() -> str | None:
    try:
        return unsloth_problem()
    except Exception as error:  # torch in pieces raises nearly anything
        return f"what is installed of it cannot be read ({_first_line(error)}): {INSTALL}"


def _sandbox() -> str:
    """The sandbox of programs: opened, and tried with a canary."""
    try:
        sandbox = open_sandbox(size=1)
    except SandboxError as error:
        return f"none: {error}"
    sandbox.close()
    return sandbox.sentence()


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _driver() -> str | None:
    """The version of NVIDIA's driver, from the kernel or from nvidia-smi; None if there is none."""
    try:
        first = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8").splitlines()[0]
        return next((word for word in first.split() if word.count(".") >= 1 and word[0].isdigit()), None)
    except (OSError, IndexError, UnicodeDecodeError):
        pass
    if (tool := shutil.which("nvidia-smi")) is None:
        return None
    command = [tool, "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=2, check=True)
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    return next(iter(done.stdout.split()), None)


def _free(cache: Path) -> int | None:
    try:
        place = next(parent for parent in (cache, *cache.parents) if parent.exists())
        return shutil.disk_usage(place).free
    except (OSError, StopIteration):
        return None


# Judging


def findings(seen: Facts) -> list[Finding]:
    """What the facts mean for a run, part by part."""
    named = [f"{name} {seen.installed.get(name, 'not installed')}" for name in (*PACKAGES, *ATTENTION)]
    free = "free space unknown" if seen.free is None else f"{seen.free / 1e9:.1f} GB free"
    return [
        Finding("python", f"{seen.python} on {seen.system}"),
        Finding("packages", ", ".join(named)),
        *(judge(seen) for judge in (_versions, _device, _backend, _attention, _precision)),
        *_memory(seen),
        Finding("models", f"{seen.cache}, {free}"),
        # Whoever trains on other answers needs none.
        Finding("sandbox", seen.sandbox or "not looked for"),
    ]


def _versions(seen: Facts) -> Finding:
    """Whether what this library needs, and what that needs in turn, is installed within its bounds."""
    if not seen.needed.get(OWN):
        return Finding("versions", f"{OWN} is not installed, so nothing is known of what it needs", fine=False)
    problems, wanted = [], dict[str, None]()
    for owner, needed in seen.needed.items():
        for requirement in needed:
            found = seen.installed.get(requirement.name)
            if found is not None and fits(found, requirement):
                continue
            bounds = f"{requirement.name}{requirement.specifier}"
            wanted[f'"{bounds}"'] = None
            problems.append(f"{owner} needs {bounds}, and {found or 'none'} is installed")
    if problems:
        return Finding("versions", f"{'; '.join(problems)}: pip install {' '.join(wanted)}", fine=False)
    count = len(seen.needed[OWN])
    return Finding("versions", f"they fit together: the {count} packages that {OWN} needs, and what those need")


def _device(seen: Facts) -> Finding:
    driver = f"driver {seen.driver}" if seen.driver else "no NVIDIA driver is seen"
    if seen.torch_problem is not None:
        again = "pip install --force-reinstall torch"
        return Finding("device", f"torch cannot be imported ({seen.torch_problem}): {again}; {driver}", fine=False)
    if seen.cards:
        cards = [
            f"{card.name}, {card.memory / GIB:.1f} GiB, compute capability {dotted(card.capability)}"
            for card in seen.cards
        ]
        first = "; a run uses the first, CUDA_VISIBLE_DEVICES chooses another" if len(cards) > 1 else ""
        return Finding("device", f"{' | '.join(cards)}; {driver}, torch for CUDA {seen.torch_cuda}{first}")
    cpu = f"{seen.threads} CPU thread{'s' if seen.threads > 1 else ''}"
    if seen.driver is None:
        return Finding("device", f"no CUDA card; {cpu}")
    why = (
        f"torch is built for CUDA {seen.torch_cuda}, which may be newer than the driver, or the card is hidden by "
        f"CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES', '')!r}"
        if seen.torch_cuda
        else "torch is built without CUDA: install a CUDA build of it"
    )
    return Finding("device", f"{cpu}; {driver}, but torch can use no card: {why}", fine=False)


def _backend(seen: Facts) -> Finding:
    if seen.torch_problem is not None:
        return Finding("backend", "none works without torch", fine=False)
    if seen.unsloth_problem is None:
        return Finding("backend", "unsloth; --backend transformers works, too")
    return Finding("backend", f"transformers; unsloth cannot work here: {seen.unsloth_problem}")


def _attention(seen: Facts) -> Finding:
    """Unsloth takes flash-attn where the card runs it, else xformers; the other backend has torch's own."""
    if seen.unsloth_problem is not None or not seen.cards:
        return Finding("attention", "torch's scaled_dot_product_attention (sdpa)")
    flash = "flash-attn" in seen.installed
    if flash and seen.cards[0].capability >= FLASH_CAPABILITY:
        return Finding("attention", f"flash-attn {seen.installed['flash-attn']}")
    too_old = f"; flash-attn needs compute capability {dotted(FLASH_CAPABILITY)}" if flash else ""
    if "xformers" in seen.installed:
        return Finding("attention", f"xformers {seen.installed['xformers']}{too_old}")
    return Finding("attention", f"torch's scaled_dot_product_attention (sdpa); for xformers: {INSTALL}{too_old}")


def _precision(seen: Facts) -> Finding:
    """What `model.compute_dtype=auto` takes over 4-bit weights."""
    if seen.torch_problem is not None:
        return Finding("precision", "unknown without torch", fine=False)
    if seen.cards:
        card = seen.cards[0]
        kind = "bf16" if card.bf16 else f"fp16, as {card.name} has no bf16"
    else:
        kind = "bf16" if seen.cpu_bf16 else "fp32, as torch finds no bf16 instructions on this CPU"
    return Finding("precision", f"over 4-bit weights {kind}; adapters are float32")


def _memory(seen: Facts) -> list[Finding]:
    """The allocator, where it decides how fast an update is: in fp32 on a CPU (docs/performance.md)."""
    if seen.torch_problem is not None or seen.cards or seen.cpu_bf16 or not seen.allocator:
        return []
    better = "; tcmalloc in its place makes updates faster: install libtcmalloc_minimal and name it in LD_PRELOAD"
    return [Finding("allocator", seen.allocator + (better if seen.allocator == "glibc" else ""))]

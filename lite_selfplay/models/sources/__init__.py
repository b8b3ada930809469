"""Names of base models, and the local folder that each of them becomes.

Reading order: `resolve` below, `catalog` (short names), `hub`, `tiny`, `gguf` (with `gguf_tokenizer`), `smollm2` (where
a base model comes from), `cache` and `folders` (how it is stored and identified). Importing this package loads neither
torch nor transformers.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lite_selfplay.config.user_files import require_file
from lite_selfplay.errors import ModelNotFoundError, UnknownNameError
from lite_selfplay.models.private_names import untried
from lite_selfplay.models.sources import catalog, folders
from lite_selfplay.models.sources.catalog import NO_NETWORK, ModelInfo, known_models
from lite_selfplay.tasks.files import sha256_of

if TYPE_CHECKING:
    from lite_selfplay.config import ModelSection
    from lite_selfplay.training.progress import Progress

__all__ = [
    "ModelInfo",
    "ResolvedModel",
    "base_of",
    "known_models",
    "provenance",
    "require_known",
    "resolve",
    "suggested",
]

provenance = folders.provenance


@dataclass(frozen=True)
class ResolvedModel:
    """A base model on this machine.

    `name` is what was asked for, `path` a folder that transformers loads. `identity` names the base's content, so that
    a run can tell whether it resumes on what it started with. `defaults` is a config overlay in dotted keys
    (`seats.*.lr`) that the model suggests; empty for every real model.
    """

    name: str
    path: Path
    identity: str
    defaults: Mapping[str, Any] = field(default_factory=dict)

    @property
    def hub_id(self) -> str | None:
        """What a hub calls it; None for one that came from none."""
        return self.identity[4:].partition("@")[0] if self.identity.startswith("hub:") else None

    @property
    def revision(self) -> str | None:
        """Its commit on a hub; None for one that came from none."""
        return self.identity.partition("@")[2] if self.hub_id else None


def base_of(section: "ModelSection", progress: "Progress") -> ResolvedModel:
    """The base that a configuration names, with a loud warning where its own code is to be run, and a sentence where
    libraries are newer than those that were tried. Raises as `resolve`."""
    if (newer := untried()) is not None:
        progress.say(newer)
    if section.trust_remote_code:
        progress.warn(
            f"TRUSTING REMOTE CODE: Python code that comes with {section.name} runs with all your rights: it can read, "
            "change and send away whatever you can. Go on only if you have read it"
        )
    return resolve(section.name, with_code=section.trust_remote_code, say=progress.say)


def resolve(name: str, *, with_code: bool = False, say: Callable[[str], None] | None = None) -> ResolvedModel:
    """Find or make the local folder of a base model; from a hub its Python code comes along only `with_code`.

    Tried in this order: an existing folder, a `.gguf` file, `tiny`, `smollm2-135m`, a short name of the catalog, a hub
    id (`owner/name`). `say` gets a sentence about anything that takes longer than a second.

    Raises `ModelNotFoundError` where the model is known but cannot be had, `UnknownNameError` (with near names) where
    the name means nothing.
    """
    return _route(name, with_code)(say or _silent)


def require_known(name: str) -> None:
    """Raises `UnknownNameError` or `ModelNotFoundError` for a name that `resolve` would not even try to fetch."""
    _route(name)


def _route(name: str, with_code: bool = False) -> Callable[[Callable[[str], None]], ResolvedModel]:
    """How a model is found or made: a function that does it, telling its argument what takes long."""
    key = name.strip()
    builtin = _BUILTIN.get(key.lower())
    hub_id = catalog.hub_id(key)
    path = Path(key).expanduser()
    # A stray folder called like a model (`runs/tiny`, say) must not hide the model.
    if key and os.path.isdir(path) and (folders.has_config(path) or (builtin is None and hub_id is None)):
        return lambda tell: _from_folder(name, path)
    if path.suffix.lower() == ".gguf":
        return lambda tell: _from_gguf(name, path, tell)
    if builtin is not None:
        return lambda tell: builtin(name, tell)
    if hub_id is None and _looks_like_a_path(key):
        raise ModelNotFoundError(f"no model folder at {path}. {NO_NETWORK}")
    if hub_id is None:
        raise UnknownNameError(
            "model", name, catalog.names(), "A model may also be a hub id (owner/name), a folder or a .gguf file."
        )
    return lambda tell: _from_hub(name, hub_id, with_code, tell)


def _silent(sentence: str) -> None:
    """What takes the messages where nobody wants them."""


def _looks_like_a_path(key: str) -> bool:
    return key.startswith((".", "~", "/", "\\")) or key.count("/") > 1 or "\\" in key or key.endswith("/")


def _from_folder(name: str, path: Path) -> ResolvedModel:
    path = path.resolve()
    folders.require_model(path)
    return ResolvedModel(name, path, folders.fingerprint(path))


def _from_gguf(name: str, path: Path, say: Callable[[str], None]) -> ResolvedModel:
    from lite_selfplay.models.sources import gguf
    from lite_selfplay.models.sources.cache import build_once

    if not os.path.exists(path):
        raise ModelNotFoundError(f"no .gguf file at {path}. {NO_NETWORK}")
    require_file(path, ModelNotFoundError)
    sha256 = sha256_of(path)

    def build(staging: Path) -> None:
        say(f"converting {path.name} into a transformers folder; this is done once")
        gguf.convert(path, staging, sha256=sha256)

    return ResolvedModel(name, build_once(gguf.folder_for(sha256), build, say=say), f"gguf:{sha256}")


def _from_hub(name: str, hub_id: str, with_code: bool, say: Callable[[str], None]) -> ResolvedModel:
    from lite_selfplay.models.sources import hub

    path = hub.fetch(hub_id, with_code=with_code, say=say)
    return ResolvedModel(name, path, f"hub:{hub_id}@{path.name}")


def _from_tiny(name: str, say: Callable[[str], None]) -> ResolvedModel:
    from lite_selfplay.models.sources import tiny

    return ResolvedModel(name, tiny.cached(), tiny.IDENTITY, {"seats.*.lr": 5e-3})


def _from_smollm2(name: str, say: Callable[[str], None]) -> ResolvedModel:
    from lite_selfplay.models.sources import smollm2

    return ResolvedModel(name, smollm2.fetch(say=say), f"gguf:{smollm2.GGUF_SHA256}")


_BUILTIN: Mapping[str, Callable[[str, Callable[[str], None]], ResolvedModel]] = {
    "tiny": _from_tiny,
    "smollm2-135m": _from_smollm2,
}


def suggested(name: str) -> Mapping[str, Any]:
    """The configuration a base suggests, in dotted keys, known without fetching it; empty for every real model."""
    return {"seats.*.lr": 5e-3} if name.strip().lower() == "tiny" else {}

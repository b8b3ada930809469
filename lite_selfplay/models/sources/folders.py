"""A model folder: whether it holds what transformers needs, and a fingerprint of its content."""

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lite_selfplay.config.user_files import read_file
from lite_selfplay.errors import ConfigError, LiteSelfPlayError, ModelNotFoundError
from lite_selfplay.tasks.files import JSON_LIMIT, parse_object

NO_NETWORK = (
    "Models that need no network: tiny, sums-1m, any folder that transformers loads, any .gguf file, "
    "and smollm2-135m once pip has fetched it."
)
PROVENANCE = "provenance.json"
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "tokenizer_config.json", "spiece.model")
_NO_MEMORY = ("out of memory", "can't allocate memory")  # as torch says it of a card, and of the machine
_SAMPLES, _SAMPLE_BYTES = 16, 64 * 1024
_MERGED = {"lite-selfplay", "merge", "mergekit"}  # tags of a card, and how it stands to its base
_PRECISIONS = {"float16": "fp16", "float32": "fp32"}


def has_config(folder: Path) -> bool:
    return os.path.isfile(folder / "config.json")


def architecture(folder: Path) -> str:
    """What transformers calls the language model in a folder: of a wrapper, its text part."""
    config = read_json(folder / "config.json")
    text = config.get("text_config")
    return str((text if isinstance(text, dict) else config).get("model_type") or config.get("model_type"))


def weight_files(folder: Path) -> list[Path]:
    """The files that hold weights, by name: safetensors, or the older `.bin` files if there are no others."""
    patterns = ("*.safetensors", "pytorch_model*.bin")
    return next(filter(None, (sorted(filter(os.path.isfile, folder.glob(each))) for each in patterns)), [])


def missing_parts(folder: Path) -> list[str]:
    """What transformers would look for in vain: `config.json`, a tokenizer, weights, shards named by an index."""
    missing = [] if has_config(folder) else ["config.json"]
    if not any(os.path.isfile(folder / name) for name in _TOKENIZER_FILES):
        missing.append("a tokenizer (tokenizer.json)")
    if not weight_files(folder):
        missing.append("weights (*.safetensors)")
    index = folder / "model.safetensors.index.json"
    if os.path.isfile(index):
        shards = read_json(index).get("weight_map", {})
        if not isinstance(shards, dict) or not all(isinstance(shard, str) for shard in shards.values()):
            raise ModelNotFoundError(f"{index} does not say which file holds a weight")
        missing += sorted(shard for shard in set(shards.values()) if not os.path.isfile(folder / shard))
    return missing


def lacks_code(folder: Path) -> bool:
    """True where the config names code that is to come with the model, and no Python file did."""
    return "auto_map" in read_json(folder / "config.json") and not any(folder.glob("*.py"))


def require_model(folder: Path) -> None:
    """Raise `ModelNotFoundError`, in a sentence that names what is missing, unless the folder holds a whole model."""
    if not (missing := missing_parts(folder)):
        return
    hint = ""
    if os.path.isfile(folder / "adapter_config.json"):
        hint = " It holds an adapter: give the base model here and load the adapter on top."
    elif ggufs := sorted(folder.glob("*.gguf")):
        hint = f" It holds a .gguf file: give {ggufs[0]} itself."
    raise ModelNotFoundError(f"the folder {folder} is not a model: it lacks {', '.join(missing)}.{hint}")


def fingerprint(folder: Path) -> str:
    """`folder:` and a SHA-256 over the config, the tokenizer's files, and names, sizes and samples of the weights.

    Samples (16 blocks of 64 KiB spread over each file) tell two fine-tunes of one architecture apart without reading
    gigabytes. The version of transformers that wrote the config does not count; code that the config names does.
    """
    digest = hashlib.sha256()
    config = read_json(folder / "config.json")
    config.pop("transformers_version", None)
    digest.update(json.dumps(config, sort_keys=True).encode())
    for name in ("tokenizer.json", "tokenizer.model", "chat_template.jinja", "tokenizer_config.json"):
        if os.path.isfile(folder / name):
            digest.update(name.encode() + (folder / name).read_bytes())
    for file in sorted(folder.rglob("*.py")) if "auto_map" in config else ():
        digest.update(file.relative_to(folder).as_posix().encode() + file.read_bytes())
    for file in weight_files(folder):
        size = file.stat().st_size
        digest.update(f"{file.name}:{size}".encode())
        with file.open("rb") as stream:
            for sample in range(_SAMPLES):
                stream.seek(max(0, size - _SAMPLE_BYTES) * sample // (_SAMPLES - 1))
                digest.update(stream.read(_SAMPLE_BYTES))
    return f"folder:{digest.hexdigest()}"


@contextlib.contextmanager
def reading(folder: Path) -> Iterator[None]:
    """A context in which transformers loads from a folder: what it cannot make a model or a tokenizer of raises
    `ModelNotFoundError`, and `ConfigError` where the folder needs Python code of its own and that is not trusted."""
    try:
        yield
    except (LiteSelfPlayError, MemoryError):
        raise
    except Exception as error:  # of transformers, tokenizers and safetensors, which have no common base
        if isinstance(error, ValueError) and "trust_remote_code" in str(error):
            raise ConfigError(
                f"the model in {folder} needs Python code that it brings along (auto_map in its config.json), which is "
                "not run: read that code, and if you trust it give --trust-remote-code"
            ) from None
        if any(words in str(error) for words in _NO_MEMORY):
            raise
        why = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise ModelNotFoundError(f"transformers cannot read the model in {folder}: {why}") from error


def refuse_misfits(model: Path, report: Mapping[str, Any]) -> None:
    """Raises `ModelNotFoundError` where transformers' report of loading a model names tensors that are missing, which
    would be random numbers, that have no place in it, or that have another shape. What it leaves out of its report by
    itself (a tied head, buffers that are computed) is none of these."""
    kinds = {"missing": "missing_keys", "without a place": "unexpected_keys", "of another shape": "mismatched_keys"}
    found = [
        f"{name if isinstance(name, str) else name[0]} ({what})"  # of another shape: (name, shape, shape)
        for what, key in kinds.items()
        for name in sorted(report[key])
    ]
    if found:
        raise ModelNotFoundError(
            f"the weights in {model} are not those of the model that its configuration describes: "
            f"{', '.join(found[:3])}{f' and {len(found) - 3} more' if len(found) > 3 else ''}. Fetch it again, or take "
            "the configuration that belongs to them"
        )


def provenance(folder: Path) -> dict[str, Any]:
    """What a converted folder was made from (`source`, `sha256`, `quantisation`, ...); empty for any other folder.

    A table of figures should say so: a model that comes from a Q4_1 file is a Q4_1 copy, not the published model.
    """
    file = folder / PROVENANCE
    return read_json(file) if os.path.isfile(file) else {}


def saved_precision(model: Path | str) -> str | None:
    """The precision that a merged model, a folder or a .gguf file, was saved in; None for any other.

    The card beside it says that it was merged: this library's, or one of a merge.
    """
    path = Path(model).expanduser()
    folder = path if has_config(path) else path.parent
    if not os.path.isfile(folder / "README.md") or (folder != path and path.suffix.lower() != ".gguf"):
        return None
    front = (folder / "README.md").read_text("utf-8", "replace").partition("\n---")[0]
    if front[:3] != "---" or not _MERGED & {*re.findall(r"[\w-]+", front)}:
        return None
    config = read_json(folder / "config.json") if has_config(folder) else {}
    return _PRECISIONS.get(str(config.get("dtype") or config.get("torch_dtype")), "bf16")


def read_json(file: Path) -> dict[str, Any]:
    """The object in a JSON file of a model. Raises `ModelNotFoundError` where it holds none."""
    return parse_object(read_file(file, ModelNotFoundError, JSON_LIMIT), str(file), ModelNotFoundError)

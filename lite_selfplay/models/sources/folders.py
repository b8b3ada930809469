"""A model folder: whether it has what transformers needs, and a fingerprint of its content."""

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from lite_selfplay.config.user_files import read_file
from lite_selfplay.errors import ConfigError, LiteSelfPlayError, ModelNotFoundError
from lite_selfplay.tasks.files import JSON_LIMIT, parse_object

NO_NETWORK = (
    "Models that need no network: tiny, sums-1m, any folder that transformers loads, any .gguf file, "
    "and smollm2-135m once pip has fetched it."
)
PROVENANCE = "provenance.json"
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "tokenizer_config.json", "spiece.model")
# Files beside the weights that change the computation: these, and those of a tokenizer and its chat template.
_CONFIGS = ("config.json", "generation_config.json")
_READ = ("*token*", "chat_template*", "vocab*", "merges.txt", "spiece.model")
# Their values that a message about a change names.
_TOKENIZER, _NAMED = "tokenizer_config.json", ("eos_token_id", "eos_token", "chat_template")
_NO_MEMORY = ("out of memory", "can't allocate memory")  # torch's words for a GPU, and for the machine
_SAMPLES, _SAMPLE_BYTES = 16, 64 * 1024
_MERGED = {"lite-selfplay", "merge", "mergekit"}  # tags in a model card
_PRECISIONS = {"float16": "fp16", "float32": "fp32"}


def has_config(folder: Path) -> bool:
    return os.path.isfile(folder / "config.json")


def text_config(folder: Path) -> dict[str, Any]:
    """The keys of a folder's `config.json`; of a wrapper, those of its text part come first."""
    config = read_json(folder / "config.json")
    text = config.get("text_config")
    return {**config, **(text if isinstance(text, dict) else {})}


def architecture(folder: Path) -> str:
    """transformers' name of the language model in a folder; of a wrapper, of its text part."""
    return str(text_config(folder).get("model_type"))


def described(folder: Path, *names: str) -> int | None:
    """The first of these numbers in a folder's `config.json`; None without any."""
    found = text_config(folder)
    return next((found[name] for name in names if type(found.get(name)) is int), None)


def positions(folder: Path) -> int | None:
    """The most tokens of a row that a model was made for; None if its configuration does not say."""
    return described(folder, "max_position_embeddings", "n_positions", "max_sequence_length", "seq_length")


def weight_files(folder: Path) -> list[Path]:
    """The files with weights, sorted: safetensors, or the older `.bin` files if there are no others."""
    patterns = ("*.safetensors", "pytorch_model*.bin")
    return next(filter(None, (sorted(filter(os.path.isfile, folder.glob(each))) for each in patterns)), [])


def missing_parts(folder: Path) -> list[str]:
    """Missing files that transformers needs: `config.json`, a tokenizer, weights, shards named by an index."""
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
    """Whether the config names code of the model's own, and there is no Python file."""
    return "auto_map" in read_json(folder / "config.json") and not any(folder.glob("*.py"))


def require_model(folder: Path) -> None:
    """Raises `ModelNotFoundError`, naming the missing files, unless the folder holds a whole model."""
    if not (missing := missing_parts(folder)):
        return
    hint = ""
    if os.path.isfile(folder / "adapter_config.json"):
        hint = " It holds an adapter: name the base model here and load the adapter on top."
    elif ggufs := sorted(folder.glob("*.gguf")):
        hint = f" It holds a .gguf file: name {ggufs[0]} itself."
    raise ModelNotFoundError(f"the folder {folder} is not a model: it lacks {', '.join(missing)}.{hint}")


def fingerprint(folder: Path) -> str:
    """`folder:` and, for each file that changes the computation, its name and a part of its SHA-256, so that two
    fingerprints tell what differs. `weights` stands for names, sizes and samples of the weights; `_NAMED` values follow
    in words.

    Samples (16 blocks of 64 KiB spread over each file) distinguish two fine-tunes without reading gigabytes. The
    version of transformers in a config does not count; code that the config names does.
    """
    configs = {name: read_json(folder / name) for name in _CONFIGS if os.path.isfile(folder / name)}
    parts = {
        name: json.dumps({key: values[key] for key in values if key != "transformers_version"}, sort_keys=True).encode()
        for name, values in configs.items()
    }
    code = folder.rglob("*.py") if "auto_map" in configs["config.json"] else ()
    read = filter(os.path.isfile, sorted({*code, *(file for each in _READ for file in folder.glob(each))}))
    parts |= {file.relative_to(folder).as_posix(): file.read_bytes() for file in read}
    samples = []
    for file in weight_files(folder):
        size = file.stat().st_size
        samples.append(f"{file.name}:{size}".encode())
        with file.open("rb") as stream:
            for sample in range(_SAMPLES):
                stream.seek(max(0, size - _SAMPLE_BYTES) * sample // (_SAMPLES - 1))
                samples.append(stream.read(_SAMPLE_BYTES))
    named = read_json(folder / _TOKENIZER) if _TOKENIZER in parts else {}
    template = parts.get("chat_template.jinja") or json.dumps(named.get("chat_template")).encode()
    told = end_ids(folder), named.get("eos_token"), f"SHA-256 {hashlib.sha256(template).hexdigest()[:8]}"
    found = {
        name: hashlib.sha256(part).hexdigest()[:16] for name, part in {**parts, "weights": b"".join(samples)}.items()
    }
    found |= {name: quote(json.dumps(value, ensure_ascii=False)) for name, value in zip(_NAMED, told, strict=True)}
    return "folder:" + " ".join(f"{name}={value}" for name, value in found.items())


def difference(was: str, now: str) -> str:
    """What differs between two identities of a base: files, and named values in them; or both identities."""
    if not all(each.startswith("folder:") and _NAMED[0] in each for each in (was, now)):
        return f"it is {now!r} now, and was {was!r}"
    before, after = (dict(part.rpartition("=")[::2] for part in each[7:].split(" ")) for each in (was, now))
    odd = sorted(key for key in {*before, *after} if before.get(key) != after.get(key))
    told = [f"{key} is {unquote(after[key])} now, and was {unquote(before[key])}" for key in _NAMED if key in odd]
    files = [key for key in odd if key not in _NAMED]
    more = f" ({'; '.join(told)})" if told else ""
    return (
        f"{', '.join(files)} in its folder changed since{more}: {'restore it' if len(files) == 1 else 'restore them'}"
    )


def end_ids(folder: Path) -> list[int]:
    """`eos_token_id` of the generation config, or else of the config, as a list."""
    for name in reversed(_CONFIGS):
        if (folder / name).is_file():
            value = read_json(folder / name).get("eos_token_id")
            ids = value if isinstance(value, list) else [] if value is None else [value]
            if not all(type(identity) is int for identity in ids):
                raise ModelNotFoundError(f"{folder / name}: eos_token_id must be a number or a list of them")
            if value is not None:
                return ids
    return []


@contextlib.contextmanager
def reading(folder: Path) -> Iterator[None]:
    """A context in which transformers loads from a folder: failures raise `ModelNotFoundError`, or `ConfigError` if the
    folder needs untrusted Python code of its own."""
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
    """Raises `ModelNotFoundError` if transformers' loading report names tensors that are missing (and would be random),
    have no place, or have another shape. Tied heads and computed buffers are not in the report."""
    kinds = {"missing": "missing_keys", "without a place": "unexpected_keys", "of another shape": "mismatched_keys"}
    found = [
        f"{name if isinstance(name, str) else name[0]} ({what})"  # of another shape: (name, shape, shape)
        for what, key in kinds.items()
        for name in sorted(report[key])
    ]
    if found:
        raise ModelNotFoundError(
            f"the weights in {model} do not match the model that its configuration describes: "
            f"{', '.join(found[:3])}{f' and {len(found) - 3} more' if len(found) > 3 else ''}. Fetch it again, or use "
            "the configuration that belongs to them"
        )


def provenance(folder: Path) -> dict[str, Any]:
    """The origin of a converted folder (`source`, `sha256`, `quantisation`, ...); empty for any other folder. Published
    figures should name it: a model converted from a Q4_1 file is not the published model."""
    file = folder / PROVENANCE
    return read_json(file) if os.path.isfile(file) else {}


def saved_precision(model: Path | str) -> str | None:
    """The precision in which a merged model, a folder or a .gguf file, was saved; None for any other. The model card
    beside it says whether it was merged, by this library or others."""
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
    """The object in a model's JSON file. Raises `ModelNotFoundError` if there is none."""
    return parse_object(read_file(file, ModelNotFoundError, JSON_LIMIT), str(file), ModelNotFoundError)

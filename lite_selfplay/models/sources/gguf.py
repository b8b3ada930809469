"""Converts any `.gguf` file into a transformers folder: bf16 safetensors, config, tokenizer, chat template.

transformers reads the weights. What it silently gets wrong is done here: the end-of-sequence token, most special
tokens, Llama 3's scaling of rotary positions, and tensors that its architecture lacks. The folder records what it was
made from, since the conversion of a 4-bit file does not restore the lost precision.
"""

import json
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from lite_selfplay.errors import ModelNotFoundError
from lite_selfplay.models.sources.cache import build_once, cache_dir
from lite_selfplay.models.sources.folders import PROVENANCE
from lite_selfplay.models.sources.gguf_header import require_header

_VERSION = 1  # Increased with every change of the conversion, so that the same file gives a new folder.
_STRETCH = ("rope_freqs.", "rope_factors_")


@dataclass(frozen=True)
class GgufHeader:
    """A file's header: its key-value `metadata`, and the name, type and number of elements of each tensor."""

    metadata: Mapping[str, Any]
    tensors: tuple[tuple[str, str, int], ...]
    rope_freqs: tuple[float, ...] = ()

    @property
    def architecture(self) -> str:
        return str(self.metadata.get("general.architecture", "unknown"))

    @property
    def quantisation(self) -> str:
        """The name of the file's quantisation, such as `Q4_1`; if it has none, the type of most of its weights."""
        from gguf import LlamaFileType

        try:
            name = LlamaFileType(self.metadata["general.file_type"]).name
        except (KeyError, ValueError):
            sizes: Counter[str] = Counter()
            for _, kind, elements in self.tensors:
                sizes[kind] += elements
            return max(sizes, key=lambda kind: sizes[kind], default="unknown")
        return name.removeprefix("MOSTLY_").removeprefix("ALL_")


def folder_for(sha256: str) -> Path:
    """The folder for the conversion of the file with this SHA-256, whether it exists yet or not."""
    return cache_dir() / f"gguf-{_VERSION}-{sha256[:16]}"


def converted(file: Path, sha256: str, *, say: Callable[[str], None] | None = None) -> Path:
    """The transformers folder made from `file`, whose SHA-256 is `sha256`; made on first use, in tens of seconds.

    Raises `ModelNotFoundError` if the file cannot be read or cannot be converted into the same model.
    """

    def build(staging: Path) -> None:
        if say is not None:
            say(f"converting {file.name} into a transformers folder; this is done once")
        convert(file, staging, sha256=sha256)

    return build_once(folder_for(sha256), build, say=say)


def convert(file: Path, folder: Path, *, sha256: str) -> None:
    """Write the model in `file` to `folder`. Errors as for `converted`."""
    from lite_selfplay.models.sources.gguf_tokenizer import build_tokenizer, eos_ids, token_id

    file = file.absolute()
    header = read_header(file)
    with _quiet():
        tokenizer = build_tokenizer(header.metadata, file)
        model = _load(file, header)
        ids = eos_ids(header.metadata)
        special = {
            "bos_token_id": token_id(header.metadata, "bos"),
            "eos_token_id": ids[0] if len(ids) == 1 else ids,
            "pad_token_id": token_id(header.metadata, "padding"),
        }
        try:
            _save_plain(model, header, special, folder)
        except RuntimeError as error:  # Shapes that do not match the config.
            raise _misfit(file, header, str(error)) from error
        tokenizer.save_pretrained(folder)
    _write_provenance(file, header, sha256, folder)


def read_header(file: Path) -> GgufHeader:
    """Read a file's metadata and its list of tensors. Raises `ModelNotFoundError` if it is not a GGUF file."""
    from gguf import GGUFReader

    try:
        require_header(file)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of sizes that overflow, which do not fit the file either
            reader = GGUFReader(file)
        stretch = [tensor.data for tensor in reader.tensors if tensor.name == "rope_freqs.weight"]
        return GgufHeader(
            metadata={key: field.contents() for key, field in reader.fields.items()},
            tensors=tuple((t.name, t.tensor_type.name, int(t.n_elements)) for t in reader.tensors),
            rope_freqs=tuple(float(value) for value in stretch[0]) if stretch else (),
        )
    except (ArithmeticError, AttributeError, LookupError, OSError, TypeError, ValueError) as error:
        raise ModelNotFoundError(f"{file} cannot be read as a GGUF file: {error}") from error


def _load(file: Path, header: GgufHeader) -> Any:
    """The model with dequantised weights in bf16; every weight comes from the file, and none is left over."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, GgufConfig

    try:
        config = AutoConfig.from_pretrained(file.parent, gguf_file=file.name)
        head_dim = header.metadata.get(f"{header.architecture}.attention.key_length")
        if head_dim is not None and hasattr(config, "head_dim"):
            config.head_dim = head_dim  # Not read for Qwen3, where the class's default would be used instead.
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            file.parent,
            gguf_file=file.name,
            config=config,
            dtype=torch.bfloat16,
            # Otherwise weights may stay in GGUF blocks if there is a kernel for them; those cannot be saved.
            quantization_config=GgufConfig(dequantize=True),
            output_loading_info=True,
        )
    # What transformers raises for an architecture or tensor type that it cannot convert.
    except (AttributeError, KeyError, RuntimeError, ValueError) as error:
        raise _misfit(file, header, str(error)) from error
    model, report = loaded
    missing = [*report["missing_keys"], *report["mismatched_keys"]]
    if missing:
        raise _misfit(file, header, f"it has no {', '.join(sorted(map(str, missing))[:3])}")
    held = sum(elements for name, _, elements in header.tensors if not name.startswith(_STRETCH))
    taken = sum(parameter.numel() for parameter in model.parameters())
    if held != taken:
        raise _misfit(file, header, f"the file holds {held} numbers, the model has places for {taken}")
    return model


def _misfit(file: Path, header: GgufHeader, why: str) -> ModelNotFoundError:
    from transformers import __version__

    return ModelNotFoundError(
        f"{file.name} does not fit the architecture {header.architecture} as transformers {__version__} knows it: "
        f"{' '.join(why.split())[:300].rstrip('.')}."
    )


def _save_plain(model: Any, header: GgufHeader, special: Mapping[str, Any], folder: Path) -> None:
    """Save the weights under a config that does not mention GGUF.

    transformers refuses to save a model read from a GGUF file, and with its `quantization_config` the folder could not
    be loaded in 4 bits.
    """
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig

    config = model.config
    for stale in ("quantization_config", "_model_name_or_path"):
        if hasattr(config, stale):
            delattr(config, stale)
    for key, value in special.items():
        setattr(config, key, value)
    config.rope_parameters = _rope(header, config.rope_parameters)
    with torch.device("meta"):  # No second copy in memory, and no use of the global random generator.
        plain = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    plain.load_state_dict(model.state_dict(), assign=True)
    plain.tie_weights()
    plain.generation_config = GenerationConfig(**special)
    plain.save_pretrained(folder)


def _rope(header: GgufHeader, plain: Any) -> Any:
    """The config's rotary parameters, with Llama 3's scaling if the file has its factors.

    A GGUF file has the factors themselves (`rope_freqs.weight`), transformers the four numbers that they are computed
    from, and its reader drops them. All of these but `factor` are the same for every Llama 3.1 and 3.2; the result is
    compared with the file's factors.
    """
    scaling = header.metadata.get(f"{header.architecture}.rope.scaling.type", "none")
    other = any(name.startswith("rope_factors_") for name, _, _ in header.tensors)
    # gpt-oss is the only architecture whose scaling transformers reads.
    if (scaling != "none" or other) and header.architecture != "gpt-oss":
        raise ModelNotFoundError(
            f"this GGUF file scales its rotary positions ({scaling}) in a way that would be lost: "
            "use the published safetensors folder instead."
        )
    if not header.rope_freqs:
        return plain
    stretched = {
        **plain,
        "rope_type": "llama3",
        "factor": max(header.rope_freqs),
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    expected = llama3_factors(len(header.rope_freqs), stretched)
    if any(abs(a - b) > 1e-3 * b for a, b in zip(header.rope_freqs, expected, strict=True)):
        raise ModelNotFoundError("this GGUF file scales its rotary positions in a way other than Llama 3's.")
    return stretched


def llama3_factors(n: int, rope: Mapping[str, Any]) -> list[float]:
    """By how much Llama 3 divides each of `n` rotary frequencies: 1 for short wavelengths, `factor` for long ones.

    Between `original / high_freq_factor` and `original / low_freq_factor` the inverse is interpolated, linearly in the
    number of turns that fit the original context.
    """
    factors = []
    for index in range(n):
        wavelength = 6.283185307179586 * rope["rope_theta"] ** (index / n)
        turns = rope["original_max_position_embeddings"] / wavelength
        share = (turns - rope["low_freq_factor"]) / (rope["high_freq_factor"] - rope["low_freq_factor"])
        share = min(1.0, max(0.0, share))
        factors.append(1.0 / (share + (1.0 - share) / rope["factor"]))
    return factors


def _write_provenance(file: Path, header: GgufHeader, sha256: str, folder: Path) -> None:
    origin = {
        "source": file.name,
        "sha256": sha256,
        "quantisation": header.quantisation,
        "tensor_types": dict(Counter(kind for _, kind, _ in header.tensors)),
        "architecture": header.architecture,
        "name": header.metadata.get("general.name"),
        "licence": header.metadata.get("general.license"),
        "saved_as": "bfloat16",
    }
    (folder / PROVENANCE).write_text(json.dumps(origin, indent=1), encoding="utf-8")
    (folder / "README.md").write_text(
        f"Made by lite-selfplay from `{file.name}` (SHA-256 {sha256}).\n\n"
        f"The weights are those of a {header.quantisation} file, written as bf16: what that quantisation lost stays "
        f"lost, so figures are of a {header.quantisation} copy and not of the published model.\n",
        encoding="utf-8",
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """No progress bars, neither transformers' own nor the one its GGUF reader takes from tqdm directly."""
    from transformers import modeling_gguf_pytorch_utils as reader
    from transformers.utils import logging

    enabled, bar = logging.is_progress_bar_enabled(), reader.tqdm
    logging.disable_progress_bar()
    reader.tqdm = partial(bar, disable=True)
    try:
        yield
    finally:
        reader.tqdm = bar
        if enabled:
            logging.enable_progress_bar()

"""Converts a `.gguf` file into a transformers folder: bf16 safetensors, config, tokenizer, chat template.

transformers reads the weights, `gguf_tokenizer` the vocabulary. Refuses files of which transformers would silently lose
something (numbers without a place in its architecture, scaled rotary positions). The folder records its source, since
converting a 4-bit file does not restore precision.
"""

import contextlib
import io
import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch
from gguf import MODEL_ARCH_NAMES, GGUFReader, LlamaFileType, dequantize, get_tensor_name_map
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, GgufConfig

from lite_selfplay.errors import ModelNotFoundError
from lite_selfplay.models.sources.cache import cache_dir
from lite_selfplay.models.sources.folders import PROVENANCE, refuse_misfits
from lite_selfplay.models.sources.gguf_tokenizer import build_tokenizer, special_ids

_COMPARED = 64  # rows of a tensor that are compared with the file's
_VERSION = 2  # Increased with every change of the conversion, so that the same file gives a new folder.


class GgufHeader(NamedTuple):
    """A file's header: its key-value `metadata`, the number of elements of each tensor, and the reader (`read`)."""

    metadata: Mapping[str, Any]
    tensors: Mapping[str, int]
    read: Any


def folder_for(sha256: str) -> Path:
    """The folder for the conversion of the file with this SHA-256, whether it exists or not."""
    return cache_dir() / f"gguf-{_VERSION}-{sha256[:16]}"


def convert(file: Path, folder: Path, *, sha256: str) -> None:
    """Write the model in `file`, whose SHA-256 is `sha256`, to `folder`. Raises `ModelNotFoundError` if the file cannot
    be read or converted into the same model."""
    header = read_header(file)
    metadata = header.metadata
    # transformers would read the file twice more, ten seconds each for a vocabulary of 150,000.
    read_once = mock.patch("gguf.GGUFReader", return_value=header.read)
    with contextlib.redirect_stderr(io.StringIO()), read_once:  # progress bars that cannot be switched off
        try:
            build_tokenizer(metadata, file).save_pretrained(folder)
            _save(file.absolute(), header, special_ids(metadata), folder)
        # transformers cannot convert the architecture, the vocabulary or a tensor.
        except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            raise ModelNotFoundError(
                f"{file.name} does not fit the architecture {metadata.get('general.architecture')} as transformers "
                f"knows it: {' '.join(str(error).split())[:300].rstrip('.')}."
            ) from error
    kinds = {str(kind.value): kind.name.partition("_")[2] for kind in LlamaFileType}  # MOSTLY_Q4_1
    origin = {
        "source": file.name,
        "sha256": sha256,
        "quantisation": kinds.get(str(metadata.get("general.file_type")), "unknown"),
        "architecture": metadata.get("general.architecture"),
        "name": metadata.get("general.name"),
        "licence": metadata.get("general.license"),
        "saved_as": "bfloat16",
    }
    (folder / PROVENANCE).write_text(json.dumps(origin, indent=1), encoding="utf-8")


def read_header(file: Path) -> GgufHeader:
    """Read a file's metadata and its list of tensors. Raises `ModelNotFoundError` if it is not a GGUF file."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # sizes that overflow do not fit the file either
            reader = _Bounded(file)
        return GgufHeader(
            {key: field.contents() for key, field in reader.fields.items()},
            {tensor.name: int(tensor.n_elements) for tensor in reader.tensors},
            reader,
        )
    except (ArithmeticError, AttributeError, LookupError, OSError, RecursionError, TypeError, ValueError) as error:
        raise ModelNotFoundError(f"{file} cannot be read as a GGUF file: {error}") from error


class _Bounded(GGUFReader):
    """The package's reader with a check of sizes: a damaged header could ask for 2**60 elements. The memory map
    becomes a plain array, whose slices take a third of the time: a vocabulary has 300,000."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, np.asarray(value) if name == "data" else value)

    def _get(self, offset: int, dtype: Any, count: int = 1, *more: Any, **named: Any) -> Any:
        if offset + np.dtype(dtype).itemsize * int(count) > len(self.data):
            raise ValueError("its header claims more than the file holds")
        return super()._get(offset, dtype, count, *more, **named)


def _save(file: Path, header: GgufHeader, special: Mapping[str, Any], folder: Path) -> None:
    """Save the model with dequantised weights in bf16, under a config that does not mention GGUF.

    transformers refuses to save a model read from a GGUF file, and could not load it in 4 bits with its
    `quantization_config`. Raises ValueError if a number of the file would be lost, and `ModelNotFoundError` if one of
    the model's is missing.
    """
    config = AutoConfig.from_pretrained(file.parent, gguf_file=file.name)
    named = {key.partition(".")[2]: value for key, value in header.metadata.items()}
    if "rope_freqs.weight" in header.tensors or named.get("rope.scaling.type", "none") != "none":
        raise ValueError("its rotary positions are scaled, which would be lost: use the published safetensors folder")
    if hasattr(config, "head_dim"):  # Not read for Qwen3, where the class's default would be used instead.
        config.head_dim = named.get("attention.key_length", config.head_dim)
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        file.parent,
        gguf_file=file.name,
        config=config,
        dtype=torch.bfloat16,
        # Otherwise weights may stay in GGUF blocks if there is a kernel for them; those cannot be saved.
        quantization_config=GgufConfig(dequantize=True),
        output_loading_info=True,
    )
    model, report = loaded
    refuse_misfits(file, report)
    # transformers does not report tensors that it has no name for.
    held, taken = sum(header.tensors.values()), sum(parameter.numel() for parameter in model.parameters())
    if held != taken:
        raise ValueError(f"the file holds {held} numbers, the model takes {taken}")
    config = model.config
    for stale in ("quantization_config", "_model_name_or_path"):
        vars(config).pop(stale, None)
    config.update(special)
    with torch.device("meta"):  # No second copy in memory, and no use of the global random generator.
        plain = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    plain.load_state_dict(model.state_dict(), assign=True)
    plain.tie_weights()
    _require_same(plain, header)
    plain.generation_config = GenerationConfig(**special)
    plain.save_pretrained(folder)


def _require_same(model: Any, header: GgufHeader) -> None:
    """Raises ValueError unless each of the model's tensors is the file's, as the package `gguf` itself names and
    dequantises it: some rows of each, a Llama's query and key rows back in transformers' order, and norms that the file
    stores with 1 added (Gemma)."""
    config, architecture = model.config, header.metadata["general.architecture"]
    kind = next(key for key, name in MODEL_ARCH_NAMES.items() if name == architecture)
    names, file = get_tensor_name_map(kind, config.num_hidden_layers), {each.name: each for each in header.read.tensors}
    heads = {"q_proj.weight": config.num_attention_heads, "k_proj.weight": config.num_key_value_heads}
    for name, ours in model.named_parameters():
        stem, _, suffix = name.rpartition(".")
        theirs = file[f"{names.get_name(stem) or stem}.{suffix}"]
        some = np.unique(np.linspace(0, len(ours) - 1, _COMPARED).astype(int))
        rows = np.arange(len(ours))
        if architecture == "llama" and (n := heads.get(name.rpartition("self_attn.")[2])):
            rows = rows.reshape(n, -1, 2).swapaxes(1, 2).ravel()
        read = torch.from_numpy(dequantize(theirs.data[rows[some]], theirs.tensor_type)).reshape(ours[some].shape)
        if not any(torch.equal(ours[some], (read - shift).to(ours.dtype)) for shift in (0, int("norm" in stem))):
            raise ValueError(f"its tensor {theirs.name} has other numbers as {name}")


def llama3_factors(n: int, rope: Mapping[str, Any]) -> list[float]:
    """The divisors of `n` rotary frequencies in Llama 3: 1 for short wavelengths, `factor` for long ones.

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

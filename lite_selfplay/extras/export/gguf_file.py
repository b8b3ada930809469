"""Writes a model as a GGUF file: names, order and metadata as llama.cpp expects them.

The names of tensors come from llama.cpp's own package `gguf`; what stands here is what differs between architectures:
the order of rotary dimensions (Llama's weights are permuted, the others' are not), and which numbers of the
configuration the file must hold. A model that would silently become another one is refused.
Source: https://github.com/ggml-org/llama.cpp/blob/master/convert_hf_to_gguf.py
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lite_selfplay.errors import RequestError
from lite_selfplay.extras.export.gguf_vocabulary import add_vocabulary
from lite_selfplay.models.sources.gguf import llama3_factors

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

ARCHITECTURES = {"LlamaForCausalLM": "llama", "Qwen2ForCausalLM": "qwen2", "Qwen3ForCausalLM": "qwen3"}
"""What is written, by the class that a model's config names."""

_LLAMA_CPP = (
    "llama.cpp's own converter may know it: `lite-selfplay export RUN SEAT --to merged --out DIR`, then, in a checkout "
    "of llama.cpp, `python convert_hf_to_gguf.py DIR --outfile model.gguf`"
)


def require_convertible(config: Any) -> str:
    """The name by which llama.cpp knows the architecture of a transformers config.

    Raises RequestError, naming what is unknown, for a model that this writer does not know or would change.
    """
    (name, *_) = config.architectures or ["unknown"]
    if name not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise RequestError(f"a GGUF file is written here of {known}, not of {name}. {_LLAMA_CPP}")
    rope = dict(getattr(config, "rope_parameters", None) or {})
    layers = set(getattr(config, "layer_types", None) or ["full_attention"])
    for wrong, what in (
        (rope.get("rope_type", "default") not in ("default", "llama3"), f"rotary scaling {rope.get('rope_type')!r}"),
        (layers != {"full_attention"}, "attention over a sliding window"),
        (getattr(config, "hidden_act", "silu") != "silu", f"the activation {getattr(config, 'hidden_act', '')!r}"),
        (name == "LlamaForCausalLM" and (config.attention_bias or config.mlp_bias), "biases"),
        (float(rope.get("partial_rotary_factor", 1.0)) != 1.0, "rotary positions of a part of each head"),
    ):
        if wrong:
            raise RequestError(f"this {name} has {what}, which the GGUF writer here does not know. {_LLAMA_CPP}")
    return ARCHITECTURES[name]


def write_gguf(
    file: Path,
    weights: Iterable[tuple[str, "Tensor"]],
    config: Any,
    tokenizer: Any,
    *,
    name: str,
    eos_ids: Sequence[int],
) -> None:
    """Write a model: `weights` are its parameters in float32 by the names that transformers gives them.

    Matrices are held in float16, vectors in float32. Raises RequestError for what `require_convertible` refuses, a
    vocabulary that is not byte-level BPE, and a weight beyond what float16 holds.
    """
    from gguf import GGUFWriter, LlamaFileType

    architecture = require_convertible(config)
    writer = GGUFWriter(file, architecture)
    try:
        writer.add_name(name)
        writer.add_file_type(LlamaFileType.MOSTLY_F16)
        _add_shape(writer, config)
        add_vocabulary(writer, tokenizer, rows=config.vocab_size, eos_ids=eos_ids)
        for tensor_name, array in _tensors(weights, config, architecture):
            writer.add_tensor(tensor_name, array)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:
        writer.close()


def _add_shape(writer: Any, config: Any) -> None:
    """The numbers that llama.cpp builds the model from."""
    head = _head_size(config)
    rope: Mapping[str, Any] = dict(getattr(config, "rope_parameters", None) or {})
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_rope_dimension_count(head)
    writer.add_rope_freq_base(float(rope.get("rope_theta", 10000.0)))
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)


def _head_size(config: Any) -> int:
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def _tensors(
    weights: Iterable[tuple[str, "Tensor"]], config: Any, architecture: str
) -> Iterable[tuple[str, "np.ndarray[Any, Any]"]]:
    """Name and numbers of each tensor of the file."""
    import numpy as np
    from gguf import MODEL_ARCH_NAMES, get_tensor_name_map

    (arch,) = [key for key, value in MODEL_ARCH_NAMES.items() if value == architecture]
    names = get_tensor_name_map(arch, config.num_hidden_layers)
    for name, tensor in weights:
        new = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if new is None:
            raise RequestError(f"the model has a weight {name} that {architecture} does not have. {_LLAMA_CPP}")
        array = tensor.detach().float().cpu().numpy()
        if architecture == "llama" and ".self_attn.q_proj." in name:
            array = _permuted(array, config.num_attention_heads)
        if architecture == "llama" and ".self_attn.k_proj." in name:
            array = _permuted(array, config.num_key_value_heads)
        if array.ndim > 1 and np.abs(array).max(initial=0.0) > np.finfo(np.float16).max:
            raise RequestError(f"{name} holds numbers beyond what float16 can. {_LLAMA_CPP}")
        yield new, array.astype(np.float32 if array.ndim == 1 else np.float16)
    rope = dict(getattr(config, "rope_parameters", None) or {})
    if rope.get("rope_type", "default") == "llama3":
        yield "rope_freqs.weight", np.array(llama3_factors(_head_size(config) // 2, rope), dtype=np.float32)


def _permuted(array: "np.ndarray[Any, Any]", heads: int) -> "np.ndarray[Any, Any]":
    """Rows of queries or keys with the two halves of each head interleaved, as llama.cpp turns them."""
    shape = (heads, 2, array.shape[0] // heads // 2, *array.shape[1:])
    return array.reshape(shape).swapaxes(1, 2).reshape(array.shape)

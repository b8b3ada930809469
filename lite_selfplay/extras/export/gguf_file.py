"""Writes a model as a GGUF file, with the names, order and metadata that llama.cpp expects.

Tensor names come from llama.cpp's own package `gguf`. This module adds the configuration's numbers, and permutes the
weights of a Llama, whose rotary dimensions have another order in llama.cpp. It refuses models that llama.cpp would
compute differently. A GGUF file names the rule by which its tokenizer splits text. As in llama.cpp's own converter
(https://github.com/ggml-org/llama.cpp/blob/master/convert_hf_to_gguf.py), the rule is found by splitting sample texts
and comparing the pieces with those of known rules. `lite_selfplay.models.sources.gguf_tokenizer` reads the tokenizers
of GGUF files.
"""

import contextlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gguf import MODEL_ARCH_NAMES, GGUFWriter, LlamaFileType, TokenType, get_tensor_name_map
from torch import Tensor

from lite_selfplay.errors import RequestError
from lite_selfplay.models.sources.gguf import llama3_factors
from lite_selfplay.models.sources.gguf_tokenizer import SPLITTING_RULES, ignores_merges, splitting

ARCHITECTURES = {"LlamaForCausalLM": "llama", "Qwen2ForCausalLM": "qwen2", "Qwen3ForCausalLM": "qwen3"}
"""llama.cpp's names of the supported architectures, by transformers' class name."""

_LLAMA_CPP = (
    "llama.cpp's own converter may know it: `lite-selfplay export RUN SEAT --to merged --out DIR`, then, in a checkout "
    "of llama.cpp, `python convert_hf_to_gguf.py DIR --outfile model.gguf`"
)


def require_convertible(config: Any) -> str:
    """llama.cpp's name, such as `qwen2`, for the architecture of the model whose transformers configuration is
    `config`. Raises RequestError if this module does not support the architecture, or if the model has rotary scaling
    (except the scaling of Llama 3), partial rotary embeddings, sliding-window attention, or another activation than
    SiLU. It also raises RequestError for a Llama with biases; other architectures may have biases."""
    (name, *_) = config.architectures or ["unknown"]
    if name not in ARCHITECTURES:
        raise RequestError(f"the GGUF writer here supports {', '.join(ARCHITECTURES)}, not {name}. {_LLAMA_CPP}")
    rope = config.rope_parameters
    for wrong, what in (
        (rope["rope_type"] not in ("default", "llama3"), f"rotary scaling {rope['rope_type']!r}"),
        (set(getattr(config, "layer_types", ())) - {"full_attention"}, "sliding-window attention"),
        (config.hidden_act != "silu", f"the activation {config.hidden_act!r}"),
        (name == "LlamaForCausalLM" and (config.attention_bias or config.mlp_bias), "biases"),
        (rope.get("partial_rotary_factor", 1.0) != 1.0, "partial rotary embeddings"),
    ):
        if wrong:
            raise RequestError(f"this {name} has {what}, which the GGUF writer here does not support. {_LLAMA_CPP}")
    return ARCHITECTURES[name]


def write_gguf(
    file: Path, weights: Iterable[tuple[str, Tensor]], config: Any, tokenizer: Any, *, name: str, eos_ids: Sequence[int]
) -> None:
    """Write a model as the GGUF file `file`, with matrices in float16 and vectors in float32. `weights` are
    (transformers' name, float32 tensor) pairs. `config` and `tokenizer` are the model's own in transformers, and `name`
    is the model's title in the file. `eos_ids` are the ids of the tokens that end a completion; the caller puts first
    the one that ends a turn of a chat. Raises RequestError for a model that `require_convertible` refuses, a tokenizer
    that `add_vocabulary` refuses, a weight that llama.cpp's architecture lacks, and a matrix with a number too large
    for float16."""
    architecture = require_convertible(config)
    with contextlib.closing(GGUFWriter(file, architecture)) as writer:
        writer.add_name(name)
        writer.add_file_type(LlamaFileType.MOSTLY_F16)
        _add_shape(writer, config)
        add_vocabulary(writer, tokenizer, rows=config.vocab_size, eos_ids=eos_ids)
        for tensor_name, array in _tensors(weights, config, architecture):
            writer.add_tensor(tensor_name, array)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()


def _add_shape(writer: Any, config: Any) -> None:
    """Add a model's dimensions and constants, such as its numbers of layers and heads, to the metadata of a GGUF file.
    `writer` is the file's `gguf.GGUFWriter`, and `config` is the model's transformers configuration."""
    head = _head_size(config)
    numbers = {
        writer.add_vocab_size: config.vocab_size,
        writer.add_context_length: config.max_position_embeddings,
        writer.add_embedding_length: config.hidden_size,
        writer.add_block_count: config.num_hidden_layers,
        writer.add_feed_forward_length: config.intermediate_size,
        writer.add_head_count: config.num_attention_heads,
        writer.add_head_count_kv: config.num_key_value_heads,
        writer.add_key_length: head,
        writer.add_value_length: head,
        writer.add_rope_dimension_count: head,
        writer.add_rope_freq_base: config.rope_parameters["rope_theta"],
        writer.add_layer_norm_rms_eps: config.rms_norm_eps,
    }
    for add, number in numbers.items():
        add(number)


def _head_size(config: Any) -> int:
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def _tensors(
    weights: Iterable[tuple[str, Tensor]], config: Any, architecture: str
) -> Iterable[tuple[str, np.ndarray[Any, Any]]]:
    """The tensors of a GGUF file as (llama.cpp's name, array) pairs. `weights` are (transformers' name, tensor) pairs,
    `config` is the model's transformers configuration, and `architecture` is llama.cpp's name of the architecture.
    Matrices are float16, vectors float32. The query and key matrices of a Llama are permuted, since llama.cpp orders
    rotary dimensions differently. A model with the rotary scaling of Llama 3 gets one more tensor, with its factors.
    Raises RequestError for a weight that llama.cpp's architecture lacks, and a matrix with a number too large for
    float16."""
    (arch,) = [key for key, value in MODEL_ARCH_NAMES.items() if value == architecture]
    names = get_tensor_name_map(arch, config.num_hidden_layers)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, tensor in weights:
        new = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if new is None:
            raise RequestError(f"the model has a weight {name} that {architecture} does not have. {_LLAMA_CPP}")
        array = tensor.detach().float().cpu().numpy()
        if architecture == "llama" and (layer := name.split(".")[-2]) in heads:
            # llama.cpp has the two halves of each head interleaved.
            array = array.reshape(heads[layer], 2, -1, array.shape[-1]).swapaxes(1, 2).reshape(array.shape)
        if array.ndim > 1 and np.abs(array).max(initial=0.0) > np.finfo(np.float16).max:
            raise RequestError(f"{name} has numbers outside float16's range. {_LLAMA_CPP}")
        yield new, array.astype(np.float32 if array.ndim == 1 else np.float16)
    if config.rope_parameters["rope_type"] == "llama3":
        factors = llama3_factors(_head_size(config) // 2, config.rope_parameters)
        yield "rope_freqs.weight", np.array(factors, dtype=np.float32)


_PROBES = (
    "Hello  World, it's 12345 and 3.14!\n\n\n \t I'LL be1st  (x_1+y_2)=z;\r\n\r\n  end ",
    "naïve Émile – 你好，世界 १२३ ³ ½ 🙂🙂  'tis  don't\u00a0we’ve\u200b …",
    "1 22 333 4444 55555 a1b22c333 -7.5% $9 1,000,000",
)


def add_vocabulary(writer: Any, tokenizer: Any, *, rows: int, eos_ids: Sequence[int]) -> None:
    """Add the tokens, merges, special tokens and chat template of `tokenizer` (of transformers) to a GGUF file.
    `writer` is the file's `gguf.GGUFWriter`. `rows` is the number of rows of the model's embedding matrix; rows without
    a token get a filler. `eos_ids` are the ids of the tokens that end a completion; the caller puts first the one that
    ends a turn of a chat. Raises RequestError for a vocabulary that is not byte-level BPE, and for a tokenizer that
    `rule_of` refuses."""
    described = json.loads(tokenizer.backend_tokenizer.to_str())
    by_bytes = all('"ByteLevel"' in json.dumps(described[part]) for part in ("pre_tokenizer", "decoder"))
    if described["model"]["type"] != "BPE" or not by_bytes:
        raise RequestError(
            f"the GGUF writer here supports byte-level BPE vocabularies, not this {described['model']['type']} one. "
            f"{_LLAMA_CPP}"
        )
    merges = [" ".join(merge) for merge in described["model"]["merges"]]
    ids = {identity: token for token, identity in tokenizer.get_vocab().items()}
    types = dict.fromkeys(ids, TokenType.NORMAL) | {
        identity: TokenType.CONTROL if token.special else TokenType.USER_DEFINED
        for identity, token in tokenizer.added_tokens_decoder.items()
    }
    every = range(max(rows, max(ids) + 1))
    tokens = [ids.get(identity, f"[PAD{identity}]") for identity in every]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(rule_of(tokenizer, merges, described))
    writer.add_token_list(tokens)
    writer.add_token_types([types.get(identity, TokenType.UNUSED) for identity in every])
    # GGUF has no empty lists, and llama.cpp no BPE without merges: this merge joins two tokens that no text contains.
    writer.add_token_merges(merges or [f"{tokens[eos_ids[0]]} {tokens[eos_ids[0]]}"])
    _add_special(writer, tokenizer, eos_ids)
    if tokenizer.chat_template is not None:
        writer.add_chat_template(tokenizer.chat_template)


def rule_of(tokenizer: Any, merges: Sequence[str], described: Any) -> str:
    """llama.cpp's name for the rule by which the transformers tokenizer `tokenizer` splits text before it merges
    tokens. `merges` are the tokenizer's BPE merges, and `described` is the parsed content of its `tokenizer.json`. The
    rule is the first in lite-selfplay's list `SPLITTING_RULES` that splits each of three sample texts as the tokenizer
    does, and has the same value of `ignore_merges` as the tokenizer (whether a piece that is itself a token is kept
    whole, without applying merges). Raises RequestError if there is none."""
    if not merges:
        return "gpt-2"  # every byte is a token, so the rule does not matter
    own = tokenizer.backend_tokenizer.pre_tokenizer
    ignores = bool(described["model"].get("ignore_merges"))
    for rule in SPLITTING_RULES:
        known = splitting(rule)
        if ignores == ignores_merges(rule) and all(
            own.pre_tokenize_str(text) == known.pre_tokenize_str(text) for text in _PROBES
        ):
            return rule
    raise RequestError(
        f"this tokenizer splits text by a rule that the GGUF writer here does not support (it has: "
        f"{', '.join(SPLITTING_RULES)}). {_LLAMA_CPP}"
    )


def _add_special(writer: Any, tokenizer: Any, eos_ids: Sequence[int]) -> None:
    """Add the ids of a tokenizer's special tokens to a GGUF file, and whether texts begin with the BOS token. `writer`
    is the file's `gguf.GGUFWriter`. `eos_ids` are the ids of the tokens that end a completion. The first three (or
    fewer, if there are fewer) are stored as llama.cpp's EOS, EOT and EOM; the caller puts first the one that ends a
    turn of a chat."""
    bos, ends = tokenizer.bos_token_id, (writer.add_eos_token_id, writer.add_eot_token_id, writer.add_eom_token_id)
    others = {
        writer.add_bos_token_id: bos,
        writer.add_unk_token_id: tokenizer.unk_token_id,
        writer.add_pad_token_id: tokenizer.pad_token_id,
    }
    for add, identity in (*others.items(), *zip(ends, eos_ids, strict=False)):
        if identity is not None:
            add(identity)
    writer.add_add_bos_token(bos is not None and tokenizer("probe")["input_ids"][:1] == [bos])
    writer.add_add_space_prefix(False)

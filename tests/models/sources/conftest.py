"""Fixtures for models: a cache of its own for each test, GGUF files, and the real model from the user's cache."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gguf
import gguf.quants
import pytest
from tokenizers.pre_tokenizers import ByteLevel

from lite_selfplay.errors import ModelNotFoundError
from lite_selfplay.models.sources import ResolvedModel, resolve
from tests.made_runs import small_model


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder that `resolve` uses during this test."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("LITE_SELFPLAY_CACHE", str(folder))
    return folder


@pytest.fixture
def refused(own_cache: Path) -> Callable[[object], str]:
    """The one-line error with which `resolve` refuses a name; no half-made files are left."""

    def refused(name: object) -> str:
        with pytest.raises(ModelNotFoundError) as caught:
            resolve(str(name))
        assert "\n" not in str(caught.value)
        assert {path.suffix for path in own_cache.glob("*")} <= {".lock"}
        return str(caught.value)

    return refused


@pytest.fixture(scope="session")
def smollm2() -> ResolvedModel:
    """The real model, in the user's own cache: fetched once per machine, not once per test run."""
    return resolve("smollm2-135m")


@pytest.fixture
def write_gguf(tmp_path: Path) -> Callable[..., Path]:
    """A GGUF file of a model: `write_gguf(model, arch="llama", ...)`."""
    return lambda model=None, **options: _write_gguf(tmp_path / "a.gguf", model or small_model(), **options)


TOKEN_NORMAL, TOKEN_CONTROL, TOKEN_USER_DEFINED = 1, 3, 4
SPECIAL = {"<|start|>": TOKEN_CONTROL, "<|end|>": TOKEN_CONTROL, "<pad>": TOKEN_CONTROL}
THINK = {"<think>": TOKEN_USER_DEFINED, "</think>": TOKEN_USER_DEFINED}
TEMPLATE = (
    "{% for m in messages %}<|start|>{{ m.role }}\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


def gguf_tokens() -> dict[str, int]:
    """A byte-level vocabulary of 263 tokens with two merges: token -> its GGUF type."""
    plain = [*sorted(ByteLevel.alphabet()), "th", "the"]
    return {**SPECIAL, **dict.fromkeys(plain, TOKEN_NORMAL), **THINK}


def sentencepiece_tokens(pieces: Sequence[str], byte: str) -> dict[str, int]:
    """A SentencePiece vocabulary of 260 tokens, every `byte` among them, and some pieces."""
    bytes_ = {byte.format(number): 6 for number in range(256)}
    return {"<unk>": 2, **SPECIAL, **bytes_, **dict.fromkeys(pieces, TOKEN_NORMAL)}


def _write_gguf(
    path: Path,
    model: Any,
    *,
    arch: str = "llama",
    claims: str = "",
    template: str | None = TEMPLATE,
    eos: str = "<|end|>",
    pre: str = "smollm",
    pieces: Sequence[str] = ("▁", "t", "▁t"),
    scores: Callable[[int], float] = lambda index: -float(index),
    byte: str = "<0x{:02X}>",
    kind: str = "llama",
    space_prefix: bool | None = None,
    unknown: int = 0,
    quantise: str = "F32",
    leave_out: str = "",
    extra: dict[str, Any] | None = None,
    metadata: dict[str, str] | None = None,
) -> Path:
    """Write a transformers model as llama.cpp's converter would: query and key rows interleaved for llama.

    Without a rule of splitting (`pre`) the vocabulary is one of SentencePiece, of the `kind` that llama.cpp gives it.
    """
    config = model.config
    tokens = gguf_tokens() if pre else sentencepiece_tokens(pieces, byte)
    names = list(tokens)
    writer = gguf.GGUFWriter(path, claims or arch)
    writer.add_name("a test")
    writer.add_license("apache-2.0")
    prefix = "ALL" if quantise == "F32" else "MOSTLY"
    writer.add_file_type(gguf.LlamaFileType[f"{prefix}_{quantise}"])
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    if arch == "qwen3":
        writer.add_key_length(config.head_dim)
    writer.add_vocab_size(len(names))
    writer.add_token_list(names)
    writer.add_token_types(list(tokens.values()))
    if pre:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(pre)
        writer.add_token_merges(["t h", "th e"])
        writer.add_add_bos_token(False)
    else:
        writer.add_tokenizer_model(kind)
        writer.add_token_scores([scores(index) for index in range(len(names))])
        if space_prefix is not None:
            writer.add_add_space_prefix(space_prefix)
        writer.add_unk_token_id(unknown)
    writer.add_bos_token_id(names.index("<|start|>"))
    writer.add_eos_token_id(names.index(eos))
    writer.add_pad_token_id(names.index("<pad>"))
    if template is not None:
        writer.add_chat_template(template)
    for key, value in (metadata or {}).items():
        writer.add_string(key, value)
    for name, tensor in {**_gguf_tensors(model, arch), **(extra or {})}.items():
        if leave_out and leave_out in name:
            continue
        # Rows of 64 fit Q8_0's blocks of 32; one-dimensional tensors stay as they are, as in published files.
        kind = gguf.GGMLQuantizationType[quantise if tensor.ndim == 2 else "F32"]
        writer.add_tensor(name, gguf.quants.quantize(tensor, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _gguf_tensors(model: Any, arch: str) -> dict[str, Any]:
    kind = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == arch)
    names = gguf.get_tensor_name_map(kind, model.config.num_hidden_layers)
    tensors = {}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        array = tensor.float().numpy()
        if arch == "llama" and ("q_proj" in name or "k_proj" in name):
            # From two halves of a head to pairs beside each other.
            heads = model.config.num_attention_heads if "q_proj" in name else model.config.num_key_value_heads
            array = array.reshape(heads, 2, -1, array.shape[1]).swapaxes(1, 2).reshape(array.shape)
        stem, _, suffix = name.rpartition(".")
        tensors[f"{names.get_name(stem)}.{suffix}"] = array.copy()
    return tensors

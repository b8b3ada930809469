"""The random model `tiny`: a Qwen3 of 0.1 million parameters over bytes, for tests and first tries.

It is made in a fraction of a second and can learn: its head is not tied to the embeddings and has standard deviation
0.2, because tied embeddings of the usual scale make logits so small that no adapter changes a probability. The weights
come from their own generator, so they are the same everywhere.
"""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from transformers.convert_slow_tokenizer import bytes_to_unicode

from lite_selfplay.models.sources.cache import build_once, cache_dir

_VERSION = 1  # Increased with every change of the weights, the tokenizer or the template.
IDENTITY = f"tiny:{_VERSION}"
_SEED = 20_240_601
_HEAD_STD, _STD = 0.2, 0.02
_PAD, _BOS, _EOS = "<pad>", "<s>", "</s>"

TEMPLATE = (
    "{% for m in messages %}<s>{{ m.role }}\n{{ m.content }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)


def cached() -> Path:
    """The folder of `tiny` in the user's cache, made on first use."""
    return build_once(cache_dir() / f"tiny-{_VERSION}", build_tiny)


def build_tiny(folder: Path) -> None:
    """Write the model into `folder`, creating it if needed. Every call writes the same weights, bit for bit."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = byte_tokenizer()
    ids = {
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        architectures=["Qwen3ForCausalLM"],
        dtype="float32",
        **ids,
    )
    tokenizer.save_pretrained(folder)
    config.save_pretrained(folder)
    GenerationConfig(**ids).save_pretrained(folder)
    _write_weights(folder, config)


def byte_tokenizer(template: str | None = TEMPLATE) -> Any:
    """A tokenizer whose ids 0..255 are the bytes, then `<pad>`, `<s>` and `</s>`. Every text survives encoding and
    decoding; ids that are not valid UTF-8 decode to replacement characters."""
    backend = Tokenizer(models.BPE(vocab={spelling: byte for byte, spelling in bytes_to_unicode().items()}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    # Not byte fallback: its decoder replaces a whole run of bytes if one of them is invalid.
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([_PAD, _BOS, _EOS])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=_BOS,
        eos_token=_EOS,
        pad_token=_PAD,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = template
    return tokenizer


def _write_weights(folder: Path, config: Any) -> None:
    """Draw each tensor from one generator, in the order of their names."""
    with torch.device("meta"):  # Shapes only: creating real weights would use the global random generator.
        shapes = {name: tensor.shape for name, tensor in Qwen3ForCausalLM(config).state_dict().items()}
    generator = torch.Generator().manual_seed(_SEED)
    tensors = {}
    for name, shape in sorted(shapes.items()):
        norm = name.endswith("norm.weight")
        std = _HEAD_STD if name == "lm_head.weight" else _STD
        tensors[name] = torch.ones(shape) if norm else torch.randn(shape, generator=generator) * std
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})

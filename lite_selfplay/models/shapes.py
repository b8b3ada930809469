"""The shape of a base model, which determines its memory, without its weights.

Short names of plain decoders have their figures here, from the models' own `config.json`, so that no network is needed;
for other bases transformers reads that file, or the header of a .gguf file.
"""

import contextlib
import functools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from lite_selfplay.errors import ModelNotFoundError
from lite_selfplay.models import sources


@dataclass(frozen=True)
class Counts:
    """Sizes of a model built without memory: (in, out) of the adapted `linears`, its other weights, keys and values of
    a token, the states of a row, and what each layer keeps of a token (see `_kept`), if that is known."""

    linears: Sequence[tuple[int, int]]
    others: int
    token: int
    state: int
    kept: Sequence[tuple[float, ...]]


@dataclass(frozen=True)
class Shape:
    """A decoder of gated MLPs and grouped attention: `heads` of queries and `key_heads` of keys, each `head_size`.

    `tied`: the output head is the embedding. Biases and norms, far under a percent, are ignored. `counts` are for
    models of another kind.
    """

    hidden: int
    layers: int
    intermediate: int
    heads: int
    key_heads: int
    head_size: int
    vocabulary: int
    tied: bool = True
    counts: Counts | None = None

    @property
    def queries(self) -> int:
        """The width of all queries, and of attention's output."""
        return self.heads * self.head_size

    @property
    def keys(self) -> int:
        """The width of all keys, and of all values."""
        return self.key_heads * self.head_size

    @property
    def linears(self) -> Sequence[tuple[int, int]]:
        """(in, out) of all blocks' linear layers, which are quantised and adapted."""
        if self.counts is not None:
            return self.counts.linears
        h, i = self.hidden, self.intermediate
        block = [(h, self.queries), (h, self.keys), (h, self.keys), (self.queries, h), (h, i), (h, i), (i, h)]
        return self.layers * block

    @property
    def linear_parameters(self) -> int:
        return sum(inner * outer for inner, outer in self.linears)

    @property
    def embedding_parameters(self) -> int:
        """Weights of the embedding, and of an untied head."""
        return self.counts.others if self.counts else self.vocabulary * self.hidden * (1 if self.tied else 2)

    @property
    def parameters(self) -> int:
        return self.linear_parameters + self.embedding_parameters

    @property
    def token_numbers(self) -> int:
        """Keys and values of a token."""
        return self.counts.token if self.counts else self.layers * 2 * self.keys


_QWEN = 151_936
_KNOWN: dict[str, Shape] = {
    "tiny": Shape(64, 2, 128, 4, 2, 16, 259, tied=False),
    "sums-1m": Shape(128, 4, 384, 4, 4, 32, 512, tied=False),
    "smollm2-135m": Shape(576, 30, 1536, 9, 3, 64, 49_152),
    "SmolLM2-135M-Instruct": Shape(576, 30, 1536, 9, 3, 64, 49_152),
    "SmolLM2-360M": Shape(960, 32, 2560, 15, 5, 64, 49_152),
    "SmolLM2-1.7B": Shape(2048, 24, 8192, 32, 32, 64, 49_152),
    "Qwen3-0.6B": Shape(1024, 28, 3072, 16, 8, 128, _QWEN),
    "Qwen3-1.7B": Shape(2048, 28, 6144, 16, 8, 128, _QWEN),
    "Qwen3-4B": Shape(2560, 36, 9728, 32, 8, 128, _QWEN),
    "Qwen3-4B-Instruct-2507": Shape(2560, 36, 9728, 32, 8, 128, _QWEN),
    "Qwen3-8B": Shape(4096, 36, 12288, 32, 8, 128, _QWEN, tied=False),
    "Qwen2.5-0.5B": Shape(896, 24, 4864, 14, 2, 64, _QWEN),
    "Qwen2.5-1.5B": Shape(1536, 28, 8960, 12, 2, 128, _QWEN),
    "Qwen2.5-3B": Shape(2048, 36, 11008, 16, 2, 128, _QWEN),
    "Qwen2.5-7B": Shape(3584, 28, 18944, 28, 4, 128, 152_064, tied=False),
    "Qwen2.5-Math-1.5B": Shape(1536, 28, 8960, 12, 2, 128, _QWEN),
    "Qwen2.5-Math-7B-Instruct": Shape(3584, 28, 18944, 28, 4, 128, 152_064, tied=False),
    "Qwen2.5-Coder-3B-Instruct": Shape(2048, 36, 11008, 16, 2, 128, _QWEN),
    "OpenMath-Nemotron-1.5B": Shape(1536, 28, 8960, 12, 2, 128, _QWEN),
    "Llama-3.2-1B": Shape(2048, 16, 8192, 32, 8, 64, 128_256),
    "Llama-3.2-3B": Shape(3072, 28, 8192, 24, 8, 128, 128_256),
    "gemma-2-2b-it": Shape(2304, 26, 9216, 8, 4, 256, 256_000),
    "gemma-3-1b-it": Shape(1152, 26, 6912, 4, 1, 256, 262_144),
}
_PLAIN = ("gemma2", "gemma3_text", "llama", "qwen2", "qwen3")
"""Architectures that a `Shape` describes without counts."""
_BY_KEY = {name.lower(): shape for name, shape in _KNOWN.items()}


def shape_of(name: str) -> Shape:
    """The shape of a base by any name that `sources.resolve` takes, or of a folder with only a `config.json`; weights
    are never fetched.

    For an unlisted hub id, `config.json` comes from the hub's cache or the network. Raises ModelNotFoundError if it
    cannot be fetched or describes no shape, and UnknownNameError for any other name.
    """
    path = Path(name).expanduser()
    if os.path.isfile(path / "config.json"):
        return shape_in(path, str(path))
    found, path = sources.locate(name)
    if found == "gguf":
        return shape_in(path, str(path))
    key = found.rpartition("/")[2].lower()
    for kind in ("", "-instruct", "-base"):
        if key.endswith(kind) and (known := _BY_KEY.get(key.removesuffix(kind))) is not None:
            return known
    from lite_selfplay.models.sources import hub

    return shape_in(hub.fetch_config(found).parent, found)


def shape_in(path: Path, name: str) -> Shape:
    """The shape described by a `.gguf` file, or by a folder's `config.json`. Raises ModelNotFoundError if there is
    none."""
    from transformers import AutoConfig

    try:
        if os.path.isfile(path):
            return _in_file(path, os.stat(path).st_mtime_ns)
        config = AutoConfig.from_pretrained(path, trust_remote_code=False)
        text = config.get_text_config()
        (heads, keys, size), width = heads_of(text), text.intermediate_size
        return Shape(
            hidden=text.hidden_size,
            layers=text.num_hidden_layers,
            intermediate=max(width) if isinstance(width, list) else width,
            heads=heads,
            key_heads=keys,
            head_size=size,
            vocabulary=text.vocab_size,
            tied=bool(config.tie_word_embeddings),
            counts=None if text.model_type in _PLAIN else _counted(text, tied=config.tie_word_embeddings),
        )
    except Exception as error:  # of transformers and its validation
        why = " ".join(str(error).split())[:200]
        raise ModelNotFoundError(f"the configuration of {name} does not describe the shape of a model: {why}") from None


def heads_of(text: Any) -> tuple[int, int, int]:
    """Query heads, key heads and head size in a language model's configuration."""
    heads = text.num_attention_heads
    keys, size = getattr(text, "num_key_value_heads", None) or heads, None
    with contextlib.suppress(RuntimeError):  # layers differ
        size = getattr(text, "head_dim", None)
    return heads, keys, size or text.hidden_size // heads


def _counted(text: Any, *, tied: bool) -> Counts | None:
    """Counts of a model that is built without memory and reads one token; None if that fails."""
    import torch
    from torch import nn
    from transformers import AutoModelForCausalLM

    from lite_selfplay.models.generation.kv_cache import row_cache
    from lite_selfplay.models.silence import quiet

    text.tie_word_embeddings = tied
    try:
        with quiet(), torch.device("meta"):
            model = AutoModelForCausalLM.from_config(text, dtype=torch.bfloat16).eval()
            cache = row_cache(model)
            model(input_ids=torch.zeros(1, 1, dtype=torch.long), past_key_values=cache, use_cache=True)
    except Exception:  # of any model's code
        return None
    kept = list[tuple[float, ...]]()
    with contextlib.suppress(Exception), quiet():  # of any model's code
        kept = _kept(model)
    head = model.get_output_embeddings()
    linears = [(m.in_features, m.out_features) for m in model.modules() if isinstance(m, nn.Linear) and m is not head]
    others = sum(p.numel() for p in model.parameters()) - sum(inner * outer for inner, outer in linears)
    layers = list[Any](cache.layers)
    held = [getattr(layer, name, None) for layer in layers for name in ("keys", "values")]
    kinds = ("conv_states", "recurrent_states")
    states = [state for layer in layers for kind in kinds for state in getattr(layer, kind, {}).values()]
    token, state = (sum(x.numel() for x in tensors if x is not None) for tensors in (held, states))
    return Counts(linears, others, token, state, kept)


def _kept(model: Any) -> list[tuple[float, ...]]:
    """How much each layer of a bfloat16 model without memory keeps of a token for the backward pass of its adapters,
    with this library's operations: the numbers in the model's type, and the bytes in other types."""
    import torch

    from lite_selfplay.models import attention, fused

    fused.fuse_norms(model)
    fused.fuse_gates(model)
    attention.install(model)
    for weight in model.parameters():
        weight.requires_grad_(weight.dim() == 2)  # linear layers keep their inputs, for an adapter
    seen = {weight.untyped_storage()._cdata: weight for weight in model.parameters()}
    ends = [len(seen)]
    for layer in model.base_model.layers:
        layer.register_forward_hook(lambda *_: ends.append(len(seen)))
    ids = torch.zeros(1, 128, dtype=torch.long, device="meta")  # a multiple of the chunks of states
    with torch.autograd.graph.saved_tensors_hooks(
        lambda x: seen.setdefault(x.untyped_storage()._cdata, x), lambda x: x
    ):
        # Attention over no blocks computes nothing, and keeps what a fused kernel keeps.
        model.base_model(ids, attention_mask=ids[None, None] * 1.0, use_cache=False, packed_blocks=())
    sizes = [(x.dtype == model.dtype, x.untyped_storage().nbytes() / ids.numel()) for x in seen.values()]
    return [
        tuple(sum(size for half, size in sizes[start:end] if half is own) / (2 if own else 1) for own in (True, False))
        for start, end in pairwise(ends)
    ]


@functools.cache
def _in_file(path: Path, changed: int) -> Shape:
    """The shape in a .gguf file's header, read once (it takes seconds) for each time `changed` of its last change."""
    from lite_selfplay.models.sources.gguf import read_header

    header = read_header(path)
    said = {key.partition(".")[2]: value for key, value in header.metadata.items()}
    return Shape(
        hidden=said["embedding_length"],
        layers=said["block_count"],
        intermediate=said["feed_forward_length"],
        heads=said["attention.head_count"],
        key_heads=said.get("attention.head_count_kv", said["attention.head_count"]),
        head_size=said.get("attention.key_length", said["embedding_length"] // said["attention.head_count"]),
        vocabulary=len(header.metadata["tokenizer.ggml.tokens"]),
        tied="output.weight" not in header.tensors,
    )

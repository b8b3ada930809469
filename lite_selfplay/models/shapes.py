"""The shape of a base model: what its memory follows from, known without its weights.

For the short names the figures stand here, as the models' own `config.json` give them, so that no network is needed;
for a folder or another hub id transformers reads that file, and a .gguf file has a header.
"""

import functools
import os
from dataclasses import dataclass
from pathlib import Path

from lite_selfplay.errors import ModelNotFoundError
from lite_selfplay.models import sources


@dataclass(frozen=True)
class Shape:
    """A decoder of gated MLPs and grouped attention. `heads` of queries and `key_heads` of keys, each `head_size`.

    `tied`: the output head is the embedding. Biases and norms, far under a percent, are left out.
    """

    hidden: int
    layers: int
    intermediate: int
    heads: int
    key_heads: int
    head_size: int
    vocabulary: int
    tied: bool = True

    @property
    def queries(self) -> int:
        """The width of all queries, which is that of attention's output."""
        return self.heads * self.head_size

    @property
    def keys(self) -> int:
        """The width of all keys, which is that of all values."""
        return self.key_heads * self.head_size

    @property
    def linear_layers(self) -> list[tuple[int, int]]:
        """(in, out) of the linear layers of one block: queries, keys, values, output, gate, up, down."""
        h, i = self.hidden, self.intermediate
        return [(h, self.queries), (h, self.keys), (h, self.keys), (self.queries, h), (h, i), (h, i), (i, h)]

    @property
    def linear_parameters(self) -> int:
        """Weights of all blocks' linear layers: those that are quantised, and that adapters lie over."""
        return self.layers * sum(inner * outer for inner, outer in self.linear_layers)

    @property
    def embedding_parameters(self) -> int:
        """Weights of the embedding, and of the head where it is its own."""
        return self.vocabulary * self.hidden * (1 if self.tied else 2)

    @property
    def parameters(self) -> int:
        return self.linear_parameters + self.embedding_parameters

    def adapter_parameters(self, rank: int) -> int:
        """Weights of one LoRA adapter of a rank over all linear layers of the blocks."""
        return self.layers * rank * sum(inner + outer for inner, outer in self.linear_layers)


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
_BY_KEY = {name.lower(): shape for name, shape in _KNOWN.items()}


def shape_of(name: str) -> Shape:
    """The shape of a base by any name that `sources.resolve` takes, or a folder with a `config.json` alone; weights are
    never fetched.

    For a hub id that is not in the list, `config.json` is read from the hub's cache, or fetched. Raises
    ModelNotFoundError where it cannot be had, or gives no shape, and UnknownNameError for any other name.
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
    """The shape that a `.gguf` file describes, or the `config.json` in a folder. Raises ModelNotFoundError where it
    describes none."""
    from transformers import AutoConfig

    try:
        if os.path.isfile(path):
            return _in_file(path, os.stat(path).st_mtime_ns)
        config = AutoConfig.from_pretrained(path, trust_remote_code=False)
        text = config.get_text_config()
        hidden, heads = text.hidden_size, text.num_attention_heads
        return Shape(
            hidden=hidden,
            layers=text.num_hidden_layers,
            intermediate=text.intermediate_size,
            heads=heads,
            key_heads=getattr(text, "num_key_value_heads", None) or heads,
            head_size=getattr(text, "head_dim", None) or hidden // heads,
            vocabulary=text.vocab_size,
            tied=bool(config.tie_word_embeddings),
        )
    except Exception as error:  # of transformers and of what it checks its classes with
        why = " ".join(str(error).split())[:200]
        raise ModelNotFoundError(f"the configuration of {name} does not give the shape of a model: {why}") from None


@functools.cache
def _in_file(path: Path, changed: int) -> Shape:
    """By its header, which takes seconds to read; `changed` when it was written last."""
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

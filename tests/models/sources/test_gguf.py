"""GGUF files written by the tests, so that the converted model can be compared with the original, and damaged ones."""

import json
import math
import os
import re
import struct

import gguf as package
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from lite_selfplay.errors import ModelNotFoundError
from lite_selfplay.models.chat_template import Chat
from lite_selfplay.models.shapes import Shape, shape_of
from lite_selfplay.models.sources import gguf, provenance, resolve
from lite_selfplay.models.sources.gguf import read_header
from lite_selfplay.models.sources.gguf_tokenizer import build_tokenizer
from tests.made_runs import small_model
from tests.models.watch import noted

VOCABULARY = 263


@pytest.fixture
def converted(own_cache, write_gguf):
    return lambda *given, **options: resolve(str(write_gguf(*given, **options)))


@pytest.mark.parametrize(
    ("arch", "pre", "tied"),
    [("llama", "smollm", True), ("llama", "llama-bpe", False), ("qwen2", "qwen2", True), ("qwen3", "qwen2", False)],
)
def test_weights_survive(own_cache, write_gguf, arch, pre, tied):
    original = small_model(arch, tie_word_embeddings=tied)
    file = write_gguf(original, arch=arch, pre=pre)
    state = torch.get_rng_state()
    assert shape_of(str(file)) == Shape(64, 2, 96, 4, 2, 16, VOCABULARY, tied=tied)
    assert not own_cache.exists()  # a plan knows the shape of a file without converting it
    resolved = resolve(str(file))
    assert shape_of(str(resolved.path)) == shape_of(str(file))
    assert torch.equal(torch.get_rng_state(), state)
    assert resolved.path.parent == own_cache
    assert resolved.identity.startswith("gguf:")
    copy = AutoModelForCausalLM.from_pretrained(resolved.path)
    assert copy.dtype == torch.bfloat16
    for name, tensor in original.state_dict().items():
        assert torch.equal(copy.state_dict()[name], tensor.bfloat16()), name
    config = json.loads((resolved.path / "config.json").read_text())
    assert not {"quantization_config", "_model_name_or_path", "_name_or_path"} & set(config)
    assert config["tie_word_embeddings"] is tied


@pytest.mark.parametrize("arch", ["llama", "qwen2"])
@pytest.mark.parametrize("plant", ["exchanged", "transposed", "a lost scale", "rows in another order"])
def test_a_reader_that_makes_other_numbers_of_a_file_is_found(refused, write_gguf, monkeypatch, arch, plant):
    read = AutoModelForCausalLM.from_pretrained

    def wrong(*given, **options):
        loaded = read(*given, **options)
        one, other = (layer.self_attn.q_proj.weight.data for layer in loaded[0].model.layers[:2])
        kept = one.clone()
        if plant == "exchanged":
            one.copy_(other)
            other.copy_(kept)
        elif plant == "transposed":
            one.copy_(kept.T)
        else:
            one.copy_(
                2 * kept if plant == "a lost scale" else kept.reshape(4, 2, -1, 64).swapaxes(1, 2).reshape(64, 64)
            )
        return loaded

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", wrong)
    file = write_gguf(small_model(arch), arch=arch, pre="qwen2", quantise="Q8_0")
    assert "its tensor blk.0.attn_q.weight has other numbers as model.layers.0.self_attn.q_proj.weight" in refused(file)


def test_a_file_is_read_and_converted_once(tmp_path, own_cache, write_gguf, monkeypatch):
    whole = package.GGUFReader
    read = noted(monkeypatch, whole, "__init__", lambda *given: given)
    file, said = write_gguf(), []
    first = resolve(str(file), say=said.append)
    assert len(read) == 1  # transformers alone reads it twice, in ten seconds each where a vocabulary is large
    assert package.GGUFReader is whole
    copied = tmp_path / "another-name.GGUF"
    os.link(file, copied)
    assert resolve(str(copied), say=said.append).path == first.path
    (sentence,) = said
    assert "a.gguf" in sentence


def test_tokenizer_follows_the_metadata(converted):
    resolved = converted()
    tokenizer = AutoTokenizer.from_pretrained(resolved.path)
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token) == ("<|start|>", "<|end|>", "<pad>")
    assert tokenizer.padding_side == "left"
    assert len(tokenizer) == VOCABULARY
    text = "the 12 x <think>▁ é\n\n日</think>"
    ids = tokenizer(text)["input_ids"]
    assert tokenizer.decode(ids) == text
    assert tokenizer.convert_ids_to_tokens(ids)[:4] == ["the", "Ġ", "1", "2"]
    assert "<think>" in tokenizer.convert_ids_to_tokens(ids)
    generation = json.loads((resolved.path / "generation_config.json").read_text())
    ids = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    assert generation == generation | ids
    chat = Chat.load(resolved.path)
    assert (*chat.eos_ids, chat.end_of_turn) == (tokenizer.eos_token_id, tokenizer.eos_token_id)


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [("gpt-2", "1234 x Ċ"), ("smollm", "1 2 3 4 x Ċ"), ("qwen2", "1 2 3 4 x Ċ"), ("llama-bpe", "123 4 x Ċ")],
)
def test_digits_are_split_by_the_rule_of_the_file(write_gguf, pre, pieces):
    file = write_gguf(pre=pre)
    tokenizer = build_tokenizer(read_header(file).metadata, file)
    cut = tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str("1234x\n")
    assert [piece for piece, _ in cut] == pieces.split()


def test_sentencepiece_vocabulary(converted):
    chat = Chat.load(converted(pre="", template=None).path)
    tokenizer = chat.tokenizer
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.unk_token) == ("<|start|>", "<|end|>", "<unk>")
    assert len(tokenizer) == VOCABULARY
    assert tokenizer.convert_ids_to_tokens(chat.tokens("t t")) == ["▁t", "▁t"]
    ids = chat.encode("t 1é").ids
    assert ids[0] == tokenizer.bos_token_id
    assert ids.count(tokenizer.bos_token_id) == 1
    assert chat.decode(ids).strip() == "t 1é"


# The first piece is merged first. In "capital" ap, it, al, cap, ital and capital are, in this order: a tokenizer that
# took the scores for log-probabilities would make "cap it al" of it.
PIECES = ["▁", "ap", "it", "al", "ab", "aa", "cap", "ital", "capital", "▁capital", "▁ab", *"capitlb"]


CUT = {
    "capital": ["▁capital"],
    "a capital ab": ["▁", "a", "▁capital", "▁ab"],
    "capitals": ["▁capital", "<0x73>"],
    "aab": ["▁", "a", "ab"],  # the pair with the highest score, not the longest piece from the left
    "baab aa": ["▁", "b", "a", "ab", "▁", "aa"],
    "é  ab": ["▁", "<0xC3>", "<0xA9>", "▁", "▁ab"],
    " ab\n": ["▁", "▁ab", "<0x0A>"],
    "<|start|>capital": ["<|start|>", "▁capital"],
}


@pytest.mark.parametrize(("architecture", "prefix"), [("gemma2", False), ("llama", None), ("qwen2", True)])
def test_sentencepiece_merges_by_scores_whatever_the_architecture(write_gguf, architecture, prefix):
    options = {"pieces": PIECES, "scores": lambda index: -(max(index - 260.0, 0.0) ** 3), "space_prefix": prefix}
    file = write_gguf(claims=architecture, pre="", **options)
    tokenizer = build_tokenizer(read_header(file).metadata, file)
    for text, tokens in CUT.items():
        given = text if prefix is not False else re.sub(r"^(<.start.>)?", r"\1 ", text)
        ids = tokenizer(given, add_special_tokens=False)["input_ids"]
        assert tokenizer.convert_ids_to_tokens(ids) == tokens
        assert "<|start|>" in text or tokenizer.decode(ids) == given


def test_quantised_weights(converted):
    original = small_model()
    resolved = converted(original, quantise="Q8_0")
    origin = provenance(resolved.path)
    assert (origin["source"], origin["quantisation"], origin["licence"]) == ("a.gguf", "Q8_0", "apache-2.0")
    assert f"gguf:{origin['sha256']}" == resolved.identity
    copy = AutoModelForCausalLM.from_pretrained(resolved.path)
    for name, tensor in original.state_dict().items():
        torch.testing.assert_close(copy.state_dict()[name].float(), tensor, atol=2e-3, rtol=2e-2)


def test_llama_3_factors_are_those_of_transformers():
    rope = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0, "low_freq_factor": 1.0}
    rope |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    config = LlamaConfig(head_dim=64, hidden_size=512, num_attention_heads=8, rope_parameters=rope)
    stretched, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    plain = 1.0 / 500000.0 ** (torch.arange(0, 64, 2) / 64)
    factors = gguf.llama3_factors(32, rope)
    torch.testing.assert_close(torch.tensor(factors), plain / stretched, rtol=1e-4, atol=0.0)
    assert factors[0] == 1.0
    assert math.isclose(factors[-1], 32.0)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"eos": "<pad>"}, ["'<|end|>'", "'<pad>'"]),
        ({"leave_out": "blk.1.ffn_up"}, ["up_proj"]),
        ({"extra": {"blk.0.attn_q.bias": np.ones(64, dtype=np.float32)}}, ["does not fit the architecture llama"]),
        ({"pre": "tekken"}, ["tekken"]),
        ({"claims": "unheard-of"}, ["does not fit the architecture unheard-of"]),
        ({"extra": {"rope_freqs.weight": np.linspace(1, 2, 8, dtype=np.float32)}}, ["rotary positions"]),
        ({"metadata": {"llama.rope.scaling.type": "yarn"}}, ["rotary positions"]),
        ({"pre": "", "kind": "t5"}, ["a vocabulary of the kind 't5'"]),
        ({"pre": "", "scores": lambda index: -index / 7}, ["not ranks of merges"]),
        ({"pre": "", "pieces": ("▁", "capital", "t")}, ["cuts 1 of its 3 most frequent tokens", "'capital'"]),
        ({"pre": "", "unknown": 4096}, ["does not fit the architecture llama"]),
        ({"pre": "", "byte": "<{}>"}, ["does not reproduce a text: 'The quick"]),
    ],
)
def test_a_file_that_fits_no_model_is_refused(write_gguf, refused, options, said):
    file = write_gguf(**options)
    text = refused(file)
    assert all(part in text for part in said)
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    assert "cannot be read as a GGUF file" in refused(file)


# Headers that claim more than their file holds: refused before anything is read after them


NAME = struct.pack("<Q", 1) + b"a"


def header(tensors: int, pairs: int, rest: bytes = b"") -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, pairs) + rest


def test_a_header_that_claims_too_much(tmp_path):
    for content in (
        *(b"", header(2**60, 0), header(0, 2**60)),
        header(0, 1, NAME + struct.pack("<IIQ", 9, 8, 2**60)),
        header(0, 1, NAME + struct.pack("<IIQ", 9, 9, 1) * 40),
        header(0, 1, NAME + struct.pack("<I", 99) + bytes(40)),
        header(1, 0, NAME + struct.pack("<IQQQIQ", 3, 2**60, 2**60, 2**60, 0, 0)),
    ):
        (tmp_path / "m.gguf").write_bytes(content)
        with pytest.raises(ModelNotFoundError, match="cannot be read as a GGUF file"):
            read_header(tmp_path / "m.gguf")

"""The random model: the same everywhere, small, quick, and with a lossless tokenizer."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from lite_selfplay.models.chat_template import Chat
from lite_selfplay.models.sources import resolve, suggested
from lite_selfplay.models.sources.tiny import build_tiny, byte_tokenizer

TOKENIZER = byte_tokenizer(None)


def test_bit_equal_and_no_global_seed(tmp_path):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    build_tiny(tmp_path / "a")
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    build_tiny(tmp_path / "b")
    assert (tmp_path / "a/model.safetensors").read_bytes() == (tmp_path / "b/model.safetensors").read_bytes()
    assert sum(file.stat().st_size for file in (tmp_path / "a").iterdir()) < 1_000_000


def test_resolved_model_loads_and_can_learn(own_cache):
    tiny = resolve("Tiny")
    assert tiny.name == "Tiny"
    assert tiny.path.parent == own_cache
    assert suggested("Tiny") == {"seats.*.lr": 5e-3}
    assert resolve("tiny").identity == tiny.identity
    model = AutoModelForCausalLM.from_pretrained(tiny.path)
    assert model.config.model_type == "qwen3"
    assert model.config.vocab_size <= 264
    assert not model.config.tie_word_embeddings
    chat = Chat.load(tiny.path)
    with torch.no_grad():
        logits = model(torch.tensor([chat.encode("a b c").ids])).logits
    # Tied embeddings of the usual scale give 0.16 here, and nothing moves.
    assert logits.std() > 1.0
    assert (model.generation_config.eos_token_id,) == chat.eos_ids


@given(st.binary())
def test_ids_are_bytes_and_decode_as_utf8_does(data):
    text = data.decode(errors="replace")
    ids = TOKENIZER(text)["input_ids"]
    assert TOKENIZER.decode(list(data)) == TOKENIZER.decode(ids) == text
    assert "<" in text or ids == list(text.encode())

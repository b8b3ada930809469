"""GGUF files written by the tests, so that the converted model can be compared with the original."""

import json
import math
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from lite_selfplay.errors import ModelNotFoundError
from lite_selfplay.models.chat import Chat
from lite_selfplay.models.sources import gguf, provenance, resolve
from tests.made_runs import small_model

Writer = Callable[..., Path]
VOCABULARY = 263


@pytest.mark.parametrize(
    ("arch", "pre", "tied"),
    [("llama", "smollm", True), ("llama", "llama-bpe", False), ("qwen2", "qwen2", True), ("qwen3", "qwen2", False)],
)
def test_weights_survive(tmp_path: Path, own_cache: Path, write_gguf: Writer, arch: str, pre: str, tied: bool) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    original = small_model(arch, tie_word_embeddings=tied)
    file = write_gguf(tmp_path / "a.gguf", original, arch=arch, pre=pre)
    state = torch.get_rng_state()
    resolved = resolve(str(file))
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


def test_tokenizer_follows_the_metadata(tmp_path: Path, own_cache: Path, write_gguf: Writer) -> None:
    from transformers import AutoTokenizer

    resolved = resolve(str(write_gguf(tmp_path / "a.gguf", small_model())))
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
    assert generation["eos_token_id"] == tokenizer.eos_token_id
    assert generation["pad_token_id"] == tokenizer.pad_token_id
    chat = Chat.load(resolved.path)
    assert chat.eos_ids == (tokenizer.eos_token_id,)
    assert chat.end_of_turn == tokenizer.eos_token_id


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("gpt-2", ["1234", "x", "Ċ"]),
        ("smollm", ["1", "2", "3", "4", "x", "Ċ"]),
        ("qwen2", ["1", "2", "3", "4", "x", "Ċ"]),
        ("llama-bpe", ["123", "4", "x", "Ċ"]),
    ],
)
def test_digits_are_split_by_the_rule_of_the_file(
    tmp_path: Path, own_cache: Path, write_gguf: Writer, pre: str, pieces: list[str]
) -> None:
    from transformers import AutoTokenizer

    resolved = resolve(str(write_gguf(tmp_path / "a.gguf", small_model(), pre=pre)))
    tokenizer = AutoTokenizer.from_pretrained(resolved.path)
    cut = tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str("1234x\n")
    assert [piece for piece, _ in cut] == pieces


def test_sentencepiece_vocabulary(tmp_path: Path, own_cache: Path, write_gguf: Writer) -> None:
    resolved = resolve(str(write_gguf(tmp_path / "a.gguf", small_model(), pre="", template=None)))
    chat = Chat.load(resolved.path)
    tokenizer = chat.tokenizer
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.unk_token) == ("<|start|>", "<|end|>", "<unk>")
    assert len(tokenizer) == VOCABULARY
    ids = chat.encode("t 1é").ids
    assert ids[0] == tokenizer.bos_token_id
    assert ids.count(tokenizer.bos_token_id) == 1
    assert chat.decode(ids).strip() == "t 1é"


def test_quantised_weights(tmp_path: Path, own_cache: Path, write_gguf: Writer) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    original = small_model()
    file = write_gguf(tmp_path / "a.gguf", original, quantise="Q8_0")
    resolved = resolve(str(file))
    origin = provenance(resolved.path)
    assert (origin["source"], origin["quantisation"], origin["licence"]) == ("a.gguf", "Q8_0", "apache-2.0")
    assert f"gguf:{origin['sha256']}" == resolved.identity
    copy = AutoModelForCausalLM.from_pretrained(resolved.path)
    for name, tensor in original.state_dict().items():
        torch.testing.assert_close(copy.state_dict()[name].float(), tensor, atol=2e-3, rtol=2e-2)


def test_converted_once(tmp_path: Path, own_cache: Path, write_gguf: Writer) -> None:
    file = write_gguf(tmp_path / "a.gguf", small_model())
    said: list[str] = []
    first = resolve(str(file), say=said.append)
    copied = tmp_path / "another-name.GGUF"
    os.link(file, copied)
    assert resolve(str(copied), say=said.append).path == first.path
    assert len(said) == 1
    assert "a.gguf" in said[0]


def test_no_chat_template(tmp_path: Path, own_cache: Path, write_gguf: Writer) -> None:
    resolved = resolve(str(write_gguf(tmp_path / "a.gguf", small_model(), template=None)))
    chat = Chat.load(resolved.path)
    assert chat.tokenizer.chat_template is None
    assert chat.decode(chat.encode("the end").ids) == "the end"
    assert chat.encode("the end").prefill == ""


def refused(file: Path, own_cache: Path) -> str:
    with pytest.raises(ModelNotFoundError) as caught:
        resolve(str(file))
    assert [path.name for path in own_cache.iterdir() if path.suffix != ".lock"] == []
    return str(caught.value)


def test_a_template_with_another_end_of_turn_is_refused(tmp_path: Path, own_cache: Path, write_gguf: Writer) -> None:
    text = refused(write_gguf(tmp_path / "a.gguf", small_model(), eos="<pad>"), own_cache)
    assert "'<|end|>'" in text
    assert "'<pad>'" in text


def test_tensors_missing_or_left_over_are_refused(tmp_path: Path, own_cache: Path, write_gguf: Writer) -> None:
    import numpy as np

    text = refused(write_gguf(tmp_path / "a.gguf", small_model(), leave_out="blk.1.ffn_up"), own_cache)
    assert "up_proj" in text
    surplus = {"blk.0.attn_q.bias": np.ones(64, dtype=np.float32)}
    text = refused(write_gguf(tmp_path / "b.gguf", small_model(), extra=surplus), own_cache)
    assert "does not fit the architecture llama" in text


def test_unreadable_files_are_refused(tmp_path: Path, own_cache: Path, write_gguf: Writer) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUX" + bytes(100))
    assert "cannot be read as a GGUF file" in refused(broken, own_cache)
    whole = write_gguf(tmp_path / "whole.gguf", small_model())
    broken.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    assert "cannot be read as a GGUF file" in refused(broken, own_cache)
    unknown = write_gguf(tmp_path / "a.gguf", small_model(), pre="tekken")
    assert "tekken" in refused(unknown, own_cache)
    unheard = write_gguf(tmp_path / "b.gguf", small_model(), claims="unheard-of")
    assert "does not fit the architecture unheard-of" in refused(unheard, own_cache)


def test_llama_3_factors_are_those_of_transformers() -> None:
    import torch
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rope = {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    config = LlamaConfig(head_dim=64, hidden_size=512, num_attention_heads=8, rope_parameters=rope)
    stretched, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    plain = 1.0 / 500000.0 ** (torch.arange(0, 64, 2) / 64)
    factors = gguf.llama3_factors(32, rope)
    torch.testing.assert_close(torch.tensor(factors), plain / stretched, rtol=1e-4, atol=0.0)
    assert factors[0] == 1.0
    assert math.isclose(factors[-1], 32.0)


def test_scaled_positions_are_refused(tmp_path: Path, own_cache: Path, write_gguf: Writer) -> None:
    import numpy as np

    stretched = {"rope_freqs.weight": np.linspace(1, 2, 8, dtype=np.float32)}
    assert "rotary positions" in refused(write_gguf(tmp_path / "a.gguf", small_model(), extra=stretched), own_cache)
    yarn = {"llama.rope.scaling.type": "yarn"}
    assert "rotary positions" in refused(write_gguf(tmp_path / "b.gguf", small_model(), metadata=yarn), own_cache)

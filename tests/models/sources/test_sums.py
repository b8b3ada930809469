"""The pretrained base of a million parameters is the same at every call and states its origin."""

import json
from functools import partial

import pytest
import torch

from lite_selfplay.models.chat_template import Chat
from lite_selfplay.models.shapes import shape_of
from lite_selfplay.models.sources import provenance, resolve, sums
from lite_selfplay.tasks.files import sha256_of


def test_a_short_pretraining_is_bit_equal_and_says_what_it_did(own_cache, tmp_path, monkeypatch):
    monkeypatch.setattr(sums, "pretrain", partial(sums.pretrain, batches=2))
    monkeypatch.setattr(sums, "_ROWS", 8)
    monkeypatch.setattr(sums, "_MEASURED", 4)
    said: list[str] = []
    torch.manual_seed(1)
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    made = resolve("Sums-1M", say=said.append)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_num_threads() == threads
    assert made.path.parent == own_cache
    assert any(sentence.startswith("pretraining sums-1m: batch 2 of 2, loss") for sentence in said)
    torch.manual_seed(2)
    sums.pretrain(tmp_path / "again")
    weights = [folder / "model.safetensors" for folder in (made.path, tmp_path / "again")]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    facts = provenance(made.path)
    assert facts["sha256"] == sha256_of(weights[0])
    assert made.identity == f"sums-1m:{facts['sha256']}"
    assert (facts["parameters"], facts["accuracy"]) == (984_448, 0.0)
    assert "arithmetic:terms=4,max=30,last=9: 2 batches of 8," in facts["source"]
    chat = Chat.load(made.path)
    digits = chat.encode("What is 27 + 14?").ids
    assert chat.tokenizer.decode(digits).count("27") == 1
    assert len(json.loads((made.path / "tokenizer.json").read_text())["model"]["vocab"]) == 512
    assert shape_of("sums-1m").parameters == pytest.approx(facts["parameters"], rel=0.01)

"""Packed rows: their layout, the same numbers as the plain way, and models that cannot be packed."""

from typing import Any

import pytest
from torch.nn.functional import pad
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from lite_selfplay.models.attention import OURS, Block, install
from lite_selfplay.models.logprobs.batch import Batch, Way
from lite_selfplay.models.logprobs.reading import Packed, packs
from lite_selfplay.models.logprobs.token_logprobs import token_logprobs
from tests.models.small import small
from tests.models.watch import noted


def drawn(kind: str = "llama", **options: Any) -> Any:
    """Weights large enough for attention to matter; with 0.02 a model hardly attends to other tokens."""
    return small(kind, **{"initializer_range": 0.3, **options})


def with_our_attention(kind: str = "llama", **options: Any) -> Any:
    model = drawn(kind, **options)
    install(model)
    return model


def test_where_everything_lies_by_hand():
    packed = Packed.of(Batch.of([([1, 2, 3, 4], [5, 6]), ([1, 2, 3, 7], [8]), ([9], [10, 11])]))
    # The row alone and the shared beginning, both of three tokens, then what is each row's own, the shorter one first.
    assert packed.ids == [1, 2, 3, 9, 10, 11, 7, 8, 4, 5, 6]
    assert packed.positions == [0, 1, 2, 0, 1, 2, 3, 4, 3, 4, 5]
    assert packed.blocks == [Block(0, (3, 3)), Block(6, (2, 3), range(3))]
    assert packed.predicting == [8, 9, 6, 3, 4]  # 4 says 5, 5 says 6; 7 says 8; 9 says 10, 10 says 11
    # Rows of very different length are no rectangle.
    packed = Packed.of(Batch.of([([1], [2] * 9), ([3], [4]), ([5], [6, 7, 8])]))
    assert packed.blocks == [Block(0, (2, 4)), Block(6, (10,))]


def test_no_more_tokens_are_read_than_there_are(monkeypatch):
    model = with_our_attention("qwen3", head_dim=8)
    read = noted(monkeypatch, model.model, "forward", lambda **inputs: inputs["input_ids"].numel())
    # Two rows of one prompt, two whose prompts part after five tokens, and one alone.
    prompts = [[5, 6, 7, 8, 9, 10, 11]] * 2 + [[30, 31, 32, 33, 34, 35], [30, 31, 32, 33, 34, 36, 37], [50, 51]]
    completions = [[40, 41, 42], [43], [44, 45], [46, 47, 48, 49], [60, 61, 62]]
    token_logprobs(model, Batch.of(zip(prompts, completions, strict=True), Way.PACKED))
    # Beginnings of 6 and 5; of the rows after them 4 + 2 and 3 + 6 tokens; the row alone has 5.
    assert read == [6 + 5 + 4 + 2 + 3 + 6 + 5]


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("gemma2", {"head_dim": 8, "sliding_window": 8}),  # soft caps
        ("mistral", {"sliding_window": 8}),
        ("bloom", {}),  # positions in the mask
        ("llama", {"attn_implementation": "eager"}),
    ],
)
def test_a_model_whose_attention_is_more_than_causal_or_its_own_is_not_packed(kind, options):
    assert not packs(with_our_attention(kind, **options))


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_a_model_that_packs_is_left_as_it_was_and_no_other_one_gets_this_attention(kind):
    before = ALL_ATTENTION_FUNCTIONS["sdpa"]
    model, other = with_our_attention(kind).train(), drawn(kind)
    assert packs(model)
    assert model.training
    assert packs(model.eval())
    assert not model.training
    assert (model.config._attn_implementation, other.config._attn_implementation) == (OURS, "sdpa")
    assert ALL_ATTENTION_FUNCTIONS["sdpa"] is before
    assert not packs(other)


def test_a_model_that_looks_at_neighbours_beside_attention_is_not_packed():
    """One layer sees the token before, whichever row it belongs to."""
    model = with_our_attention()
    model.model.layers[0].mlp.register_forward_pre_hook(
        lambda layer, args: args[0] + pad(args[0], (0, 0, 1, 0))[:, :-1]
    )
    assert not packs(model)


def test_a_backend_packs_and_reads_a_model_whose_logits_are_scaled_as_a_whole(make_backend):
    backend = make_backend(gradient_checkpointing=True)
    assert backend.way() is Way.PACKED
    backend.adapters.model.train()
    assert backend.way() is Way.PACKED
    backend = make_backend()
    assert backend.way() is Way.PACKED
    backend.adapters.model.get_base_model().config.logits_scaling = 4.0
    assert backend.way() is Way.WHOLE

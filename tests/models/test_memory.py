"""A run's estimated memory: each part compared with real tensors, and by hand."""

import json
import re
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lite_selfplay.config import ModelSection, RunConfig, SeatConfig
from lite_selfplay.config.layers import preset_layer
from lite_selfplay.errors import ModelNotFoundError
from lite_selfplay.models import memory
from lite_selfplay.models.generation.kv_cache import RowLayer
from lite_selfplay.models.logprobs.batch import Batch
from lite_selfplay.models.logprobs.token_logprobs import token_logprobs
from lite_selfplay.models.memory import CARDS, Load, activation_bytes, advise, estimate, head_elements
from lite_selfplay.models.shapes import Shape, shape_of
from lite_selfplay.models.sources import known_models
from lite_selfplay.runs.defaults import filled_in

TINY = shape_of("tiny")
SMOLLM2 = {"name": "smollm2-135m", "precision": "4bit", "compute_dtype": "fp32"}
SMALL = Load(rows=8, prompt_tokens=20, completion_tokens=16)


def config(**values: Any) -> RunConfig:
    return filled_in(RunConfig(**{"game": "agon", "model": "tiny", **values}))[0]


def parts(run: RunConfig, shape: Shape = TINY, load: Load = SMALL, **options: Any) -> dict[str, float]:
    return {part.name: part.bytes for part in estimate(run, shape, load, **options).parts}


def held(model: Any, *, adapters: bool) -> int:
    """Bytes of a model's matrices and of the scales of 4-bit ones; biases and norms are not counted, nor shared
    storages: on a GPU weights lie in stacks, side by side."""
    found = [p for name, p in model.named_parameters() if ("lora_" in name) == adapters and (p.ndim > 1 or adapters)]
    scales = [p.quant_state.absmax for p in found if hasattr(p, "quant_state")]
    return sum(each.nbytes for each in (*found, *scales))


@pytest.mark.parametrize("types", ["4bit fp32", "4bit bf16", "bf16 auto", "fp32 auto"])
def test_weights_adapters_keys_and_values_are_those_of_the_loaded_model(make_backend, types):
    precision, compute = types.split()
    seats = {"A": SeatConfig(rank=4), "B": SeatConfig(rank=6)}
    model = make_backend(precision, seats, compute_dtype=compute).adapters.model
    section = {"name": "tiny", "precision": precision, "compute_dtype": compute}
    told = parts(config(model=section, seats={"A": {"rank": 4}, "B": {"rank": 6}}), on_cpu=True)
    assert told["base"] == pytest.approx(held(model, adapters=False), rel=0.01)
    assert told["adapters"] == held(model, adapters=True)
    assert told["gradients"] == told["adapters"]
    assert told["optimizer"] == 2 * told["adapters"]
    one = torch.zeros(SMALL.rows, TINY.key_heads, SMALL.row, TINY.head_size)
    of_a_layer = sum(each.nbytes for each in RowLayer().update(one, one))
    assert parts(config(precision="fp32"), on_cpu=True)["keys and values"] == TINY.layers * of_a_layer


@pytest.mark.skipif(torch.cuda.is_available(), reason="a pretend GPU's norms keep what autograd's hooks do not see")
@pytest.mark.parametrize(("compute", "bytes_of_a_number"), [("fp32", 4), ("bf16", 2)])
def test_activations_are_what_a_backward_pass_keeps(make_backend, compute, bytes_of_a_number):
    backend = make_backend("4bit", compute_dtype=compute, gradient_checkpointing=False)
    model = backend.adapters.model.train()
    backend.adapters.activate("A")
    ids = torch.randint(3, 250, (4, 64))
    seen = {}

    def pack(x):
        seen[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        token_logprobs(model, Batch.of((row[:32], row[32:]) for row in ids.tolist()))
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept = sum(size for place, size in seen.items() if place not in weights)
    told = ids.numel() * sum(activation_bytes(TINY, bytes_of_a_number))
    assert 0.75 < told / kept < 1.1  # norms of queries and keys, which this small model has, weigh more here


def test_a_part_by_hand():
    shape = Shape(hidden=8, layers=2, intermediate=16, heads=2, key_heads=1, head_size=4, vocabulary=10)
    # queries 8x8, keys and values 8x4 each, output 8x8, three of 8x16; then the embedding, which is the head as well.
    assert shape.linear_parameters == 2 * (64 + 32 + 32 + 64 + 3 * 128)
    assert shape.embedding_parameters == 80
    assert 3 * sum(map(sum, shape.linears)) == 2 * 3 * (16 + 12 + 12 + 16 + 24 + 24 + 24)
    told = parts(config(model={"name": "tiny", "precision": "4bit", "compute_dtype": "bf16"}), shape)
    assert told["base"] == shape.linear_parameters * 0.5625 + 80 * 2


def test_every_model_with_a_short_name_has_its_shape():
    read = ("Qwen3.5", "gemma-4", "gemma-3-4b", "SmolLM3", "Ministral", "LFM2", "granite", "Olmo", "Phi")
    for info in known_models()[1:]:
        if info.name.startswith(read):  # from their own config.json
            continue
        size, unit = re.match(r"([\d.]+)([MB])", info.size).groups()
        # Names round, and count or leave out embeddings as it suits them.
        assert 0.85 < shape_of(info.name).parameters / (float(size) * {"M": 1e6, "B": 1e9}[unit]) < 1.27, info.name


def test_the_shape_of_a_folder_is_that_of_its_config_and_one_that_gives_none_is_refused(tiny_path, tmp_path):
    assert shape_of(str(tiny_path)) == TINY
    for config in ('{"hidden_size": 8, "num_attention_heads": 2}', '{"model_type": "t5"', "[]"):
        (tmp_path / "config.json").write_text(config)
        with pytest.raises(ModelNotFoundError, match=r"the configuration of .* does not describe the shape of a model"):
            shape_of(str(tmp_path))


@pytest.mark.parametrize("nested", [False, True], ids=["alone", "beside a vision tower"])
def test_what_a_config_leaves_out_is_its_architectures_default(tmp_path, nested):
    config: dict[str, Any] = {"hidden_size": 64, "num_hidden_layers": 3, "intermediate_size": 96, "vocab_size": 100}
    config |= {"num_attention_heads": 4, "num_key_value_heads": 2}
    whole = {"model_type": "gemma3", "text_config": config} if nested else {"model_type": "qwen3", **config}
    (tmp_path / "config.json").write_text(json.dumps(whole))
    # Heads of 128 or 256 values, not of 64 / 4; Gemma's head is its embedding.
    assert shape_of(str(tmp_path)) == Shape(64, 3, 96, 4, 2, 256 if nested else 128, 100, tied=nested)


def test_a_gpu_that_is_too_small_gets_settings_that_fit():
    run = config(model="Qwen3-4B", max_completion_tokens=2048, run={"generation_tokens": 2**17})
    shape = shape_of("Qwen3-4B")
    load, card = Load(64, 512, 2048), CARDS["rtx3060"]
    assert estimate(run, shape, load, card=card).peak > card.memory
    (sentence,) = advise(run, shape, load, card)
    assert sentence.startswith("--set run.generation_tokens=")
    changed = run.model_dump(mode="json")
    for section, name, value in re.findall(r"(\w+)\.(\w+)=(\d+)", sentence.split(" brings")[0]):
        changed[section][name] = int(value)
    assert estimate(RunConfig.of(changed), shape, load, card=card).peak <= card.memory


def test_expanded_weights_are_counted_on_a_gpu_with_room_for_them():
    run, shape, load = config(model="Qwen3-4B", group_size=16), shape_of("Qwen3-4B"), Load(64, 512, 512)
    dense = parts(run, shape, load)["dense weights"]
    assert dense == 2 * 36 * (2 * 2560 * 4096 + 2 * 2560 * 1024 + 3 * 2560 * 9728)  # 6.8 GiB in 16 bits
    small, large = CARDS["rtx3060"], CARDS["rtx4090"]
    assert "dense weights" not in parts(run, shape, load, card=small)
    assert estimate(run, shape, load, card=small).peak < small.memory
    assert parts(run, shape, load, card=large)["dense weights"] == dense
    assert "dense weights" not in parts(config(model={"name": "Qwen3-4B", "precision": "bf16"}), shape, load)
    # 2.6 GiB of base; of the other 8.1 GiB two fifths for keys and values, which with 6.8 GiB is more than nine tenths.
    # 1.1 (dense + 0.4 free) = 0.9 free where free is 1.1 dense / 0.46.
    least = 1.1 * dense / 0.46 + 0.9 * 2**30 + memory.weight_bytes(run.model, shape, 2)
    assert [memory.expands(run.model, shape, 2, round(size)) for size in (least - 9, least + 9)] == [False, True]


def test_keys_and_values_of_a_gpu_are_those_of_its_slots():
    """Qwen2.5-0.5B keeps 24 layers of two times 128 numbers in two bytes: 12 KiB a token."""
    run, shape = config(model="Qwen2.5-0.5B"), shape_of("Qwen2.5-0.5B")
    found = parts(run, shape, Load(256, 120, 4096), card=CARDS["h100"])
    # 256 slots of 256 + 4,096 + 16 positions, in whole 128s, and a quarter more for longer prompts.
    assert found["keys and values"] == 256 * 4480 * 5 // 4 * 12288
    assert found["logits, sampling"] == 256 * 151_936 * 16
    held = memory.tokens_held(run.model, shape, 2, CARDS["h100"].memory)
    weights = shape.linear_parameters * 0.5625 + shape.embedding_parameters * 2
    assert held == int(0.4 * (CARDS["h100"].memory - 0.9 * 2**30 - weights) / 12288)
    small = parts(run, shape, Load(256, 120, 4096), card=CARDS["t4"])
    assert small["keys and values"] <= 0.4 * CARDS["t4"].memory
    assert memory.tokens_held(run.model, shape, 2, None) == 65536


def test_what_is_kept_for_the_next_sampling_is_counted_in_the_update():
    """A pool stays if half of the GPU is free beside it; a larger one goes."""
    run, shape, load = config(model="Qwen2.5-0.5B"), shape_of("Qwen2.5-0.5B"), Load(256, 120, 4096)
    for card, expected in (("h100", (True, True, False)), ("rtx3060", (False, False, False))):
        found = {part.name: part.updating for part in estimate(run, shape, load, card=CARDS[card]).parts}
        assert (found["keys and values"], found["dense weights"], found["logits, sampling"]) == expected


@pytest.mark.parametrize(
    ("model", "card", "wanted"),  # of Qwen2.5-0.5B 24 layers of 43,264 bytes a token: 17 GB of 16,384
    [
        *(("Qwen2.5-0.5B", "h100", False), ("Qwen3-4B", "h100", True)),
        *(("Qwen2.5-0.5B", "rtx4090", True), ("smollm2-135m", "rtx4090", False)),
    ],
)
def test_a_gpu_recomputes_where_its_memory_needs_it(model, card, wanted):
    run = config(model=model, run={"microbatch_tokens": 16384})
    shape = shape_of(model)
    found = memory.recomputes(
        run.model, shape, 2, on_cpu=False, tokens=memory.microbatch_tokens(run.run), memory=CARDS[card].memory
    )
    assert found is wanted
    of_a_token = sum(activation_bytes(shape, 2))
    if model == "Qwen2.5-0.5B":
        assert of_a_token == 24 * (2 * (3 * 4864 + 2 * 896 + 2 * 896 + 2 * 128) + 8 * 896)
    assert (16384 * of_a_token > 0.4 * CARDS[card].memory) is wanted


@pytest.mark.parametrize(("preset", "card"), [("t4", "t4"), ("consumer-24gb", "rtx4090")])
def test_presets_of_gpus_leave_a_tenth_free(preset, card):
    run = filled_in(RunConfig.of(preset_layer(preset), {"game": {"name": "agon"}}))[0]
    rows = run.run.problems_per_step * run.run.group_size
    load = Load(rows, 512, run.run.max_completion_tokens or 512)
    found = estimate(run, shape_of(run.model.name), load, card=CARDS[card])
    assert "dense weights" in [part.name for part in found.parts]
    assert found.peak <= 0.9 * CARDS[card].memory


def test_what_no_setting_mends_is_reported():
    run = config(model={"name": "tiny", "precision": "bf16"})
    assert "has no bf16" in advise(run, TINY, SMALL, CARDS["t4"])[0]
    assert advise(run, TINY, SMALL, CARDS["l4"]) == []
    run, shape = config(model="Qwen2.5-7B"), shape_of("Qwen2.5-7B")
    tiny_card = type(CARDS["t4"])("a card", 2**31)
    assert advise(run, shape, Load(8, 64, 64), tiny_card)[-1].startswith("no setting makes it fit")


@given(st.integers(1, 64), st.integers(1, 500), st.integers(1, 500))
def test_more_in_flight_never_takes_less(rows, prompt, completion):
    fewer, more = (estimate(config(), TINY, Load(r, prompt, completion)) for r in (rows, rows + 1))
    assert fewer.updating <= more.updating
    assert fewer.generating <= more.generating


@pytest.mark.parametrize(
    ("model", "setting", "compute", "on_cpu", "wanted"),
    [
        # Whether it recomputes, keeps products, is lean. Of SmolLM2 30 layers of 29,184 + 4,608 bytes: 1.01 MB a token.
        ("smollm2-135m", "auto", 4, True, (True, True, True)),
        ("smollm2-135m", "auto", 2, True, (False, False, False)),  # keeps everything
        ("smollm2-135m", "auto", 4, False, (True, False, False)),
        ("smollm2-135m", False, 4, True, (False, False, False)),
        ("smollm2-135m", True, 4, True, (True, False, True)),  # asked for: the least memory
        ("tiny", "auto", 4, True, (False, False, False)),
        ("tiny", "auto", 2, False, (True, False, False)),
        ("tiny", True, 4, True, (True, False, True)),
        ("Qwen3-0.6B", "auto", 2, True, (True, True, False)),
        ("Qwen3-0.6B", "auto", 4, True, (True, False, True)),  # 1.6 MB a token of products
        (None, "auto", 4, True, (False, False, False)),  # of unknown shape
    ],
)
def test_what_is_recomputed_what_is_kept_and_what_is_lean(model, setting, compute, on_cpu, wanted):
    section = ModelSection(name=model or "unknown", gradient_checkpointing=setting)
    given = section, shape_of(model) if model else None, compute
    asked = memory.recomputes, memory.keeps_products, memory.is_lean
    assert tuple(each(*given, on_cpu=on_cpu) for each in asked) == wanted


def test_products_that_are_kept_are_counted():
    # Queries 576, keys and values 192 each, output 576, gate and up 1,536 each, down 576, attention 576: 5,760 numbers.
    shape = shape_of("smollm2-135m")
    assert memory.product_bytes(shape, 4) == 4 * 5760
    least = {**SMOLLM2, "gradient_checkpointing": True}
    given = shape, Load(64, 100, 50)
    kept, inputs = (parts(config(model=model), *given, on_cpu=True) for model in (SMOLLM2, least))
    assert kept["activations"] - inputs["activations"] == 896 * 30 * 4 * 5760
    # A recomputed block keeps 30 MB and has gradients of 30 MB, of which 50 fit where 2 ** 22 logits of 12 bytes were.
    assert inputs["logits, update"] == 12 * 2**22
    assert inputs["activations"] == 896 * (30 * 576 * 4 + 2 * activation_bytes(shape, 4)[0]) - 12 * 2**22


def test_logits_that_are_held_at_once():
    assert head_elements(49_152, lean=False) == head_elements(151_936, lean=False) == 2**24
    assert head_elements(49_152, lean=True) == 2**22  # 85 positions
    cards = {name: head_elements(151_936, lean=False, memory=CARDS[name].memory) for name in ("h100", "rtx4090", "t4")}
    assert cards == {"h100": 2**27, "rtx4090": 2**25, "t4": 2**24}
    assert head_elements(151_936, lean=True) == 64 * 151_936


@pytest.mark.parametrize("precision", ["4bit", "fp32"])
def test_a_cpu_copies_the_weights_of_all_layers_and_of_the_head_to_sample(precision):
    shape = shape_of("smollm2-135m")
    base = config(model=SMOLLM2 | {"precision": precision})
    told = parts(base, shape, Load(16, 50, 50), on_cpu=True)
    assert told["dense weights"] == 4 * (shape.linear_parameters + 49_152 * 576)
    assert told["logits, update"] == 12 * 2**22
    assert ("dense weights" in parts(base, shape, Load(16, 50, 50))) == (precision == "4bit")

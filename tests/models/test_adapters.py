import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor
from transformers import AutoModelForCausalLM

from lite_selfplay.config import SeatConfig
from lite_selfplay.errors import LiteSelfPlayError, UnknownNameError
from lite_selfplay.models.adapters import BASE, Adapters
from lite_selfplay.models.backends.transformers import dense_weight

IDS = torch.arange(10, 30)[None]
STRONG = SeatConfig(rank=4, alpha=8, init="gaussian", init_std=0.1)


def base(path: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)


@pytest.fixture
def adapters(tiny_path: Path) -> Adapters:
    return Adapters(base(tiny_path), {"A": STRONG, "B": STRONG}, seed=0)


def said(model: Any) -> Tensor:
    with torch.no_grad():
        return model.eval()(input_ids=IDS).logits


def heard(adapters: Adapters, name: str) -> Tensor:
    with adapters.speaking(name):
        return said(adapters.model)


def trainable(adapters: Adapters) -> set[str]:
    return {name.split(".")[-2] for name, p in adapters.model.named_parameters() if p.requires_grad}


def test_a_seat_speaks_as_a_model_that_holds_that_adapter_alone(adapters: Adapters, tiny_path: Path, tmp_path: Path):
    for seat in ("A", "B"):
        adapters.save(seat, tmp_path / seat)
        alone = PeftModel.from_pretrained(base(tiny_path), tmp_path / seat)
        assert torch.equal(heard(adapters, seat), said(alone))
    assert not torch.allclose(heard(adapters, "A"), heard(adapters, "B"))


def test_the_base_speaks_alone(adapters: Adapters, tiny_path: Path):
    assert torch.equal(heard(adapters, BASE), said(base(tiny_path)))
    assert not torch.allclose(heard(adapters, "A"), heard(adapters, BASE))


def test_zero_start_speaks_as_the_base_and_gaussian_start_does_not_even_at_1e_3(tiny_path: Path):
    seats = {"A": SeatConfig(init="zero"), "B": SeatConfig(init="gaussian", init_std=1e-3)}
    adapters = Adapters(base(tiny_path), seats, seed=0)
    assert torch.equal(heard(adapters, "A"), heard(adapters, BASE))
    assert (heard(adapters, "B") - heard(adapters, BASE)).abs().max() > 1e-4


def test_a_seat_is_the_base_until_something_is_added(tiny_path: Path):
    found = Adapters(base(tiny_path), {"A": SeatConfig(), "B": SeatConfig(init="gaussian")}, seed=0)
    assert [found.is_the_base(seat) for seat in "AB"] == [True, False]
    found.load_state("A", found.state("B"))
    assert not found.is_the_base("A")


def test_a_seat_starts_the_same_whatever_stands_beside_it(tiny_path: Path):
    both = Adapters(base(tiny_path), {"A": STRONG, "B": STRONG}, seed=3)
    other_order = Adapters(base(tiny_path), {"B": STRONG, "A": STRONG}, seed=3)
    alone = Adapters(base(tiny_path), {"B": STRONG}, seed=3)
    for name, tensor in both.state("B").items():
        assert torch.equal(tensor, other_order.state("B")[name])
        assert torch.equal(tensor, alone.state("B")[name])
    another_seed = Adapters(base(tiny_path), {"B": STRONG}, seed=4).state("B")
    assert any(not torch.equal(tensor, another_seed[name]) for name, tensor in alone.state("B").items())


def test_initial_weights_have_pefts_scale_and_the_asked_noise(tiny_path: Path):
    adapters = Adapters(base(tiny_path), {"B": SeatConfig(rank=16, init="gaussian", init_std=0.01)}, seed=0)
    ours = adapters.state("B")
    theirs = get_peft_model(base(tiny_path), LoraConfig(r=16, target_modules="all-linear", task_type="CAUSAL_LM"))
    down = next(name for name in ours if "lora_A" in name)
    reference = theirs.get_parameter(down.replace(".weight", ".default.weight"))
    assert ours[down].abs().max() <= 1 / 8  # 1 / sqrt(64)
    assert ours[down].std().item() == pytest.approx(reference.std().item(), rel=0.15)
    up = torch.cat([tensor.flatten() for name, tensor in ours.items() if "lora_B" in name])
    assert up.std().item() == pytest.approx(0.01, rel=0.05)


@pytest.mark.parametrize("name", ["A", "B", BASE, "B@old"])
def test_nothing_that_speaks_becomes_trainable(adapters: Adapters, name: str):
    adapters.snapshot("B", "B@old")
    adapters.activate("A")
    with adapters.speaking(name):
        out = adapters.model(input_ids=IDS).logits
        assert trainable(adapters) == set() or name == BASE
        assert not out.requires_grad
    assert trainable(adapters) == {"A"}


def test_what_was_active_is_active_again_after_an_error(adapters: Adapters):
    adapters.activate("B")
    with pytest.raises(RuntimeError, match="mid-sentence"), adapters.speaking("A"):
        raise RuntimeError("mid-sentence")
    assert trainable(adapters) == {"B"}


def test_a_gradient_reaches_only_the_active_seat(adapters: Adapters):
    adapters.activate("B")
    adapters.model(input_ids=IDS).logits.sum().backward()
    assert all(p.grad is None for p in adapters.parameters("A").values())
    assert all(p.grad is not None for p in adapters.parameters("B").values())
    adapters.activate("A")
    assert all(p.grad is not None for p in adapters.parameters("B").values())  # kept over the switch


def test_a_snapshot_speaks_as_it_did_while_its_seat_moves_on(adapters: Adapters):
    before = heard(adapters, "B")
    adapters.snapshot("B", "B@0")
    with torch.no_grad():
        for parameter in adapters.parameters("B").values():
            parameter.add_(0.05)
    after = heard(adapters, "B")
    assert not torch.allclose(before, after)
    assert torch.equal(heard(adapters, "B@0"), before)
    adapters.snapshot("B", "B@1")
    assert torch.equal(heard(adapters, "B@1"), after)
    assert torch.equal(heard(adapters, "B@0"), before)
    adapters.restore("B", "B@0")
    assert torch.equal(heard(adapters, "B"), before)
    adapters.snapshot("B", "B@1")  # in the place of the other of this name
    assert torch.equal(heard(adapters, "B@1"), before)


def test_seats_of_different_rank_and_alpha_keep_their_snapshots_apart(tiny_path: Path):
    seats = {"A": STRONG, "B": SeatConfig(rank=4, alpha=16, init="gaussian", init_std=0.1), "C": STRONG}
    adapters = Adapters(base(tiny_path), seats, seed=0)
    for seat in seats:
        adapters.snapshot(seat, f"{seat}@0")
    for seat in seats:
        assert torch.equal(heard(adapters, f"{seat}@0"), heard(adapters, seat))


def test_versions_count_updates_and_frozen_speakers_have_none(adapters: Adapters):
    adapters.moved("A")
    adapters.snapshot("A", "A@1")
    assert [adapters.version(name) for name in ("A", "B", "A@1", BASE)] == [1, 0, -1, -1]


def test_unknown_names_and_unfit_weights_are_refused(adapters: Adapters, tiny_path: Path):
    with pytest.raises(UnknownNameError, match="unknown seat 'C'"):
        adapters.activate("C")
    with pytest.raises(UnknownNameError, match="unknown seat or snapshot 'B@7'"), adapters.speaking("B@7"):
        pass
    with pytest.raises(LiteSelfPlayError, match="cannot take the name"):
        adapters.snapshot("A", "B")
    other = Adapters(base(tiny_path), {"A": SeatConfig(rank=2)}, seed=0)
    with pytest.raises(LiteSelfPlayError, match="do not fit seat 'A'"):
        adapters.load_state("A", other.state("A"))
    for name in ("base", "default", "a.b", "A-frozen", ""):
        with pytest.raises(LiteSelfPlayError, match="cannot be named"):
            Adapters(base(tiny_path), {name: STRONG}, seed=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["A", "B", BASE, "A@then"])
def test_dense_weights_say_the_same_and_leave_no_trace(adapters: Adapters, name: str, dtype: torch.dtype):
    adapters.model.to(dtype)
    adapters.cast_to_float32()
    adapters.snapshot("A", "A@then")
    with torch.no_grad():
        for parameter in adapters.parameters("A").values():
            parameter.add_(0.05)
    before = {key: tensor.clone() for key, tensor in adapters.model.state_dict().items()}
    forwards = [layer.forward for layer in adapters._layers()]
    plain = heard(adapters, name)
    expanded = functools.partial(dense_weight, dtype=dtype)
    speaking = (
        adapters.speaking_dense(name, expanded)
        if dtype == torch.float32
        else adapters.speaking_stacked(name, adapters.stacked(expanded, instead=False))
    )
    with speaking:
        dense = said(adapters.model)
    difference = (dense.float() - plain.float()).abs()
    assert dtype == torch.bfloat16 or difference.max() < 1e-4
    others = {other: heard(adapters, other) for other in ("A", "B", BASE, "A@then") if other != name}
    assert all(difference.mean() < 0.2 * (dense.float() - other.float()).abs().mean() for other in others.values())
    assert torch.equal(heard(adapters, name), plain)
    assert [layer.forward for layer in adapters._layers()] == forwards
    assert trainable(adapters) == {"A"}
    after = adapters.model.state_dict()
    assert all(torch.equal(after[key], tensor) for key, tensor in before.items())


def test_dense_weights_go_after_an_error(adapters: Adapters):
    plain = heard(adapters, "A")
    dense = functools.partial(dense_weight, dtype=torch.float32)
    with pytest.raises(KeyboardInterrupt), adapters.speaking_dense("B", dense):
        raise KeyboardInterrupt
    assert torch.equal(heard(adapters, "A"), plain)


def test_the_memory_of_dense_weights_is_that_of_all_linear_layers(adapters: Adapters, tiny_path: Path):
    linear = {id(m): m for n, m in base(tiny_path).named_modules() if isinstance(m, torch.nn.Linear) and n != "lm_head"}
    numbers = sum(module.weight.numel() for module in linear.values())
    assert sum(adapters.dense_bytes(torch.float32)) == 4 * numbers
    assert sum(adapters.dense_bytes(torch.bfloat16)) == 2 * numbers


# Over a PEFT model that another library built


def built(path: Path) -> Adapters:
    """Seats as they are under a library that calls its first adapter `default`."""
    return Adapters(base(path), {"A": STRONG, "B": STRONG}, seed=0, build=get_peft_model)


def test_a_first_adapter_called_default_is_a_seat_like_any_other(tiny_path: Path, tmp_path: Path, adapters: Adapters):
    other = built(tiny_path)
    assert set(other.model.peft_config) == {"default", "B"}
    assert list(other.parameters("A")) == list(adapters.parameters("A"))
    assert other.ranks() == adapters.ranks()
    for seat in ("A", "B", BASE):
        assert torch.equal(heard(other, seat), heard(adapters, seat))
    for seat in ("A", "B"):
        other.activate(seat)
        assert trainable(other) == {{"A": "default"}.get(seat, seat)}
        other.save(seat, tmp_path / seat)
        adapters.load(seat, tmp_path / seat)
        assert all(torch.equal(value, adapters.state(seat)[key]) for key, value in other.state(seat).items())
    other.snapshot("A", "kept")
    before = heard(other, "A")
    other.load_state("A", other.state("B"))
    assert torch.equal(heard(other, "kept"), before)
    other.restore("A", "kept")
    assert torch.equal(heard(other, "A"), before)


def test_later_seats_adapt_the_layers_of_the_first(tiny_path: Path):
    def narrow(model: Any, config: LoraConfig) -> PeftModel:
        return get_peft_model(model, LoraConfig(r=config.r, lora_alpha=config.lora_alpha, target_modules=["q_proj"]))

    adapters = Adapters(base(tiny_path), {"A": STRONG, "B": STRONG}, seed=0, build=narrow)
    names = {seat: [name.split(".lora_")[0] for name in adapters.parameters(seat)] for seat in ("A", "B")}
    assert names["A"] == names["B"] != []
    assert all(name.endswith("q_proj") for name in names["B"])

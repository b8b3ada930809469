import functools

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from transformers import AutoModelForCausalLM

from lite_selfplay.config import SeatConfig
from lite_selfplay.errors import LiteSelfPlayError, UnknownNameError
from lite_selfplay.models.adapters import BASE, Adapters
from lite_selfplay.models.backends.transformers import dense_weight
from tests.made import same_weights
from tests.models.watch import IDS, heard, move, said, trainable

STRONG = SeatConfig(rank=4, alpha=8, init="gaussian", init_std=0.1)


@pytest.fixture
def base(tiny_path):
    return lambda: AutoModelForCausalLM.from_pretrained(tiny_path, dtype=torch.float32)


@pytest.fixture
def make(base):
    """Seats over the random model: `make(A=SeatConfig())`."""
    return lambda seed=0, build=None, **seats: Adapters(base(), seats, seed=seed, build=build)


@pytest.fixture
def adapters(make):
    return make(A=STRONG, B=STRONG)


def test_a_seat_acts_as_a_model_that_holds_that_adapter_alone_and_the_base_alone(adapters, base, tmp_path):
    for seat in ("A", "B"):
        adapters.save(seat, tmp_path / seat)
        assert torch.equal(heard(adapters, seat), said(PeftModel.from_pretrained(base(), tmp_path / seat)))
    assert torch.equal(heard(adapters, BASE), said(base()))
    names = ("A", "B", BASE)
    assert not any(torch.allclose(heard(adapters, a), heard(adapters, b)) for a in names for b in names if a < b)


def test_zero_start_acts_as_the_base_and_gaussian_start_does_not_even_at_1e_3(make):
    adapters = make(A=SeatConfig(init="zero"), B=SeatConfig(init="gaussian", init_std=1e-3))
    assert [adapters.is_the_base(seat) for seat in "AB"] == [True, False]
    assert torch.equal(heard(adapters, "A"), heard(adapters, BASE))
    assert (heard(adapters, "B") - heard(adapters, BASE)).abs().max() > 1e-4
    adapters.load_state("A", adapters.state("B"))
    assert not adapters.is_the_base("A")


def test_a_seat_starts_the_same_whatever_stands_beside_it(make):
    alone, both, other_order = make(3, B=STRONG), make(3, A=STRONG, B=STRONG), make(3, B=STRONG, A=STRONG)
    assert same_weights(both.state("B"), alone.state("B"))
    assert same_weights(other_order.state("B"), alone.state("B"))
    assert not same_weights(make(4, B=STRONG).state("B"), alone.state("B"))


def test_initial_weights_have_pefts_scale_and_the_asked_noise(make, base):
    ours = make(B=SeatConfig(rank=16, init="gaussian", init_std=0.01)).state("B")
    theirs = get_peft_model(base(), LoraConfig(r=16, target_modules="all-linear", task_type="CAUSAL_LM"))
    down = next(name for name in ours if "lora_A" in name)
    reference = theirs.get_parameter(down.replace(".weight", ".default.weight"))
    assert ours[down].abs().max() <= 1 / 8  # 1 / sqrt(64)
    assert ours[down].std().item() == pytest.approx(reference.std().item(), rel=0.15)
    up = torch.cat([tensor.flatten() for name, tensor in ours.items() if "lora_B" in name])
    assert up.std().item() == pytest.approx(0.01, rel=0.05)


def test_nothing_in_the_forward_pass_becomes_trainable_and_what_was_active_is_active_again(adapters):
    adapters.snapshot("B", "B@old")
    for name in ("A", "B", BASE, "B@old"):
        with adapters.inference(name):
            assert trainable(adapters) == set() or name == BASE
            assert not adapters.model(input_ids=IDS).logits.requires_grad
        assert trainable(adapters) == {"seat-0"}
    adapters.activate("B")
    with pytest.raises(RuntimeError, match="mid-sentence"), adapters.inference("A"):
        raise RuntimeError("mid-sentence")
    assert trainable(adapters) == {"seat-1"}


@pytest.mark.parametrize("name", ["model", "layers", "mlp", "q_proj", "lora_A", "weight", "0", "default", "seat-1"])
def test_a_seat_may_be_called_like_a_part_of_the_model(make, tmp_path, name):
    adapters = make(**{name: STRONG, "other": STRONG})
    assert adapters.parameters(name).keys().isdisjoint(adapters.parameters("other"))
    before = heard(adapters, "other")
    move(adapters, name)
    assert torch.equal(heard(adapters, "other"), before)
    adapters.save(name, tmp_path)
    fresh = make(**{name: SeatConfig(rank=STRONG.rank, alpha=STRONG.alpha)})
    fresh.load(name, tmp_path)
    assert torch.equal(heard(fresh, name), heard(adapters, name))
    assert len(adapters.state(name)) == 2 * len(adapters._layers)


def test_a_gradient_reaches_only_the_active_seat(adapters):
    adapters.activate("B")
    adapters.model(input_ids=IDS).logits.sum().backward()
    assert all(p.grad is None for p in adapters.parameters("A").values())
    adapters.activate("A")
    assert all(p.grad is not None for p in adapters.parameters("B").values())  # kept over the switch


def test_a_snapshot_acts_as_it_did_while_its_seat_moves_on(adapters):
    before = heard(adapters, "B")
    adapters.snapshot("B", "B@0")
    move(adapters, "B")
    after = heard(adapters, "B")
    assert not torch.allclose(before, after)
    adapters.snapshot("B", "B@1")
    assert torch.equal(heard(adapters, "B@1"), after)
    assert torch.equal(heard(adapters, "B@0"), before)
    adapters.restore("B", "B@0")
    assert torch.equal(heard(adapters, "B"), before)
    adapters.snapshot("B", "B@1")  # in the place of the other of this name
    assert torch.equal(heard(adapters, "B@1"), before)
    adapters.moved("A")
    # A version counts updates and snapshots put back; frozen speakers have none.
    assert [adapters.version(name) for name in ("A", "B", "B@1", BASE)] == [1, 1, -1, -1]


def test_a_blend_moves_its_seat_alone_to_the_mean_of_its_parents_and_noise(make):
    seats = {"A": STRONG, "B": STRONG.model_copy(update={"rank": 2}), "C": SeatConfig(rank=8, alpha=4)}
    adapters, again = make(**seats), make(**seats)
    before = {seat: adapters.state(seat) for seat in "AB"}

    def products(seat: str) -> dict[str, torch.Tensor]:
        state, scale = adapters.state(seat), seats[seat].alpha / seats[seat].rank
        return {key: scale * state[key.replace("lora_A", "lora_B")] @ state[key] for key in state if "lora_A" in key}

    adapters.blend("C", ("A", "B"), 0.0, 1)
    for key, mean in products("C").items():
        assert torch.allclose(mean, (products("A")[key] + products("B")[key]) / 2, atol=1e-6)
    plain = adapters.state("C")
    for each in (adapters, again):
        each.blend("C", ("A", "B"), 0.1, 1)
    assert same_weights(adapters.state("C"), again.state("C"))
    for key, weights in plain.items():
        noise = adapters.state("C")[key] - weights
        assert float(noise.std() / weights.square().mean().sqrt()) == pytest.approx(0.1, rel=0.3)
    adapters.blend("C", ("A", "B"), 0.1, 2)
    assert not same_weights(adapters.state("C"), again.state("C"))
    assert all(same_weights(adapters.state(seat), before[seat]) for seat in "AB")
    assert [adapters.version(seat) for seat in "ABC"] == [0, 0, 3]


def test_seats_of_different_rank_and_alpha_keep_their_snapshots_apart(make):
    seats = {"A": STRONG, "B": STRONG.model_copy(update={"alpha": 16}), "C": STRONG}
    adapters = make(**seats)
    for seat in seats:
        adapters.snapshot(seat, f"{seat}@0")
    assert all(torch.equal(heard(adapters, f"{seat}@0"), heard(adapters, seat)) for seat in seats)


def test_unknown_names_and_unfit_weights_are_refused(adapters, make):
    with pytest.raises(UnknownNameError, match="unknown seat 'C'"):
        adapters.activate("C")
    with pytest.raises(UnknownNameError, match="unknown seat or snapshot 'B@7'"), adapters.inference("B@7"):
        pass
    with pytest.raises(LiteSelfPlayError, match="cannot take the name"):
        adapters.snapshot("A", "B")
    with pytest.raises(LiteSelfPlayError, match="do not fit seat 'A'"):
        adapters.load_state("A", make(A=SeatConfig(rank=2)).state("A"))
    for name in ("base", "a.b", ""):
        with pytest.raises(LiteSelfPlayError, match="cannot be named"):
            make(**{name: STRONG})


def test_packed_weights_go_after_an_error_and_their_memory_is_that_of_all_linear_layers(adapters, base):
    plain = heard(adapters, "A")
    dense = functools.partial(dense_weight, dtype=torch.float32)
    with pytest.raises(KeyboardInterrupt), adapters.inference_packed("B", dense):
        raise KeyboardInterrupt
    assert torch.equal(heard(adapters, "A"), plain)
    linear = {id(m): m for n, m in base().named_modules() if isinstance(m, torch.nn.Linear) and n != "lm_head"}
    numbers = sum(module.weight.numel() for module in linear.values())
    assert sum(adapters.dense_bytes(torch.float32)) == 4 * numbers
    assert sum(adapters.dense_bytes(torch.bfloat16)) == 2 * numbers


# Over a PEFT model that another library built


def test_a_first_adapter_called_default_is_a_seat_like_any_other(make, tmp_path, adapters):
    other = make(build=get_peft_model, A=STRONG, B=STRONG)
    assert set(other.model.peft_config) == {"default", "seat-1"}
    assert list(other.parameters("A")) == list(adapters.parameters("A"))
    assert other.ranks() == adapters.ranks()
    for seat in ("A", "B", BASE):
        assert torch.equal(heard(other, seat), heard(adapters, seat))
    for seat, name in (("A", "default"), ("B", "seat-1")):
        other.activate(seat)
        assert trainable(other) == {name}
        other.save(seat, tmp_path / seat)
        adapters.load(seat, tmp_path / seat)
        assert same_weights(other.state(seat), adapters.state(seat))
    other.snapshot("A", "kept")
    before = heard(other, "A")
    other.load_state("A", other.state("B"))
    assert torch.equal(heard(other, "kept"), before)
    other.restore("A", "kept")
    assert torch.equal(heard(other, "A"), before)


def test_later_seats_adapt_the_layers_of_the_first(make):
    def narrow(model, config):
        return get_peft_model(model, LoraConfig(r=config.r, lora_alpha=config.lora_alpha, target_modules=["q_proj"]))

    adapters = make(build=narrow, A=STRONG, B=STRONG)
    names = {seat: [name.split(".lora_")[0] for name in adapters.parameters(seat)] for seat in ("A", "B")}
    assert names["A"] == names["B"] != []
    assert all(name.endswith("q_proj") for name in names["B"])


def test_layers_that_compute_together_change_speakers_without_peft(adapters, monkeypatch):
    """PEFT walks over every module for each change, and lists all weights to find a seat's."""
    adapters.snapshot("B", "B@old")
    names, keys = ("A", "B", BASE, "B@old"), adapters.state("B").keys()
    expected = {name: heard(adapters, name) for name in names}
    theirs = get_peft_model_state_dict(adapters.model, adapter_name="seat-1")
    assert list(theirs) == list(keys)
    assert same_weights(theirs, adapters.state("B"))
    adapters.compute_together(functools.partial(dense_weight, dtype=torch.float32))
    heard(adapters, "B@old")  # its twin is made, which is PEFT's
    adapters.activate("A")
    for owner, name in (
        (torch.nn.Module, "named_modules"),
        (torch.nn.Module, "modules"),
        (torch.nn.Module, "state_dict"),
    ):
        monkeypatch.setattr(owner, name, lambda *_, name=name, **__: pytest.fail(name))
    for name in names:
        with adapters.inference(name):
            found = adapters.model.base_model(input_ids=IDS).logits
            assert not found.requires_grad
            with adapters.inference(BASE):
                assert torch.allclose(adapters.model.base_model(input_ids=IDS).logits, expected[BASE], atol=1e-5)
            assert torch.equal(adapters.model.base_model(input_ids=IDS).logits, found)
        assert torch.allclose(found, expected[name], atol=1e-5)
        assert adapters.model.base_model(input_ids=IDS).logits.requires_grad
    adapters.activate("A")
    assert same_weights(theirs, adapters.state("B"))

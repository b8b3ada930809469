"""Layers with the same input as one product, with another seat's adapter copied in, compared with PEFT's own layers."""

import functools

import pytest
import torch
from torch import nn

from lite_selfplay.config import SeatConfig
from lite_selfplay.models.adapters import BASE, Adapters
from lite_selfplay.models.backends.transformers import dense_weight, load_base
from lite_selfplay.models.linear import LowRank
from lite_selfplay.models.stacked import Stack, packed, take, together
from tests.models.watch import heard, move, said, trainable
from tests.near import near

SEATS = {
    "A": SeatConfig(rank=4, alpha=8, init="gaussian", init_std=0.1),
    "B": SeatConfig(rank=2, alpha=2, init="gaussian", init_std=0.1),  # less than there is room for
}
DENSE = functools.partial(dense_weight, dtype=torch.float32)


@pytest.fixture
def adapters(tiny_path):
    return Adapters(load_base(tiny_path, "fp32", torch.float32, torch.device("cpu")), SEATS, seed=0)


@pytest.mark.parametrize("way", ["packed", "instead", "expanded", "beside"])
def test_every_seat_samples_the_same_however_often_they_take_turns_and_leaves_no_trace(adapters, way):
    adapters.snapshot("A", "A@then")
    move(adapters, "A")
    names = ("A", "B", BASE, "A@then")
    plain = {name: heard(adapters, name) for name in names}
    assert all((plain[a] - plain[b]).abs().max() > 0.1 for a in names for b in names if a < b)
    weights = {key: tensor.clone() for key, tensor in adapters.model.state_dict().items()}
    forwards = [layer.forward for layer in adapters._layers.values()]
    assert adapters.stackable
    stacks = adapters.beside(torch.float32) if way == "beside" else adapters.stacked(DENSE, instead=way == "instead")

    def places():
        own = [stack for stack, _ in stacks if isinstance(stack, Stack)]
        return [tensor.data_ptr() for stack in own for tensor in (stack.weight, stack.up)]

    before = places()
    for name in ("A", "B", BASE, "A@then", "B", "A"):
        packed = way == "packed"
        with adapters.inference_packed(name, DENSE) if packed else adapters.inference_stacked(name, stacks):
            assert near(said(adapters.model), plain[name], 2e-4)
            assert places() == before  # a seat that takes over moves no tensor
        assert near(heard(adapters, name), plain[name], 1e-6)
        assert [layer.forward for layer in adapters._layers.values()] == forwards
        assert trainable(adapters) == {"seat-0"}
    after = adapters.model.state_dict()
    assert all(torch.equal(after[key], tensor) for key, tensor in weights.items())


def test_weights_that_lie_in_stacks_take_their_memory_once_and_give_the_same_gradients(adapters):
    def gradients():
        adapters.activate("A")
        adapters.model(torch.tensor([[5, 6, 7, 8]])).logits.square().mean().backward()
        found = [p.grad.clone() for p in adapters.parameters("A").values()]
        adapters.model.zero_grad()
        return found

    before = gradients()
    stacks = adapters.stacked(DENSE, instead=True)
    with adapters.inference_stacked("B", stacks):
        said(adapters.model)
    assert all(map(torch.equal, before, gradients()))
    for stack, layers in stacks:
        assert isinstance(stack, Stack)
        for layer in layers:
            own = layer.get_base_layer().weight.untyped_storage()
            assert own.data_ptr() == stack.weight.untyped_storage().data_ptr()


def test_layers_go_together_by_block_and_name():
    names = [f"{block}.{name}" for block in "01" for name in ("a.q_proj", "a.v_proj", "a.o_proj", "m.up_proj", "x")]
    assert together(names) == [
        *(["0.a.q_proj", "0.a.v_proj"], ["0.a.o_proj"], ["0.m.up_proj"], ["0.x"]),
        *(["1.a.q_proj", "1.a.v_proj"], ["1.a.o_proj"], ["1.m.up_proj"], ["1.x"]),
    ]


def test_biases_adapters_of_some_layers_and_inputs_that_differ():
    torch.manual_seed(0)
    layers = [nn.Linear(6, 4), nn.Linear(6, 3, bias=False)]
    adapter = LowRank(torch.randn(2, 6), torch.randn(4, 2), 0.5)
    stack = Stack([layer.weight.detach() for layer in layers], [layer.bias for layer in layers], 2)
    x, y = torch.randn(5, 2, 6), torch.randn(3, 6)
    with torch.no_grad():
        for adapters in ([adapter, None], [None, None]):
            take([(stack, adapters)])
            first, second = layers[0](x), layers[1](x)
            if adapters[0] is not None:
                first = first + 0.5 * (x @ adapter.down.T) @ adapter.up.T
            assert near(stack.forward(1, x), second, 1e-6)  # in any order
            assert near(stack.forward(0, x), first, 1e-6)
            assert near(stack.forward(0, x), first, 1e-6)  # and again
            assert near(stack.forward(1, y), layers[1](y), 1e-6)  # another input before both were asked


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "wide", "high"), [(1, 64, 64), (5, 33, 7), (16, 96, 130), (200, 64, 300)])
def test_a_packed_layer_computes_its_product_whatever_its_shape(dtype, rows, wide, high):
    draw = torch.Generator().manual_seed(rows)
    weight, x, bias = (torch.randn(*size, generator=draw) for size in ((high, wide), (rows, wide), (high,)))
    for own in (bias.to(dtype), None):
        forward = packed(weight.to(dtype), own)
        if forward is None:
            assert dtype != torch.float32 or not torch.backends.mkldnn.is_available()
            pytest.skip("this CPU has no such products")
        for given in (x, x[None]):
            found = forward(given.to(dtype)).double()
            right = given.to(dtype).double() @ weight.to(dtype).double().T + (0 if own is None else own.double())
            assert found.shape == right.shape
            # Products are summed in float32; a result is rounded to its type.
            torch.testing.assert_close(found, right, rtol=torch.finfo(dtype).eps, atol=1e-4)


def test_without_packed_products_weights_stay_as_they_are(adapters, monkeypatch):
    stacks = adapters.stacked(DENSE, instead=False)
    assert all(packed(stack.weight.to(torch.float16), None) is None for stack, _ in stacks)
    plain = heard(adapters, "A")
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert packed(torch.ones(2, 2), None) is None
    with adapters.inference_packed("A", DENSE):
        assert near(said(adapters.model), plain, 2e-4)

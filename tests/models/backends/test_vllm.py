"""Seats under the requests that vLLM serves them by: never weights that a seat no longer has."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from lite_selfplay.errors import RequestError, UnknownNameError
from lite_selfplay.models.adapter_files import WEIGHTS
from lite_selfplay.models.adapters import BASE, Adapters
from lite_selfplay.models.backends.vllm import LoraRequests, lora_limits, require_temperature
from lite_selfplay.training.optimizer import adamw


class Served:
    """Adapters, their requests, and what each request's folder holds."""

    def __init__(self, adapters: Adapters, folder: Path):
        self.adapters = adapters
        self.made: list[tuple[str, int, Path]] = []
        self.requests = LoraRequests(adapters, folder, self._make, most=2)

    def _make(self, *request: Any) -> Any:
        self.made.append(request)
        return request

    def holds(self, name: str, state: dict[str, torch.Tensor] | None = None) -> bool:
        """Whether a request for `name` leads to these weights, or to those of now."""
        found = load_file(self.requests.of(name)[2] / WEIGHTS)
        expected = self.adapters.state(name) if state is None else state
        return all(torch.equal(found[key], expected[key]) for key in expected)


@pytest.fixture
def served(make_backend, tmp_path):
    return Served(make_backend().adapters, tmp_path)


def step(adapters: Adapters, seat: str, *, counted: bool = True, **kernels: bool) -> None:
    """An optimizer's step on a seat; a cold start's is not counted as an update."""
    parameters = list(adapters.parameters(seat).values())
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    adamw(parameters, lr=1e-2, **{"fused": False, **kernels}).step()
    if counted:
        adapters.moved(seat)


def test_two_seats_are_served_side_by_side_and_written_once(served):
    for name in ("A", "B", "A", "B"):
        assert served.holds(name)
    assert [number for _, number, _ in served.made] == [1, 2]


@pytest.mark.parametrize("kernels", [{"foreach": False}, {"foreach": True}, {"fused": True}], ids=str)
@pytest.mark.parametrize("counted", [True, False], ids=["an update", "a cold start"])
def test_weights_that_moved_get_a_fresh_id_name_and_folder(served, counted, kernels):
    before = served.adapters.state("A")
    assert served.holds("A")
    step(served.adapters, "A", counted=counted, **kernels)
    assert served.holds("A")
    assert not served.holds("A", before)
    first, second = served.made
    assert all(old != new for old, new in zip(first, second, strict=True))
    assert not first[2].exists()


def test_a_seat_that_was_put_back_is_not_served_as_it_was_in_between(served):
    adapters = served.adapters
    adapters.snapshot("A", "A@0")
    start = adapters.state("A")
    step(adapters, "A")
    assert served.holds("A")
    adapters.restore("A", "A@0")
    assert served.holds("A", start)
    adapters.load_state("A", {key: value + 1 for key, value in start.items()})
    assert served.holds("A")
    assert len(served.made) == 3


def test_snapshots_and_the_base_and_the_least_recently_used_goes(served):
    adapters = served.adapters
    adapters.snapshot("B", "kept")
    start = adapters.state("B")
    step(adapters, "B")
    assert served.holds("kept", start)
    assert served.holds("B")
    adapters.snapshot("B", "kept")
    assert served.holds("kept", adapters.state("B"))
    assert served.holds("A")
    assert [folder.exists() for *_, folder in served.made] == [False, False, True, True]
    assert served.requests.of(BASE) is None
    with pytest.raises(UnknownNameError, match="nobody"):
        served.requests.of("nobody")


def test_the_limits_of_vllm():
    assert lora_limits({"A": 4, "B": 16}) == {"max_lora_rank": 16, "max_loras": 2}
    assert lora_limits({"A": 24}) == {"max_lora_rank": 32, "max_loras": 1}
    assert lora_limits({"A": 300})["max_lora_rank"] == 320
    with pytest.raises(RequestError, match="up to rank 512, and a seat has rank 513"):
        lora_limits({"A": 513})
    for temperature in (0.0, 0.01, 2.0):
        require_temperature(temperature, "")
    for temperature in (2.5, 0.005):
        with pytest.raises(RequestError, match=f"from 0.01 to 2, and {temperature:g} is asked for: do it"):
            require_temperature(temperature, "do it")

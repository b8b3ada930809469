"""Seats served by an engine that refuses what vLLM refuses: never weights that a seat no longer has."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from lite_selfplay.data import Sampling
from lite_selfplay.errors import RequestError, UnknownNameError
from lite_selfplay.models.adapter_files import WEIGHTS
from lite_selfplay.models.adapters import BASE, Adapters
from lite_selfplay.models.backends.vllm import Engine, lora_limits
from lite_selfplay.models.generation.sampling import GenerationRequest
from lite_selfplay.training.optimizer import adamw
from tests.models.backends.vllm_engine import LLM, install
from tests.models.spoken import asked


@pytest.fixture(autouse=True)
def _vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)


def checksum(state: dict[str, torch.Tensor]) -> int:
    return hash(tuple(float(state[key].double().sum()) for key in sorted(state)))


class Served:
    """Adapters, an engine over them, and what it says for a seat."""

    def __init__(self, adapters: Adapters, **engine: Any):
        self.adapters = adapters
        self.llm = LLM(
            load=lambda folder: checksum(load_file(folder / WEIGHTS)),
            speak=lambda served, ids, params: ([*ids, served or 0, 2], [-0.5] * (len(ids) + 2), "stop"),
            **{"max_loras": 2, "logprobs_mode": "processed_logprobs", **engine},
        )
        self.engine = Engine(self.llm, adapters)

    def word(self, name: str, temperature: float = 1.0) -> int:
        request = asked(name, [[7]], 1, max_tokens=3, temperature=temperature)
        ((said,),) = self.engine.generate(request, [2])
        return said.token_ids[1]

    def now(self, name: str) -> int:
        kept = self.adapters.snapshots.get(name)
        return checksum(kept.state if kept else self.adapters.state(name))


@pytest.fixture
def serve(make_backend):
    return lambda **engine: Served(make_backend().adapters, **engine)


@pytest.fixture
def served(serve):
    return serve()


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
        assert served.word(name) == served.now(name)
    assert [lora.lora_int_id for lora in served.llm.asked] == [1, 2, 1, 2]
    assert served.word("A") != served.word("B")


@pytest.mark.parametrize("kernels", [{"foreach": False}, {"foreach": True}, {"fused": True}], ids=str)
@pytest.mark.parametrize("counted", [True, False], ids=["an update", "a cold start"])
def test_weights_that_moved_get_a_fresh_id_and_folder(served, counted, kernels):
    before = served.word("A")
    step(served.adapters, "A", counted=counted, **kernels)
    assert served.word("A") == served.now("A") != before
    first, second = served.llm.asked
    assert (first.lora_int_id, second.lora_int_id) == (1, 2)
    # The engine finds the prompts that it has read by the name and the path.
    assert first.lora_name != second.lora_name
    assert first.lora_path != second.lora_path
    assert list(served.llm.loaded) == [2]
    assert not Path(first.lora_path).exists()


def test_a_seat_that_was_put_back_is_not_served_as_it_was_in_between(served):
    adapters = served.adapters
    adapters.snapshot("A", "A@0")
    start = served.word("A")
    step(adapters, "A")
    moved = served.word("A")
    adapters.restore("A", "A@0")
    assert served.word("A") == start != moved
    adapters.load_state("A", {key: value + 1 for key, value in adapters.state("A").items()})
    assert served.word("A") == served.now("A") not in (start, moved)
    assert len({lora.lora_int_id for lora in served.llm.asked}) == 4


def test_snapshots_and_the_base(served):
    adapters = served.adapters
    adapters.snapshot("B", "kept")
    first = served.word("kept")
    assert first == served.word("B")
    step(adapters, "B")
    assert served.word("kept") == first != served.word("B")
    adapters.snapshot("B", "kept")
    assert served.word("kept") == served.word("B")
    assert served.word(BASE) == 0
    assert served.llm.asked[-1] is None
    with pytest.raises(UnknownNameError, match="nobody"):
        served.word("nobody")


def test_what_the_engine_is_told_and_what_comes_back(served):
    sampling = Sampling(temperature=0.7, top_p=0.9, top_k=0, max_tokens=9, stop=("x",))
    said = served.engine.generate(GenerationRequest("A", [[5], [6]], 2, sampling, [[1, 2], [3, 2**64 + 4]]), [3, 2])
    assert [[out.token_ids[0] for out in group] for group in said] == [[5, 5], [6, 6]]
    assert {out.stop for group in said for out in group} == {"eos"}
    assert said[0][0].logprobs == [-0.5] * 3
    assert [params.seed for params in served.llm.params] == [1, 2, 3, 4]
    told = served.llm.params[0]
    assert (told.temperature, told.top_p, told.top_k, told.max_tokens) == (0.7, 0.9, 0, 9)
    assert (told.stop, told.stop_token_ids, told.logprobs) == (["x"], [2, 3], 0)

    for reason, stop in (("length", "length"), ("stop", "string")):
        served.llm.speak = lambda *_, reason=reason: ([5, 6], [-0.5] * 2, reason)
        ((out,),) = served.engine.generate(asked("A", [[7]], 1, max_tokens=3), [2])
        assert (out.token_ids, out.stop) == ([5, 6], stop)


def test_an_engine_sleeps_while_the_seats_learn_if_it_can_and_wakes_when_it_is_asked(serve, monkeypatch):
    served = serve(enable_sleep_mode=True)
    assert served.word("A") == served.now("A")
    served.engine.sleep()
    served.engine.sleep()
    assert served.llm.calls == ["sleep 0", "release"]
    assert not served.llm.keys_and_values
    step(served.adapters, "A")
    assert [served.word(name) for name in "AB"] == [served.now(name) for name in "AB"]
    assert served.llm.calls == ["sleep 0", "release", "wake_up"]
    awake = serve()
    awake.engine.sleep()
    assert awake.llm.calls == []
    served.engine.sleep()
    monkeypatch.setattr(LLM, "wake_up", lambda self: False)
    with pytest.raises(RequestError, match="did not wake up"):
        served.word("A")


def test_temperatures_that_vllm_refuses_or_changes_and_what_is_noted_before_them(serve):
    served = serve(logprobs_mode="raw_logprobs")
    for temperature in (2.5, 0.005):
        with pytest.raises(RequestError, match=f"from 0.01 to 2, and {temperature:g} is asked for"):
            served.word("A", temperature)
    assert served.word("A") == served.now("A")
    with pytest.raises(RequestError, match=r"before the temperature \(raw_logprobs\)"):
        served.word("A", 0.7)


def test_the_limits_that_an_engine_is_started_with(serve):
    assert lora_limits({"A": 4, "B": 16}) == {"max_lora_rank": 16, "max_loras": 2}
    assert lora_limits({"A": 24}) == {"max_lora_rank": 32, "max_loras": 1}
    assert lora_limits({"A": 300})["max_lora_rank"] == 320
    with pytest.raises(RequestError, match="up to rank 512, and a seat has rank 513"):
        lora_limits({"A": 513})
    with pytest.raises(ValueError, match="rank 4 is greater than max_lora_rank 1"):
        serve(max_lora_rank=1).word("A")
    with pytest.raises(ValueError, match="max_lora_rank"):
        serve(max_lora_rank=4)

"""Seats served by an engine that refuses what vLLM refuses: never weights that a seat no longer has."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lite_selfplay.config import SeatConfig
from lite_selfplay.data import Sampling
from lite_selfplay.errors import RequestError
from lite_selfplay.models.adapters import BASE, Adapters
from lite_selfplay.models.backends.vllm import Engine, lora_limits
from lite_selfplay.models.generation.sampling import GenerationRequest
from lite_selfplay.training.sampler_check import BOUNDS, usual_gap
from tests.models.backends.vllm_engine import LLM, LoRARequest, SamplingParams

PROMPTS = [[5, 6, 7, 8], [20, 21]]
SEEDS = [[1, 2], [3, 4]]
PLAIN = Sampling(max_tokens=12)


class Served:
    """A backend that is trained, and an engine over a copy of its base that speaks by the folders it is given."""

    def __init__(self, make_backend: Callable[..., Any], **engine: Any):
        self.backend, self._copy = make_backend(), make_backend()
        ranks = self.backend.adapters.ranks()
        self.llm = LLM(
            load=lambda folder: folder_state(self._copy, folder), speak=self._speak, **{**lora_limits(ranks), **engine}
        )
        self.engine = Engine(self.llm, self.backend.adapters, params=SamplingParams, lora=LoRARequest)

    def _speak(self, state: Any, ids: Any, params: SamplingParams) -> tuple[list[int], list[float], str]:
        if state is not None:
            self._copy.adapters.load_state("A", state)
        sampling = Sampling(temperature=params.temperature, max_tokens=params.max_tokens or 16)
        request = GenerationRequest("A" if state is not None else BASE, [ids], 1, sampling, [[params.seed or 0]])
        ((said,),) = self._copy.generate(request)
        logprobs = said.logprobs
        if self.llm.logprobs_mode == "raw_logprobs":
            (score,) = self._copy.score(request.seat, [(ids, said.token_ids)], 1.0)
            logprobs = list(score.logprobs)
        return said.token_ids, logprobs, "stop" if said.stop == "eos" else "length"

    def gap(self, seat: str, sampling: Sampling = PLAIN) -> float:
        """What the sampler check compares: log-probabilities noted by the engine against the seat's own."""
        said = self.engine.generate(GenerationRequest(seat, PROMPTS, 2, sampling, SEEDS), [2])
        rows = [(prompt, out.token_ids) for prompt, group in zip(PROMPTS, said, strict=True) for out in group]
        scores = self.backend.score(seat, rows, sampling.temperature)
        noted = [out.logprobs for out in itertools.chain(*said)]
        found = usual_gap([(a, b.logprobs) for a, b in zip(noted, scores, strict=True)])
        assert found is not None
        return found

    def step(self, seat: str) -> None:
        with torch.no_grad():
            for parameter in self.backend.adapters.parameters(seat).values():
                parameter.add_(0.05)
        self.backend.adapters.moved(seat)


def folder_state(backend: Any, folder: Path) -> Any:
    from lite_selfplay.models.adapters import check_folder

    return check_folder(backend.adapters, "A", folder)


BOUND = BOUNDS["float32"]


def test_seats_snapshots_and_the_base_are_served_as_they_are_now(make_backend: Callable[..., Any]):
    served = Served(make_backend)
    adapters = served.backend.adapters
    adapters.snapshot("A", "A@0")
    for _ in range(2):
        for name in ("A", "B", "A@0", BASE, "A"):
            assert served.gap(name) < BOUND.rounding
        served.step("A")
    adapters.restore("A", "A@0")
    assert served.gap("A") < BOUND.rounding
    assert len(served.llm.loaded) <= served.llm.max_loras == 2


@pytest.mark.parametrize("forgotten", ["state_key", "name"])
def test_the_sampler_check_sees_an_engine_that_serves_older_weights(
    make_backend: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, forgotten: str
):
    """Either way: the id stays the same, or the name and path do, under which read prompts are kept."""
    if forgotten == "state_key":
        monkeypatch.setattr(Adapters, "state_key", lambda self, name: ())
        served = Served(make_backend)
    else:
        served = Served(make_backend)
        make = served.engine._requests._make
        served.engine._requests._make = lambda name, number, folder: SameName(make(name, number, folder))
    assert served.gap("A") < BOUND.rounding
    served.step("A")
    assert served.gap("A") > BOUND.most


class SameName:
    """A request under a name and path that an earlier version had, with an id of its own."""

    def __init__(self, request: LoRARequest):
        self.lora_int_id, self._path = request.lora_int_id, request.lora_path
        self.lora_name = "A"

    @property
    def lora_path(self) -> Any:
        return _SamePath(self._path)


class _SamePath(str):
    """Another folder that counts as the same one."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _SamePath)

    def __hash__(self) -> int:
        return 0


def test_an_engine_sleeps_while_the_seats_learn_and_wakes_when_it_is_asked(make_backend: Callable[..., Any]):
    served = Served(make_backend, enable_sleep_mode=True)
    assert served.gap("A") < BOUND.rounding
    served.engine.sleep()
    served.engine.sleep()
    assert served.llm.calls == ["sleep 0", "release"]
    assert not served.llm.keys_and_values
    served.step("A")
    assert served.gap("A") < BOUND.rounding
    assert served.llm.calls == ["sleep 0", "release", "wake_up"]
    assert served.gap("B") < BOUND.rounding
    assert len(served.llm.calls) == 3


def test_an_engine_that_cannot_sleep_is_left_awake(make_backend: Callable[..., Any]):
    served = Served(make_backend)
    served.engine.sleep()
    assert served.llm.calls == []


def test_an_engine_that_does_not_wake_up_is_not_asked(
    make_backend: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
):
    served = Served(make_backend, enable_sleep_mode=True)
    served.engine.sleep()
    monkeypatch.setattr(LLM, "wake_up", lambda self: False)
    with pytest.raises(RequestError, match="did not wake up"):
        served.gap("A")


@pytest.mark.parametrize("temperature", [2.5, 0.005])
def test_temperatures_that_vllm_refuses_or_changes(make_backend: Callable[..., Any], temperature: float):
    served = Served(make_backend)
    with pytest.raises(RequestError, match=f"from 0.01 to 2, and {temperature:g} is asked for"):
        served.gap("A", Sampling(temperature=temperature, max_tokens=4))


def test_log_probabilities_before_the_temperature_are_nothing_to_train_on(make_backend: Callable[..., Any]):
    warm = Sampling(temperature=0.7, max_tokens=24)
    served = Served(make_backend)
    with pytest.raises(RequestError, match=r"before the temperature \(raw_logprobs\)"):
        served.gap("A", warm)
    served.engine._config.logprobs_mode = "processed_logprobs"  # what it would say if it were believed
    assert served.gap("A", warm) > BOUND.most
    assert Served(make_backend, logprobs_mode="processed_logprobs").gap("A", warm) < BOUND.rounding


def test_the_limits_that_an_engine_is_started_with():
    assert lora_limits({"A": 4, "B": 16}) == {"max_lora_rank": 16, "max_loras": 2}
    assert lora_limits({"A": 24}) == {"max_lora_rank": 32, "max_loras": 1}
    assert lora_limits({"A": 300})["max_lora_rank"] == 320
    with pytest.raises(RequestError, match="up to rank 512, and a seat has rank 513"):
        lora_limits({"A": 513})


def test_an_engine_refuses_ranks_it_was_not_started_for(make_backend: Callable[..., Any]):
    seats = {"A": SeatConfig(rank=4, alpha=8, init="gaussian", init_std=0.1)}
    served = Served(lambda: make_backend(seats=seats), max_lora_rank=1)
    with pytest.raises(ValueError, match="rank 4 is greater than max_lora_rank 1"):
        served.gap("A")
    with pytest.raises(ValueError, match="max_lora_rank"):
        Served(make_backend, max_lora_rank=4)

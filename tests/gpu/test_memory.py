"""Memory on the card: what a second seat costs, what happens where it runs out, and what `plan` says of it."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from lite_selfplay import RunConfig, train
from lite_selfplay.config import ModelSection, RunSection, SeatConfig
from lite_selfplay.models.chat_template import Chat
from lite_selfplay.models.memory import CONTEXT_BYTES, Load, estimate
from lite_selfplay.models.shapes import shape_of
from lite_selfplay.models.sources import resolve
from lite_selfplay.runs.defaults import filled_in
from tests.gpu.evidence import OUT_OF_MEMORY
from tests.models.sampled import asked, completions

pytestmark = pytest.mark.gpu

RANK = 64  # adapters that are large beside what an allocator rounds up
BYTES_OF_A_NUMBER = 16  # float32: the weight, its gradient, and Adam's two moments
KEPT = 4  # the weight before the update, kept on the CPU for the sampler's check
SECOND_SEAT = 1.1
PLAN_OVER, PLAN_UNDER = 3.0, 1.5
"""How far the estimate of `plan` may lie over and under what is measured: it counts every prompt in full, where prompts
that begin alike are read once."""
ROWS = 4096
"""Completions whose keys and values outweigh everything else, even of the smallest model."""
WORKSPACE = 96 * 2**20
"""What the libraries that multiply matrices keep for themselves of the memory that torch counts."""


def held(device: torch.device) -> int:
    """Bytes of the tensors that are alive: as torch counts them on a card, as Python sees them on a CPU."""
    gc.collect()
    if device.type == "cuda":
        return torch.cuda.memory_allocated()
    alive = [found for found in gc.get_objects() if isinstance(found, torch.Tensor)]
    alive += [found.grad for found in alive if found.grad is not None]
    storages = {found.untyped_storage().data_ptr(): found.untyped_storage().nbytes() for found in alive}
    return sum(storages.values())


@pytest.mark.filterwarnings("ignore")  # of what is deprecated, when every object is looked at
def test_a_second_seat_costs_its_weights_its_gradients_and_its_optimizer_state(
    load: Callable[..., Any], model_name: str, worker: Any, device: torch.device
):
    def of_an_update(*names: str) -> tuple[int, int]:
        before = held(device)
        backend = load(model_name, dict.fromkeys(names, SeatConfig(rank=RANK, alpha=RANK)))
        chat, section = Chat.load(resolve(model_name).path), ModelSection(name=model_name)
        found: list[int] = []
        played = worker.episode(259, names)

        def measure() -> None:
            found.append(held(device) - before)

        worker.one_update(backend, chat, played, section, after=measure, keep=False)
        return found[0], sum(p.numel() for p in backend.adapters.parameters(names[-1]).values())

    of_an_update("A")  # whatever the first update of a process sets up stays
    alone, numbers = of_an_update("A")
    both, _ = of_an_update("A", "B")
    cost = (BYTES_OF_A_NUMBER + KEPT * (device.type == "cpu")) * numbers
    assert 0.9 * cost <= both - alone <= SECOND_SEAT * cost


@contextmanager
def at_most(reserved: int) -> Iterator[None]:
    """torch takes no more than so many bytes of the card for the length of this."""
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(reserved / torch.cuda.get_device_properties(0).total_memory)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def peak_reserved(work: Callable[[], Any]) -> tuple[int, int]:
    """Bytes that torch holds of the card before some work, and at most during it."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_reserved()
    work()
    return before, torch.cuda.max_memory_reserved()


@pytest.mark.usefixtures("cuda")
def test_sampling_goes_on_with_half_where_memory_runs_out(load: Callable[..., Any]):
    said: list[str] = []
    backend = load("tiny", run=RunSection(generation_tokens=2**21), warn=said.append, eos_ids=[2**30])
    request = asked("A", [[5, 6, 7, 8]] * 4, ROWS // 4, max_tokens=256)
    before, most = peak_reserved(lambda: backend.generate(request))
    assert said == []
    with at_most(before + int(0.6 * (most - before))):
        found = completions(backend, request)
    assert [len(one.token_ids) for one in found] == [256] * ROWS
    assert said
    assert all(sentence.startswith(OUT_OF_MEMORY) for sentence in said)


SIZES = {"group_size": 64, "problems_per_step": 8, "max_completion_tokens": 64}
ROOM = {"microbatch_tokens": 2**20, "generation_tokens": 2**20}
TINY = {"name": "tiny", "gradient_checkpointing": False}
LARGE: dict[str, Any] = {"game": "agon", "model": TINY, "tasks": "letters", "steps": 2, **SIZES, "run": ROOM}


@pytest.mark.usefixtures("cuda")
def test_an_update_goes_on_with_smaller_microbatches_where_memory_runs_out(tmp_path: Path, backend_name: str):
    def run(name: str, tell: Callable[[str], None] = lambda line: None) -> Any:
        return train(RunConfig(**{**LARGE, "backend": backend_name, "run_dir": tmp_path / name}), progress=tell)

    before, most = peak_reserved(lambda: run("whole"))
    told: list[str] = []
    with at_most(before + int(0.6 * (most - before))):
        again = run("again", told.append)
    assert [line for line in told if "out of memory in the update: from now on at most" in line]
    assert all(stream["rows_trained"] for row in again.metrics_rows() for stream in row["streams"].values())


@pytest.mark.usefixtures("cuda")
def test_the_plan_tells_the_memory_that_is_measured(tmp_path: Path, backend_name: str, model_name: str):
    large = RunConfig(**{**LARGE, "backend": backend_name, "steps": 1, "run_dir": tmp_path / "run"})
    large = RunConfig.of(large.chosen(), {"model": {"name": model_name}, "run": {"preflight": False}})
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    run = train(large)
    measured = torch.cuda.max_memory_allocated()
    prompts = [len(Chat.load(resolve(model_name).path).tokens(row["prompt"])) for row in run.episodes()]
    config = filled_in(large)[0]
    load = Load(64 * 8, max(prompts), 64)
    told = estimate(config, shape_of(model_name), load).peak - CONTEXT_BYTES
    assert told / PLAN_OVER < measured < PLAN_UNDER * told + WORKSPACE

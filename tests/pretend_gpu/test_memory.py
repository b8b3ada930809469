"""The pretend GPU's memory running out, and reports of `doctor` and `plan` on a GPU."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen3_5TextConfig, Qwen3Config

from lite_selfplay.config import RunConfig
from lite_selfplay.data import BASE
from lite_selfplay.errors import TrainingError
from lite_selfplay.models import attention
from lite_selfplay.models.backends.transformers import TransformersBackend, usable_memory
from lite_selfplay.models.generation import fixed
from lite_selfplay.models.logprobs.batch import Batch
from lite_selfplay.models.memory import CONTEXT_BYTES, GIB, WASTE, Card, Estimate, Load, estimate
from lite_selfplay.models.shapes import shape_in
from lite_selfplay.models.trial import LoadTrial
from lite_selfplay.runs.defaults import filled_in, size
from tests.gpu.evidence import OUT_OF_MEMORY
from tests.made import as_sampled
from tests.models.sampled import asked, completions, words
from tests.models.test_architectures import folder as folder_of
from tests.models.test_memory import config, parts
from tests.pretend_gpu import counts, pretend

PROMPT = [[5, 6, 7, 8]]
REQUEST = asked("A", PROMPT, 48, max_tokens=6)


def load(folder: Path, said: list[str], precision: str = "fp32") -> TransformersBackend:
    return counts.load(folder, precision, cache_tokens=2**16, warn=said.append)


@contextmanager
def share_of_peak(card: pretend.Card, share: float, work: Callable[[], object]) -> Iterator[None]:
    """A context with room for only a share of the extra memory that some work takes."""
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    work()
    most = torch.cuda.max_memory_allocated()
    assert most > before
    card.memory.fraction = (before + share * (most - before)) / card.model.memory
    try:
        yield
    finally:
        card.memory.fraction = 1.0


def test_sampling_continues_with_half_where_memory_runs_out(tiny_path: Path, t4: pretend.Card):
    said: list[str] = []
    backend = load(tiny_path, said)
    whole: list[Any] = []
    with share_of_peak(t4, 0.6, lambda: whole.extend(completions(backend, REQUEST))):
        assert not said
        again = completions(backend, REQUEST)
    assert words(again) == words(whole)
    assert said
    assert all("out of memory while sampling: from now on at most" in sentence for sentence in said)


def test_weights_are_left_as_they_are_before_fewer_rows_are_held(tiny_path: Path, t4: pretend.Card):
    """4-bit weights have another first warning: `tests/gpu` tests the same on a GPU."""
    said: list[str] = []
    backend = load(tiny_path, said, "4bit")
    t4.memory.fraction = (torch.cuda.memory_reserved() + 2**27) / t4.model.memory
    backend.generate(REQUEST)
    assert backend._samples_dense
    assert not said
    with share_of_peak(t4, 0.3, lambda: backend.generate(REQUEST)):
        backend.generate(REQUEST)
    assert said[0].startswith(OUT_OF_MEMORY[0])
    assert all(sentence.startswith(OUT_OF_MEMORY) for sentence in said)


def test_what_a_display_holds_is_not_planned_with(
    tiny_path: Path, rtx_4090: pretend.Card, monkeypatch: pytest.MonkeyPatch
):
    """In whole GiB, without CUDA's own share: budgets do not change with one more window."""
    total, device = rtx_4090.model.memory, torch.device("cuda", 0)
    for held, left_out in ((0, 0), (0.6, 0), (0.8, 0), (2.1, 2), (2.8, 2), (3.0, 3)):
        free = int(total - held * pretend.GIB)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_, free=free: (free, total))
        assert usable_memory(device) == total - left_out * pretend.GIB
    backend = counts.load(tiny_path)
    assert backend._memory == total - 3 * pretend.GIB


def test_a_completion_that_does_not_fit_alone_is_an_error(tiny_path: Path, t4: pretend.Card):
    backend = load(tiny_path, [])
    nothing = share_of_peak(t4, 0.0, lambda: backend.generate(REQUEST))
    with nothing, pytest.raises(TrainingError, match="one completion"):
        backend.generate(REQUEST)


def test_an_update_continues_with_smaller_microbatches_where_memory_runs_out(tmp_path: Path, t4: pretend.Card):
    counts.deep_model(tmp_path, 2)
    backend = counts.load(tmp_path, "fp32")
    start = {seat: backend.adapters.state(seat) for seat in "AB"}

    def update() -> tuple[Any, dict[str, Any]]:
        for seat, state in start.items():
            backend.adapters.load_state(seat, state)
        backend.adapters.updates = dict.fromkeys("AB", 0)
        trainer = counts.trainer(backend, tmp_path)
        warned: list[str] = []
        trainer.monitor.progress.warn = warned.append  # type: ignore[method-assign]
        trainer.budget._warn = warned.append
        played = as_sampled(counts.episode(backend), backend)
        report = trainer.update(0, played, counts.ROLES)
        return warned, {seat: found["grad_norm"] for seat, found in report.seats.items()}

    found: list[Any] = []
    with share_of_peak(t4, 0.75, lambda: found.append(update())):
        warned, norms = update()
    assert found[0][0] == []
    assert warned
    assert all("out of memory in the update: from now on at most" in sentence for sentence in warned)
    assert norms == pytest.approx(found[0][1], rel=1e-4)


def test_a_snapshot_acts_as_the_seat_did_and_can_be_put_back(tiny_path: Path, precision: str):
    backend = load(tiny_path, [], precision)
    adapters = backend.adapters

    def said(name: str) -> list[list[int]]:
        return words(completions(backend, asked(name, PROMPT, 4, max_tokens=6)))

    before = said("A")
    adapters.snapshot("A", "kept")
    assert not any(weights.is_cuda for weights in adapters.snapshots["kept"].state.values())  # takes none of its memory
    adapters.load_state("A", {key: -4 * tensor for key, tensor in adapters.state("A").items()})
    assert said("A") != before
    assert said("kept") == before
    rows = [(PROMPT[0], ids) for ids in before]
    scores = {name: [score.logprobs for score in backend.score(name, rows, 1.0)] for name in ("A", "kept", BASE)}
    assert scores["A"] != scores["kept"] != scores[BASE]
    adapters.restore("A", "kept")
    assert said("A") == before


@pytest.mark.parametrize("recomputes", [False, True])
def test_a_plan_knows_what_layers_with_a_state_keep(tmp_path: Path, rtx_4090: pretend.Card, recomputes: bool):
    """Qwen3.5's proportions: without libraries for its delta rule, several times as much as other layers."""
    types = ["linear_attention"] * 3 + ["full_attention"]
    linear = {f"linear_num_{kind}_heads": 4 for kind in ("key", "value")}
    linear |= {f"linear_{kind}_head_dim": 128 for kind in ("key", "value")}
    sizes = {"hidden_size": 256, "intermediate_size": 896, "num_attention_heads": 2, "num_key_value_heads": 1}
    sizes |= {"vocab_size": 259, "head_dim": 256, "num_hidden_layers": len(types), "max_position_embeddings": 1024}
    folder_of(tmp_path, "qwen3_5_text", **linear, **sizes, layer_types=types)
    section = counts.section().model_copy(update={"gradient_checkpointing": recomputes})
    backend = TransformersBackend(tmp_path, section, counts.SEATS, seed=0, eos_ids=[2])
    backend.adapters.activate("A")
    with backend.updating(), backend.adapters.cast_together(backend.compute_dtype), backend.autocast():
        rtx_4090.memory.reset_peak()
        before = rtx_4090.memory.allocated
        backend.token_logprobs(Batch.of([([5] * 4, [9] * 508)], backend.way()))[0].sum().backward()
    found = parts(config(model=section.model_dump()), shape_in(tmp_path, "it"), Load(1, 4, 508))
    told = found["activations"] + found["logits, update"]
    assert (1 + WASTE) * told == pytest.approx(rtx_4090.memory.peak - before, rel=0.15)


QWEN = {"vocab_size": 248_320, "hidden_size": 1024, "intermediate_size": 3584, "num_hidden_layers": 24}
QWEN |= {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 256, "tie_word_embeddings": True}
QWEN |= {f"linear_num_{kind}_heads": 16 for kind in ("key", "value")}
QWEN |= {f"linear_{kind}_head_dim": 128 for kind in ("key", "value")}
"""Qwen3.5-0.8B's sizes."""


def of_zeros(folder: Path, text: Any) -> None:
    """A model of these sizes, whose weights take no room on the disk."""
    text.save_pretrained(folder)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(text, dtype=torch.bfloat16)
    header, end = {}, 0
    for name, weight in model.named_parameters():
        header[name] = {"dtype": "BF16", "shape": list(weight.shape), "data_offsets": [end, end + weight.nbytes]}
        end += weight.nbytes
    encoded = json.dumps(header).encode()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        file.truncate(file.tell() + end)


def peaks(gpu: Card, run: RunConfig, folder: Path, *, samples: bool = True) -> tuple[int, int]:
    """The most bytes that a GPU holds while a step's completions of a seat are sampled, and in a full microbatch of the
    second seat's update, which may be the first that it does."""
    sizes = run.run
    with pretend.card(pretend.Model(gpu.name, gpu.memory, (8, 9), 128), numbers=False) as card:
        card.memory.fraction = 1 - CONTEXT_BYTES / gpu.memory
        backend = TransformersBackend(folder, run.model, run.seats, seed=0, eos_ids=[0], run=sizes)
        adapters, prompts = backend.adapters, [[5] * 512] * sizes.problems_per_step
        if samples:
            backend.generate(asked("A", prompts, sizes.group_size, max_tokens=sizes.max_completion_tokens))
        sampling = card.memory.peak
        trained = [p for seat in run.seats for p in adapters.parameters(seat).values()]
        for parameter in trained:
            parameter.grad = torch.zeros_like(parameter)
        torch.optim.AdamW(trained).step()
        adapters.activate("B")
        with backend.updating(), adapters.cast_together(backend.compute_dtype), backend.autocast():
            card.memory.reset_peak()
            rows = sizes.tokens_at_once(on_cpu=False) // 1024
            batch = Batch.of([([5] * 512, [9] * 512)] * rows, backend.way())
            backend.token_logprobs(batch)[0].sum().backward()
        backend.close()
        return sampling, card.memory.peak


@pytest.mark.timeout(900)  # loops over 64 numbers of a chunk, in 18 layers
@pytest.mark.parametrize("gib", [24, *(pytest.param(gib, marks=pytest.mark.long) for gib in (8, 16, 48, 80))])
def test_a_plan_of_qwen35_is_near_the_peak(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gib: int):
    """With the sizes and the recomputation that are chosen for each GPU, less what CUDA itself takes."""
    text = Qwen3_5TextConfig(**QWEN, architectures=["Qwen3_5ForCausalLM"], dtype="bfloat16")
    told, gpu, run = planned(tmp_path, monkeypatch, text, gib)
    expected = [told.generating - CONTEXT_BYTES, told.updating - CONTEXT_BYTES]
    assert expected == pytest.approx(peaks(gpu, run, tmp_path), rel=0.15)


def planned(folder: Path, monkeypatch: pytest.MonkeyPatch, text: Any, gib: int) -> tuple[Estimate, Card, RunConfig]:
    """A model's estimate, the GPU, and the run with the sizes that are chosen for it."""
    # Zeros agree with nothing, and the pool stays where graphs are recorded.
    monkeypatch.setattr(LoadTrial, "_require", lambda *_: None)
    monkeypatch.setattr(attention, "why_no_flash", lambda *_: None)
    monkeypatch.setattr(fixed, "records", lambda decoding: True)
    of_zeros(folder, text)
    gpu, asked_for = Card(f"GPU of {gib} GB", gib * GIB), RunConfig(game="agon", model=str(folder))
    run, _ = filled_in(asked_for, size(asked_for, filled_in(asked_for)[1], gpu))
    load = Load(run.run.problems_per_step * run.run.group_size, 512, run.run.max_completion_tokens)
    return estimate(run, shape_in(folder, "it"), load, card=gpu), gpu, run


DENSE = {"vocab_size": 151_936, "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8}
DENSE |= {"head_dim": 128, "tie_word_embeddings": True, "dtype": "bfloat16", "architectures": ["Qwen3ForCausalLM"]}
"""What Qwen3-0.6B and 1.7B have in common."""


@pytest.mark.long
@pytest.mark.parametrize(("hidden", "gib"), [(1024, 8), (1024, 24), (2048, 8), (2048, 24)])
def test_an_update_that_recomputes_is_near_the_peak(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hidden: int, gib: int
):
    text = Qwen3Config(**DENSE, hidden_size=hidden, intermediate_size=3 * hidden)
    told, gpu, run = planned(tmp_path, monkeypatch, text, gib)
    _, peak = peaks(gpu, run, tmp_path, samples=False)
    assert told.updating - CONTEXT_BYTES == pytest.approx(peak, rel=0.2)


def test_a_plan_knows_the_gpu_and_how_much_it_holds(card: pretend.Card, call: Callable[..., Any]):
    told = call("plan", "--model", "tiny", "--game", "agon")
    assert told.code == 0
    name = card.model.name.removeprefix("NVIDIA GeForce ")
    (line,) = [line for line in told.out.splitlines() if line.startswith(f"{name} ")]
    assert f" {card.model.memory / pretend.GIB:.1f} GiB  fits" in line

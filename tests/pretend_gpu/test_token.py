"""A token on a GPU: the fewest possible kernels, always the same ones, and no wait for the GPU."""

import dataclasses
import gc
import itertools
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from lite_selfplay.data import Sampling
from lite_selfplay.models import attention
from lite_selfplay.models.adapters import BASE
from lite_selfplay.models.backends import transformers
from lite_selfplay.models.generation import fixed, layout, replay
from lite_selfplay.models.generation.sampling import GenerationRequest, sample_tokens
from lite_selfplay.models.generation.slots import CachePool
from lite_selfplay.models.stacked import Stack, UnstackedLayer
from tests.models import sampled
from tests.models.sampled import ENDS, completions, letters, of_several_lengths, words
from tests.models.test_architectures import DENSE
from tests.models.test_architectures import folder as folder_of
from tests.near import near
from tests.pretend_gpu import counts, pretend
from tests.pretend_gpu.pretend import Card, card
from tests.pretend_gpu.recorded_graph import graphs_on_the_card

KERNELS_OF_A_LAYER = {"Qwen3": 21, "Qwen2": 19}
"""Qwen3 has norms for queries and keys."""
KERNELS_OF_A_STATE = {"qwen3_5_text": (94, 70), "lfm2": (21, 23), "granitemoehybrid": (50, 20)}
"""For a layer with a state, and for one with attention, if transformers has no kernels of its own."""
KERNELS_BESIDE, KERNELS_OF_TOP_P = 56, 15
"""For a decoded token besides its layers, of which Qwen2.5-0.5B has 24."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    counts.deep_model(path, 2)
    return path


def loaded(folder: Path, precision: str = "bf16", **decoding: Any) -> Any:
    backend = counts.load(folder, precision)
    backend._decoding = dataclasses.replace(backend._decoding, **decoding)
    return backend


def asked(seat: str = "A", **sampling: Any) -> GenerationRequest:
    return sampled.asked(seat, of_several_lengths(15), 3, **{"max_tokens": 40, **sampling})


def tokens_of(card: Card, backend: Any, request: GenerationRequest) -> list[tuple[list[Any], int]]:
    """Each token's launches, and the host's waits: `poll` is called before every token."""
    marks: list[tuple[int, int]] = []
    with card.watch(with_operations=True) as seen:
        completions(backend, request, poll=lambda: marks.append((len(seen.operations), seen.syncs)))
    return [(seen.operations[a:b], waits - before) for (a, before), (b, waits) in itertools.pairwise(marks)]


@pytest.mark.parametrize(
    ("sampling", "waits"),
    [
        ({}, 0),
        ({"temperature": 0.0}, 0),
        ({"top_k": 20, "min_p": 0.01}, 0),
        ({"repetition_penalty": 1.1}, 0),
        ({"stop": ("ab",)}, 0),
        ({"top_p": 0.9}, 1),  # how much of the vocabulary has to be sorted
    ],
    ids=lambda sampling: " ".join(sampling) or "plain" if isinstance(sampling, dict) else "",
)
def test_every_token_of_a_chunk_runs_the_same_kernels_and_waits_for_nothing(
    rtx_4090: Card, folder: Path, sampling: dict[str, Any], waits: int
):
    backend = loaded(folder, loop="fixed", decode=letters)
    tokens = tokens_of(rtx_4090, backend, asked(max_tokens=34, **sampling))
    # The prompts are read before the first token, which is drawn with them; the last token of a chunk is followed by
    # the check of it.
    chunks = [tokens[1 + first : 16 + first] for first in range(0, 32, 16)]
    assert all(len(chunk) == 15 for chunk in chunks)
    for chunk in chunks:
        (first, _), *_ = chunk
        assert len(first) > 70
        if not waits:  # elsewhere as many candidates are sorted as the widest row needs
            assert all(operations == first for operations, _ in chunk)
        assert all(waits <= waited <= 2 * waits for _, waited in chunk)


@pytest.mark.parametrize(("sampling", "more"), [({}, 0), ({"top_p": 0.95}, KERNELS_OF_TOP_P)])
@pytest.mark.parametrize("kind", KERNELS_OF_A_LAYER)
def test_how_many_kernels_a_token_takes(rtx_4090: Card, tmp_path: Path, kind: str, sampling: dict[str, Any], more: int):
    launched = {}
    for layers in (1, 3):
        counts.deep_model(tmp_path / str(layers), layers, kind)
        backend = loaded(tmp_path / str(layers), loop="fixed")
        one, other = (counts.sampled(rtx_4090, backend, "A", n, **sampling).launches for n in (3, 7))
        launched[layers] = (other - one) / 4
        backend.close()
    assert (launched[3] - launched[1]) / 2 == KERNELS_OF_A_LAYER[kind]
    assert launched[1] - KERNELS_OF_A_LAYER[kind] == pytest.approx(KERNELS_BESIDE + more, abs=1)


@pytest.mark.parametrize("kind", KERNELS_OF_A_STATE)
def test_how_many_kernels_a_layer_with_a_state_takes_and_that_none_waits(rtx_4090: Card, tmp_path: Path, kind: str):
    carries, attends = DENSE[kind]["layer_types"]
    counted = {}
    for states, others in ((1, 1), (3, 1), (1, 3)):
        path, types = tmp_path / f"{states}-{others}", [carries] * states + [attends] * others
        sizes = {"vocab_size": 259, "max_position_embeddings": 2048, "num_hidden_layers": len(types)}
        backend = loaded(folder_of(path, kind, **{**DENSE[kind], **sizes, "layer_types": types}), loop="fixed")
        assert backend._decoding.flash
        counted[states, others] = counts.token(rtx_4090, backend, "A")
        backend.close()
    assert [token.waits for token in counted.values()] == [0, 0, 0]
    first, *more = (token.kernels for token in counted.values())
    assert tuple((kernels - first) / 2 for kernels in more) == KERNELS_OF_A_STATE[kind]


@pytest.mark.parametrize(("temperature", "bytes_a_logit"), [(1.0, 16), (0.7, 24), (0.0, 18)])
def test_a_draw_reads_and_writes_each_logit_few_times(rtx_4090: Card, temperature: float, bytes_a_logit: float):
    """One softmax, and the sums of its blocks; Qwen's vocabulary needs no padding."""
    sampling = Sampling(max_tokens=9, temperature=temperature)
    logits = (4 * torch.randn(4, 151_936, generator=torch.Generator().manual_seed(0))).bfloat16()
    uniform = torch.rand(4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    on_gpu = logits.cuda(), uniform.cuda()
    with rtx_4090.watch(with_operations=True) as seen:
        found = sample_tokens(*on_gpu, sampling)
    assert sum(seen.sizes) / logits.numel() == pytest.approx(bytes_a_logit, abs=1)
    right = sample_tokens(logits, uniform, sampling)
    assert torch.equal(found[0].cpu(), right[0])
    torch.testing.assert_close(found[1].cpu(), right[1], rtol=0, atol=4e-6)


def test_positions_turn_as_the_models_own_until_the_backend_is_closed(
    rtx_4090: Card, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    from transformers.models.qwen3 import modeling_qwen3

    own: Any = modeling_qwen3.apply_rotary_pos_emb
    own = getattr(own, "args", [own])[0]  # another backend may not have been closed
    monkeypatch.setattr(modeling_qwen3, "apply_rotary_pos_emb", own)
    q, k = (torch.randn(5, heads, 1, 16, device="cuda") for heads in (4, 2))
    angle = torch.randn(5, 1, 8, device="cuda").repeat(1, 1, 2)
    given = q, k, angle.cos(), angle.sin()
    backend = loaded(folder)
    with torch.no_grad(), rtx_4090.watch() as seen:
        found = modeling_qwen3.apply_rotary_pos_emb(*given)
    assert seen.launches == 7  # five of them once for all layers
    torch.testing.assert_close(found, own(*given), rtol=0, atol=1e-6)
    with rtx_4090.watch() as learning:  # with a gradient the model's own
        modeling_qwen3.apply_rotary_pos_emb(*given)
    assert learning.launches == 10
    backend.close()
    assert modeling_qwen3.apply_rotary_pos_emb is own


def test_a_seat_that_takes_over_costs_one_copy_of_its_adapter(rtx_4090: Card, folder: Path):
    backend = loaded(folder)
    with rtx_4090.watch() as plain, backend.adapters.inference("A"):
        pass
    with rtx_4090.watch() as seen, backend._inference("A"):
        pass
    assert seen.kernels - plain.kernels == {"_foreach_mul": 1, "_foreach_copy_": 1}
    assert seen.syncs == 0


@pytest.mark.parametrize(
    ("precision", "seat"), [("fp32", "A"), ("fp32", BASE), ("bf16", "B"), ("4bit:bf16", "A"), ("4bit:fp16", "B")]
)
def test_what_rtx_4090_says_is_what_a_cpu_says(folder: Path, precision: str, seat: str):
    request = asked(seat, max_tokens=12)
    with card():
        backend = loaded(folder, precision, eos_ids=ENDS)
        assert backend._decoding.loop == "graphs"
        ours = completions(backend, request)
    theirs = completions(loaded(folder, precision, eos_ids=ENDS), request)
    close = 1e-4 if precision == "fp32" else 0.15
    firsts = [(one.logprobs[0], other.logprobs[0]) for one, other in zip(ours, theirs, strict=True)]
    if precision == "fp32":
        assert words(ours) == words(theirs)
    same = [a for a, b in zip(ours, theirs, strict=True) if a.token_ids[:1] == b.token_ids[:1]]
    assert len(same) > 0.7 * len(ours)
    assert sum(abs(a - b) < close for a, b in firsts) > 0.7 * len(firsts)


@pytest.mark.parametrize("sampling", [{}, {"repetition_penalty": 1.1, "top_p": 0.95}], ids=["plain", "more"])
def test_graphs_say_bit_for_bit_what_the_same_loop_says_without_them(
    rtx_4090: Card, folder: Path, monkeypatch: pytest.MonkeyPatch, sampling: dict[str, Any]
):
    # More positions than one view has, rows that end in between, and rows that wait for their slots.
    request = asked(max_tokens=48, **sampling)
    options = {"eos_ids": ENDS[:5], "cache_tokens": 16 * 384}
    monkeypatch.setattr(fixed, "FINEST", 16)
    with graphs_on_the_card(rtx_4090) as made:
        by_graphs = completions(loaded(folder, "fp32", loop="graphs", **options), request)
    without = completions(loaded(folder, "fp32", loop="fixed", **options), request)
    assert by_graphs == without
    assert len({len(out.token_ids) for out in without}) > 5
    assert len(made) > 2  # one for every size
    assert sum(graph.replays for graph in made) > 40


@pytest.fixture
def crowded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPU has no room for memory that is not needed now."""
    monkeypatch.setattr(transformers, "ROOMY", 2.0)


SHORT = (("bf16", True), ("4bit:bf16", False))
KEPT = [(precision, roomy) for precision in ("bf16", "4bit:bf16", "fp32") for roomy in (True, False)]


@pytest.mark.parametrize(
    ("precision", "roomy"), [pytest.param(*case, marks=[pytest.mark.long] * (case not in SHORT)) for case in KEPT]
)
def test_one_pool_and_its_graphs_are_kept_from_call_to_call(
    rtx_4090: Card, folder: Path, monkeypatch: pytest.MonkeyPatch, precision: str, roomy: bool
):
    monkeypatch.setattr(transformers, "ROOMY", 0.5 if roomy else 2.0)
    streams = mock.Mock(side_effect=torch.cuda.Stream)
    monkeypatch.setattr(torch.cuda, "Stream", streams)
    backend, other = loaded(folder, precision, loop="graphs"), loaded(folder, precision, loop="fixed")
    few = {"max_tokens": 20}
    with graphs_on_the_card(rtx_4090) as made:
        for seat in ("A", "B"):  # another seat is other numbers in the same tensors
            assert completions(backend, asked(seat, **few)) == completions(other, asked(seat, **few))
            assert (len(made), streams.call_count) == (1, 1)
        # Other prompts, drawn otherwise, as an evaluation does, and fewer rows: of as many slots.
        for request in (asked(top_p=0.9, temperature=0.6, **few), sampled.asked("B", [[5] * 30], 33, **few)):
            assert completions(backend, request) == completions(other, request)
            assert len(made) == 1
        assert completions(backend, asked(BASE, **few)) == completions(
            other, asked(BASE, **few)
        )  # no adapter: other kernels
        assert (len(made), streams.call_count) == (2, 1)
        pool = backend._decoding.kept.pool
        with backend.updating():
            assert (backend._decoding.kept.pool is pool) == roomy
        backend.adapters.load_state("A", backend.adapters.state("B"))  # what a graph reads are numbers of now
        other.adapters.load_state("A", other.adapters.state("B"))
        assert completions(backend, asked("A", **few)) == completions(other, asked("A", **few))
        assert (len(made), streams.call_count) == (2 if roomy else 3, 1)
        # Longer rows than there was room for, though each of them ends at once.
        completions(backend, asked("A", max_tokens=400), eos_ids=[*range(259)])
        assert backend._decoding.kept.pool is not pool


def test_rows_that_outgrow_their_slots_move_into_longer_ones_or_wait(
    rtx_4090: Card, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    """Four long slots for 39 rows, most of which outgrow their own: each samples the same as with room."""
    monkeypatch.setattr(layout, "LEAST_PROMPT", 32)
    monkeypatch.setattr(layout, "LEAST_ANSWER", 32)
    moves = mock.Mock(side_effect=CachePool.copy)
    monkeypatch.setattr(CachePool, "copy", lambda *given: moves(*given))
    request = sampled.asked("A", of_several_lengths(16), 3, max_tokens=160, repetition_penalty=1.02)
    backend = loaded(folder, loop="fixed", eos_ids=ENDS[:2])
    whole = completions(backend, request)
    assert not moves.called
    tokens = 64 * 128 + 4 * 256
    assert layout.Layout.of(*request.sizes, tokens, mixed=True) == layout.Layout(64, 128, 256, 4)
    assert completions(backend, request, cache_tokens=tokens) == whole
    assert moves.call_count > 10
    assert sum(len(out.token_ids) > 128 for out in whole) > 8


def test_attention_of_one_token_reads_keys_where_they_are(rtx_4090: Card):
    """The operator reads memory by pointers: compared with the plain formula, at unequal lengths, in slots in any
    order."""
    torch.manual_seed(0)
    heads, keys, size = 14, 2, 64
    lengths, firsts, positions = [1, 17, 300, 129], [640, 0, 384, 128], [128, 128, 512, 256]
    stores = torch.randn(2, 1024 * keys, size).bfloat16()
    query = torch.randn(len(lengths), heads, 1, size).bfloat16()
    starts = [first * keys + head * own for first, own in zip(firsts, positions, strict=True) for head in range(keys)]
    as_int: Any = {"dtype": torch.int32, "device": "cuda"}
    slots = attention.Slots(
        torch.tensor([*starts, 0], **as_int),
        torch.tensor(lengths, **as_int).repeat_interleave(keys, output_size=8),
        torch.arange(9, **as_int),
        512,
    )
    q, k, v = query.to("cuda"), *(store[:, None].to("cuda") for store in stores)
    with rtx_4090.watch() as seen:
        found = attention.attend_slots(q, k, v, slots, size**-0.5)
    assert seen.kernels == {"_flash_attention_forward": 1}  # nothing was copied
    for row, length in enumerate(lengths):
        for head in range(heads):
            begin = starts[row * keys + head // (heads // keys)]
            k_row, v_row = (store[begin : begin + length].float() for store in stores)
            weights = (k_row @ query[row, head, 0].float() * size**-0.5).softmax(0)
            assert near(found[row, 0, head].cpu().float(), weights @ v_row, 0.02)


def test_a_gpu_that_has_no_flash_attention_keeps_slots_of_one_length(folder: Path, tmp_path: Path):
    with card(pretend.T4) as t4:
        backend = counts.load(folder, "fp16", eos_ids=ENDS)
        assert not backend._decoding.flash
        with t4.watch() as seen:
            completions(backend, asked(max_tokens=20), loop="fixed")
        assert "_flash_attention_forward" not in seen.kernels
    with card():
        assert counts.load(folder, "bf16")._decoding.flash
        assert not counts.load(folder, "fp32")._decoding.flash
        windows = folder_of(tmp_path, "gemma3_text", **DENSE["gemma3_text"])
        assert not counts.load(windows, "bf16")._decoding.flash


@pytest.mark.usefixtures("crowded")
def test_the_pool_is_released_when_sampling_stops(rtx_4090: Card, folder: Path):
    def stop() -> None:
        raise KeyboardInterrupt

    with graphs_on_the_card(rtx_4090) as made:
        backend = loaded(folder, loop="graphs", eos_ids=ENDS)
        before = rtx_4090.memory.allocated
        gc.disable()
        backend.generate(asked())
        backend.generate(asked(max_tokens=200))
        made.clear()
        with backend.updating():
            assert rtx_4090.memory.allocated < before + 2**16  # given back at once: the update wants it
        gc.enable()
        backend.generate(asked())
        assert backend._decoding.kept.pool is not None
        with pytest.raises(KeyboardInterrupt):
            completions(backend, asked(), poll=stop)
        assert backend._decoding.kept.pool is None


def test_a_step_that_cannot_be_recorded_is_run_as_it_is(rtx_4090: Card, folder: Path, monkeypatch: pytest.MonkeyPatch):
    plain, warned = CachePool.step, list[str]()

    def reads(self: Any, *given: Any) -> None:
        plain(self, *given)
        bool(self.token.any())

    request = asked(max_tokens=12)
    without = completions(loaded(folder, "fp32", loop="fixed", eos_ids=ENDS), request)
    monkeypatch.setattr(CachePool, "step", reads)
    backend = loaded(folder, "fp32", loop="graphs", eos_ids=ENDS, warn=warned.append)
    before = torch.cuda.current_stream()
    with graphs_on_the_card(rtx_4090) as made:
        assert completions(backend, request) == without
        assert torch.cuda.current_stream() is before
        assert completions(backend, request) == without
    assert not made
    (sentence,) = warned
    assert "without CUDA graphs" in sentence
    assert "not permitted when stream is capturing" in sentence


def test_memory_that_runs_out_while_a_step_is_recorded_is_not_hidden_by_the_end_of_the_recording():
    """It halves the held tokens; the other error would end graphs for the rest of the run."""
    graph = mock.Mock(capture_end=mock.Mock(side_effect=RuntimeError("operation failed during capture")))
    with pytest.raises(torch.OutOfMemoryError, match="no memory"):
        replay._record(graph, None, mock.Mock(side_effect=torch.OutOfMemoryError("no memory")))
    assert graph.capture_end.called
    with pytest.raises(RuntimeError, match="during capture"):
        replay._record(graph, None, lambda: None)


@pytest.mark.usefixtures("crowded")
def test_weights_that_have_no_room_to_be_expanded_stay_as_they_are(
    rtx_4090: Card, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    request = asked(max_tokens=6)
    backend = loaded(folder, "4bit:bf16", loop="fixed", eos_ids=ENDS)
    expanded = completions(backend, request)
    assert {type(stack) for stack, _ in backend._stacks} == {Stack}
    with backend.updating():
        assert backend._stacks is None  # the update wants their memory
    assert completions(backend, request) == expanded
    monkeypatch.setattr(transformers, "expands", lambda *sizes: False)  # on a smaller GPU
    small = loaded(folder, "4bit:bf16", loop="fixed", eos_ids=ENDS)
    beside = completions(small, request)
    assert {type(stack) for stack, _ in small._stacks} == {UnstackedLayer}
    same = [one == other for one, other in zip(words(expanded), words(beside), strict=True)]
    assert sum(same) > 0.6 * len(same)


def test_the_keys_and_values_of_a_long_answer_are_taken_once(rtx_4090: Card, folder: Path):
    """Memory does not grow with sampled tokens, and is what `plan` counts: slots times their length."""
    backend = loaded(folder, loop="fixed")
    backend.generate(asked(max_tokens=4))
    held: list[int] = []
    before = rtx_4090.memory.allocated
    gc.disable()
    try:
        request = sampled.asked("A", [[5, 6, 7]], 4, max_tokens=200)
        completions(backend, request, poll=lambda: held.append(rtx_4090.memory.allocated))
        assert rtx_4090.memory.allocated < before + 2**16  # given back at once: the update wants it
    finally:
        gc.enable()
    later = held[20:]
    positions, per_token = 512, 2 * 2 * 8 * 16 * 2  # layers, keys and values, key heads, head size, bytes
    assert 4 * positions * per_token < max(later) - before < 4 * positions * per_token + 2 * 2**20
    assert max(later) - min(later) < 4 * positions * per_token / 2

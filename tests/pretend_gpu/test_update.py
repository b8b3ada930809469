"""An update on the pretend GPU: a CPU's gradients, few kernels, few waits, and no step lost in float16."""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from lite_selfplay.config import ModelSection
from lite_selfplay.models import attention, fused, packed_flash, packed_on_gpu
from lite_selfplay.models.backends.transformers import TransformersBackend
from lite_selfplay.models.chat_template import Chat
from lite_selfplay.models.logprobs.batch import Way
from lite_selfplay.models.logprobs.token_logprobs import FrozenHead
from lite_selfplay.training.atomic_update import BACK, LARGEST
from lite_selfplay.training.losses import TrlLoss
from lite_selfplay.training.trainer import reference_name
from tests.gpu import evidence
from tests.made import as_sampled
from tests.models.test_architectures import DENSE
from tests.models.test_architectures import folder as folder_of
from tests.models.watch import noted
from tests.near import near
from tests.pretend_gpu import counts, pretend
from tests.pretend_gpu.pretend import flash as formula
from tests.pretend_gpu.pretend import operations

Gradients = Mapping[str, Mapping[str, torch.Tensor]]


def gradients(folder: Path, precision: str = "fp32", **options: Any) -> Gradients:
    """The gradients of an Agon step over fixed rows, on the current device."""
    section = ModelSection(name="tiny", precision=precision, **options)
    backend = TransformersBackend(folder, section, evidence.SEATS, seed=0, eos_ids=[2])
    assert backend.way() is Way.PACKED
    return evidence.one_update(backend, Chat.load(folder), evidence.episode(259), section)


def difference_of(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one.double() - other.double()).norm() / other.double().norm())


def difference(one: Gradients, other: Gradients) -> float:
    """The difference of all gradients together, relative to their size."""
    assert {seat: found.keys() for seat, found in one.items()} == {seat: found.keys() for seat, found in other.items()}
    flat = [torch.cat([g[seat][name].flatten() for seat in g for name in g[seat]]).double() for g in (one, other)]
    return difference_of(*flat)


@pytest.fixture(scope="module")
def on_cpu(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Gradients]:
    folder = tmp_path_factory.mktemp("model")
    counts.tiny.build_tiny(folder)
    return folder, gradients(folder, gradient_checkpointing=False)


FEW = packed_on_gpu.FEW_SCORES


@pytest.mark.parametrize(
    "case",
    [
        ("t4", "fp32", FEW, False, 1e-4),
        ("t4", "fp32", 0, False, 1e-4),  # several rectangles
        pytest.param(("t4", "fp32", FEW, True, 1e-4), marks=pytest.mark.long),
        ("t4", "fp16", FEW, False, 0.02),
        pytest.param(("4090", "bf16", FEW, False, 0.15), marks=pytest.mark.long),
        ("4090", "bf16", FEW, True, 0.15),
    ],
    ids=str,
)
def test_gradients_are_those_of_a_cpu(
    on_cpu: tuple[Path, Gradients], monkeypatch: pytest.MonkeyPatch, case: tuple[str, str, int, bool, float]
):
    model, kind, few_scores, checkpointing, bound = case
    monkeypatch.setattr(packed_on_gpu, "FEW_SCORES", few_scores)
    folder, right = on_cpu
    with pretend.card(pretend.PROFILES[model]):
        assert difference(gradients(folder, kind, gradient_checkpointing=checkpointing), right) < bound


def test_rows_share_a_rectangle_until_it_wastes_more_than_it_saves():
    spans = [packed_on_gpu.TokenSpan(0, n, range(0)) for n in (10, 2000, 12, 2100)]
    assert [[span.length for span in found] for found in packed_on_gpu.rectangles(spans)] == [[10, 12], [2000, 2100]]
    few = [packed_on_gpu.TokenSpan(0, n, range(0)) for n in (10, 100, 1)]
    assert len(packed_on_gpu.rectangles(few)) == 1


@pytest.mark.parametrize("shared", [range(5), range(0)], ids=["after a beginning", "nothing shared"])
def test_rectangles_have_small_masks_or_none(shared: range):
    """The results and gradients of a CPU's blocks; a mask has no head, and every head its processor."""
    blocks = (attention.Block(0, (5, 4)), attention.Block(9, (3, 6, 5), shared), attention.Block(23, (7,)))
    layout = packed_on_gpu.PackedLayout([span for block in blocks for span in block.spans])
    torch.manual_seed(0)
    drawn, grad = [torch.randn(30, heads, 8) for heads in (6, 2, 2)], torch.randn(30, 6, 8)

    def both(attend: Any, over: Any) -> list[torch.Tensor]:
        inputs = [x.clone().requires_grad_() for x in drawn]
        out = attend(*inputs, over, 0.3)
        out.backward(grad)
        return [out.detach(), *(x.grad for x in inputs)]

    for mine, theirs in zip(both(packed_on_gpu.attend_rectangles, layout), both(attention.attend, blocks), strict=True):
        assert near(mine, theirs, 2e-6)
    (mask,) = layout.indices(drawn[0]).masks
    assert (mask is None) if not shared else (mask is not None and mask.shape == (6, 1, 7, 16))


@pytest.mark.parametrize(
    ("model", "heads", "dtype", "why"),
    [
        ("t4", (6, 2, 8), torch.float16, "it needs compute capability 8.0, and this GPU has 7.5"),
        ("4090", (6, 2, 8), torch.float32, "it needs fp16 or bf16, and weights are multiplied in float32"),
        ("4090", (6, 2, 12), torch.bfloat16, "it needs a head size that is a multiple of 8 up to 256, not 12"),
        ("4090", (6, 2, 8), torch.bfloat16, None),
    ],
)
def test_rectangles_stay_where_flash_attention_cannot_run(model: str, heads: Any, dtype: torch.dtype, why: Any):
    with pretend.card(pretend.PROFILES[model]):
        device = torch.device("cuda", 0)
        assert packed_on_gpu.why_no_flash(*heads, dtype, device) == why


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (
            lambda *made: (pretend.inside(made[1]).zero_(), made)[1],
            "its results differ by 1 of their size from those of other",
        ),
        (lambda *made: torch.zeros(2) @ torch.zeros(3), "torch .* refused it: "),
    ],
)
def test_a_wrong_backward_pass_of_flash_attention_is_found_before_it_trains(
    rtx_4090: pretend.Card, monkeypatch: pytest.MonkeyPatch, spoil: Any, why: str
):
    packed_on_gpu._tried.cache_clear()
    plain = operations.flash_backward
    monkeypatch.setattr(operations, "flash_backward", lambda *given, **more: spoil(*plain(*given, **more)))
    heads = (6, 2, 16, torch.bfloat16)
    assert re.match(why, packed_on_gpu.why_no_flash(*heads, torch.device("cuda", 0)) or "")
    packed_on_gpu._tried.cache_clear()


def test_flash_attention_takes_fewer_kernels_and_no_copies(
    tmp_path: Path, rtx_4090: pretend.Card, monkeypatch: pytest.MonkeyPatch
):
    counts.deep_model(tmp_path, 1)
    seen = [counts.update(rtx_4090, counts.load(tmp_path), tmp_path)]
    monkeypatch.setattr(packed_on_gpu, "why_no_flash", lambda *_: "no")
    seen.append(counts.update(rtx_4090, counts.load(tmp_path), tmp_path))
    flash, rectangles = seen
    assert flash.kernels["_flash_attention_forward"] >= flash.kernels["_flash_attention_backward"] > 0
    assert not {"index_add_", "index_copy_"} & flash.kernels.keys()
    assert flash.kernels["add_"] < flash.kernels["_flash_attention_backward"] * 3
    assert flash.launches < rectangles.launches
    assert flash.syncs == rectangles.syncs


@pytest.mark.parametrize(("shares", "long", "calls"), [(True, 9, 1), (False, 9, 1), (True, 4, 5), (False, 6, 3)])
def test_flash_attention_of_packed_rows_has_the_gradients_of_the_plain_formula(
    monkeypatch: pytest.MonkeyPatch, shares: bool, long: int, calls: int
):
    """In float64, with formulas instead of kernels: merging and summing are exact."""
    monkeypatch.setattr(packed_flash, "_LONG", long)
    flash: Any = packed_flash.torch.ops.aten

    def forward(q: Any, k: Any, v: Any, *rest: Any, scale: float) -> Any:
        return *formula.forward(q, k, v, *rest[:2], rest[5], scale), None, None, None

    def backward(*given: Any, scale: float) -> Any:
        assert torch.are_deterministic_algorithms_enabled()
        return formula.backward(*given[:8], given[11], scale)

    monkeypatch.setattr(flash, "_flash_attention_forward", forward)
    monkeypatch.setattr(flash, "_flash_attention_backward", backward)
    # Two beginnings, a row of its own, and what comes after the beginnings.
    before = (range(5), range(5, 8)) if shares else (range(0), range(0))
    blocks = (
        *(attention.Block(0, (5,)), attention.Block(5, (3,)), attention.Block(8, (7,))),
        *(attention.Block(15, (1, 2, 4), before[0]), attention.Block(22, (3, 5), before[1])),
    )
    over = packed_flash.passes([span for block in blocks for span in block.spans], torch.device("cpu"))
    assert len(over) == calls + shares
    torch.manual_seed(0)
    drawn, grad = [torch.randn(30, heads, 8).double() for heads in (6, 2, 2)], torch.randn(30, 6, 8).double()

    def plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        seen = torch.zeros(30, 30, dtype=torch.bool)
        for span in (span for block in blocks for span in block.spans):
            own = slice(span.start, span.start + span.length)
            seen[own, own] = torch.ones(span.length, span.length).tril().bool()
            seen[own, span.before.start : span.before.stop] = True
        scores = torch.einsum("nhd,mhd->hnm", q, k.repeat_interleave(3, 1)) * 0.3
        weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
        return torch.einsum("hnm,mhd->nhd", weights, v.repeat_interleave(3, 1))

    def both(attend: Any) -> list[torch.Tensor]:
        inputs = [x.clone().requires_grad_() for x in drawn]
        out = attend(*inputs)
        out.backward(grad)
        return [out.detach(), *(x.grad for x in inputs)]

    mine, theirs = both(lambda *given: packed_flash.Flash.apply(*given, over, 0.3)), both(plain)
    assert all(torch.allclose(x, y, atol=1e-6, rtol=1e-6) for x, y in zip(mine, theirs, strict=True))
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_long_span_among_many_is_a_call_of_its_own():
    """In a fixed order each of its heads would have one block, however many processors are idle."""
    lengths, start, spans = [300, 4096, 20, 40, 7637, 2500], 0, []
    for length in lengths:
        spans.append(packed_on_gpu.TokenSpan(start, length, range(0)))
        start += length
    over = packed_flash.passes(spans, torch.device("cpu"))
    assert [one.longest[0] for one in over] == [300, 4096, 40, 7637, 2500]
    assert [one.queries for one in over] == [one.keys for one in over]
    assert (over[0].queries.start, over[-1].queries.stop) == (0, start)


ONE_PLACE_EACH = {
    "index_copy": "an index of the result names no place twice",
    "scatter": "one token of a row goes to one place",
    "index_put": "rows that come have places of their own",
    "cumsum": "a few hundred blocks of a row, or the tokens of one, which one block of threads adds up",
}


@pytest.mark.parametrize("kind", ["flash", "rectangles", "whole", "gemma3_text", "qwen3_5_text"])
def test_a_step_adds_up_in_one_order(
    tmp_path: Path, rtx_4090: pretend.Card, monkeypatch: pytest.MonkeyPatch, kind: str
):
    """No operation of a step is on torch's list of nondeterministic ones, unless its order does not matter, or it was
    told to keep it."""
    about = torch.use_deterministic_algorithms.__doc__ or ""
    named = {match.rstrip("_") for match in re.findall(r"`torch\.(?:Tensor\.)?(\w+)`", about)}
    assert named >= {"index_add", "scatter_add", "cumsum", "index_copy"}
    # Listed for their gradients, which are other operations, and for sparse tensors; `resize` for quantised ones.
    named -= {"gather", "index_select", "repeat_interleave", "bmm", "resize"}
    flags: dict[str, set[bool]] = {}
    plain = pretend.Card.count

    def count(self: Any, name: str, *given: Any, **more: Any) -> None:
        flags.setdefault(name.rstrip("_"), set()).add(torch.are_deterministic_algorithms_enabled())
        assert not torch.utils.deterministic.fill_uninitialized_memory  # of every new tensor while sums are in order
        plain(self, name, *given, **more)

    if kind == "rectangles":
        monkeypatch.setattr(packed_on_gpu, "why_no_flash", lambda *_: "no")
    if kind in DENSE:
        counts.tiny.build_tiny(tmp_path)
        folder_of(tmp_path, kind, **DENSE[kind], vocab_size=259)
    else:
        counts.deep_model(tmp_path, 1)
    backend = counts.load(tmp_path)
    assert backend._packs != (kind in DENSE)
    if kind == "whole":
        monkeypatch.setattr(backend, "way", lambda: Way.WHOLE)
    monkeypatch.setattr(pretend.Card, "count", count)
    counts.update(rtx_4090, backend, tmp_path)
    counts.sampled(rtx_4090, backend, "A", 3, top_p=0.9, repetition_penalty=1.1)
    assert flags.get("index_add") == ({True} if kind == "rectangles" else None)
    backwards = {name: asked for name, asked in flags.items() if "attention" in name and "backward" in name}
    assert list(backwards.values()) == [{True}]
    assert {name for name in named & flags.keys() if flags[name] != {True}} <= ONE_PLACE_EACH.keys()
    assert not torch.are_deterministic_algorithms_enabled()


def test_fused_attention_makes_no_plan_for_every_shape(tmp_path: Path, rtx_4090: pretend.Card):
    torch.backends.cuda.enable_cudnn_sdp(True)
    counts.deep_model(tmp_path, 1)
    backend = counts.load(tmp_path)
    assert not torch.backends.cuda.cudnn_sdp_enabled()
    backend.close()
    assert torch.backends.cuda.cudnn_sdp_enabled()


def test_an_update_takes_few_kernels_and_waits(tmp_path: Path, rtx_4090: pretend.Card):
    seen = {}
    for layers in (1, 2):
        counts.deep_model(tmp_path / str(layers), layers)
        backend = counts.load(tmp_path / str(layers))
        seen[layers] = counts.update(rtx_4090, backend, tmp_path / str(layers))
        assert seen[layers].syncs <= 6, seen[layers].table()
    a_layer = seen[2].launches - seen[1].launches
    assert seen[1].launches + (counts.LAYERS - 1) * a_layer < 35_000 / 3


def test_layers_with_the_same_input_are_one_product_and_a_gated_product_one_kernel(
    tmp_path: Path, rtx_4090: pretend.Card, monkeypatch: pytest.MonkeyPatch
):
    """A layer of the model has seven linear ones in four products: three and two of them have the same input."""
    counts.deep_model(tmp_path, 1)
    backend = counts.load(tmp_path)
    joint = counts.update(rtx_4090, backend, tmp_path)
    monkeypatch.setattr("lite_selfplay.models.adapters.together", lambda names: [[name] for name in names])
    monkeypatch.setattr("lite_selfplay.models.fused._kernels", lambda *_: fused._PLAIN)
    apart = counts.update(rtx_4090, counts.load(tmp_path), tmp_path)
    forwards, passes = joint.kernels["gated"], joint.kernels["gated_backward"]
    assert forwards == 2 * passes > 0  # the base's log-probabilities are read as well
    assert not {"silu", "silu_backward"} & joint.kernels.keys()
    assert apart.kernels["silu"] == forwards + passes
    # Forwards one product with the base's weights and one with the adapters' for each, and so backwards.
    assert apart.kernels["mm"] - joint.kernels["mm"] >= 5 * passes
    assert joint.launches < apart.launches
    assert joint.syncs == apart.syncs


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_kernels_of_a_gated_product_compute_the_formula(rtx_4090: pretend.Card, dtype: torch.dtype):
    """In float32, rounded once, for large numbers too."""
    fused._kernels.cache_clear()
    drawn = (3 * torch.randn(3, 5, 40, generator=torch.Generator().manual_seed(0))).to(dtype)
    drawn[0, 0, :2] = torch.tensor([200.0, -200.0])
    exact = [x.double().requires_grad_() for x in drawn[:2]]
    out = torch.nn.functional.silu(exact[0]) * exact[1]
    right = [out.detach(), *torch.autograd.grad(out, exact, drawn[2].double())]
    gate, up = (x.cuda().requires_grad_() for x in drawn[:2])
    with rtx_4090.watch() as seen:
        mine = fused._Gated.apply(gate, up)
        found = [mine.detach(), *torch.autograd.grad(mine, (gate, up), drawn[2].cuda())]
    assert (seen.kernels["gated"], seen.kernels["gated_backward"]) == (2, 2)  # once to see whether they are right
    for one, other in zip(found, right, strict=True):
        assert torch.allclose(one.cpu().double(), other, rtol=torch.finfo(dtype).eps, atol=1e-6)
    with rtx_4090.watch() as seen:
        fused._Gated.apply(gate.detach(), up.detach())
    assert dict(seen.kernels) == {"gated": 1}
    with rtx_4090.watch() as seen, torch.inference_mode():
        fused._Gated.apply(gate.detach(), up.detach())
    assert dict(seen.kernels) == {"silu": 1, "mul_": 1}  # a graph may be recorded


@pytest.mark.parametrize("way", Way)
def test_a_seat_has_no_distance_from_its_own_snapshot(
    tmp_path: Path, precision: str, monkeypatch: pytest.MonkeyPatch, way: Way
):
    """Readings with and without a gradient are the same to the bit: the clip and the KL term act on no rounding."""
    torch.manual_seed(0)
    counts.deep_model(tmp_path, 3, sizes={**counts.NARROW, "initializer_range": 0.3})
    backend = counts.load(tmp_path, precision)
    monkeypatch.setattr(backend, "way", lambda: way)
    for entropy in (0.0, 0.1):
        for seat in backend.adapters.seats:
            backend.adapters.snapshot(seat, reference_name(seat))
        trainer = counts.trainer(backend, tmp_path, {"beta": 0.1, "reference": "seat", "entropy": entropy})
        compared = noted(monkeypatch, TrlLoss, "of", lambda self, micro, *read: torch.equal(read[0], read[2]))
        report = trainer.update(0, as_sampled(counts.episode(backend), backend), counts.ROLES)
        assert {stream.kl for stream in report.streams} == {0.0}
        assert compared
        assert all(compared)


@pytest.mark.parametrize("spoiled", ["wrong", "refused"])
def test_kernels_that_are_wrong_or_refused_do_not_train(
    rtx_4090: pretend.Card, monkeypatch: pytest.MonkeyPatch, spoiled: str
):
    fused._kernels.cache_clear()
    if spoiled == "wrong":
        monkeypatch.setattr(fused, "_GRADIENTS", fused._GRADIENTS.replace("gate * share;", "gate;"))
    else:
        monkeypatch.setattr(fused, "_PRODUCT", "template <typename T> T gated(T gate, T up) { if (gate > 0) up; }")
    assert fused._kernels(torch.device("cuda", 0), torch.bfloat16) is fused._PLAIN
    fused._kernels.cache_clear()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_head_makes_one_softmax_and_no_entropies_that_nobody_uses(rtx_4090: pretend.Card, dtype: torch.dtype):
    """For a token whose probability is 0 in float32."""
    drawn = torch.randn(60, 16, generator=torch.Generator().manual_seed(0)).to(dtype)
    targets = torch.tensor([3, 5, 49, 0])
    found = {}
    for device in ("cpu", "cuda"):
        hidden = (20 * drawn[:4].to(device)).requires_grad_()
        head = FrozenHead(drawn[10:].to(device), None, size=3, temperature=0.7)
        with rtx_4090.watch() as seen:
            logprobs, entropies = head.scores(hidden, targets.to(device), entropy_gradient=False)
        (gradient,) = torch.autograd.grad(logprobs.sum(), hidden)
        found[device] = logprobs.detach().cpu(), gradient.cpu()
        assert not entropies.any()
    assert found["cpu"][0].min() < -104
    assert torch.allclose(*(logprobs for logprobs, _ in found.values()), atol=2 if dtype == torch.bfloat16 else 1e-3)
    assert difference_of(*(gradient for _, gradient in found.values())) < (0.1 if dtype == torch.bfloat16 else 1e-5)
    assert seen.kernels["softmax"] == 2  # pieces
    assert not {"_log_softmax", "exp", "sum", "copy_"} & seen.kernels.keys()


# Float16


def updated(folder: Path, exponent: int | None) -> Any:
    """A trainer after an update in float16 with an initial scale of 2 ** exponent, its weights and its report."""
    backend = counts.load(folder, "fp16")
    trainer = counts.trainer(backend, folder)
    trainer.guard.scale.exponent = exponent
    report = trainer.update(0, as_sampled(counts.episode(backend), backend), counts.ROLES)
    return trainer, {seat: backend.adapters.state(seat) for seat in "AB"}, report


def test_a_step_that_overflows_is_computed_again_and_not_lost(tmp_path: Path, t4: pretend.Card):
    counts.deep_model(tmp_path, 1)
    first, _, _ = updated(tmp_path, None)
    assert 0 < first.guard.scale.exponent < LARGEST
    trainer, weights, report = updated(tmp_path, 30)
    assert report.nonfinite is None
    assert trainer.guard.scale.exponent < 30
    assert (30 - trainer.guard.scale.exponent) % BACK == 0
    assert {seat: found["updates"] for seat, found in report.seats.items()} == {"A": 1, "B": 1}
    # What came before the last attempt left no trace: neither in weights nor in figures.
    _, plain, other = updated(tmp_path, trainer.guard.scale.exponent)
    assert all(torch.equal(weights[seat][name], plain[seat][name]) for seat in "AB" for name in plain[seat])
    assert [(s.rows, s.tokens, s.loss) for s in report.streams] == [(s.rows, s.tokens, s.loss) for s in other.streams]


def test_a_gradient_that_overflows_at_every_scale_is_not_finite(
    tmp_path: Path, t4: pretend.Card, monkeypatch: pytest.MonkeyPatch
):
    counts.deep_model(tmp_path, 1)
    endless = mock.Mock(side_effect=lambda gradients: torch.full((), math.inf, device="cuda"))
    monkeypatch.setattr("lite_selfplay.training.trainer.get_total_norm", endless)
    trainer, weights, report = updated(tmp_path, 7)
    assert report.nonfinite == "the gradient of drafter (seat A) has the norm inf"
    assert endless.call_count == 2 * 4  # two seats, at 2**7, 2**4, 2 and 1
    assert trainer.guard.scale.exponent == 0
    before = counts.load(tmp_path, "fp16").adapters
    assert all(torch.equal(x, weights[seat][name]) for seat in "AB" for name, x in before.state(seat).items())

"""Operations on GPU tensors: checked as a CUDA build checks them, counted, and run on the CPU tensors inside."""

import contextlib
import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from . import flash as flash_formula
from .tensors import CPU, generates_on_card, inside, is_card, is_pinned, pinned, set_data, wrap

aten = torch.ops.aten

_FREE = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "_unsafe_view", "detach_", "resize_"}
_WAITS_FOR_SHAPE = {"nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive", "bincount", "_unique"}
_TAKES_ZERO_DIM = {"masked_fill", "masked_fill_", "fill", "fill_", "index_put", "index_put_", "where", "lerp", "lerp_"}
_INDEXING = {"index", "index_put", "index_put_", "_unsafe_index", "_index_put_impl_", "_unsafe_index_put"}
_PICKS = {"embedding", "index", "index_select", "gather"}
_PUTS = {"scatter_", "index_put_", "index_copy_"}
HALVES = (torch.float16, torch.bfloat16)
_READS = (aten._local_scalar_dense.default, aten.equal.default)

_IN_ONE_KERNEL = (110, 64, 48, 36, 30)
"""Tensors per foreach kernel by the number of lists (MultiTensorApply.cuh); large ones may need more."""

Argument = tuple[int, str]
"""An argument of an operation, by position and name."""


@dataclass(frozen=True)
class _Kind:
    """An operation's properties, from its schema.

    `back` names for each result the argument that it is, None for a new tensor; `writes` are the arguments that it
    changes. `composite`: torch implements it by others; `zero_dim`: a CPU tensor of one number may be among GPU
    tensors.
    """

    composite: bool
    view: bool
    alias_only: bool
    back: tuple[Argument | None, ...]
    writes: tuple[Argument, ...]
    random: bool
    zero_dim: bool


@functools.cache
def _kind(func: Any) -> _Kind:
    schema, name = func._schema, _name(func)
    written = {}
    for place, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            for alias in argument.alias_info.before_set:
                written[alias] = (place, argument.name)
    back = tuple(
        next((written[a] for a in r.alias_info.before_set if a in written), None) if r.alias_info is not None else None
        for r in schema.returns
    )
    return _Kind(
        composite=torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"),
        view=bool(func.is_view),
        alias_only=any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns),
        back=back,
        writes=tuple(written.values()),
        random=torch.Tag.nondeterministic_seeded in func.tags,
        zero_dim=torch.Tag.pointwise in func.tags or name in _TAKES_ZERO_DIM or name.startswith("_foreach"),
    )


@functools.cache
def _name(func: Any) -> str:
    return str(func._schema.name.split("::")[1])


def _launches(name: str, args: Any) -> int:
    """Kernels of an operation: one, or as many as CUDA needs for lists of tensors, whose addresses are arguments."""
    if not name.startswith(("_foreach", "_fused_adam", "_amp_foreach")):
        return 1
    lists = [x for x in args if isinstance(x, list | tuple) and x and isinstance(x[0], Tensor)]
    return -(-len(lists[0]) // _IN_ONE_KERNEL[min(len(lists), len(_IN_ONE_KERNEL)) - 1]) if lists else 1


def _tensors(values: Any) -> list[Tensor]:
    found = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            found += _tensors(value)
    return found


def _inner(value: Any) -> Any:
    if isinstance(value, Tensor):
        return inside(value) if value.is_cuda else value
    return [_inner(one) for one in value] if isinstance(value, list | tuple) else value


def _given(source: Argument, args: Any, kwargs: Any) -> Any:
    at, name = source
    return kwargs[name] if name in kwargs else args[at] if at < len(args) else None


class Operations(TorchDispatchMode):
    """Runs operations with a GPU tensor, or that make one, on the CPU tensors inside; leaves others alone."""

    def __init__(self, card: Any):
        super().__init__()
        self.card = card

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if kwargs.get("pin_memory"):
            return pinned(func(*args, **{**kwargs, "pin_memory": False}))
        tensors = _tensors((*args, *kwargs.values()))
        place = kwargs.get("device")
        makes = place is not None and torch.device(place).type == "cuda"
        touches = makes or any(x.is_cuda for x in tensors)
        if "generator" in kwargs:
            _check_generator(func, kwargs["generator"], touches)
        kind = _kind(func)
        if kind.composite and (touches or any(isinstance(x, torch.device) for x in args)):
            with self:
                if func is aten.scaled_dot_product_attention.default:
                    return attention(self.card, *args, **kwargs)
                if func is aten._fused_rms_norm.default:
                    return rms_norm(self.card, *args, **kwargs)
                return func.decompose(*args, **kwargs)
        if not touches:
            return func(*args, **kwargs)
        if func is aten._flash_attention_forward.default:
            return (flash if "seqused_k" in kwargs else flash_forward)(self.card, *args, **kwargs)
        if func is aten._flash_attention_backward.default:
            return flash_backward(self.card, *args, **kwargs)
        if makes and torch.device(place).index not in (None, 0):
            raise RuntimeError("CUDA error: invalid device ordinal")
        if func is aten._to_copy.default:
            return self._to_copy(args[0], dict(kwargs))
        if func is aten.copy_.default:
            return self._copy(*args, **kwargs)
        if place is None and not all(x.is_cuda for x in tensors):  # with a place, only a shape is asked for
            _check_devices(func, kind, args, kwargs, tensors)
        out = self._run(func, kind, args, kwargs, makes)
        if self.card.watched:
            self._count(func, kind, args, kwargs, tensors, out)
        return out if place is not None and not makes else self._finish(func, kind, args, kwargs, out)

    def _run(self, func: Any, kind: _Kind, args: Any, kwargs: Any, makes: bool) -> Any:
        inner_args = [_inner(x) for x in args]
        inner_kwargs = {name: _inner(x) for name, x in kwargs.items()}
        if makes:
            inner_kwargs["device"] = self.card.host
        if func in (aten.mm.dtype, aten.mm.dtype_out):  # which a CPU has not
            return aten.mm.out(*(x.to(inner_args[2]) for x in inner_args[:2]), **inner_kwargs)
        if func is aten._softmax.default and inner_args[2]:  # fp16 to float32, which a CPU has not
            return aten._softmax.default(inner_args[0].float(), inner_args[1], False)
        if func in _READS and not self.card.numbers:
            return unread(inner_args[0]).item() if func is _READS[0] else True
        with self.card.randomness() if kind.random else contextlib.nullcontext():
            try:
                return func(*inner_args, **inner_kwargs)
            except RuntimeError as error:
                if "not implemented for 'Half'" not in str(error) or kind.writes:
                    raise
                up = tree_map_only(Tensor, lambda t: t.float() if t.dtype == torch.float16 else t, inner_args)
                down = func(*up, **inner_kwargs)  # what CUDA has in fp16 and a CPU has not
                return tree_map_only(Tensor, lambda t: t.half() if t.dtype == torch.float32 else t, down)

    def _finish(self, func: Any, kind: _Kind, args: Any, kwargs: Any, out: Any) -> Any:
        for given in _tensors([_given(source, args, kwargs) for source in kind.writes]):
            self._follow(given)
        if _name(func).startswith("_foreach") and _name(func).endswith("_"):
            # CUDA's kernels for lists count what they write (ForeachFunctors.cuh); those of fused optimizers do not.
            increment_version(args[0])
        if not kind.back or func in _READS:
            return out
        # In inference mode a view is an ordinary tensor where its base is one.
        plain = kind.alias_only and torch.is_inference_mode_enabled() and not args[0].is_inference()
        outs = out if len(kind.back) > 1 else (out,)
        with torch.inference_mode(False) if plain else contextlib.nullcontext():
            found = [
                self._wrapped(one) if source is None else _given(source, args, kwargs)
                for source, one in zip(kind.back, outs, strict=True)
            ]
        return tuple(found) if len(kind.back) > 1 else found[0]

    def _wrapped(self, out: Any) -> Any:
        if isinstance(out, Tensor):
            return self._new(out)
        return type(out)(self._wrapped(one) for one in out) if isinstance(out, list | tuple) else out

    def _new(self, inner: Tensor) -> Tensor:
        self.card.memory.take(inner)
        return wrap(inner)

    def _follow(self, card: Tensor) -> None:
        """Give the wrapper a new shape after an operation that changed it in place."""
        inner = inside(card) if card.is_cuda else card
        if card.shape != inner.shape or card.stride() != inner.stride():
            set_data(card, self._new(inner))

    # Copies between host and GPU

    def _to_copy(self, x: Tensor, kwargs: dict[str, Any]) -> Tensor:
        place = torch.device(kwargs.pop("device", None) or x.device)
        blocking = not kwargs.pop("non_blocking", False)
        kwargs.pop("pin_memory", None)
        self._count_copy("_to_copy", x.is_cuda, place.type == "cuda", blocking or not is_pinned(x), x)
        x = inside(x) if x.is_cuda else x
        if place.type == "cuda":
            return self._new(aten._to_copy.default(x, device=self.card.host, **kwargs))
        return aten._to_copy.default(unread(x), device=CPU, **kwargs)

    def _copy(self, to: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
        blocking = not non_blocking or not (is_pinned(to) or is_pinned(source))
        self._count_copy("copy_", source.is_cuda, to.is_cuda, blocking, to)
        to_inner, from_inner = (inside(x) if x.is_cuda else x for x in (to, source))
        aten.copy_.default(to_inner, from_inner if to_inner.is_meta else unread(from_inner))
        return to

    def _count_copy(self, name: str, from_card: bool, to_card: bool, blocking: bool, x: Tensor) -> None:
        if not x.numel() or not self.card.watched:
            return
        self.card.count(name, given=[x], made=[x])
        if from_card != to_card and blocking:
            self.card.wait("read" if from_card else "write", name)

    def _count(self, func: Any, kind: _Kind, args: Any, kwargs: Any, tensors: list[Tensor], out: Any) -> None:
        name = _name(func)
        if func in _READS:
            self.card.wait("read", name)
        elif name in _WAITS_FOR_SHAPE or (name == "repeat_interleave" and kwargs.get("output_size") is None):
            self.card.wait("shape", name)
        elif name in _INDEXING:
            for index in args[1]:
                if index is not None and not index.is_cuda:
                    self.card.wait("write", f"{name}[CPU index]")
                elif index is not None and index.dtype in (torch.bool, torch.uint8):
                    self.card.wait("shape", f"{name}[mask]")
                    self.card.count("nonzero", 3)
        if not (kind.view or kind.alias_only or name in _FREE):
            made = _tensors((out,))
            if name in _PICKS:  # of a table as much as is written
                tensors = [*made, *tensors[1:]]
            elif name in _PUTS:  # into a table as much as is read
                made, tensors = tensors[1:], tensors[1:]
            self.card.count(name, _launches(name, args), tensors, made)


# Without what torch wraps it in for its compiler, it takes a third of the time.
Operations.__torch_dispatch__ = vars(Operations)["__torch_dispatch__"].__wrapped__  # type: ignore[method-assign]


def unread(x: Tensor) -> Tensor:
    """What the host reads of a tensor: of one without numbers zeros, or that all is true."""
    return torch.full(x.shape, x.dtype == torch.bool, dtype=x.dtype) if x.is_meta else x


# What a CUDA build refuses


def _check_generator(func: Any, generator: Any, on_card: bool) -> None:
    if generator is not None and generates_on_card(generator) != on_card:
        expected, found = ("cuda", "cpu") if on_card else ("cpu", "cuda")
        raise RuntimeError(f"Expected a '{expected}' device type for generator but found '{found}' ({func})")


def _check_devices(func: Any, kind: _Kind, args: Any, kwargs: Any, tensors: list[Tensor]) -> None:
    others = [x for x in tensors if not x.is_cuda]
    if _name(func) in _INDEXING:
        if not is_card(args[0]):
            raise RuntimeError("indices should be either on cpu or on the same device as the indexed tensor (cpu)")
        indices = {id(x) for x in args[1] if x is not None}  # may lie on the CPU: they are copied to the GPU
        others = [x for x in others if id(x) not in indices]
    written = {id(x) for x in _tensors([_given(source, args, kwargs) for source in kind.writes])}
    for other in others:
        if other.dim() == 0 and kind.zero_dim and id(other) not in written:
            continue
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu! "
            f"(pretend GPU: {func} was given a CPU tensor of shape {list(other.shape)} and type {other.dtype})"
        )


def attention(
    card: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """One fused kernel if a GPU has one (flash or memory-efficient), otherwise the plain formula.

    Flash needs a half precision and no mask; the efficient kernel needs key heads of its own and takes a mask of the
    query's type, which torch makes from a boolean one.
    """
    half = query.dtype in (torch.float16, torch.bfloat16)
    flash = half and attn_mask is None and card.model.capability >= (8, 0)
    efficient = not enable_gqa and (query.dtype != torch.bfloat16 or card.model.bf16)
    if query.dim() != 4 or dropout_p or not (flash or efficient):
        return aten._scaled_dot_product_attention_math(
            query, key, value, attn_mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
        )[0]
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill_(attn_mask.logical_not(), -torch.inf)
    if enable_gqa and key.shape[1] != query.shape[1]:
        groups = query.shape[1] // key.shape[1]  # inside the kernel on a GPU
        key, value = (x.repeat_interleave(groups, 1, output_size=query.shape[1]) for x in (key, value))
    return aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0.0, is_causal, attn_mask=attn_mask, scale=scale
    )[0]


def flash(
    card: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    starts_q: Tensor,
    starts: Tensor,
    longest_q: int,
    longest: int,
    dropout: float,
    causal: bool,
    debug: bool,
    *,
    scale: float,
    seqused_k: Tensor,
) -> tuple[Tensor, ...]:
    """torch's flash kernel for one token of each of B sequences (B, G, D) over one key head: it reads memory by
    pointers and strides as `mha_varlen_fwd` of torch's flash_api.cpp does, with the same checks."""
    if card.model.capability < (8, 0):
        raise RuntimeError("FlashAttention only supports Ampere GPUs or newer.")
    if query.dtype not in HALVES or not query.dtype == key.dtype == value.dtype:
        raise RuntimeError("FlashAttention only support fp16 and bf16 data type")
    if query.shape[2] % 8 or query.shape[2] > 256 or any(x.stride(-1) != 1 for x in (query, key, value)):
        raise RuntimeError("this flash attention only supports heads of up to 256 numbers, in eights, without gaps")
    count, groups = query.shape[:2]
    if any(x.dtype != torch.int32 or not x.is_contiguous() for x in (starts_q, starts, seqused_k)):
        raise RuntimeError("cu_seqlens and seqused must be contiguous and of dtype int32")
    if (len(starts_q), len(starts), len(seqused_k)) != (count + 1, count + 1, count) or key.shape[1] != 1:
        raise RuntimeError("cu_seqlens and seqused must have the shapes (batch_size + 1) and (batch_size)")
    assert (longest_q, dropout, causal, debug) == (1, 0.0, False, False)
    q, k, v, first, used = (inside(x) for x in (query, key, value, starts, seqused_k))
    card.count("_flash_attention_forward", given=(query, key, value), made=[query])
    if not card.numbers:
        return _made(card, torch.empty_like(q), q.new_empty(groups, count), *(q.new_empty(0) for _ in range(3)))
    assert int(used.max()) <= longest
    first = first[:-1]  # the lengths say where a sequence ends
    assert int(first.min()) >= 0
    assert int((first + used).max()) <= len(k)
    number = torch.arange(int(used.max()))
    places = (first[:, None] + number).clamp_(max=len(k) - 1)
    exact = torch.promote_types(q.dtype, torch.float32)
    scores = torch.bmm(q.to(exact), k[places, 0].to(exact).mT).mul_(scale)
    scores.masked_fill_((number >= used[:, None])[:, None], -torch.inf)
    out = torch.bmm(scores.softmax(-1).to(q.dtype).to(exact), v[places, 0].to(exact)).to(q.dtype)
    return _made(card, out, q.new_zeros(groups, count), *(q.new_zeros(0) for _ in range(3)))


def flash_forward(card: Any, q: Tensor, k: Tensor, v: Tensor, *rest: Any, scale: float) -> tuple[Tensor, ...]:
    """The same kernel for sequences one behind the other, with the arguments of `mha_varlen_fwd`."""
    *ends, longest_q, longest_k, dropout, causal, debug = rest
    assert (dropout, debug) == (0.0, False)
    inner = _checked(card, (q, k, v), ends, (longest_q, longest_k))
    card.count("_flash_attention_forward", given=(q, k, v), made=[q])
    log_sums = inner[0].new_empty(q.shape[1], len(q), dtype=torch.float32)
    found = flash_formula.forward(*inner, causal, scale) if card.numbers else (torch.empty_like(inner[0]), log_sums)
    return _made(
        card, *found, *(torch.zeros(2, dtype=torch.uint64), torch.zeros((), dtype=torch.uint64), torch.zeros(0))
    )


def flash_backward(
    card: Any, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, log_sums: Tensor, *rest: Any, scale: float
) -> tuple[Tensor, ...]:
    """Its backward pass, with the arguments of `mha_varlen_bwd`."""
    *ends, longest_q, longest_k, dropout, causal, state, unused = rest
    assert (dropout, state.dtype, unused.dtype) == (0.0, torch.uint64, torch.uint64)
    assert log_sums.is_contiguous()
    assert log_sums.shape == (q.shape[1], len(q))
    assert grad.dtype == out.dtype == q.dtype
    inner = _checked(card, (q, k, v), ends, (longest_q, longest_k))
    card.count("_flash_attention_backward", given=(q, k, v, out, grad), made=[q, k, v])
    if not card.numbers:
        return _made(card, *map(torch.empty_like, inner[:3]))
    found = flash_formula.backward(inside(grad), *inner[:3], inside(out), inside(log_sums), *inner[3:], causal, scale)
    return _made(card, *found)


def _checked(card: Any, given: tuple[Tensor, ...], ends: list[Tensor], longest: tuple[int, int]) -> list[Tensor]:
    """The tensors inside, if the kernel would accept them."""
    q, k, v = given
    if card.model.capability < (8, 0):
        raise RuntimeError("FlashAttention only supports Ampere GPUs or newer.")
    if q.dtype not in HALVES or not q.dtype == k.dtype == v.dtype:
        raise RuntimeError("FlashAttention only support fp16 and bf16 data type")
    if q.shape[2] % 8 or q.shape[2] > 256 or any(x.stride(-1) != 1 for x in given) or q.shape[1] % k.shape[1]:
        raise RuntimeError("this flash attention only supports heads of up to 256 numbers, in eights, without gaps")
    assert longest[0] > 1  # else query heads of one key head are computed as queries
    for x, end, most in zip((q, k), ends, longest, strict=True):
        assert end.dtype == torch.int32
        if not card.numbers:
            continue
        lengths = inside(end).diff()
        assert (int(inside(end)[0]), int(inside(end)[-1])) == (0, len(x))
        assert int(lengths.min()) > 0
        assert int(lengths.max()) <= most
    return [inside(x) for x in (*given, *ends)]


def _made(card: Any, *found: Tensor) -> tuple[Tensor, ...]:
    for one in found:
        card.memory.take(one)
    return tuple(wrap(one) for one in found)


def rms_norm(card: Any, x: Tensor, shape: Any, weight: Tensor | None, eps: float | None) -> tuple[Tensor, Tensor]:
    """A norm in one kernel, and one more backwards, with a frozen weight."""
    return _RmsNorm.apply(card, x, shape, weight, eps)


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, card: Any, x: Tensor, shape: Any, weight: Tensor | None, eps: float | None) -> Any:
        if weight is not None and not is_card(weight):
            raise RuntimeError("Expected all tensors to be on the same device, but found at least two devices")
        ctx.card, ctx.x, ctx.weight, ctx.eps = card, inside(x), None if weight is None else inside(weight), eps
        card.count("_fused_rms_norm", given=[x], made=[x])
        y, scale = _RmsNorm._inner(ctx.x, ctx.weight, eps)
        for made in (y, scale):
            card.memory.take(made)
        return wrap(y), wrap(scale)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Any) -> Any:
        ctx.card.count("_fused_rms_norm_backward", given=[grad, grad], made=[grad])
        with torch.enable_grad():
            x = ctx.x.detach().requires_grad_()
            (found,) = torch.autograd.grad(_RmsNorm._inner(x, ctx.weight, ctx.eps)[0], x, inside(grad))
        ctx.card.memory.take(found)
        return None, wrap(found), None, None, None

    @staticmethod
    def _inner(x: Tensor, weight: Tensor | None, eps: float | None) -> tuple[Tensor, Tensor]:
        up = x.float()
        scale = torch.rsqrt(up.square().mean(-1, keepdim=True) + (torch.finfo(x.dtype).eps if eps is None else eps))
        y = up * scale if weight is None else up * scale * weight.float()
        return y.to(x.dtype), scale

"""Seats: named LoRA adapters over one base. The only module that touches PEFT.

Two states matter to everyone else, and each has one way in:

- `activate(seat)`: the seat is in the forward pass and is the only thing that can receive a gradient. Forward and
  backward of a microbatch both run inside one activation; PEFT would silently mix seats otherwise.
- `speaking(name)`: a seat, a snapshot or `base` is in the forward pass and nothing can receive a gradient. On leaving,
  what was active before is active again.

Adapter weights are float32 whatever the base is held in.
"""

import contextlib
import functools
import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model, set_peft_model_state_dict
from peft.tuners.lora import LoraLayer
from safetensors.torch import save_file
from torch import Tensor, nn

from lite_selfplay.config import SeatConfig
from lite_selfplay.data import BASE
from lite_selfplay.errors import LiteSelfPlayError, UnknownNameError
from lite_selfplay.models.adapter_files import CONFIG, WEIGHTS, SnapshotWeights, State, check_folder, require_fit
from lite_selfplay.models.linear import LowRank, cast, linear
from lite_selfplay.models.stacked import Stack, UnstackedLayer, take, together
from lite_selfplay.models.transfers import on_host

_TWIN = "-frozen"
_INSTEAD, _ACTIVE = "_computed_with", object()

Build = Callable[[nn.Module, LoraConfig], PeftModel]
"""Wraps a base for a first adapter, which it names `default`."""
Stacks = Sequence[tuple[Stack | UnstackedLayer, Sequence[Any]]]
"""Stacks, and the layers with adapters that each computes."""


class Adapters:
    """The seats of a run over one base model.

    `model` is the PEFT model. `updates[seat]` counts the updates a seat has seen, `versions[seat]` those and the
    snapshots put back into it: two completions of one version are by the same weights. `base_name` is what saved
    adapters call the base, where that is not its folder. `text_part` is what a wrapper calls the part of it that is the
    base here, as in `model.language_model`: files have its names, so that they load over the published model. Inside
    PEFT an adapter has a name of its own.
    """

    def __init__(
        self,
        base: nn.Module,
        seats: Mapping[str, SeatConfig],
        *,
        seed: int,
        build: Build | None = None,
    ):
        if not seats:
            raise LiteSelfPlayError("a run needs at least one seat")
        for name in seats:
            if name == BASE or not re.fullmatch(r"[\w-]+", name):
                raise LiteSelfPlayError(f"a seat cannot be named {name!r}")
        self.seats: tuple[str, ...] = tuple(seats)
        self.updates: dict[str, int] = dict.fromkeys(seats, 0)
        self.versions: dict[str, int] = dict.fromkeys(seats, 0)
        self.snapshots: dict[str, SnapshotWeights] = {}
        self._in_twin: dict[str, str] = {}
        self.base_name = self.text_part = ""
        self._puts: dict[str, int] = {}
        self._together: list[Any] = []
        first, *others = self.seats
        # PEFT looks for an adapter's name anywhere in a parameter's: no part of a model is called like these.
        self._peft_names = {seat: f"seat-{i}" for i, seat in enumerate(seats)}
        if build is not None:
            self._peft_names[first] = "default"
        wrap: Any = build or functools.partial(get_peft_model, adapter_name=self._peft_names[first])
        self.model: PeftModel = wrap(base, _lora(seats[first]))
        targets = self._config(first).target_modules
        for name in others:
            self.model.add_adapter(self._peft_name(name), _lora(seats[name], targets))
        for name in self.seats:
            self._initialise(name, seats[name], seed)
        self.cast_to_float32()
        self.activate(first)

    # Which seat is in the forward pass

    def activate(self, seat: str) -> None:
        """Put a seat into the forward pass and make it, alone, trainable."""
        self._check(seat)
        own = self._peft_name(seat)
        if not all(x.active_adapters == [own] and x.lora_A[own].weight.requires_grad for x in self._layers.values()):
            self.model.set_adapter(own)  # goes through every module of the model
        self._active = seat

    @contextlib.contextmanager
    def inference(self, name: str) -> Iterator[None]:
        """A seat, a snapshot or `base` speaks, frozen; afterwards the seat that was active is active again."""
        before = self._active
        if self._together:  # PEFT goes through every module of the model several times
            own = None if name == BASE else self._inference_adapter(name)
            adapters = {layer: None if own is None else _low_rank(layer, own) for layer in self._together}
            with torch.no_grad(), _computing_with(adapters):
                yield
            return
        try:
            if name == BASE:
                with self.model.disable_adapter():
                    yield
            else:
                self.model.set_adapter(self._inference_adapter(name), inference_mode=True)
                yield
        finally:
            self.activate(before)

    @contextlib.contextmanager
    def inference_dense(self, name: str, dense: Callable[[nn.Module], Tensor]) -> Iterator[None]:
        """As `speaking`, through dense weights that live for the length of it: a 4-bit weight is expanded once instead
        of at every token.

        `dense(layer)` is a base layer's weight (out, in) in float32. The adapter is added to it, which changes no more
        than the last bits; a half precision would round it away, and takes stacks in the place of this.
        """
        layers = self._layers.values()
        with self.inference(name), torch.no_grad(), _other_forwards(layers):
            for layer in layers:
                found = layer.get_base_layer()
                layer.forward = _dense_forward(dense(found), getattr(found, "bias", None), _active_adapter(layer))
            yield

    @contextlib.contextmanager
    def inference_stacked(self, name: str, stacks: Stacks) -> Iterator[None]:
        """As `speaking`, through stacks of this base: a seat's weights are copied into them once, at the beginning."""
        with self.inference(name), torch.no_grad(), _other_forwards(self._layers.values()):
            take((stack, [_active_adapter(layer) for layer in layers]) for stack, layers in stacks)
            for stack, layers in stacks:
                for i, layer in enumerate(layers):
                    layer.forward = functools.partial(stack.forward, i)
            yield

    def stacked(self, dense: Callable[[nn.Module], Tensor], *, instead: bool) -> Stacks:
        """Stacks of the base's weights, `dense(layer)` as in `speaking_dense`.

        `instead`: from now on the base's own weights lie in them, so that they take no memory but an adapter's.
        """
        stacks = []
        for names in together(self._layers):
            layers: list[Any] = [self._layers[name] for name in names]
            bases: list[Any] = [layer.get_base_layer() for layer in layers]
            stack = Stack([dense(base) for base in bases], [base.bias for base in bases], max(self.ranks().values()))
            for i, base in enumerate(bases if instead else ()):
                base.weight.data = stack.part(i)
            stacks.append((stack, layers))
        return stacks

    def beside(self, dtype: torch.dtype) -> Stacks:
        """The same for layers that stay as they are, with adapters in `dtype` beside them."""
        rank, first = max(self.ranks().values()), self._peft_name(self.seats[0])
        return [
            (UnstackedLayer(layer.get_base_layer(), _low_rank(layer, first), dtype, rank), [layer])
            for layer in self._layers.values()
        ]

    @property
    def stackable(self) -> bool:
        """Whether all layers with adapters are plain linear ones, as `stacked` needs them."""
        return all(isinstance(layer.get_base_layer(), nn.Linear) for layer in self._layers.values())

    def compute_together(self, dense: Callable[[nn.Module], Tensor]) -> None:
        """From now on a layer and its adapter are computed by `linear`, not by PEFT's own layers."""
        self._together = list(self._layers.values())
        for layer in self._together:
            layer.forward = functools.partial(_forward, layer, dense)

    @contextlib.contextmanager
    def cast_together(self, dtype: torch.dtype) -> Iterator[None]:
        """Take the active seat into the type that weights are multiplied in once, not layer by layer at every use.

        For layers that compute together on a card, where many small kernels take their time; elsewhere nothing happens.
        A backward pass lies within, as its forward pass does.
        """
        found = {layer: adapter for layer in self._together if (adapter := _active_adapter(layer)) is not None}
        if dtype == torch.float32 or not all(adapter.down.is_cuda for adapter in found.values()):
            found = {}
        with _computing_with(dict(zip(found, cast(list(found.values()), dtype), strict=True)) if found else {}):
            yield

    def dense_bytes(self, dtype: torch.dtype) -> list[int]:
        """What each weight that `speaking_dense` speaks through takes in this type."""
        return [dtype.itemsize * layer.in_features * layer.out_features for layer in self._layers.values()]

    @functools.cached_property
    def _layers(self) -> dict[str, Any]:
        """The layers that carry adapters, by name."""
        return {name: module for name, module in self.model.named_modules() if isinstance(module, LoraLayer)}

    def _inference_adapter(self, name: str) -> str:
        """The PEFT adapter that speaks as `name`; a snapshot is loaded into a frozen twin of its seat's adapter."""
        if name in self.seats:
            return self._peft_name(name)
        kept = self._kept(name)
        twin = f"{self._peft_name(kept.seat)}{_TWIN}"
        if twin not in self.model.peft_config:
            self.model.add_adapter(twin, LoraConfig(**self._config(kept.seat).to_dict()))
            self.cast_to_float32()
            self.activate(self._active)
        if self._in_twin.get(kept.seat) != name:
            set_peft_model_state_dict(self.model, kept.state, adapter_name=twin)
            self._in_twin[kept.seat] = name
        return twin

    # Weights

    def parameters(self, seat: str) -> dict[str, nn.Parameter]:
        """A seat's parameters by their name in a PEFT model with adapters called as the seats, in the model's order."""
        return {f"{key.removesuffix('weight')}{seat}.weight": p for key, p in self._weights(seat).items()}

    def _weights(self, seat: str) -> dict[str, nn.Parameter]:
        """A seat's parameters, keyed as in a PEFT file."""
        self._check(seat)
        own = self._peft_name(seat)
        return {
            f"{name}.{kind}.weight": getattr(layer, kind)[own].weight
            for name, layer in self._layers.items()
            for kind in ("lora_A", "lora_B")
        }

    def cast_to_float32(self) -> None:
        """Hold every adapter in float32: a trainer's own set-up casts only those that require a gradient then."""
        for name, parameter in self.model.named_parameters():
            if "lora_" in name and parameter.dtype != torch.float32:
                parameter.data = parameter.data.float()

    def moved(self, seat: str) -> None:
        """Count an update of a seat."""
        self._check(seat)
        self.updates[seat] += 1
        self.versions[seat] += 1

    def version(self, name: str) -> int:
        """Changes of a seat's weights so far; -1 for the base and for snapshots, which never move."""
        return self.versions.get(name, -1)

    def is_the_base(self, seat: str) -> bool:
        """Whether a seat speaks as the base does, since nothing is added to it."""
        return not any(p.any() for name, p in self.parameters(seat).items() if "lora_B" in name)

    def state_key(self, name: str) -> tuple[int, ...]:
        """Another one whenever the weights that speak as `name` may be others, counted as an update or not."""
        if name == BASE:
            return ()
        if name not in self.seats:
            self._kept(name)
            return (self._puts[name],)
        # torch counts what is written into a tensor in place, which is how weights move and are put back.
        return (self.versions[name], sum(p._version for p in self.parameters(name).values()))

    def ranks(self) -> dict[str, int]:
        """The rank of each seat."""
        return {seat: self._config(seat).r for seat in self.seats}

    def state(self, seat: str, *, wait: bool = True) -> State:
        """A copy of a seat's weights on the CPU, keyed as in a PEFT file.

        Without `wait` it is on its way from a card, and there once the card was waited for.
        """
        return on_host(self.tensors(seat), wait=wait)

    def tensors(self, seat: str) -> State:
        """A seat's weights themselves, keyed as in a PEFT file."""
        return {key: parameter.detach() for key, parameter in self._weights(seat).items()}

    def load_state(self, seat: str, state: Mapping[str, Tensor]) -> None:
        """Overwrite a seat's weights. Raises what `require_fit` does, before anything is changed."""
        require_fit(self, seat, state)
        set_peft_model_state_dict(self.model, dict(state), adapter_name=self._peft_name(seat))

    # Snapshots

    def snapshot(self, seat: str, name: str) -> None:
        """Keep a copy of a seat's weights on the CPU; it can speak as `name` from then on."""
        self.put_snapshot(name, seat, self.state(seat))

    def put_snapshot(self, name: str, seat: str, state: State) -> None:
        """Keep weights of a seat under a name, as `snapshot` does, from a checkpoint."""
        self._check(seat)
        if name in self.seats or name == BASE:
            raise LiteSelfPlayError(f"a snapshot cannot take the name {name!r} of a seat")
        self.snapshots[name] = SnapshotWeights(seat, state)
        self._puts[name] = self._puts.get(name, 0) + 1
        self._in_twin = {twin: held for twin, held in self._in_twin.items() if held != name}

    def restore(self, seat: str, name: str) -> None:
        """Put a snapshot's weights back into a seat: earlier completions are not from its weights any more."""
        self.load_state(seat, self._kept(name).state)
        self.versions[seat] += 1

    def merged(self, name: str, dense: Callable[[nn.Module], Tensor]) -> Iterator[tuple[str, Tensor]]:
        """The weights of the model that a seat is, each by its name in the base alone, in float32, one after another.

        `dense(layer)` is a base layer's weight (out, in) as it is multiplied, expanded where it is held in 4 bits; the
        adapter's product is added to it in float32. A weight that is tied to another comes once.
        """
        self._check(name)
        own = self._peft_name(name)
        base: Any = self.model.get_base_model()
        with torch.no_grad():
            for full, parameter in base.named_parameters():
                if "lora_" in full:
                    continue
                place, _, kind = full.rpartition(".")
                outer = place.removesuffix(".base_layer")
                layer: Any = base.get_submodule(outer)
                carries = isinstance(layer, LoraLayer)
                weight = parameter.detach()
                if kind == "weight" and (carries or isinstance(layer, nn.Linear)):
                    weight = dense(layer.get_base_layer() if carries else layer)
                if kind == "weight" and carries:
                    product = layer.lora_B[own].weight.float() @ layer.lora_A[own].weight.float()
                    weight = weight.float() + layer.scaling[own] * product
                yield f"{outer}.{kind}", weight.float()

    # Files that plain PEFT loads

    def save(self, name: str, folder: Path) -> None:
        """Write `adapter_model.safetensors` and `adapter_config.json` of a seat or a snapshot into a folder."""
        kept = SnapshotWeights(name, self.state(name)) if name in self.seats else self._kept(name)
        folder.mkdir(parents=True, exist_ok=True)
        own, published = self._prefixes()
        state = {re.sub(f"^{re.escape(own)}", published, key): tensor for key, tensor in kept.state.items()}
        save_file(state, folder / WEIGHTS, metadata={"format": "pt"})
        config: dict[str, Any] = self._config(kept.seat).to_dict()
        if self.text_part:
            layers = "|".join(sorted({key.split(".lora_")[0].rpartition(".")[2] for key in state}))
            config["target_modules"] = rf"{re.escape(self.text_part)}\..*\.({layers})"
        config["base_model_name_or_path"] = self.base_name or config.get("base_model_name_or_path")
        config["inference_mode"] = True
        text = json.dumps(
            config,
            indent=2,
            sort_keys=True,
            default=lambda v: sorted(v) if isinstance(v, set | frozenset) else str(getattr(v, "value", v)),
        )
        (folder / CONFIG).write_text(text + "\n", encoding="utf-8")

    def load(self, seat: str, folder: Path) -> None:
        """Read a seat's weights from such a folder. Raises RunFolderError, before anything is changed."""
        self.load_state(seat, check_folder(self, seat, folder))

    def named_here(self, state: State) -> State:
        """Weights from a file, by their names in this base. Other names stay, for `require_fit` to refuse."""
        own, published = self._prefixes()
        return {re.sub(f"^{re.escape(published)}", own, key): tensor for key, tensor in state.items()}

    # Inside

    def _prefixes(self) -> tuple[str, str]:
        """What the names of all weights begin with, here and in files."""
        base: Any = self.model.get_base_model()
        own = f"base_model.model.{base.base_model_prefix}."
        return own, f"base_model.model.{self.text_part}." if self.text_part else own

    def _initialise(self, seat: str, config: SeatConfig, seed: int) -> None:
        """Draw a seat's weights from a generator of its own: the order of adding seats changes nothing.

        `lora_A` is uniform in +-1/sqrt(fan_in), PEFT's default; `lora_B` is zero or N(0, init_std).
        """
        own = hashlib.blake2b(f"{seed}/{seat}".encode(), digest_size=7).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(own, "big"))
        with torch.no_grad():
            for name, parameter in self.parameters(seat).items():
                draw = torch.zeros(parameter.shape)
                if "lora_A" in name:
                    bound = 1 / math.sqrt(parameter.shape[1])
                    draw.uniform_(-bound, bound, generator=generator)
                elif config.init == "gaussian":
                    draw.normal_(0.0, config.init_std, generator=generator)
                parameter.data = draw.to(parameter.device)

    def _peft_name(self, seat: str) -> str:
        return self._peft_names[seat]

    def _config(self, seat: str) -> Any:
        return self.model.peft_config[self._peft_name(seat)]

    def _check(self, seat: str) -> None:
        if seat not in self.seats:
            raise UnknownNameError("seat", seat, self.seats)

    def _kept(self, name: str) -> SnapshotWeights:
        if name not in self.snapshots:
            raise UnknownNameError("seat or snapshot", name, [*self.seats, *self.snapshots, BASE])
        return self.snapshots[name]


def _lora(config: SeatConfig, targets: Any = "all-linear") -> LoraConfig:
    return LoraConfig(
        r=config.rank,
        lora_alpha=config.alpha,
        lora_dropout=0.0,
        bias="none",
        target_modules=targets,
        task_type="CAUSAL_LM",
    )


def _active_adapter(layer: Any) -> LowRank | None:
    found: Any = vars(layer).get(_INSTEAD, _ACTIVE)
    if found is not _ACTIVE:
        return found
    for adapter in () if layer.disable_adapters else layer.active_adapters:
        if adapter in layer.lora_A:
            return _low_rank(layer, adapter)
    return None


def _low_rank(layer: Any, adapter: str) -> LowRank:
    return LowRank(layer.lora_A[adapter].weight, layer.lora_B[adapter].weight, layer.scaling[adapter])


@contextlib.contextmanager
def _computing_with(adapters: Mapping[Any, LowRank | None]) -> Iterator[None]:
    """Layers that compute with these in place of their active adapters, or with none."""
    before = {layer: vars(layer).get(_INSTEAD, _ACTIVE) for layer in adapters}
    try:
        for layer, adapter in adapters.items():
            vars(layer)[_INSTEAD] = adapter
        yield
    finally:
        for layer, active in before.items():
            vars(layer)[_INSTEAD] = active


@contextlib.contextmanager
def _other_forwards(layers: Iterable[Any]) -> Iterator[None]:
    """Afterwards the layers are computed as they were before."""
    before = [layer.__dict__.get("forward") for layer in layers]
    try:
        yield
    finally:
        for layer, forward in zip(layers, before, strict=True):
            layer.__dict__.pop("forward", None)
            if forward is not None:
                layer.forward = forward


def _forward(layer: Any, dense: Callable[[nn.Module], Tensor], x: Tensor) -> Tensor:
    """A layer with its active adapter; see `Adapters.compute_together`."""
    base = layer.get_base_layer()
    return linear(x, functools.partial(dense, base), getattr(base, "bias", None), _active_adapter(layer))


def _dense_forward(weight: Tensor, bias: Tensor | None, adapter: LowRank | None) -> Callable[[Tensor], Tensor]:
    """A layer with its adapter as it is now; see `Adapters.speaking_dense`."""
    if adapter is None:
        return functools.partial(nn.functional.linear, weight=weight, bias=bias)
    summed = torch.addmm(weight, adapter.scale * adapter.up, adapter.down)
    return functools.partial(nn.functional.linear, weight=summed, bias=bias)

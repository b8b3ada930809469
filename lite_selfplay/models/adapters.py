"""Seats: named LoRA adapters over one base. The only module that touches PEFT.

The base is in one of two states:

- `activate(seat)`: the seat is in the forward pass and alone receives gradients. Forward and backward of a microbatch
  run inside one activation; otherwise PEFT would silently mix seats.
- `inference(name)`: a seat, a snapshot or `base` is in the forward pass and nothing receives gradients. Afterwards the
  former state is back.

Adapter weights are float32 whatever the base's precision.
"""

import contextlib
import functools
import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model, set_peft_model_state_dict
from peft.tuners.lora import LoraLayer
from safetensors.torch import save_file
from torch import Tensor, nn

from lite_selfplay.config import SeatConfig
from lite_selfplay.data import BASE
from lite_selfplay.errors import LiteSelfPlayError, RunFolderError, UnknownNameError
from lite_selfplay.models.adapter_files import CONFIG, WEIGHTS, SnapshotWeights, State, require_fit, require_scale
from lite_selfplay.models.linear import LowRank, blended, cast, linear
from lite_selfplay.models.stacked import SameInput, Stack, UnstackedLayer, packed, take, together
from lite_selfplay.models.transfers import on_host
from lite_selfplay.tasks.files import first_link, read_tensors

_TWIN = "-frozen"
_INSTEAD = "_computed_with"

Build = Callable[[nn.Module, LoraConfig], PeftModel]
"""Wraps a base for a first adapter, which it names `default`."""
Stacks = Sequence[tuple[Stack | UnstackedLayer, Sequence[Any]]]
"""Stacks, each with the adapted layers that it computes."""


class Adapters:
    """The seats of a run over one base model.

    `model` is the PEFT model. `updates[seat]` counts a seat's updates, `versions[seat]` all changes, restored and
    blended weights too: completions of one version have the same weights. `base_name` is the base's name in saved
    adapters, if not its folder. `text_part` is a wrapper's name for its language model, as in `model.language_model`;
    files use it, so that they load over the published model. Inside PEFT an adapter has another name.
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
        if odd := [name for name in seats if name == BASE or not re.fullmatch(r"[\w-]+", name)]:
            raise LiteSelfPlayError(f"a seat cannot be named {odd[0]!r}")
        self.seats: tuple[str, ...] = tuple(seats)
        self.updates: dict[str, int] = dict.fromkeys(seats, 0)
        self.versions: dict[str, int] = dict.fromkeys(seats, 0)
        self.snapshots: dict[str, SnapshotWeights] = {}
        self._in_twin: dict[str, SnapshotWeights] = {}
        self.base_name = self.text_part = ""
        self._puts: dict[str, int] = {}
        self._together: list[Any] = []
        first, *others = self.seats
        # PEFT looks for an adapter's name anywhere in a parameter's name, so these match no part of a model.
        self._peft_names = {seat: f"seat-{i}" for i, seat in enumerate(seats)}
        if build is not None:
            self._peft_names[first] = "default"
        wrap: Any = build or functools.partial(get_peft_model, adapter_name=self._peft_names[first])
        self.model: PeftModel = wrap(base, _lora(seats[first]))
        targets = self.config(first).target_modules
        for name in others:
            self.model.add_adapter(self._peft_names[name], _lora(seats[name], targets))
        for name in self.seats:
            self._initialise(name, seats[name], seed)
        self.activate(first)

    # Which seat is in the forward pass

    def activate(self, seat: str) -> None:
        """Put a seat into the forward pass and make it alone trainable."""
        self._check(seat)
        own = self._peft_names[seat]
        if not all(x.active_adapters == [own] and x.lora_A[own].weight.requires_grad for x in self._layers.values()):
            self.model.set_adapter(own)  # walks over every module
        self._active = seat

    @contextlib.contextmanager
    def inference(self, name: str) -> Iterator[None]:
        """Put a seat, a snapshot or `base` into the forward pass, frozen; then activate the former seat again."""
        before = self._active
        if self._together:  # PEFT would walk over every module several times
            own = None if name == BASE else self._inference_adapter(name)
            adapters = {layer: None if own is None else _low_rank(layer, own) for layer in self._together}
            with torch.no_grad(), _having(_INSTEAD, adapters):
                yield
            return
        try:
            if name != BASE:
                self.model.set_adapter(self._inference_adapter(name), inference_mode=True)
            with self.model.disable_adapter() if name == BASE else contextlib.nullcontext():
                yield
        finally:
            self.activate(before)

    @contextlib.contextmanager
    def inference_stacked(self, name: str, stacks: Stacks) -> Iterator[None]:
        """`inference` through stacks of this base, into which a seat's weights are copied once."""
        with self.inference(name), torch.no_grad():
            take((stack, [_active_adapter(layer) for layer in layers]) for stack, layers in stacks)
            forwards = {
                layer: functools.partial(stack.forward, i) for stack, layers in stacks for i, layer in enumerate(layers)
            }
            with _having("forward", forwards):
                yield

    @contextlib.contextmanager
    def inference_packed(self, name: str, dense: Callable[[nn.Module], Tensor]) -> Iterator[None]:
        """`inference` on a CPU, through packed copies of all weights for the length of the context. `dense(layer)` is a
        base layer's weight (out, in), expanded from 4 bits, in the type of products."""
        stacks = self.stacked(dense, instead=False)
        base: Any = self.model.get_base_model()
        head = base.get_output_embeddings()
        with self.inference_stacked(name, stacks):
            for stack, _ in stacks:
                stack.pack()
            forward = packed(head.weight, head.bias) if type(head) is nn.Linear else None
            with _having("forward", {head: forward} if forward else {}):
                yield

    def stacked(self, dense: Callable[[nn.Module], Tensor], *, instead: bool) -> Sequence[tuple[Stack, Sequence[Any]]]:
        """Stacks of the base's weights, with `dense(layer)` as in `inference_packed`. `instead`: the base's own weights
        move into them, so that only adapters take more memory."""
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
        """Stacks like `stacked`, for layers that stay unchanged, with adapters in `dtype` beside them."""
        rank, first = max(self.ranks().values()), self._peft_names[self.seats[0]]
        return [
            (UnstackedLayer(layer.get_base_layer(), _low_rank(layer, first), dtype, rank), [layer])
            for layer in self._layers.values()
        ]

    @property
    def stackable(self) -> bool:
        """Whether all adapted layers are plain linear ones, as `stacked` requires."""
        return all(isinstance(layer.get_base_layer(), nn.Linear) for layer in self._layers.values())

    def compute_together(self, dense: Callable[[nn.Module], Tensor]) -> None:
        """From now on replace PEFT's forward pass of each adapted layer by `models.linear.linear`, which computes layer
        and adapter together, on a GPU also layers with the same input. `dense` as in `inference_packed`."""
        self._together = list(self._layers.values())
        groups = together(self._layers) if self.model.device.type == "cuda" else [[name] for name in self._layers]
        for names in groups:
            layers = [self._layers[name] for name in names]
            group = SameInput()
            group.compute = functools.partial(_outputs, layers, dense)
            for i, layer in enumerate(layers):
                layer.forward = functools.partial(group.forward, i)

    @contextlib.contextmanager
    def cast_together(self, dtype: torch.dtype) -> Iterator[None]:
        """Cast the active seat to the type of products once, not in each layer at every use. Only for layers that
        compute together on a GPU, where many small kernels take time. The backward pass must run inside, too."""
        found = {layer: adapter for layer in self._together if (adapter := _active_adapter(layer)) is not None}
        if dtype == torch.float32 or not all(adapter.down.is_cuda for adapter in found.values()):
            found = {}
        with _having(_INSTEAD, dict(zip(found, cast(list(found.values()), dtype), strict=True)) if found else {}):
            yield

    def dense_bytes(self, dtype: torch.dtype) -> list[int]:
        """The bytes in `dtype` of each weight that `inference_packed` copies."""
        return [dtype.itemsize * layer.in_features * layer.out_features for layer in self._layers.values()]

    @functools.cached_property
    def _layers(self) -> dict[str, Any]:
        return {name: module for name, module in self.model.named_modules() if isinstance(module, LoraLayer)}

    def _inference_adapter(self, name: str) -> str:
        """The PEFT adapter for `name`; a snapshot is loaded into a frozen twin of its seat's adapter."""
        if name in self.seats:
            return self._peft_names[name]
        kept = self._kept(name)
        twin = f"{self._peft_names[kept.seat]}{_TWIN}"
        if twin not in self.model.peft_config:
            self.model.add_adapter(twin, LoraConfig(**self.config(kept.seat).to_dict()))
            self.activate(self._active)
        if self._in_twin.get(kept.seat) is not kept:
            set_peft_model_state_dict(self.model, kept.state, adapter_name=twin)
            self._in_twin[kept.seat] = kept
        return twin

    # Weights

    def parameters(self, seat: str) -> dict[str, nn.Parameter]:
        """A seat's parameters, named as in a PEFT model whose adapters are called like the seats, in the model's
        order."""
        return {f"{key.removesuffix('weight')}{seat}.weight": p for key, p in self._weights(seat).items()}

    def _weights(self, seat: str) -> dict[str, nn.Parameter]:
        """A seat's parameters, keyed as in a PEFT file."""
        self._check(seat)
        own = self._peft_names[seat]
        return {
            f"{name}.{kind}.weight": getattr(layer, kind)[own].weight
            for name, layer in self._layers.items()
            for kind in ("lora_A", "lora_B")
        }

    def moved(self, seat: str) -> None:
        """Count an update of a seat."""
        self.updates[seat] += 1
        self.versions[seat] += 1

    def version(self, name: str) -> int:
        """The number of changes of a seat's weights; -1 for the base and snapshots, which never change."""
        return self.versions.get(name, -1)

    def is_the_base(self, seat: str) -> bool:
        """Whether a seat equals the base, because its adapter adds nothing."""
        return not any(p.any() for name, p in self.parameters(seat).items() if "lora_B" in name)

    def state_key(self, name: str) -> tuple[int, ...]:
        """A key that changes whenever the weights of `name` may have changed, counted as an update or not."""
        if name == BASE:
            return ()
        if name not in self.seats:
            self._kept(name)
            return (self._puts[name],)
        # torch counts in-place writes, by which weights are updated and restored.
        return (self.versions[name], sum(p._version for p in self.parameters(name).values()))

    def config(self, seat: str) -> Any:
        """A seat's `LoraConfig`."""
        return self.model.peft_config[self._peft_names[seat]]

    def ranks(self) -> dict[str, int]:
        return {seat: self.config(seat).r for seat in self.seats}

    def state(self, seat: str, *, wait: bool = True) -> State:
        """A copy of a seat's weights on the CPU, keyed as in a PEFT file. Without `wait` it is complete only
        after the GPU is synchronised."""
        return on_host(self.tensors(seat), wait=wait)

    def tensors(self, seat: str) -> State:
        """A seat's weights themselves, keyed as in a PEFT file."""
        return {key: parameter.detach() for key, parameter in self._weights(seat).items()}

    def load_state(self, seat: str, state: Mapping[str, Tensor]) -> None:
        """Overwrite a seat's weights. Raises what `require_fit` does, before any change."""
        require_fit(self.tensors(seat), seat, state)
        set_peft_model_state_dict(self.model, dict(state), adapter_name=self._peft_names[seat])

    # Snapshots

    def snapshot(self, seat: str, name: str) -> None:
        """Keep a copy of a seat's weights on the CPU, which can be sampled as `name`."""
        self.put_snapshot(name, seat, self.state(seat))

    def put_snapshot(self, name: str, seat: str, state: State) -> None:
        """Keep weights of a seat, from a checkpoint, as `snapshot` does."""
        self._check(seat)
        if name in self.seats or name == BASE:
            raise LiteSelfPlayError(f"a snapshot cannot take the name {name!r} of a seat")
        self.snapshots[name] = SnapshotWeights(seat, state)
        self._puts[name] = self._puts.get(name, 0) + 1

    def restore(self, seat: str, name: str) -> None:
        """Put a snapshot's weights back into a seat, whose earlier completions then no longer match its weights."""
        self.load_state(seat, self._kept(name).state)
        self.versions[seat] += 1

    def blend(self, seat: str, parents: Sequence[str], noise: float, seed: int) -> None:
        """Overwrite a seat with the mean of others and noise, as `Blend` says."""
        generator, state = torch.Generator().manual_seed(seed), dict[str, Tensor]()
        for name, layer in self._layers.items():
            mean = blended(*(_low_rank(layer, self._peft_names[one]) for one in (seat, *parents)))
            for kind, matrix in zip(("lora_A", "lora_B"), mean, strict=True):
                spread = noise * matrix.square().mean().sqrt()
                draw = torch.randn(matrix.shape, generator=generator, dtype=matrix.dtype)
                state[f"{name}.{kind}.weight"] = (matrix + spread * draw).float()
        self.load_state(seat, state)
        self.versions[seat] += 1

    def merged(self, name: str, dense: Callable[[nn.Module], Tensor]) -> Iterator[tuple[str, Tensor]]:
        """The weights of the merged model, by their names in the base alone, in float32, one after another.

        `dense(layer)` is a base layer's weight (out, in), expanded from 4 bits; the adapter's product is added in
        float32. A tied weight comes once.
        """
        self._check(name)
        own = self._peft_names[name]
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
        config: dict[str, Any] = self.config(kept.seat).to_dict()
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
        """Read a seat's weights from such a folder. Raises RunFolderError, before any change."""
        self.load_state(seat, self.read(seat, folder))

    def read(self, seat: str, folder: Path, *, brought: bool = False) -> State:
        """The weights in an adapter's folder or a snapshot's file. Raises RunFolderError if they are damaged or do not
        fit the seat. If they were `brought` from elsewhere, their type may be shorter, and layers without an adapter
        get one that adds nothing."""
        if (link := first_link(folder)) is not None:
            raise RunFolderError(f"{link} is a symbolic link, which is not followed")
        file = folder if folder.is_file() else folder / WEIGHTS
        if file != folder:
            require_scale(self.config(seat), seat, folder / CONFIG)
        here, published = self._prefixes()
        state = {re.sub(f"^{re.escape(published)}", here, key): each for key, each in read_tensors(file).items()}
        own = self.tensors(seat)
        if brought and state.keys() <= own.keys():
            adapted = {key.partition(".lora_")[0] for key in state}
            nothing = {key: each if "lora_A" in key else 0 * each for key, each in own.items()}
            lacked = {key: each for key, each in nothing.items() if key.partition(".lora_")[0] not in adapted}
            state = {key: each.float() for key, each in (state | lacked).items()}
        require_fit(own, seat, state, file)
        return state

    # Inside

    def _prefixes(self) -> tuple[str, str]:
        """The common beginning of all weights' names, here and in files."""
        base: Any = self.model.get_base_model()
        own = f"base_model.model.{base.base_model_prefix}."
        return own, f"base_model.model.{self.text_part}." if self.text_part else own

    def _initialise(self, seat: str, config: SeatConfig, seed: int) -> None:
        """Draw a seat's weights from its own generator, so that the order of seats does not matter. `lora_A` is uniform
        in +-1/sqrt(fan_in), PEFT's default; `lora_B` is zero or N(0, init_std)."""
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
    """The adapter that a layer computes with, if any: its active one, or the one in its attribute `_INSTEAD`."""
    if _INSTEAD in vars(layer):
        return vars(layer)[_INSTEAD]
    active = [] if layer.disable_adapters else [name for name in layer.active_adapters if name in layer.lora_A]
    return _low_rank(layer, active[0]) if active else None


def _low_rank(layer: Any, adapter: str) -> LowRank:
    return LowRank(layer.lora_A[adapter].weight, layer.lora_B[adapter].weight, layer.scaling[adapter])


@contextlib.contextmanager
def _having(attribute: str, values: Mapping[Any, Any]) -> Iterator[None]:
    """Give layers other values of an attribute of their own for the length of a context."""
    before = {layer: vars(layer)[attribute] for layer in values if attribute in vars(layer)}
    try:
        for layer, value in values.items():
            vars(layer)[attribute] = value
        yield
    finally:
        for layer in values:
            vars(layer).pop(attribute, None)
        for layer, value in before.items():
            vars(layer)[attribute] = value


def _outputs(layers: Sequence[Any], dense: Callable[[nn.Module], Tensor], x: Tensor) -> Sequence[Tensor]:
    """The outputs of adapted layers with the input x, in `Adapters.compute_together`."""
    bases = [layer.get_base_layer() for layer in layers]
    weights = [functools.partial(dense, base) for base in bases]
    biases = [getattr(base, "bias", None) for base in bases]
    return linear(x, weights, biases, [_active_adapter(layer) for layer in layers])

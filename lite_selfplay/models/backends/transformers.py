"""The backend that runs anywhere: transformers, PEFT and bitsandbytes, on a CUDA GPU or a CPU."""

import contextlib
import dataclasses
import functools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import Tensor, nn
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    BitsAndBytesConfig,
)
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.quantizers import HfQuantizer

from lite_selfplay.config import ModelSection, RunSection, SeatConfig
from lite_selfplay.data import TokenScores
from lite_selfplay.errors import ModelNotFoundError, RequestError, TrainingError
from lite_selfplay.models import attention, fused, packed_on_gpu, threads
from lite_selfplay.models.adapters import BASE, Adapters, Stacks
from lite_selfplay.models.backends import tuning
from lite_selfplay.models.backends.availability import cpu_has_bf16, device_of, quantised_problem
from lite_selfplay.models.backends.backend import is_out_of_memory
from lite_selfplay.models.generation.generate import generate
from lite_selfplay.models.generation.layout import FINEST, Layout
from lite_selfplay.models.generation.sampling import Decoding, Generation, GenerationRequest, Loop
from lite_selfplay.models.linear import keeping_products
from lite_selfplay.models.logprobs.batch import Batch, Row, Way
from lite_selfplay.models.logprobs.reading import packs
from lite_selfplay.models.logprobs.token_logprobs import goes_by_hidden_states, token_logprobs
from lite_selfplay.models.memory import (
    CONTEXT_BYTES,
    GIB,
    ROOMY,
    expands,
    head_elements,
    is_lean,
    keeps_products,
    microbatch_tokens,
    recomputes,
    tokens_held,
)
from lite_selfplay.models.packages import version_of
from lite_selfplay.models.shapes import heads_of, shape_in
from lite_selfplay.models.sources import ARCHITECTURES
from lite_selfplay.models.sources.folders import read_json, reading, refuse_misfits, text_config
from lite_selfplay.models.transfers import to_lists
from lite_selfplay.models.trial import LoadTrial

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
# Configuration keys that change attention; not those that choose an implementation, nor dropout.
_ATTENTION = re.compile(
    "^(?!_)(?!.*(implementation|flash|drop)).*(attn|attention|softcap|sliding|window|alibi|qk_norm)"
)
# A wrapper's names for its text part, and that part's own.
_TEXT_PART = {r"^(model\.)?language_model\.(model\.)?(?!lm_head)": "model.", r"^language_model\.lm_head": "lm_head"}
# Tokens scored at once, including padding.
_SCORE_TOKENS = 16384
# A lean base's update returns freed memory after this many layers: 10 MB of SmolLM2-135M's each, forwards. It takes 16
# ms each time.
_LAYERS_OF_GAPS = 5


class TransformersBackend:
    """A base loaded by transformers, with its seats (named LoRA adapters): the arguments are those of `Backend`. If
    memory runs out during sampling, it holds half as many tokens from then on, and `warn` reports it."""

    name = "transformers"

    def __init__(
        self,
        path: Path,
        section: ModelSection,
        seats: Mapping[str, SeatConfig],
        *,
        seed: int,
        eos_ids: Sequence[int],
        run: RunSection | None = None,
        decode: Callable[[Sequence[int]], str] | None = None,
        poll: Callable[[], None] = lambda: None,
        warn: Callable[[str], None] = lambda sentence: None,
    ):
        run = run or RunSection()
        self.device = device_of(section)
        self._precision, self.compute_dtype = section.precision, compute_dtype(section, self.device)
        on_cpu = self.device.type == "cpu"
        loop: Loop = "graphs" if section.decoding != "plain" and not on_cpu else "plain"
        shape, itemsize = None, self.compute_dtype.itemsize
        with contextlib.suppress(ModelNotFoundError):  # its configuration describes none
            shape = shape_in(path, str(path))
        memory = None if on_cpu else usable_memory(self.device)
        self._memory, self._expandable = memory, expands(section, shape, itemsize, memory)
        self._lean = is_lean(section, shape, itemsize, on_cpu=on_cpu)
        self._checkpointing = recomputes(
            section, shape, itemsize, on_cpu=on_cpu, tokens=microbatch_tokens(run), memory=memory
        )
        self._keeps_products = keeps_products(section, shape, itemsize, on_cpu=on_cpu)
        # Whether freed memory goes back to the system between sampling and update.
        self._tidies = on_cpu and self._checkpointing
        gives_back = self._tidies and self._lean  # also within a pass, whose gaps fit no later tensor
        give_back = tuning.trim_heap if gives_back else lambda: None
        held = run.generation_tokens or tokens_held(section, shape, itemsize, memory)
        self._decoding = Decoding(
            eos_ids, self.device, held, decode, poll, give_back, loop, end_loops=run.end_loops, warn=warn
        )
        self._warn = warn
        self._ordered = torch.are_deterministic_algorithms_enabled()
        self._packs = self._samples_dense = False
        # Whether 4-bit weights are on a GPU, which may have room to expand them for sampling.
        self._folded = section.precision == "4bit" and not on_cpu
        # The stacks through which a GPU samples.
        self._stacks: Stacks | None = None
        self._undoing = contextlib.ExitStack()
        trial = self._load(path, section, seats, seed=seed)
        base: Any = self.adapters.model.get_base_model()
        if not on_cpu and self.compute_dtype != torch.float32 and (self._packs or packs(base, together=False)):
            heads = heads_of(base.config.get_text_config())
            why = attention.why_no_flash(*heads, self.compute_dtype, self.device)
            self._decoding = dataclasses.replace(self._decoding, flash=why is None, lookup=section.decoding == "lookup")
            why = why or packed_on_gpu.why_no_flash(*heads, self.compute_dtype, self.device)
            if why is not None and torch.cuda.get_device_capability(self.device) >= (8, 0):
                self._warn(f"no flash attention, which this GPU should have, so everything is slower: {why}")
        types = getattr(base.config.get_text_config(), "layer_types", None) or ()
        if not on_cpu and "linear_attention" in types and version_of("flash-linear-attention") is None:
            self._warn(
                "the package flash-linear-attention is not installed, so layers with a state are much slower and take "
                "several times the memory: pip install flash-linear-attention"
            )
        if self.device.type == "cpu":
            between_layers(self.adapters.model.get_base_model(), poll)
        if gives_back:
            between_layers(self.adapters.model.get_base_model(), give_back, _LAYERS_OF_GAPS)
        self.adapters.model.eval()
        if trial is not None:
            trial.compare(self, next(iter(seats)), self._generate_crowded)

    def _load(
        self, path: Path, section: ModelSection, seats: Mapping[str, SeatConfig], *, seed: int
    ) -> LoadTrial | None:
        """Load the base and its seats. Returns the trial that they must pass."""
        before = threads.work_so_far()
        if self.device.type == "cpu":
            self._undoing.callback(tuning.tune(self, self.compute_dtype, tidy=self._checkpointing))
        base: Any = load_base(
            path, section.precision, self.compute_dtype, self.device, trust_remote_code=section.trust_remote_code
        )
        trial = LoadTrial(path, base, known=base.config.model_type in ARCHITECTURES)
        expand_quantised(path, base, section.precision, self.compute_dtype)
        attention.install(base)
        if self.device.type == "cuda":
            fused.fuse_rotary(base, self._undoing.callback)
            # cuDNN makes a plan for every new shape, and every batch has one.
            self._undoing.callback(torch.backends.cuda.enable_cudnn_sdp, torch.backends.cuda.cudnn_sdp_enabled())
            torch.backends.cuda.enable_cudnn_sdp(False)
            # Convolutions of layers with a state add up in a fixed order, and new tensors are not filled meanwhile.
            for owner, name, value in (
                (torch.backends.cudnn, "deterministic", True),
                (torch.utils.deterministic, "fill_uninitialized_memory", False),
            ):
                self._undoing.callback(setattr, owner, name, getattr(owner, name))
                setattr(owner, name, value)
        fused.fuse_norms(base)
        fused.fuse_gates(base)
        if self._checkpointing:
            kept = {"context_fn": keeping_products} if self._keeps_products else {}
            recompute_activations(base, {"use_reentrant": False, **kept})
        with trial.refusing("adding adapters to it"):
            self.adapters = Adapters(base, seats, seed=seed)
        self.adapters.text_part = text_part(path, trust_remote_code=section.trust_remote_code)
        self._dense = functools.partial(dense_weight, dtype=self.compute_dtype)
        if self.device.type == "cpu":
            self._undoing.callback(threads.set_threads(base, section.threads))
            crowded = threads.crowded(before, threads.work_so_far(), torch.get_num_threads())
            if section.threads is None and crowded is not None:
                self._warn(crowded)
        self.adapters.compute_together(self._dense)
        self._packs = packs(base)
        if self.device.type == "cpu":
            self._samples_dense = (
                4 * sum(self.adapters.dense_bytes(self.compute_dtype)) < psutil.virtual_memory().available
            )
        else:
            self._samples_dense = self._folded and self._expandable
            if not self._folded and self.adapters.stackable:
                self._stacks = self.adapters.stacked(self._dense, instead=True)
        return trial

    def generate(self, request: GenerationRequest) -> list[list[Generation]]:
        while True:
            try:
                made = self._generate(request)
                break
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
            # Outside the handler, whose memory is free now. A completion is the same in any batch.
            self.release_memory()
            if self._folded and self._samples_dense:
                self._samples_dense = False
                self._warn(
                    "out of memory while sampling: from now on 4-bit weights are not expanded for it, which is slower"
                )
            else:
                self._halve_cache(request.longest)
        if math.isnan(sum(sum(out.logprobs) for outs in made for out in outs)):
            raise TrainingError(
                f"the logits of {request.seat} are not finite, with weights in {self._precision}, multiplied in "
                f"{str(self.compute_dtype).removeprefix('torch.')}: use --precision bf16 or fp32; if it stays so, "
                "its weights are not finite: use an earlier checkpoint or another base"
            )
        return made

    def _generate(self, request: GenerationRequest) -> list[list[Generation]]:
        inference, decoding = self._inference(request.seat), self._decoding
        if self._stacks is not None:
            decoding = dataclasses.replace(decoding, weights=(id(self._stacks), request.seat == BASE))
        dense = [0] if self._samples_dense else self.adapters.dense_bytes(self.compute_dtype)
        tidy = tuning.sampling(max(dense)) if self._tidies else contextlib.nullcontext()
        with tidy, self._at_rest(), inference:
            return generate(self.adapters.model, request, decoding)

    def _generate_crowded(self, request: GenerationRequest) -> list[list[Generation]]:
        """`generate` with room for six rows at once."""
        whole = self._decoding
        positions = request.longest if whole.loop == "plain" else 4 * FINEST
        self._decoding = dataclasses.replace(whole, cache_tokens=6 * positions)
        try:
            return self._generate(request)
        finally:
            self._release_kept()
            self._decoding = whole

    def _release_kept(self) -> None:
        """Release what a GPU keeps between calls of the sampler."""
        self._decoding.kept.release()
        if self._folded:
            self._stacks = None

    def rows_at_once(self, prompt: int, completion: int) -> int:
        loop, tokens = self._decoding.loop, self._decoding.cache_tokens
        if loop == "plain":
            return max(1, tokens // max(1, prompt + completion))
        return Layout.of(tokens, prompt, completion, tokens, mixed=self._decoding.flash).rows

    def _inference(self, seat: str) -> contextlib.AbstractContextManager[None]:
        """A seat in the forward pass, in the fastest way for sampling. If there is room, weights are copied for it,
        expanded from 4 bits: on a GPU until an update or scores need the memory."""
        stackable = self.adapters.stackable
        if self.device.type == "cuda" and self._stacks is None and stackable:
            self._stacks = (
                self.adapters.stacked(self._dense, instead=False)
                if self._samples_dense
                else self.adapters.beside(self.compute_dtype)
            )
        if self._stacks is not None:
            return self.adapters.inference_stacked(seat, self._stacks)
        if self._samples_dense and stackable:
            return self.adapters.inference_packed(seat, self._dense)
        return self.adapters.inference(seat)

    def _halve_cache(self, longest: int) -> None:
        """Halve the budget of the KV cache from now on. Raises TrainingError if a row would not fit."""
        if self._decoding.cache_tokens // 2 < longest:
            raise TrainingError(
                f"out of memory while one completion of up to {longest:,} tokens was sampled: lower "
                "max_completion_tokens or run.max_prompt_tokens, use --precision 4bit, or take a smaller model"
            )
        tokens = self._decoding.cache_tokens // 2
        self._decoding = dataclasses.replace(self._decoding, cache_tokens=tokens)
        self._warn(
            f"out of memory while sampling: from now on at most {tokens:,} tokens at once. "
            f"--set run.generation_tokens={tokens} starts with that"
        )

    def score(self, seat: str, rows: Sequence[Row], temperature: float) -> list[TokenScores]:
        if not roomy(self.device):
            self._release_kept()
        scores: list[TokenScores] = [TokenScores((), ())] * len(rows)
        order = sorted((i for i, row in enumerate(rows) if row[1]), key=lambda i: len(rows[i][0]) + len(rows[i][1]))
        with self._at_rest(), self.adapters.inference(seat), torch.no_grad():
            while order:
                size = max(1, _SCORE_TOKENS // sum(map(len, rows[order[-1]])))
                chunk, order = order[-size:], order[:-size]
                self._decoding.poll()
                batch = Batch.of((rows[i] for i in chunk), self.way())
                values = (batch.split(x) for x in to_lists(self.token_logprobs(batch, temperature)))
                for i, logprobs, entropies in zip(chunk, *values, strict=True):
                    scores[i] = TokenScores(logprobs, entropies)
        return scores

    def token_logprobs(
        self, batch: Batch, temperature: float = 1.0, *, entropy_gradient: bool = False
    ) -> tuple[Tensor, Tensor]:
        model: Any = self.adapters.model
        elements = head_elements(model.config.get_text_config().vocab_size, lean=self._lean, memory=self._memory)
        return token_logprobs(model, batch, temperature, entropy_gradient=entropy_gradient, head_elements=elements)

    def tokens_at_once(self, run: RunSection) -> int:
        return run.tokens_at_once(on_cpu=self.device.type == "cpu", lean=self._lean)

    def way(self) -> Way:
        return Way.PACKED if self._packs and goes_by_hidden_states(self.adapters.model) else Way.WHOLE

    @contextlib.contextmanager
    def _at_rest(self) -> Iterator[None]:
        """Evaluation mode (no dropout, no checkpointing, caches allowed) for the length of a call."""
        was_training = self.adapters.model.training
        self._set_training(False)
        try:
            with self.autocast():
                yield
        finally:
            if was_training:
                self._set_training(True)

    @contextlib.contextmanager
    def updating(self) -> Iterator[None]:
        self._make_room()
        self._set_training(True)
        try:
            yield
        finally:
            self._set_training(False)
            self._make_room()

    def _set_training(self, training: bool) -> None:
        if self.adapters.model.training != training:
            self.adapters.model.train(training)

    def _make_room(self) -> None:
        """Free unused memory between sampling and update: tensors of the other's sizes would not fit into it."""
        if self._tidies or not roomy(self.device):
            self.release_memory()

    def release_memory(self) -> None:
        torch.use_deterministic_algorithms(self._ordered)  # an attention may have run out of memory backwards
        self._release_kept()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        else:
            tuning.trim_heap()

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        if self.device.type == "cpu" or self.compute_dtype == torch.float32:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=self.compute_dtype)

    def trainer_parent(self) -> type:
        from trl import GRPOTrainer

        return GRPOTrainer

    def trainer_arguments(self) -> dict[str, Any]:
        return {
            "use_cpu": self.device.type == "cpu",
            "bf16": False,  # updates run inside this backend's own autocast
            "fp16": self.device.type == "cuda" and self.compute_dtype == torch.float16,
        }

    def close(self) -> None:
        self._undoing.close()


def usable_memory(device: torch.device) -> int:
    """A GPU's bytes less those of other programs, such as a display: these in whole GiB, so that not every open window
    changes a run's budgets."""
    free, total = torch.cuda.mem_get_info(device)
    taken = total - free - torch.cuda.memory_reserved(device)
    return total - GIB * max(0, math.ceil((taken - CONTEXT_BYTES) / GIB))


def roomy(device: torch.device) -> bool:
    """Whether enough of a GPU is free to keep the sampler's memory during an update; a CPU keeps none."""
    if device.type == "cpu":
        return True
    free, total = torch.cuda.mem_get_info()
    return free + torch.cuda.memory_reserved() - torch.cuda.memory_allocated() >= ROOMY * total


def between_layers(base: nn.Module, call: Callable[[], object], every: int = 1) -> None:
    """Call `call`, which may raise, after every `every`-th of a model's layers, forwards and backwards, in training
    mode. For a CPU, where one microbatch of a large model may take minutes."""

    def between(layer: Any, inputs: Any, output: Any) -> None:
        if not layer.training:
            return
        call()
        hidden = output[0] if isinstance(output, tuple) else output
        if hidden.requires_grad:
            hidden.register_hook(lambda gradient: call())

    layers = [module for module in base.modules() if isinstance(module, GradientCheckpointingLayer)]
    for layer in layers[every - 1 :: every]:
        layer.register_forward_hook(between)


def recompute_activations(base: Any, how: Mapping[str, Any]) -> None:
    """Switch gradient checkpointing on, under its name in this release: transformers 5.24 renamed it."""
    enable = getattr(base, "activation_checkpointing_enable", None) or base.gradient_checkpointing_enable
    enable(dict(how))


def compute_dtype(section: ModelSection, device: torch.device) -> torch.dtype:
    """The type of products: bf16 if the hardware has it, fp16 on older GPUs, fp32 on other CPUs."""
    asked = section.compute_dtype if section.precision == "4bit" else section.precision
    if asked != "auto":
        return _DTYPES[asked]
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
    return torch.bfloat16 if cpu_has_bf16() else torch.float32


def load_base(
    path: Path, precision: str, dtype: torch.dtype, device: torch.device, *, trust_remote_code: bool = False
) -> nn.Module:
    """A frozen causal language model from a folder: NF4 weights for `4bit`, otherwise `dtype`.

    Raises ConfigError for untrusted code of its own, ModelNotFoundError for one that cannot be read, would be computed
    wrongly or does not match its configuration, and RequestError if 4-bit weights do not work.
    """
    if precision == "4bit" and device.type == "cuda" and (problem := quantised_problem()) is not None:
        raise RequestError(f"{problem}: use --precision bf16 or fp16, or a version of bitsandbytes for this GPU")

    saved = read_json(path / "config.json").get("quantization_config")
    if saved and precision == "4bit" and not saved.get("load_in_4bit"):
        raise _quantised_already(path, "not in the 4 bits of this library: use --precision bf16, or")
    text = read_config(path, trust_remote_code=trust_remote_code)
    require_weights(path, text, trust_remote_code=trust_remote_code)
    # transformers' `sdpa` silently ignores the cap.
    capped = {"attn_implementation": "eager"} if getattr(text, "attn_logit_softcapping", None) else {}
    model = _pretrained(
        path,
        text,
        dtype=dtype,
        quantization_config=nf4(dtype) if precision == "4bit" and not saved else None,
        device_map={"": device},
        trust_remote_code=trust_remote_code,
        **capped,
    )
    if getattr(model, "is_loaded_in_4bit", False):
        _prepare_4bit(model, device)
    model.requires_grad_(False)
    return model


def expand_quantised(path: Path, base: Any, precision: str, dtype: torch.dtype) -> None:
    """Expand weights that the folder has quantised into `dtype`, by their layers' own method; 4 bits stay for `4bit`.
    8-bit layers must have computed something before. Raises ModelNotFoundError if they cannot be expanded."""
    if precision == "4bit" or not getattr(base, "is_quantized", False):
        return
    if type(base.hf_quantizer)._dequantize is HfQuantizer._dequantize:
        raise _quantised_already(path, f"cannot be expanded into {precision}: use")
    base.dequantize(dtype)
    base.requires_grad_(False)


def _quantised_already(path: Path, remedy: str) -> ModelNotFoundError:
    method = read_json(path / "config.json")["quantization_config"].get("quant_method")
    return ModelNotFoundError(
        f"the weights in {path} are quantised already ({method}), and {remedy} the repository with the weights before "
        "they were quantised"
    )


def read_config(path: Path, *, trust_remote_code: bool = False) -> Any:
    """The configuration of a folder's language model; for a wrapper with an image or audio part, its text part's.

    Raises what `load_base` raises: for a mixture of experts, for a text part that is no model of its own, and if
    `config.json` has a key about attention that transformers' class of that architecture does not read.
    """
    with reading(path):
        config = AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=trust_remote_code)
    text = config.get_text_config()
    if text is not config:
        text.tie_word_embeddings = config.tie_word_embeddings
        if type(text) not in MODEL_FOR_CAUSAL_LM_MAPPING:
            raise ModelNotFoundError(
                f"{path} wraps a {text.model_type} model, which transformers cannot load by itself: use a base "
                "without an image or audio part"
            )
    experts = next((key for key in _EXPERTS if (getattr(text, key, None) or 0) > 1), None)
    if experts is not None:
        raise ModelNotFoundError(
            f"{path} is a mixture of experts ({experts} {getattr(text, experts)}), whose experts this library does not "
            "adapt: use a dense model"
        )
    for key, value in vars(text).items():
        if "drop" in key and isinstance(value, float):
            setattr(text, key, 0.0)  # the base is frozen, and updates must match samples
    written = text_config(path)
    known = {
        key.removeprefix("_") for kind in (type(config), type(text)) for key in (*vars(kind()), *kind.attribute_map)
    }
    unread = [key for key, value in written.items() if value and _ATTENTION.search(key) and key not in known]
    if unread and "auto_map" not in written:
        raise ModelNotFoundError(
            f"{path / 'config.json'} says {unread[0]}: {written[unread[0]]}, which changes attention and which "
            f"transformers does not read for a {text.model_type} model: remove it if it means nothing"
        )
    return text


def require_weights(path: Path, text: Any, *, trust_remote_code: bool = False) -> None:
    """Raises ModelNotFoundError if a folder's weights do not match its configuration, `text`.

    They are compared on the meta device, unquantised and unread, because 4-bit loading accepts a tensor of any shape.
    Weights that are quantised already cannot be checked so; loading them reports errors.
    """
    if "quantization_config" not in read_json(path / "config.json"):
        # Mismatched shapes are reported like everything else, not raised.
        _pretrained(
            path, text, device_map={"": "meta"}, ignore_mismatched_sizes=True, trust_remote_code=trust_remote_code
        )


def _pretrained(path: Path, text: Any, **options: Any) -> Any:
    """A folder's causal language model, loaded by transformers without complaints; of a wrapper only the text part."""
    wrapped = text.model_type != read_json(path / "config.json").get("model_type", text.model_type)
    if wrapped:
        options["key_mapping"] = _TEXT_PART
    with reading(path):
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            path, config=text, local_files_only=True, output_loading_info=True, **options
        )
    model, report = loaded
    if wrapped:
        parts = tuple(f"{model.base_model_prefix}.{name}." for name, _ in model.base_model.named_children())
        report = report | {"unexpected_keys": [k for k in report["unexpected_keys"] if k.startswith(parts)]}
    refuse_misfits(path, report)
    return model


def text_part(path: Path, *, trust_remote_code: bool = False) -> str:
    """A wrapper's name for its language model, as in `model.language_model`; empty for other models."""
    config = AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=trust_remote_code)
    if config.get_text_config() is config:
        return ""
    with torch.device("meta"):
        whole: Any = AutoModelForImageTextToText.from_config(config)
    return next(name for name, module in whole.named_modules() if module is whole.get_decoder())


def _prepare_4bit(model: nn.Module, device: torch.device) -> None:
    """Stop bitsandbytes from repacking weights for AVX512-BF16 at the first no-grad forward, which silently breaks
    gradients.

    Raises RequestError if rows do not divide into NF4's blocks of 64: a CPU expands them wrongly, with more than twice
    the error.
    """
    from bitsandbytes.nn import Linear4bit

    layers = [module for module in model.modules() if isinstance(module, Linear4bit)]
    for layer in layers:
        layer.support_avx512bf16_for_cpu = False
    odd = {layer.in_features for layer in layers if layer.in_features % 64}
    if odd and device.type == "cpu":
        raise RequestError(
            f"the model has rows of {min(odd)} numbers, and 4 bits on a CPU are right only for multiples of 64: use "
            "--precision bf16 or fp32"
        )


def nf4(dtype: torch.dtype) -> Any:
    """The 4-bit format of every backend: NF4, multiplied in `dtype`."""
    return BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype, bnb_4bit_use_double_quant=False
    )


def dense_weight(layer: nn.Module, dtype: torch.dtype) -> Tensor:
    """A linear layer's weight (out, in), expanded from 4 bits."""
    weight: Any = layer.weight
    if getattr(weight, "quant_state", None) is None:
        return weight.detach().to(dtype)
    from bitsandbytes.functional import dequantize_4bit

    return dequantize_4bit(weight.data, weight.quant_state).to(dtype)

"""The backend for a CUDA GPU: Unsloth's kernels under the same seats.

Differences from the transformers backend, and their reasons:

- `import unsloth` patches TRL, so the trainer's parent class is fetched after it (`backends.import_first`).
- Its first adapter is called `default`; `Adapters` gives that name to the first seat and hides it.
- In training its layers may drop the attention mask and keep no cache, so rows are read whole, which needs neither.
- Completions come from its own `generate`, each row by its own seed (`generate_through`).
- `for_inference` and `for_training` surround every call that does not train.
- It replays CUDA graphs of a decoded token only within its `rl_generation`, and holds their memory until told to
  release it, as its own trainer and `updating` do.
- The sampler of the transformers backend, three times as fast on an H200, cannot run over its base, whose layers pass
  keys and values as tuples; so `auto` is not this backend.

Which attention runs (FlashAttention, xformers or torch's own) is its choice.
"""

import contextlib
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    StoppingCriteria,
    StoppingCriteriaList,
)

from lite_selfplay.config import ModelSection, SeatConfig
from lite_selfplay.data import Sampling
from lite_selfplay.errors import RequestError, TrainingError
from lite_selfplay.models.adapters import Adapters
from lite_selfplay.models.backends import import_unsloth
from lite_selfplay.models.backends.transformers import TransformersBackend, nf4, read_config, require_weights
from lite_selfplay.models.generation.sampling import Decoding, Generation, GenerationRequest, SampledRow, Sampler
from lite_selfplay.models.logprobs.batch import Batch, Way, pad
from lite_selfplay.models.sources.folders import reading
from lite_selfplay.models.transfers import placed

LONGEST = 32768
"""The most tokens of a prompt and its completion, even if the base supports more."""


class UnslothBackend(TransformersBackend):
    """A base loaded by Unsloth, with its seats: the arguments are those of `TransformersBackend`. Raises RequestError
    if unsloth cannot be imported, and for a base that it would read differently."""

    name = "unsloth"

    def _load(self, path: Path, section: ModelSection, seats: Mapping[str, SeatConfig], *, seed: int) -> None:
        self._unsloth = import_unsloth()
        text = read_config(path, trust_remote_code=section.trust_remote_code)
        refuse_windows(text)
        require_weights(path, text, trust_remote_code=section.trust_remote_code)
        with contextlib.redirect_stdout(io.StringIO()):  # stdout may be another program's input
            with reading(path):
                base = self._load_base(path, text, section, seed)
            # Its own settings, such as a temperature, would apply before this library's choice of a token.
            base.generation_config = GenerationConfig()
            base.requires_grad_(False)
            self.adapters = Adapters(base, seats, seed=seed, build=self._wrap)
        self._longest = int(getattr(base, "max_seq_length", None) or LONGEST)

    def _load_base(self, path: Path, text: Any, section: ModelSection, seed: int) -> Any:
        """The base from Unsloth's loader, in 4 bits as in the transformers backend, or in 16."""
        four = section.precision == "4bit"
        return self._unsloth.FastLanguageModel.from_pretrained(  # with its tokenizer
            str(path),
            max_seq_length=min(LONGEST, int(getattr(text, "max_position_embeddings", LONGEST))),
            dtype=self.compute_dtype,
            load_in_4bit=four,
            load_in_16bit=not four,
            quantization_config=nf4(self.compute_dtype) if four else None,
            use_gradient_checkpointing=self._checkpointing_mode,
            use_exact_model_name=True,
            trust_remote_code=section.trust_remote_code,
            random_state=seed,
            local_files_only=True,
        )[0]

    def _wrap(self, base: nn.Module, config: Any) -> Any:
        """The base in Unsloth's layers for a first adapter, which it calls `default`."""
        return self._unsloth.FastLanguageModel.get_peft_model(
            base,
            r=config.r,
            lora_alpha=config.lora_alpha,
            target_modules=config.target_modules,
            lora_dropout=0.0,
            bias="none",
            use_gradient_checkpointing=self._checkpointing_mode,
        )

    @property
    def _checkpointing_mode(self) -> str | bool:
        return "unsloth" if self._checkpointing else False

    # Completing and reading

    def _generate(self, request: GenerationRequest) -> list[list[Generation]]:
        self._require_room(request.longest)
        with self._at_rest(), self.adapters.inference(request.seat), torch.no_grad(), decode_graphs().rl_generation():
            return generate_through(self.adapters.model.generate, request, self._decoding)

    def token_logprobs(
        self, batch: Batch, temperature: float = 1.0, *, entropy_gradient: bool = False
    ) -> tuple[Tensor, Tensor]:
        self._require_room(batch.longest)
        return super().token_logprobs(batch, temperature, entropy_gradient=entropy_gradient)

    @contextlib.contextmanager
    def updating(self) -> Iterator[None]:
        decode_graphs().release_for_training(self.adapters.model)
        with super().updating():
            yield

    def _require_room(self, tokens: int) -> None:
        """Raises TrainingError for rows longer than the base was loaded for, which Unsloth would cut."""
        if tokens > self._longest:
            raise TrainingError(
                f"a prompt and its completion take up to {tokens:,} tokens, and the Unsloth backend holds "
                f"{self._longest:,}: lower max_completion_tokens or run.max_prompt_tokens, or use another --backend"
            )

    def way(self) -> Way:
        return Way.WHOLE

    def _set_training(self, training: bool) -> None:
        model, kind = self.adapters.model, self._unsloth.FastLanguageModel
        if training:
            kind.for_training(model, use_gradient_checkpointing=self._checkpointing_mode)
        else:
            kind.for_inference(model)

    # Learning

    def trainer_parent(self) -> type:
        from trl import GRPOTrainer

        if not GRPOTrainer.__name__.startswith("Unsloth"):
            raise TrainingError(
                "unsloth was imported and has not replaced TRL's GRPOTrainer: use --backend transformers"
            )
        return GRPOTrainer

    def trainer_arguments(self) -> dict[str, Any]:
        # Unsloth's trainer would choose a type by itself, but needs the base's own.
        return super().trainer_arguments() | {
            "bf16": self.device.type == "cuda" and self.compute_dtype == torch.bfloat16
        }


def decode_graphs() -> Any:
    """Unsloth's module for CUDA graphs of a decoded token."""
    from unsloth.models import _decode_graphs

    return _decode_graphs


def refuse_windows(text: Any) -> None:
    """Raises RequestError for a base with a sliding window that is not set layer by layer, as in the first Mistral:
    only the whole causal language model applies it, and log-probabilities are read below that."""
    if getattr(text, "sliding_window", None) and not getattr(text, "layer_types", None):
        raise RequestError(
            f"the Unsloth backend does not support a {text.model_type} model whose attention slides over "
            f"{text.sliding_window:,} tokens: use --backend transformers"
        )


# Sampling by a model's own `generate`


def generate_through(
    own_generate: Callable[..., Any], request: GenerationRequest, decoding: Decoding
) -> list[list[Generation]]:
    """A request's completions, as from `generation.generate` with the active seat.

    The model's own fast method runs; only tokens are chosen here: a logits processor, the last of all, samples each
    token and leaves it as the only finite one for greedy decoding. Finished rows stay until the call ends. Shapes: `R`
    rows of a call, `L` tokens read so far, `V` vocabulary.

    `own_generate` is the `generate` of a model with neutral generation settings. A call holds at most
    `decoding.cache_tokens` padded tokens (a single row may exceed it). Raises ValueError for an empty prompt, and for
    stop strings without `decoding.decode`.
    """
    decoding.check(request)
    sampling, (results, rows) = request.sampling, request.start()
    while rows:
        # One call takes this many of the longest prompts, at the end of `rows`.
        size = max(1, min(len(rows), decoding.cache_tokens // (len(rows[-1].prompt) + sampling.max_tokens)))
        call, rows = rows[-size:], rows[:-size]
        ids, mask = (t.to(decoding.device) for t in pad([row.prompt for row in call], left=True))
        chooser = _Chooser(sampling, decoding, call)
        own_generate(
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=sampling.max_tokens,
            do_sample=False,
            eos_token_id=sorted(set(decoding.eos_ids)),
            pad_token_id=0,
            logits_processor=LogitsProcessorList([chooser]),
            stopping_criteria=StoppingCriteriaList([_Stopped(chooser)]),
        )
    return results


class _Chooser(Sampler, LogitsProcessor):
    """Samples every row's next token and leaves no other with a finite score."""

    def __init__(self, sampling: Sampling, decoding: Decoding, rows: Sequence[SampledRow]):
        super().__init__(sampling, decoding)
        self.rows = rows

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores (R, V): 0 for each row's sampled token, minus infinity for the others."""
        self.decoding.poll()
        token = self.draw(self.rows, scores, self.seen(self.rows, scores.shape[-1]))
        return torch.full_like(scores, -torch.inf).scatter_(1, token[:, None], 0.0)


class _Stopped(StoppingCriteria):
    """Ends finished rows; end-of-sequence tokens and the limit are the library's own."""

    def __init__(self, chooser: _Chooser):
        self._chooser = chooser

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Any:
        return placed([row.over for row in self._chooser.rows], input_ids.device)

"""TRL's own `GRPOTrainer` as a contender, set up as in its documentation, with the same model and adapter as ours.

Also Unsloth's GRPO loop: the trainer that it substitutes for TRL's, with its own model.
"""

import math
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

if sys.argv[1:2] and sys.argv[1].endswith("-unsloth"):
    from lite_selfplay.models.backends import import_unsloth

    import_unsloth()  # before the libraries that it patches

import torch
from contender import NEVER, HashReward, Memory, Parent, about, answer_rounds, clock, main, prompt_texts
from harness import Setting
from peft import PeftModel
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from lite_selfplay.config import ModelSection
from lite_selfplay.models.backends.transformers import compute_dtype
from lite_selfplay.models.chat_template import Chat
from lite_selfplay.models.sources import resolve

BATCH = 8
"""Rows per forward and backward pass: the default of transformers' and TRL's trainers."""
LOGITS_AT_ONCE = 2**25
PROMPT_TOKENS = 1024
"""Room for a prompt, in addition to the cap, where a model is loaded for a maximum row length."""
MODULES = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def rollouts(parent: Parent, setting: Setting) -> None:
    """Completions as the trainer generates them inside a step, from ids to ids."""
    memory = Memory()
    trainer, facts = _trainer(setting, HashReward(), 1, setting.group_size, _model)
    trainer.model.train()  # as inside a step

    def play(number: int, group_size: int, cap: int, prompts: Sequence[Sequence[int]]) -> list[int]:
        torch.manual_seed(number)
        trainer.generation_config.max_new_tokens = trainer.generation_kwargs["max_new_tokens"] = cap
        rows = [list(prompt) for prompt in prompts for _ in range(group_size)]
        completions, _ = trainer._generate_single_turn(rows, None, {}, group_size)
        return [len(ids) for ids in completions]

    answer_rounds(parent, setting, memory, play, facts)


MakeModel = Callable[[Path, Setting, torch.dtype], Any]
"""Loads the base model at a path, in a precision, with the setting's adapter."""


def step(parent: Parent, setting: Setting, model: MakeModel | None = None) -> None:
    """Steps of `GRPOTrainer.train` with twice the group size: as many completions as a game with two roles."""
    memory, reward = Memory(), HashReward()
    trainer, facts = _trainer(setting, reward, setting.rounds + 1, 2 * setting.group_size, model or _model)
    trainer.add_callback(Turns(parent, memory, reward, facts))
    memory.loaded()
    trainer.train()


class Turns(TrainerCallback):
    """Reports every step when it is complete, and waits for a message before the next one."""

    def __init__(self, parent: Parent, memory: Memory, reward: HashReward, facts: dict[str, Any]) -> None:
        self._parent, self._memory, self._reward, self._facts = parent, memory, reward, facts
        self._weights: list[Tensor] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._weights = [p for p in kwargs["model"].parameters() if p.requires_grad]
        self._before = self._sum()
        self._since = clock()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        now, reward = clock(), self._reward
        after = self._sum()
        self._parent.tell(
            seconds=now - self._since,
            tokens=reward.tokens,
            generate_s=reward.asked_at - self._since,
            update_s=now - reward.asked_at,
            moved=after != self._before,
            memory=self._memory.report(),
            **self._facts,
        )
        self._parent.hear()
        self._before, reward.tokens = after, 0
        self._since = clock()

    def _sum(self) -> float:
        return math.fsum(float(weight.detach().double().abs().sum()) for weight in self._weights)


def _trainer(
    setting: Setting, reward: HashReward, steps: int, completions: int, model: MakeModel
) -> tuple[Any, dict[str, Any]]:
    """A trainer with `completions` per prompt, all of a step in one generation batch, and facts about it."""
    from datasets import Dataset

    cuda = torch.cuda.is_available()
    if not cuda:
        _head_without_triton()
    resolved = resolve(setting.model)
    section = ModelSection(name=setting.model, precision=setting.precision, compute_dtype=setting.compute_dtype)
    dtype = compute_dtype(section, torch.device("cuda" if cuda else "cpu"))
    chat, texts = Chat.load(resolved.path), prompt_texts(setting)
    prompts = [[{"role": "user", "content": text}] for text in texts]
    rows = len(texts) * completions
    trainer = GRPOTrainer(
        model=model(resolved.path, setting, dtype),
        reward_funcs=[reward],  # type: ignore[list-item]
        args=GRPOConfig(
            output_dir=str(Path(setting.folder) / "trl"),
            max_steps=steps,
            per_device_train_batch_size=math.gcd(rows, BATCH),
            gradient_accumulation_steps=rows // math.gcd(rows, BATCH),
            num_generations=completions,
            max_completion_length=setting.cap,
            temperature=1.0,
            beta=0.0,
            loss_type="grpo",
            learning_rate=setting.lr,
            disable_dropout=True,
            gradient_checkpointing=bool(setting.checkpointing),
            bf16=cuda and dtype == torch.bfloat16,
            fp16=cuda and dtype == torch.float16,
            use_cpu=not cuda,
            shuffle_dataset=False,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        ),
        train_dataset=Dataset.from_dict({"prompt": prompts * steps}),
        processing_class=chat.tokenizer,
    )
    if trainer._tokenize_prompts(prompts)[0] != [chat.encode(text).ids for text in texts]:
        raise SystemExit("TRL's chat template gives other prompts than ours: the two cannot be compared")
    if setting.uniform:
        trainer.eos_token_ids = trainer.generation_config.eos_token_id = [NEVER]
        trainer.generation_kwargs["eos_token_id"] = [NEVER]
    return trainer, {**about(dtype), "path": str(resolved.path)}


def _model(path: Path, setting: Setting, dtype: torch.dtype) -> Any:
    quantization = None
    if setting.precision == "4bit":
        quantization = BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype, bnb_4bit_use_double_quant=False
        )
    base = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, quantization_config=quantization)
    return PeftModel.from_pretrained(base, setting.adapter, is_trainable=True)


def _unsloth_model(path: Path, setting: Setting, dtype: torch.dtype) -> Any:
    from peft import set_peft_model_state_dict
    from safetensors.torch import load_file

    kind = sys.modules["unsloth"].FastLanguageModel
    base, _ = kind.from_pretrained(
        model_name=str(path),
        max_seq_length=PROMPT_TOKENS + setting.cap,
        dtype=dtype,
        load_in_4bit=setting.precision == "4bit",
        fast_inference=False,
    )
    model = kind.get_peft_model(
        base,
        r=setting.rank,
        lora_alpha=setting.alpha,
        target_modules=MODULES,
        use_gradient_checkpointing="unsloth" if setting.checkpointing else False,
    )
    set_peft_model_state_dict(model, load_file(Path(setting.adapter) / "adapter_model.safetensors"))
    return model


def _head_without_triton() -> None:
    """Replace the Triton kernel of TRL 1.15's loss, which a CPU cannot run, by plain torch."""
    from trl.trainer import utils

    vars(utils)["_ChunkedLogProbFunction"] = PlainHead


class PlainHead:
    """Log-probabilities and entropies from hidden states, in chunks that are recomputed in the backward pass."""

    @staticmethod
    def apply(
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        temperature: float,
        chunk_size: int,
        softcap: float | None,
        scale: float,
        outputs: Sequence[str],
    ) -> tuple[Tensor | None, ...]:
        """As TRL calls its kernel: `hidden` (N, H), `weight` (V, H), `targets` (N,); five results of (N,) or None."""

        def piece(h: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            logits = torch.nn.functional.linear(h, weight, bias).float() * scale
            if softcap is not None:
                logits = softcap * torch.tanh(logits / softcap)
            log_p = (logits / temperature).log_softmax(-1)
            with torch.no_grad():
                entropy = -(log_p.exp() * log_p).sum(-1)
            return log_p.gather(-1, y[:, None])[:, 0], entropy

        size = max(1, LOGITS_AT_ONCE // weight.shape[0])
        pieces = zip(hidden.split(size), targets.split(size), strict=True)
        logprobs, entropies = zip(*(checkpoint(piece, h, y, use_reentrant=False) for h, y in pieces), strict=True)
        return torch.cat(logprobs), torch.cat(entropies) if "entropy" in outputs else None, None, None, None


if __name__ == "__main__":
    main({"rollouts": rollouts, "step": step, "step-unsloth": partial(step, model=_unsloth_model)})

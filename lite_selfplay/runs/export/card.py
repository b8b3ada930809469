"""The model card of an exported seat: whose part it plays, over what base, how to load it, what was measured."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lite_selfplay.config import RunConfig
from lite_selfplay.runs.report.card import base_id, code, facts, measured, plain, shown
from lite_selfplay.runs.report.closing import Evaluations, Metrics

if TYPE_CHECKING:
    from lite_selfplay.runs.export.verification import Verification

Form = Literal["peft", "merged", "gguf", "ollama"]
FORMS: tuple[Form, ...] = ("peft", "merged", "gguf", "ollama")

_LIBRARY = {"peft": "peft", "merged": "transformers", "gguf": "gguf", "ollama": "gguf"}
_RELATION = {"peft": "adapter", "merged": "finetune", "gguf": "quantized", "ollama": "quantized"}
_WHAT = {
    "peft": "A LoRA adapter",
    "merged": "A model of its own: the base with the adapter merged into it,",
    "gguf": "A GGUF file: the base with the adapter merged into it,",
    "ollama": "A GGUF file with a Modelfile for Ollama: the base with the adapter merged into it,",
}


@dataclass(frozen=True)
class Exported:
    """What an export is of: a seat of a run, the roles it played, and how its base is found elsewhere.

    `revision` is the base's commit on a hub, None for one that is on none. `dtype` is what the weights are held in,
    `compute` what they are multiplied in. `max_tokens`, `temperature` and `stop` are those of its (first) role.
    """

    config: RunConfig
    seat: str
    form: Form
    dtype: str
    compute: str
    roles: tuple[str, ...]
    temperature: float
    max_tokens: int
    stop: tuple[str, ...]
    base: str
    revision: str | None
    file: str | None = None

    @property
    def nf4(self) -> bool:
        """Whether the seat was trained over 4-bit weights."""
        return self.config.model.precision == "4bit"

    @property
    def name(self) -> str:
        return f"{self.config.game.label} on {shown(self.config.model.name)}, seat {self.seat}"


def export_card(
    about: Exported,
    *,
    step: int,
    metrics: Metrics,
    evaluations: Evaluations,
    verification: "Verification | None",
) -> str:
    """The README of an export."""
    from huggingface_hub import ModelCard

    config = about.config
    parts = " and ".join(code(role) for role in about.roles) or "no role so far"
    text = f"""---
{_metadata(about)}
---

# {plain(about.name)}

{_WHAT[about.form]} trained by self-play with lite-selfplay: seat {code(about.seat)} of a run of
{plain(config.game.label)} after {step} steps, which played {parts}, over {code(shown(about.base))}.

## Load

{_loading(about)}

It was sampled at temperature {about.temperature:g} with up to {about.max_tokens} tokens{_stops(about.stop)};
{_where_settings(about)}.

## Is it the same model?

{_weights(about)}

{verification.paragraph() if verification else "Not verified: the export was made with `--no-verify`."}

## Training

{facts(config, metrics)}

## Measured

{measured(config, evaluations)}

It is meant for research on self-play over problems with checkable answers, in the prompts of this game. It was
trained towards right final answers and a form alone, so expect nothing of it elsewhere, nor that its reasoning is sound
where an answer is right. The base model's licence applies to any use; this card does not restate it.
"""
    return str(ModelCard(text))


def _metadata(about: Exported) -> Any:
    from huggingface_hub import ModelCardData

    base = base_id(about.config.model.name)
    return ModelCardData(
        base_model=base,
        base_model_relation=_RELATION[about.form] if base else None,
        library_name=_LIBRARY[about.form],
        pipeline_tag="text-generation",
        tags=["lite-selfplay", about.config.game.label, *(["lora"] if about.form == "peft" else [])],
    )


def _stops(stop: Sequence[str]) -> str:
    return f", ending at {' or '.join(code(text) for text in stop)}" if stop else ""


def _where_settings(about: Exported) -> str:
    if about.form == "gguf":
        return "give llama.cpp these settings, a GGUF file holds none"
    file = "Modelfile" if about.form == "ollama" else "generation_config.json"
    return f"`{file}` holds these settings"


def _loading(about: Exported) -> str:
    if about.form == "peft":
        return _load_adapter(about)
    if about.form == "merged":
        return _python(
            "from transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
            'model = AutoModelForCausalLM.from_pretrained("FOLDER", dtype="auto")\n'
            'tokenizer = AutoTokenizer.from_pretrained("FOLDER")'
        )
    if about.form == "gguf":
        return f"```\nllama-cli -m {about.file} --temp {about.temperature:g} --top-k 0 --top-p 1 --jinja\n```"
    return "```\nollama create my-seat -f Modelfile\nollama run my-seat\n```"


def _load_adapter(about: Exported) -> str:
    base, revision = base_id(about.config.model.name), f', revision="{about.revision}"' if about.revision else ""
    half = {"fp32": "float32", "fp16": "float16"}.get(about.config.model.precision, "bfloat16")
    lines = ["import torch", "from peft import PeftModel"]
    lines += [f"from transformers import AutoModelForCausalLM, AutoTokenizer{', BitsAndBytesConfig' * about.nf4}"]
    if base is None and not Path(about.config.model.name).is_dir():
        lines = ["from lite_selfplay.models.sources import resolve", *lines]
        where = f"resolve({json.dumps(about.config.model.name, ensure_ascii=False)}).path"
    else:
        where = json.dumps(about.base, ensure_ascii=False)
    options = f"dtype=torch.{half}{revision}"
    lines += [""]
    if about.nf4:
        lines += [
            'nf4 = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4",'
            f" bnb_4bit_compute_dtype=torch.{half})"
        ]
        options += ", quantization_config=nf4"
    lines += [f"base = AutoModelForCausalLM.from_pretrained({where}, {options})"]
    lines += ['model = PeftModel.from_pretrained(base, "FOLDER")']
    lines += ['tokenizer = AutoTokenizer.from_pretrained("FOLDER")']
    rank = about.config.seats[about.seat].rank
    serve = f"vllm serve {base or 'BASE'}" + (f" --revision {about.revision}" if about.revision else "")
    serve += f" --enable-lora --max-lora-rank {rank} --lora-modules {about.seat}=FOLDER"
    serve += " --quantization bitsandbytes" if about.nf4 else ""
    return f"{_python(chr(10).join(lines))}\n\nIn vLLM:\n\n```\n{serve}\n```"


def _python(text: str) -> str:
    return f"```python\n{text}\n```"


def _weights(about: Exported) -> str:
    if not about.nf4:
        how = (
            "as they were trained" if about.form == "peft" else f"the base's and the adapter's, added, in {about.dtype}"
        )
        return f"The weights are {how}."
    if about.form == "peft":
        return (
            "The adapter was trained over 4-bit (NF4) weights and is this model over these alone: over the 16-bit "
            "weights of the base it is another one, since it also learned what the quantisation had changed."
        )
    return (
        "The seat was trained over 4-bit (NF4) weights. These were expanded and the adapter added to them in float32, "
        f"so nothing is lost but the rounding to {about.dtype}. Merged into the base's original 16-bit weights, the "
        "adapter would have been another model, which was never trained or measured."
    )

"""The four kinds of folder that a seat is exported as: what is written into each."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lite_selfplay.errors import RequestError
from lite_selfplay.models.adapters import CONFIG, WEIGHTS
from lite_selfplay.runs.export.card import Exported
from lite_selfplay.runs.export.gguf_file import GgufType, write_gguf
from lite_selfplay.runs.export.gguf_vocabulary import writes_bos
from lite_selfplay.runs.export.templates import ollama_template, with_switches
from lite_selfplay.tasks.files import read_json, read_tensors

if TYPE_CHECKING:
    from torch import Tensor

    from lite_selfplay.models.chat import Chat

Weights = Callable[[], Iterator[tuple[str, "Tensor"]]]
"""The parameters of the model that the seat is, in float32, by their names."""


def write_adapter(folder: Path, about: Exported, adapter: Path, chat: "Chat") -> None:
    """An adapter for plain PEFT and vLLM, with the tokenizer, the chat template and the role's settings."""
    read_tensors(adapter / WEIGHTS)  # raises RunFolderError for damaged ones
    shutil.copyfile(adapter / WEIGHTS, folder / WEIGHTS)
    config = read_json(adapter / CONFIG)
    config |= {"base_model_name_or_path": about.base, "revision": about.revision}
    (folder / CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    _write_tokenizer(folder, about, chat)
    _settings(about, chat).save_pretrained(folder)


def write_merged(folder: Path, about: Exported, weights: Weights, config: Any, chat: "Chat") -> None:
    """A model of its own, in safetensors, that transformers and vLLM load."""
    import torch
    from transformers import AutoModelForCausalLM

    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[about.dtype]
    state = {name: tensor.to("cpu", dtype) for name, tensor in weights()}
    _require_finite(state)
    with torch.device("meta"):  # no second copy in memory, and no use of the global random generator
        plain = AutoModelForCausalLM.from_config(config, dtype=dtype)
    left_over = plain.load_state_dict(state, assign=True, strict=False).unexpected_keys
    plain.tie_weights()
    if missing := [*left_over, *(name for name, parameter in plain.named_parameters() if parameter.is_meta)]:
        raise RequestError(f"{missing[0]} has no place in a model of its own: export --to peft")
    plain.generation_config = _settings(about, chat)
    plain.save_pretrained(folder)
    _write_tokenizer(folder, about, chat)


def _require_finite(state: "dict[str, Tensor]") -> None:
    if odd := next((name for name, tensor in state.items() if not bool(tensor.isfinite().all())), None):
        raise RequestError(f"{odd} holds numbers beyond what fp16 can: give --dtype bf16")


def write_gguf_folder(folder: Path, about: Exported, weights: Weights, config: Any, chat: "Chat") -> None:
    """A GGUF file, and for Ollama a Modelfile beside it."""
    assert about.file is not None
    kinds: dict[str, GgufType] = {"bf16": "bf16", "fp16": "f16", "q8_0": "q8_0"}
    template = with_switches(chat.tokenizer.chat_template, about.config.model.thinking)
    write_gguf(
        folder / about.file,
        weights(),
        config,
        chat.tokenizer,
        kind=kinds[about.dtype],
        name=about.name,
        eos_ids=chat.eos_ids,
        template=template,
    )
    if about.form == "ollama":
        (folder / "Modelfile").write_text(modelfile(about, chat, template), encoding="utf-8")


def modelfile(about: Exported, chat: "Chat", template: str | None) -> str:
    """What `ollama create` reads: the file, the chat template in Ollama's language, and the role's settings.

    https://github.com/ollama/ollama/blob/main/docs/modelfile.md
    """
    tokenizer = chat.tokenizer
    text, takes_more = ollama_template(tokenizer, template, bos_added=writes_bos(tokenizer))
    ends = [tokenizer.convert_ids_to_tokens(identity) for identity in chat.eos_ids]
    lines = [f"FROM ./{about.file}"]
    lines += [] if takes_more else ["# The template takes single questions: the model's own could not be translated."]
    lines += [f'TEMPLATE """{text}"""']
    settings = {
        "temperature": f"{about.temperature:g}",
        "top_k": "0",
        "top_p": "1",
        "min_p": "0",
        "repeat_penalty": "1",
    }
    settings["num_predict"] = str(about.max_tokens)
    lines += [f"PARAMETER {key} {value}" for key, value in settings.items()]
    lines += [f"PARAMETER stop {json.dumps(stop, ensure_ascii=False)}" for stop in dict.fromkeys([*ends, *about.stop])]
    return "\n".join(lines) + "\n"


def _write_tokenizer(folder: Path, about: Exported, chat: "Chat") -> None:
    tokenizer = chat.tokenizer
    before = tokenizer.chat_template
    try:
        tokenizer.chat_template = with_switches(before, about.config.model.thinking)
        tokenizer.save_pretrained(folder)
    finally:
        tokenizer.chat_template = before


def _settings(about: Exported, chat: "Chat") -> Any:
    """How the role samples: from the model's own probabilities, without a filter."""
    from transformers import GenerationConfig

    return GenerationConfig(
        do_sample=True,
        temperature=about.temperature,
        top_k=0,
        top_p=1.0,
        max_new_tokens=about.max_tokens,
        eos_token_id=list(chat.eos_ids),
        pad_token_id=chat.pad_id,
        bos_token_id=chat.tokenizer.bos_token_id,
    )

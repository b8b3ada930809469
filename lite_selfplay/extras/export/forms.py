"""The three kinds of folder that a seat is exported as: what is written into each."""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lite_selfplay.errors import RequestError
from lite_selfplay.extras.export.gguf_file import write_gguf
from lite_selfplay.extras.export.request import Asked
from lite_selfplay.models.adapters import CONFIG, WEIGHTS
from lite_selfplay.models.chat_template import DATE, NOW, Chat, Thinking
from lite_selfplay.runs.report.pages import shown
from lite_selfplay.tasks.files import read_json, read_tensors

if TYPE_CHECKING:
    from torch import Tensor

    from lite_selfplay.models.sources import ResolvedModel

Weights = Callable[[], Iterator[tuple[str, "Tensor"]]]
"""The parameters of the model that the seat is, in float32, by their names."""


def write_adapter(folder: Path, asked: Asked, model: "ResolvedModel", chat: Chat) -> None:
    """An adapter for plain PEFT and vLLM, with the tokenizer, the chat template and the role's settings.

    It names its base by the hub's id and revision; one that is a folder of this machine by the folder's name alone.
    """
    read_tensors(asked.adapter / WEIGHTS)  # raises RunFolderError for damaged ones
    shutil.copyfile(asked.adapter / WEIGHTS, folder / WEIGHTS)
    base = {"base_model_name_or_path": model.hub_id or shown(model.name), "revision": model.revision}
    config = json.dumps(read_json(asked.adapter / CONFIG) | base, indent=2, sort_keys=True)
    (folder / CONFIG).write_text(config + "\n", encoding="utf-8")
    _set_switches(asked, chat)
    chat.tokenizer.save_pretrained(folder)
    _settings(asked, chat).save_pretrained(folder)


def write_merged(folder: Path, asked: Asked, weights: Weights, config: Any, chat: Chat) -> None:
    """A model of its own in bf16, which transformers and vLLM load."""
    import torch
    from transformers import AutoModelForCausalLM

    state = {name: tensor.to("cpu", torch.bfloat16) for name, tensor in weights()}
    with torch.device("meta"):  # no second copy in memory, and no use of the global random generator
        plain = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    left_over = plain.load_state_dict(state, assign=True, strict=False).unexpected_keys
    plain.tie_weights()
    if missing := [*left_over, *(name for name, parameter in plain.named_parameters() if parameter.is_meta)]:
        raise RequestError(f"{missing[0]} has no place in a model of its own: export --to peft")
    plain.generation_config = _settings(asked, chat)
    plain.save_pretrained(folder)
    _set_switches(asked, chat)
    chat.tokenizer.save_pretrained(folder)


def write_gguf_folder(folder: Path, asked: Asked, weights: Weights, config: Any, chat: Chat) -> None:
    """A GGUF file, and a Modelfile with the role's settings for `ollama create`.

    https://github.com/ollama/ollama/blob/main/docs/modelfile.md
    """
    _set_switches(asked, chat)
    name = f"{asked.config.game.label}, seat {asked.name}"
    write_gguf(folder / asked.file, weights(), config, chat.tokenizer, name=name, eos_ids=chat.eos_ids)
    parameters = {"temperature": f"{asked.sampling.temperature:g}", "top_k": "0", "top_p": "1", "min_p": "0"}
    parameters |= {"repeat_penalty": "1", "num_predict": str(asked.sampling.max_tokens)}
    lines = [f"FROM ./{asked.file}", *(f"PARAMETER {key} {value}" for key, value in parameters.items())]
    lines += [f"PARAMETER stop {json.dumps(stop, ensure_ascii=False)}" for stop in asked.sampling.stop]
    (folder / "Modelfile").write_text("\n".join(lines) + "\n", encoding="utf-8")


def with_switches(template: str | None, thinking: Thinking) -> str | None:
    """A chat template that renders without arguments what the run rendered: its date, and thinking on or off.

    An argument that is given still wins.
    """
    if template is None:
        return None
    values = {"date_string": f'"{DATE}"'} if "date_string" in template else {}
    if thinking != "auto":
        switch = "true" if thinking == "on" else "false"
        values |= {name: switch for name in ("enable_thinking", "thinking") if name in template}
    set_first = (
        f"{{%- if {key} is not defined %}}{{%- set {key} = {value} %}}{{%- endif %}}" for key, value in values.items()
    )
    asks = r"""strftime_now\(\s*(['"])(.*?)\1\s*\)"""
    return "".join(set_first) + re.sub(asks, lambda call: json.dumps(NOW.strftime(call[2])), template)


def _set_switches(asked: Asked, chat: Chat) -> None:
    chat.tokenizer.chat_template = with_switches(chat.tokenizer.chat_template, asked.config.model.thinking)


def _settings(asked: Asked, chat: Chat) -> Any:
    """How the role samples: from the model's own probabilities, without a filter."""
    from transformers import GenerationConfig

    return GenerationConfig(
        do_sample=True,
        temperature=asked.sampling.temperature,
        top_k=0,
        top_p=1.0,
        max_new_tokens=asked.sampling.max_tokens,
        eos_token_id=list(chat.eos_ids),
        pad_token_id=chat.pad_id,
        bos_token_id=chat.tokenizer.bos_token_id,
    )

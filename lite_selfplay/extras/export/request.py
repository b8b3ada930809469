"""A request to export a seat (a LoRA adapter) of a run, checked before any model is loaded, and the model card of the
exported files."""

import math
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lite_selfplay.config import RunConfig
from lite_selfplay.data import Sampling
from lite_selfplay.errors import ConfigError, RequestError, RunFolderError
from lite_selfplay.models.sources.folders import read_json
from lite_selfplay.runs.folder import RunFolder
from lite_selfplay.runs.report.closing import Evaluations, counted
from lite_selfplay.runs.report.pages import FORMS, added, base_id, code, loading, metadata, plain, shown, whole_card
from lite_selfplay.runs.targets import saved_adapters

Form = Literal["peft", "merged", "gguf"]


@dataclass(frozen=True)
class Asked:
    """A request to export a seat (a LoRA adapter) of a run, after `ask` has checked it.

    - `folder`: the run folder
    - `config`: the run's configuration, in which the backend is replaced by `transformers`
    - `name`: the seat as requested, such as `A` or `A@20` (the seat at the checkpoint of step 20)
    - `seat`: the seat's name alone, such as `A`
    - `adapter`: the folder of the seat's saved weights
    - `step`: the number of training steps after which these weights were saved
    - `total`: the sum of the rows of `metrics.jsonl` up to `step` (`added`), empty if there is none
    - `roles`: the roles that the seat played in these rows
    - `sampling`: the settings with which training sampled the first role in `roles`, or default settings if `roles` is
      empty
    - `form`: the format of the export, `peft`, `merged` or `gguf`
    - `out`: the folder that the export creates
    """

    folder: RunFolder
    config: RunConfig
    name: str
    seat: str
    adapter: Path
    step: int
    total: dict[str, Any]
    roles: tuple[str, ...]
    sampling: Sampling
    form: Form
    out: Path

    @property
    def file(self) -> str:
        """The name of the file that an export in the format `gguf` writes."""
        base = Path(self.config.model.name).name
        return re.sub(r"[^\w.-]+", "-", f"{self.config.game.label}-{base}-{self.name}-f16.gguf")


def ask(folder: RunFolder, name: str | None, form: Form, out: Path | str | None, trusted: bool) -> Asked:
    """Check a request to export a seat (a LoRA adapter) of a run, before the model is loaded.

    - `folder`: the run folder
    - `name`: the seat: `A` (as saved last), `A@20` (from the checkpoint of step 20), `A@best` (from the checkpoint with
      the highest pass@1), or None for the run's only seat
    - `form`: the format of the export
    - `out`: the folder to create, or None for `exports/RUN-SEAT-FORM` in the working directory
    - `trusted`: whether the base model's own Python code may run

    Returns the request with all that the export needs. Raises RequestError if the seat is unknown or not saved, if
    `name` is None and the run has several seats, if the format is unknown or does not support the model, if the base
    model has Python code and `trusted` is false, if the run's game or tasks are in a Python file that the user has not
    allowed on this machine by running it before, or if `out` exists.
    """
    config = folder.config_to_load(trusted, unsafe_code=True)  # an export runs no code that the model writes
    if form not in FORMS:
        raise ConfigError(f"a seat can be exported to {', '.join(FORMS)}, not to {form!r}")
    if config.model.trust_remote_code and form != "peft":
        raise ConfigError(f"{config.model.name} has Python code of its own, so it can only be exported --to peft")
    if name is None and len(config.seats) > 1:
        raise RequestError(f"{folder.path} has the seats {', '.join(config.seats)}: name one of them after the run")
    name = name or next(iter(config.seats))
    ((seat, step, adapter),) = saved_adapters(folder, config.seats, [name]).values()
    if not adapter.is_dir():
        raise RunFolderError(
            f"{folder.path} has no adapter of seat {name!r}: a run writes its adapters at its checkpoints and at its "
            "end"
        )
    total, played = dict[str, Any](), set[str]()
    for row in folder.steps(last=math.inf if step is None else step):
        total = added(total, row)
        played |= {role for role, stream in row["streams"].items() if stream["seat"] == seat}
    roles = tuple(role for role in config.roles if role in played)
    tokens = config.run.max_completion_tokens or 512
    path = Path(out or f"exports/{folder.path.resolve().name}-{name.replace('@', '-')}-{form}").expanduser()
    require_free(path)
    return Asked(
        folder,
        config.having({"model": {"backend": "transformers"}}),
        name,
        seat,
        adapter,
        total.get("step", 0) if step is None else step,
        total,
        roles,
        config.roles[roles[0]].sampling(tokens) if roles else Sampling(max_tokens=tokens),
        form,
        path,
    )


def require_free(path: Path) -> None:
    if os.path.lexists(path):
        raise ConfigError(f"{path} exists already and is not overwritten: choose another --out")


_MERGED = """```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("FOLDER", dtype="auto")
tokenizer = AutoTokenizer.from_pretrained("FOLDER")
```"""
# One of the run's prompts, rendered as training did.
_GENERATE = """
from transformers import GenerationConfig

prompt = {prompt!r}
if tokenizer.chat_template:
    turns = [{{"role": "user", "content": prompt}}]
    prompt = tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
inputs = tokenizer(prompt, add_special_tokens=not tokenizer.chat_template, return_tensors="pt").to(model.device)
settings = GenerationConfig.from_pretrained("FOLDER"{stops})
ids = model.generate(**inputs, generation_config=settings, tokenizer=tokenizer)[0, inputs["input_ids"].shape[1] :]
print(tokenizer.decode(ids, skip_special_tokens=True))
```"""
# The values that vLLM's `--max-lora-rank` accepts, the default first.
_VLLM_RANKS = (16, 32, 64, 128, 256, 320, 512)


def export_card(asked: Asked, revision: str | None, evaluations: Evaluations, verified: str) -> str:
    """The text of an export's README.md, its model card. `asked` is the checked export request. `revision` is the base
    model's commit on the hub, or None if the base model is not from the hub. `evaluations` is the result of
    `exporting.measured`. `verified` is a paragraph on the comparison of the exported files with the seat."""
    config, sampling = asked.config, asked.sampling
    parts = " and ".join(map(code, asked.roles)) or "no role so far"
    base, name = base_id(config.model.name), code(shown(config.model.name))
    about = f"""{FORMS[asked.form][0]} trained by self-play with lite-selfplay: seat {code(asked.seat)} of a run of
{plain(config.game.label)} after {counted(asked.step, "step")}, which played {parts}, over {name}."""
    stops = f", ending at {' or '.join(map(code, sampling.stop))}" if sampling.stop else ""
    wrapped = isinstance(read_json(asked.adapter / "adapter_config.json")["target_modules"], str)
    peft = loading(config, "FOLDER", revision, tokenizer="FOLDER", wrapped=wrapped)
    seen = (row for row in asked.folder.episodes() if row["seat"] == asked.seat and row["role"] in asked.roles[:1])
    prompt = next(seen, {"prompt": "What is 12 + 7?"})["prompt"]
    cuts = f", stop_strings={list(sampling.stop)!r}" if sampling.stop else ""
    generate = _GENERATE.format(prompt=prompt, stops=cuts)
    python = {form: f"{text.removesuffix('```')}{generate}" for form, text in (("peft", peft), ("merged", _MERGED))}
    commands = serving(asked, "FOLDER", base, revision) if base or asked.form != "peft" else []
    use = f"""{python.get(asked.form, "")}

{"".join(f"    {command}{chr(10)}" for command in commands)}
In training it was sampled at temperature {sampling.temperature:g} with up to {sampling.max_tokens} tokens{stops};
`{"Modelfile" if asked.form == "gguf" else "generation_config.json"}` holds these settings.

## Is it the same model?

{_about_weights(asked)}

{verified}"""
    title = plain(f"{config.game.label} on {shown(config.model.name)}, seat {asked.name}")
    rewards, metrics = asked.folder.rewards(), [asked.total] if asked.total else []
    return whole_card(config, metadata(config, asked.form), title, about, use, rewards, metrics, evaluations)


def serving(asked: Asked, folder: str, base: str | None, revision: str | None) -> list[str]:
    """Shell commands that serve exported files; each is an alternative to the others. `asked` is the checked export
    request, and `folder` is the path of the files, quoted for a shell. Only the format `peft` uses the last two
    arguments: `base` is the base model's hub id or folder, and must not be None for `peft`; `revision` is its commit on
    the hub, or None for the newest. vLLM's command for `peft` is documented at
    https://docs.vllm.ai/en/latest/features/lora.html, and that of transformers at
    https://huggingface.co/docs/transformers/serving."""
    if asked.form == "merged":
        return [f"transformers serve {folder}", f"vllm serve {folder}"]
    if asked.form == "gguf":
        file = f"{folder}/{asked.file}"
        return [
            f"llama-server -m {file} --jinja",
            f"ollama create {Path(asked.file).stem.lower()} -f {folder}/Modelfile",
        ]
    rank = asked.config.seats[asked.seat].rank
    more = f" --max-lora-rank {next((r for r in _VLLM_RANKS if r >= rank), rank)}" if rank > _VLLM_RANKS[0] else ""
    more += " --quantization bitsandbytes" if asked.config.model.precision == "4bit" else ""
    where = f"{base} --revision {revision}" if revision else base
    return [f"vllm serve {where} --enable-lora --lora-modules {asked.seat}={folder}{more}"]


def _about_weights(asked: Asked) -> str:
    """The model card's paragraph on how the weights of the export `asked` come from the adapter and the base model."""
    if asked.config.model.precision != "4bit":
        return "The adapter's weights are those of training; in a full model they are merged into the base's."
    if asked.form == "peft":
        return (
            "The adapter was trained over 4-bit (NF4) weights and works only with these: with the base's 16-bit "
            "weights it is a different model, since it also learned to correct the quantisation."
        )
    return (
        "The seat was trained over 4-bit (NF4) weights. These were dequantised and the adapter added in float32, so "
        "the only loss is the rounding to 16 bits. Merged into the base's original 16-bit weights, the adapter would "
        "be a different model, which was never trained or measured."
    )

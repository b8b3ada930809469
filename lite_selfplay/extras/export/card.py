"""The model card of an export, and the commands that serve one."""

from pathlib import Path

from lite_selfplay.extras.export.request import Asked
from lite_selfplay.runs.report.closing import Evaluations, counted
from lite_selfplay.runs.report.pages import FORMS, base_id, code, loading, metadata, plain, shown, whole_card

_MERGED = """```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("FOLDER", dtype="auto")
tokenizer = AutoTokenizer.from_pretrained("FOLDER")
```"""
_VLLM_RANKS = (16, 32, 64, 128, 256, 320, 512)
"""What `--max-lora-rank` takes, from its default on."""


def export_card(asked: Asked, revision: str | None, evaluations: Evaluations, verified: str) -> str:
    """The README of an export. `revision`: of its base on a hub; `verified`: what another tool made of it."""
    config, sampling = asked.config, asked.sampling
    parts = " and ".join(map(code, asked.roles)) or "no role so far"
    base, name = base_id(config.model.name), code(shown(config.model.name))
    about = f"""{FORMS[asked.form][0]} trained by self-play with lite-selfplay: seat {code(asked.seat)} of a run of
{plain(config.game.label)} after {counted(asked.step, "step")}, which played {parts}, over {name}."""
    stops = f", ending at {' or '.join(map(code, sampling.stop))}" if sampling.stop else ""
    python = {"peft": loading(config, "FOLDER", revision, tokenizer="FOLDER"), "merged": _MERGED}.get(asked.form, "")
    commands = serving(asked, "FOLDER", base, revision) if base or asked.form != "peft" else []
    use = f"""{python}

{"".join(f"    {command}{chr(10)}" for command in commands)}
It was sampled at temperature {sampling.temperature:g} with up to {sampling.max_tokens} tokens{stops};
`{"Modelfile" if asked.form == "gguf" else "generation_config.json"}` holds these settings.

## Is it the same model?

{_weights(asked)}

{verified}"""
    title = plain(f"{config.game.label} on {shown(config.model.name)}, seat {asked.name}")
    return whole_card(config, metadata(config, asked.form), title, about, use, asked.metrics, evaluations)


def serving(asked: Asked, folder: str, base: str | None, revision: str | None) -> list[str]:
    """The commands that serve an export in a folder; `base` is the hub id or the folder of an adapter's base.

    https://docs.vllm.ai/en/latest/features/lora.html, https://huggingface.co/docs/transformers/serving
    """
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


def _weights(asked: Asked) -> str:
    """What the weights are, and over which they are the seat."""
    if asked.config.model.precision != "4bit":
        return "The weights are as they were trained, or the sum of the base's and the adapter's."
    if asked.form == "peft":
        return (
            "The adapter was trained over 4-bit (NF4) weights and is this model over these alone: over the 16-bit "
            "weights of the base it is another one, since it also learned what the quantisation had changed."
        )
    return (
        "The seat was trained over 4-bit (NF4) weights. These were expanded and the adapter added to them in float32, "
        "so nothing is lost but the rounding to 16 bits. Merged into the base's original 16-bit weights, the adapter "
        "would have been another model, which was never trained or measured."
    )

"""Markdown pages about a run: its model card, the common parts of an export's card, and transcripts."""

import json
import os
import re
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import huggingface_hub

from lite_selfplay.config import RunConfig
from lite_selfplay.evaluation.result import as_markdown, comparison
from lite_selfplay.games import Game
from lite_selfplay.games.presentation import Row, Transcript
from lite_selfplay.models.sources import hub_id
from lite_selfplay.runs.report.closing import Evaluations, Metrics, counted
from lite_selfplay.training.progress import printable

# (description, library, relation to the base) of each form of export, in the terms of model cards.
FORMS = {
    "peft": ("A LoRA adapter", "peft", "adapter"),
    "merged": ("A model of its own: the base with the adapter merged into it,", "transformers", "finetune"),
    "gguf": ("A GGUF file: the base with the adapter merged into it,", "gguf", "quantized"),
}
_BY_HARDWARE = "torch.bfloat16 if torch.cuda.is_available() else torch.float32"
_RESOLVE = "from lite_selfplay.models.sources import resolve\n"
_NF4 = """nf4 = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype)
"""


def model_card(
    config: RunConfig,
    step: int,
    rewards: str = "",
    *,
    metrics: Metrics = (),
    evaluations: Evaluations | None = None,
    wrapped: bool = False,
) -> str:
    """The run folder's README: its adapters, how they were trained and evaluated, and how to load one.

    `rewards`: what completions earn, in words. `metrics`: the lines of `metrics.jsonl` so far, or their sum (`added`),
    for the number of tokens. `evaluations`: the contents of the files in `eval/` by moment, in order.
    """
    of = "" if metrics and metrics[-1].get("over") is True else f" of {config.run.steps}"
    title = f"{plain(config.game.label)} on {plain(shown(config.model.name))}, after {step}{of} steps"
    use = f"""Plain PEFT loads each folder in `adapters/`:

{loading(config, f"adapters/{next(iter(config.seats))}", wrapped=wrapped)}

`lite-selfplay eval RUN --tasks T` evaluates the adapters in this run folder on the problems of a task.
`lite-selfplay train --config config.yaml` repeats the run. `metrics.jsonl` has a line per step, `episodes.jsonl` a line
per completion."""
    about = "LoRA adapters trained by self-play with lite-selfplay: one per seat, over one frozen base."
    return whole_card(config, metadata(config, "peft"), title, about, use, rewards, metrics, evaluations or {})


def added(total: Row, row: Row) -> dict[str, Any]:
    """A line of `metrics.jsonl` with the tokens of `total` added, which is empty or the sum of earlier lines."""
    tokens = total.get("tokens", {})
    return {**row, "tokens": {key: tokens.get(key, 0) + count for key, count in row["tokens"].items()}}


def whole_card(
    config: RunConfig,
    metadata: huggingface_hub.ModelCardData,
    title: str,
    about: str,
    use: str,
    rewards: str,
    metrics: Metrics,
    evaluations: Evaluations,
) -> str:
    seats = [
        (code(name), f"{seat.lr:g}", seat.schedule, str(seat.rank), str(seat.alpha))
        for name, seat in config.seats.items()
    ]
    card = f"""---
{metadata}
---

# {title}

{about}

## Use

{use}

## Training

{_facts(config, rewards, metrics)}

{as_markdown(("seat", "learning rate", "schedule", "rank", "alpha"), seats)}

## Measured

{_measured(config, evaluations)}

This is for research on self-play with checkable problems, in the prompts of this game. Training rewarded only right
final answers and their format: do not expect it to be better at anything else, or its reasoning to be sound if an
answer is right. The base model's licence applies to any use with it; this card does not restate it.
"""
    return str(huggingface_hub.ModelCard(card))


def loading(
    config: RunConfig, adapter: str, revision: str | None = None, *, tokenizer: str | None = None, wrapped: bool = False
) -> str:
    """Python code, as Markdown, that loads a seat's adapter in plain PEFT over the base that it was trained on.

    `adapter`: its folder. `revision`: that of the base on a hub. `tokenizer`: the folder of one that is not the base's.
    `wrapped`: the base is the text part of a model that also takes images.
    """
    auto = "AutoModelForImageTextToText" if wrapped else "AutoModelForCausalLM"
    model, base, nf4 = config.model, base_id(config.model.name), config.model.precision == "4bit"
    made_here = base is None and not os.path.isdir(model.name)
    where = json.dumps(base or shown(model.name), ensure_ascii=False)
    where = f"resolve({where}).path" if made_here else where
    dtypes = {"bf16": "torch.bfloat16", "fp16": "torch.float16", "fp32": "torch.float32"}
    dtype = dtypes.get(model.compute_dtype if nf4 else model.precision, _BY_HARDWARE)
    options = f', revision="{revision}"' if revision else ""
    options += ", trust_remote_code=True" if model.trust_remote_code else ""
    own = json.dumps(tokenizer) if tokenizer else f"{where}{options}"
    return f"""```python
import torch
{_RESOLVE if made_here else ""}from peft import PeftModel
from transformers import {auto}, AutoTokenizer{", BitsAndBytesConfig" if nf4 else ""}

dtype = {dtype}
{_NF4 if nf4 else ""}base = {auto}.from_pretrained(
    {where}, dtype=dtype{", quantization_config=nf4" if nf4 else ""}{options}
)
model = PeftModel.from_pretrained(base, {json.dumps(adapter, ensure_ascii=False)})
tokenizer = AutoTokenizer.from_pretrained({own})
```"""


def metadata(config: RunConfig, form: str) -> huggingface_hub.ModelCardData:
    """The card's metadata for a hub; `base_model` only for a hub id, since hubs accept nothing else."""
    base, (_, library, relation) = base_id(config.model.name), FORMS[form]
    return huggingface_hub.ModelCardData(
        base_model=base,
        base_model_relation=relation if base else None,
        library_name=library,
        pipeline_tag="text-generation",
        tags=["lite-selfplay", config.game.label, *(["lora"] if form == "peft" else [])],
    )


def base_id(name: str) -> str | None:
    """The hub id of a base; None for a folder, or a base that only this library makes or converts."""
    return None if os.path.isdir(name) else hub_id(name.strip())


def _facts(config: RunConfig, rewards: str, metrics: Metrics) -> str:
    run, cold, options = config.run, config.cold_start, config.game.options
    switches = ", ".join(f"{key}={shown(value)}" for key, value in options.items())
    source = code(shown(cold.source))
    alone = f", as {plain(' and '.join(cold.roles))} alone" if cold.roles else ""
    taught = f"cold start, {cold.steps} batches of {cold.examples_per_step} examples a seat, source {source}{alone}"
    facts = {
        "game": code(config.game.label) + (f" ({plain(switches)})" if switches else ""),
        **({"rewards": plain(rewards)} if rewards else {}),
        "base": f"{code(shown(config.model.name))}, weights in {config.model.precision}",
        "problems": code(shown(config.tasks.train or "none")),
        "a step": f"{counted(run.problems_per_step, 'problem')}, groups of {run.group_size}",
        "start": f"the seats of {code(shown(run.init))}" if run.init else taught if cold.enabled else "no cold start",
        "seed": str(run.seed),
    }
    if metrics:
        generated, trained = (sum(row["tokens"][key] for row in metrics) for key in ("generated", "trained"))
        facts["tokens"] = f"{generated:,} generated, {trained:,} trained on"
    return "\n".join(f"- {name}: {fact}" for name, fact in facts.items())


def _measured(config: RunConfig, evaluations: Evaluations) -> str:
    """The evaluations side by side, with their limits."""
    if not evaluations:
        return "Nothing: the run has no evaluation on held-out problems."
    columns, rows = comparison(evaluations)
    table = as_markdown([plain(column) for column in columns], [[plain(row[0]), *row[1:]] for row in rows])
    tasks = ", ".join(
        dict.fromkeys(f"{result['n']} of {code(shown(result['tasks']))}" for result in evaluations.values())
    )
    trained = code(shown(config.tasks.train or "none"))
    return (
        f"pass@1 with 95% intervals on problems held out from training ({tasks}); `A->B` means that B answers after "
        f"A's draft.\n\n{table}\n\nThe run trained on problems of {trained}. Another seed may give other results."
    )


def shown(value: object) -> str:
    """A name or value for a card: only the last part of a path, since a card is read on other machines."""
    text = str(value)
    return Path(text).name if Path(text).is_absolute() else text


def plain(text: str) -> str:
    """Text on one line, escaped for Markdown."""
    return re.sub(r"([\\`*_\[\]<>#])", r"\\\1", " ".join(printable(text).split()))


def code(text: str) -> str:
    """Text on one line as inline code."""
    text = " ".join(printable(text).split())
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    pad = " " if "`" in text else ""
    return f"{fence}{pad}{text}{pad}{fence}"


# Rules for choosing transcripts, so that nobody selects the good ones.
RULES = {
    "kinds": "the latest transcript of each kind in turn, the most telling kind first",
    "first": "the first transcripts of the run, in the order they were played",
    "spread": "the first transcript of evenly spaced steps, from the first step to the last",
}
# Characters of a problem's name in a title.
LONGEST_NAME = 200


def choose_transcripts(game: type[Game], rows: Iterable[Row], count: int, rule: str = "kinds") -> list[Transcript]:
    """At most `count` transcripts of a run by one of `RULES`."""
    found = game.transcripts(rows)
    if rule == "spread":
        first: dict[int, Transcript] = {}
        for transcript in found:
            first.setdefault(transcript.step, transcript)
        spread, count = list(first.values()), min(count, len(first))
        places = [round(i * (len(spread) - 1) / (count - 1)) for i in range(count)] if count > 1 else [-1] * count
        return [spread[place] for place in places]
    if rule == "kinds":
        by_kind: dict[str, list[Transcript]] = {kind: [] for kind in game.kinds()}
        for transcript in reversed(found):
            by_kind.setdefault(transcript.kind, []).append(transcript)
        found = [each for turn in zip_longest(*by_kind.values()) for each in turn if each is not None]
    return found[:count]


def transcripts_markdown(game: type[Game], title: str, chosen: Sequence[Transcript], rule: str) -> str:
    """Transcripts as a page of Markdown that begins with the rule that chose them."""
    parts = [f"# {plain(title)}", f"Chosen by rule (`{rule}`): {RULES[rule]}. Nothing was picked by hand."]
    parts += [] if chosen else ["There are no transcripts to show."]
    for number, transcript in enumerate(chosen, 1):
        parts += _parts(game, transcript, f"{number}. ")
    return "\n\n".join(parts) + "\n"


def _parts(game: type[Game], transcript: Transcript, number: str) -> list[str]:
    title = f"Step {transcript.step}, {plain(transcript.subject[:LONGEST_NAME])}: {transcript.kind}"
    parts = [f"## {number}{title}", "The problem:", fenced(transcript.problem)]
    posed = game.accuracy_of(transcript.rows[0]["role"]).proposals and len(transcript.rows) > 1
    for i, row in enumerate(transcript.rows):
        if not i and posed:
            parts += [f"What {plain(row['role'])} was asked:", fenced(row["prompt"])]
        elif i and not posed:
            sentence, text = seen(transcript.rows[0], row)
            parts += [sentence, fenced(text)] if text else [sentence]
        parts.append(
            f"{plain(row['role'])}, seat {code(row['seat'])}: {plain(game.verdict(row)[:LONGEST_NAME])}{earned(row)}"
        )
        parts.append(fenced(row["text"]))
    return parts


def seen(first: Row, later: Row) -> tuple[str, str]:
    """(sentence, text) about the part of a later role's prompt that is not in the first one's."""
    role, before, prompt = plain(later["role"]), first["prompt"], later["prompt"]
    if prompt == before:
        return f"The {role} saw the same, but not the {plain(first['role'])}'s text.", ""
    if prompt.startswith(before):
        return f"The {role} saw the same, and then:", prompt.removeprefix(before)
    return f"The {role} saw:", prompt


def fenced(text: str) -> str:
    """Text as a code block, whatever fences it contains."""
    text = printable(text).strip() or "(nothing)"
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}text\n{text}\n{fence}"


def earned(row: Row) -> str:
    """A completion's reward, as text after its verdict; empty if it is only recorded."""
    return "" if row["reward"] is None else f", reward {row['reward']:g}"


def outcome(game: type[Game], row: Row) -> bool | None:
    """Whether an answer is right or agrees with its label; None for proposals, and if it was not judged."""
    return None if game.accuracy_of(row["role"]).proposals else row["correct"]

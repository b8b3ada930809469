"""The model card of a run: what the adapters are, how they came about, what was measured."""

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from lite_selfplay.config import RunConfig
from lite_selfplay.evaluation.tables import as_markdown, comparison
from lite_selfplay.models.sources.catalog import hub_id
from lite_selfplay.runs.report.closing import Evaluations, Metrics, counted
from lite_selfplay.training.progress import printable

if TYPE_CHECKING:
    from huggingface_hub import ModelCardData


def model_card(
    config: RunConfig,
    step: int,
    *,
    metrics: Metrics = (),
    evaluations: Evaluations | None = None,
) -> str:
    """The run folder's README: what the adapters are, how they came about, what was measured, how to load one.

    `metrics` are the lines of `metrics.jsonl` so far, for the number of tokens. `evaluations` are the contents of the
    files in `eval/` by the moment they were made, in order.
    """
    from huggingface_hub import ModelCard

    name, first = config.model.name, next(iter(config.seats))
    card = f"""---
{_metadata(config)}
---

# {plain(config.game.label)} on {plain(shown(name))}, after {step}{_of(config, metrics)} steps

LoRA adapters trained by self-play with lite-selfplay, one a seat, over one frozen base.

## Training

{facts(config, metrics)}

{as_markdown(("seat", "learning rate", "schedule", "rank", "alpha"), _seat_rows(config))}

## Measured

{measured(config, evaluations or {})}

## Use

A folder of `adapters/` loads in plain PEFT:

```python
{_loading(name, first)}
```

`lite-selfplay eval RUN --tasks T` measures the adapters of this folder, the run folder, on the problems of a task.
`config.yaml` repeats the run (`lite-selfplay train --config config.yaml`); `metrics.jsonl` holds a line a step,
`episodes.jsonl` a line a completion.

The adapters are meant for research on self-play over problems with checkable answers, in the prompts of this game. They
were trained towards right final answers and a form alone, so expect nothing of them elsewhere, nor that their reasoning
is sound where an answer is right. The base model's licence applies to any use with it; this card does not restate it.
"""
    return str(ModelCard(card))


def _of(config: RunConfig, metrics: Metrics) -> str:
    """How many steps were asked for; nothing where the game ended by itself."""
    return "" if metrics and metrics[-1].get("over") is True else f" of {config.run.steps}"


def _metadata(config: RunConfig) -> "ModelCardData":
    """What a hub reads of the card; `base_model` only for a hub id, since a hub takes nothing else there."""
    from huggingface_hub import ModelCardData

    base = base_id(config.model.name)
    return ModelCardData(
        base_model=base,
        base_model_relation="adapter" if base else None,
        library_name="peft",
        pipeline_tag="text-generation",
        tags=["lite-selfplay", config.game.label, "lora"],
    )


def base_id(name: str) -> str | None:
    """The hub's name of a run's base; None for one that is a folder, or that only this library makes or converts."""
    return None if name.strip().lower() in ("tiny", "smollm2-135m") or os.path.isdir(name) else hub_id(name.strip())


def facts(config: RunConfig, metrics: Metrics) -> str:
    """What was trained on what, a line a fact."""
    run, cold, options = config.run, config.cold_start, config.game.options
    switches = ", ".join(f"{key}={shown(value)}" for key, value in options.items())
    source = code(shown(cold.source))
    taught = f"cold start, {cold.steps} batches of {cold.examples_per_step} examples a seat, source {source}"
    taught += f", as {plain(' and '.join(cold.roles))} alone" if cold.roles else ""
    facts = {
        "game": code(config.game.label) + (f" ({plain(switches)})" if switches else ""),
        "base": f"{code(shown(config.model.name))}, weights held in {config.model.precision}",
        "problems": code(shown(config.tasks.train or "none")),
        "a step": f"{counted(run.problems_per_step, 'problem')}, groups of {run.group_size}",
        "start": f"the seats of {code(shown(run.init))}" if run.init else taught if cold.enabled else "no cold start",
        "seed": str(run.seed),
    }
    if metrics:
        generated, trained = (sum(row["tokens"][key] for row in metrics) for key in ("generated", "trained"))
        facts["tokens"] = f"{generated:,} generated, {trained:,} trained on"
    return "\n".join(f"- {name}: {fact}" for name, fact in facts.items())


def _seat_rows(config: RunConfig) -> list[tuple[str, ...]]:
    return [
        (code(name), f"{seat.lr:g}", seat.schedule, str(seat.rank), str(seat.alpha))
        for name, seat in config.seats.items()
    ]


def measured(config: RunConfig, evaluations: Evaluations) -> str:
    """The evaluations made in training side by side, with what they can and cannot tell."""
    if not evaluations:
        return "Nothing: no figure in this folder comes from held-out problems."
    columns, rows = comparison(evaluations)
    table = as_markdown([plain(column) for column in columns], [[plain(row[0]), *row[1:]] for row in rows])
    tasks = ", ".join(
        dict.fromkeys(f"{result['n']} of {code(shown(result['tasks']))}" for result in evaluations.values())
    )
    trained = code(shown(config.tasks.train or "none"))
    return (
        f"pass@1 with 95% intervals on problems held out from training ({tasks}); `A->B` is B answering after A's "
        f"draft.\n\n{table}\n\nThe run trained on problems of {trained}. One run does not show how "
        "another seed would fare."
    )


def _loading(name: str, seat: str) -> str:
    """The lines that load a seat, for a base on a hub and for one that only this library makes or converts."""
    base = base_id(name)
    where = json.dumps(base) if base else f"resolve({json.dumps(name, ensure_ascii=False)}).path"
    lines = ["from peft import PeftModel", "from transformers import AutoModelForCausalLM", ""]
    if base is None:
        lines.insert(0, "from lite_selfplay.models.sources import resolve")
    lines += [f"base = AutoModelForCausalLM.from_pretrained({where})"]
    lines += [f"model = PeftModel.from_pretrained(base, {json.dumps('adapters/' + seat, ensure_ascii=False)})"]
    return "\n".join(lines)


def shown(value: object) -> str:
    """A name or a value as a card has it: of a path only the last part, since a card is read on other machines."""
    text = str(value)
    return Path(text).name if Path(text).is_absolute() else text


def plain(text: str) -> str:
    """Text on one line in which Markdown finds nothing to format."""
    return re.sub(r"([\\`*_\[\]<>#])", r"\\\1", " ".join(printable(text).split()))


def code(text: str) -> str:
    """Text on one line as inline code, whatever it holds."""
    text = " ".join(printable(text).split())
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    pad = " " if "`" in text else ""
    return f"{fence}{pad}{text}{pad}{fence}"

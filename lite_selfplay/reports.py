"""A finished step as text and JSON: its lines in the run folder, its line on the terminal, the model card."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from lite_selfplay.config import RunConfig
from lite_selfplay.credit import has_variance
from lite_selfplay.data import Sample, Stream
from lite_selfplay.trainer import Advantages, StepReport, StreamUpdate


def stream_metrics(stream: Stream, advantages: Advantages, update: StreamUpdate) -> dict[str, Any]:
    """One stream's line of `metrics.jsonl`. Shares are over all completions of the stream, masked ones included."""
    samples = [sample for group in stream.groups for sample in group.samples]
    rewards = [sample.reward for sample in samples]
    lengths = [len(sample.completion.token_ids) for sample in samples]
    judged = [sample.verdict for sample in samples if sample.verdict is not None]
    return {
        "seat": update.seat,
        "completions": len(samples),
        "reward_mean": _mean(rewards),
        "reward_std": statistics.stdev(rewards) if len(rewards) > 1 else 0.0,
        "accuracy": _mean([verdict.correct for verdict in judged]),
        "well_formed": _mean([verdict.well_formed for verdict in judged]),
        "tokens_mean": _mean(lengths),
        "tokens_generated": sum(lengths),
        "tokens_trained": update.tokens,
        "truncated": _mean([sample.completion.stop == "length" for sample in samples]),
        "groups": len(stream.groups),
        "zero_variance_groups": sum(not has_variance(group) for group in stream.groups),
        "rows_trained": update.rows,
        "loss": update.loss,
        "kl": update.kl,
    }


def episode_rows(report: StepReport) -> list[dict[str, Any]]:
    """The step's completions as lines of `episodes.jsonl`; `group` and `sample` place each in its stream."""
    return [
        _episode_row(report.step, stream.role, g, k, group.problem.id if group.problem else None, sample, advantage)
        for stream, advantages in zip(report.episode.streams, report.advantages, strict=True)
        for g, (group, row) in enumerate(zip(stream.groups, advantages, strict=True))
        for k, (sample, advantage) in enumerate(zip(group.samples, row, strict=True))
    ]


def _episode_row(
    step: int, role: str, group: int, k: int, problem_id: str | None, sample: Sample, advantage: float | None
) -> dict[str, Any]:
    completion, verdict = sample.completion, sample.verdict
    return {
        "step": step,
        "role": role,
        "seat": completion.seat,
        "problem_id": problem_id,
        "group": group,
        "sample": k,
        "prompt": completion.prompt,
        "text": completion.text,
        "tokens": len(completion.token_ids),
        "stop": completion.stop,
        "reward": sample.reward,
        "advantage": advantage,
        "correct": verdict.correct if verdict else None,
        "well_formed": verdict.well_formed if verdict else None,
        "answer": verdict.answer if verdict else None,
        "reason": verdict.reason if verdict else None,
        **sample.info,
    }


def progress_line(metrics: Mapping[str, Any], steps: int, seconds_left: float) -> str:
    """A step in one line: who played what, how often right, at which reward, at what speed."""
    parts = [f"step {metrics['step'] + 1}/{steps}"]
    for role, stream in metrics["streams"].items():
        accuracy = "" if stream["accuracy"] is None else f"{stream['accuracy']:.0%} right, "
        parts.append(f"{role} {stream['seat']}: {accuracy}reward {stream['reward_mean'] or 0:.2f}")
    parts += [f"{key} {value}" for key, value in metrics["game"].items() if key in ("conversions", "regressions")]
    if not any(stream["rows_trained"] for stream in metrics["streams"].values()):
        parts.append("no signal, nothing moved")
    wall, tokens = metrics["wall_s"], metrics["tokens"]["generated"]
    parts.append(f"{tokens:,} tokens at {tokens / max(wall['generate'], 1e-9):.0f}/s")
    parts.append(f"{wall['total']:.1f} s, {_clock(seconds_left)} left")
    return " | ".join(parts)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def flat(metrics: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Nested metrics as `a/b/c: number`, for trackers."""
    result: dict[str, float] = {}
    for key, value in metrics.items():
        if isinstance(value, Mapping):
            result |= flat(value, f"{prefix}{key}/")
        elif isinstance(value, int | float) and math.isfinite(value):
            result[f"{prefix}{key}"] = value
    return result


def model_card(config: RunConfig, step: int) -> str:
    """The run folder's README: what the adapters are, over which base, and how to load one."""
    seats = ", ".join(f"`{name}`" for name in config.seats)
    first = next(iter(config.seats))
    return f"""---
base_model: {config.model.name}
library_name: peft
tags: [lite-selfplay, {config.game.name}, lora]
---

# {config.game.name} on {config.model.name}, after {step} of {config.run.steps} steps

LoRA adapters trained by self-play with lite-selfplay. Seats: {seats}. Base weights were held in
{config.model.precision}, tasks came from `{config.tasks.train}`, the seed was {config.run.seed}.

`adapters/{first}/` loads in plain PEFT:

```python
from peft import PeftModel
model = PeftModel.from_pretrained(base_model, "adapters/{first}")
```

`config.yaml` repeats the run (`lite-selfplay train --config config.yaml`); `metrics.jsonl` holds a line a step,
`episodes.jsonl` a line a completion. No figure in this folder comes from held-out problems.
"""


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None

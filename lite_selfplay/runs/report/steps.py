"""A finished step as JSON and text: its lines in the run folder, and its line on the terminal."""

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lite_selfplay.credit import has_variance, rewards_of
from lite_selfplay.data import Sample, Stream
from lite_selfplay.games import Game
from lite_selfplay.training.progress import clock

if TYPE_CHECKING:
    from lite_selfplay.training.admission import Advantages
    from lite_selfplay.training.updates import StepReport, StreamUpdate


def stream_metrics(stream: Stream, advantages: "Advantages", update: "StreamUpdate") -> dict[str, Any]:
    """One stream's line of `metrics.jsonl`. Shares are over all completions of the stream, masked ones included; those
    of rewards over the completions that have one, and None where none has."""
    samples = [sample for group in stream.groups for sample in group.samples]
    rewards = [reward for reward in rewards_of(samples) if math.isfinite(reward)]
    lengths = [len(sample.completion.token_ids) for sample in samples]
    judged = [sample.verdict for sample in samples if sample.verdict is not None]
    return {
        "seat": update.seat,
        "completions": len(samples),
        "reward_mean": _mean(rewards),
        "reward_std": statistics.stdev(rewards) if len(rewards) > 1 else 0.0 if rewards else None,
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
        "clipped": update.clipped,
        "sampler_gap": update.sampler_gap,
        "base_gap": update.base_gap,
    }


def episode_rows(report: "StepReport") -> list[dict[str, Any]]:
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


def progress_line(game: type[Game], metrics: Mapping[str, Any], steps: int | None, seconds_left: float | None) -> str:
    """A step in one line: who played what, how often right, at which reward, at what speed.

    `steps` and `seconds_left` are None where the game ends by itself.
    """
    log = metrics["game"]
    parts = [f"step {metrics['step'] + 1}" + ("" if steps is None else f"/{steps}")]
    for role, stream in metrics["streams"].items():
        accuracy, reward = stream["accuracy"], stream["reward_mean"]
        figures = [
            "" if accuracy is None else f"{accuracy:.0%} {game.accuracy_of(role).word}",
            "" if reward is None else f"reward {reward:.2f}",
        ]
        parts.append(f"{role} {stream['seat']}: {', '.join(filter(None, figures)) or 'for the record'}")
    parts += [*game.step_words(log), *agreement_lines(metrics)]
    if what := metrics.get("nonfinite_what") or metrics.get("sampler_what") or game.why_skipped(log):
        parts.append(f"skipped, {what}")
    elif game.trains(log) and not any(stream["rows_trained"] for stream in metrics["streams"].values()):
        parts.append("no signal, nothing moved")
    wall, tokens = metrics["wall_s"], metrics["tokens"]["generated"]
    parts.append(f"{tokens:,} tokens at {tokens / max(wall['generate'], 1e-9):.0f}/s")
    parts.append(f"{wall['total']:.1f} s" + ("" if seconds_left is None else f", {clock(seconds_left)} left"))
    return " | ".join(parts)


def warning_kind(sentence: str) -> str:
    """What warnings of one kind have in common: the sentence without its figures and what it quotes."""
    return re.sub(r"(?<= )(['\"]).*\1(?= )|[\d.]+", "", sentence)


def agreement_lines(metrics: Mapping[str, Any]) -> list[str]:
    """How far each seat's sampler is from its trainer, and the seat from the base, in mean nats a token.

    A line a seat: none where nothing was compared, and in a step that was skipped because they do not agree, which says
    more.
    """
    seats: dict[str, Mapping[str, Any]] = {}
    for stream in metrics["streams"].values():
        gap = stream.get("sampler_gap")
        if gap is not None and gap >= seats.get(stream["seat"], stream)["sampler_gap"]:
            seats[stream["seat"]] = stream
    if metrics.get("sampler_what") is not None:
        return []
    return [_agreement(seat, stream["sampler_gap"], stream["base_gap"]) for seat, stream in seats.items()]


def _agreement(seat: str, sampler: float, base: float | None) -> str:
    agrees = f"{seat}: sampler = trainer ({_nats(sampler)} nats)"
    if base is None:
        return agrees
    differs = "differs" if base > 2 * max(sampler, 0.001) else "hardly differs"
    return f"{agrees}, {differs} from base ({_nats(base)})"


def _nats(value: float) -> str:
    return "under 0.001" if value < 0.001 else f"{value:.2g}"


def only_finite(values: Any) -> Any:
    """Nested JSON with None in the place of every number that is not finite, which JSON cannot hold."""
    if isinstance(values, Mapping):
        return {key: only_finite(value) for key, value in values.items()}
    if isinstance(values, list | tuple):
        return [only_finite(value) for value in values]
    return None if isinstance(values, float) and not math.isfinite(values) else values


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None

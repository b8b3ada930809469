"""A finished step as JSON and text: its lines in the run folder, and its line on the terminal."""

import math
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from textwrap import shorten
from typing import TYPE_CHECKING, Any

import numpy as np

from lite_selfplay.credit import has_variance, numbers_of, rewards_of
from lite_selfplay.data import NOT_JUDGED, Completion, Group, Stream, Verdict
from lite_selfplay.games import Game
from lite_selfplay.games.presentation import value_in_words
from lite_selfplay.runs.report.figures import MEANINGS, harmless, value_in
from lite_selfplay.verify.choice import KIND as CHOICE
from lite_selfplay.verify.keys import vote_key

if TYPE_CHECKING:
    from lite_selfplay.training.updates import StepReport, StreamUpdate


def figures(
    seat: str, said: Sequence[Completion], judged: Sequence[Verdict], groups: Sequence[Group]
) -> dict[str, Any]:
    """A role's metrics at a step, under the keys of `metrics.jsonl`. Shares are over all completions, masked ones
    included; reward statistics are over the completions with a reward, and None if there are none."""
    rewards = [reward for group in groups for reward in rewards_of(group.samples) if math.isfinite(reward)]
    return {
        "seat": seat,
        "completions": len(said),
        "reward_mean": _mean(rewards),
        "reward_std": statistics.stdev(rewards) if len(rewards) > 1 else 0.0 if rewards else None,
        "accuracy": _mean([verdict.correct for verdict in judged if verdict.reason != NOT_JUDGED]),
        "well_formed": _mean([verdict.well_formed for verdict in judged]),
        "tokens_mean": _mean([len(completion.token_ids) for completion in said]),
        "truncated": _mean([completion.cut_off for completion in said]),
        "loops": _mean([completion.stop == "loop" for completion in said]),
        "groups": len(groups),
        "zero_variance_groups": sum(not has_variance(group) for group in groups),
    }


def stream_metrics(stream: Stream, update: "StreamUpdate") -> dict[str, Any]:
    """One stream's metrics in `metrics.jsonl`: its `figures`, and those of its update."""
    samples = [sample for group in stream.groups for sample in group.samples]
    said, judged = [s.completion for s in samples], [s.verdict for s in samples if s.verdict is not None]
    return {
        **figures(update.seat, said, judged, stream.groups),
        "tokens_generated": sum(len(completion.token_ids) for completion in said),
        "tokens_trained": update.tokens,
        "rows_trained": update.rows,
        "loss": update.loss,
        "kl": update.kl,
        "clipped": update.clipped,
        "sampler_gap": update.sampler_gap,
        "base_gap": update.base_gap,
        "step_gap": update.step_gap,
    }


def episode_rows(report: "StepReport") -> list[dict[str, Any]]:
    """The step's completions as lines of `episodes.jsonl`, whose steps count from 1.

    `group` and `sample` locate each in its stream; completions kept for the record continue their role's numbering.
    """
    record = report.episode.record
    streams = [*report.episode.streams, *record]
    none: list[Any] = [[[None] * len(group.samples) for group in stream.groups] for stream in record]
    firsts = [sum(len(before.groups) for before in streams[:i] if before.role == s.role) for i, s in enumerate(streams)]
    return [
        {
            "step": report.step + 1,
            "role": stream.role,
            "seat": sample.completion.seat,
            "problem_id": group.problem.id if group.problem else None,
            "group": g,
            "sample": k,
            "prompt": sample.completion.prompt,
            "text": sample.completion.text,
            "tokens": len(sample.completion.token_ids),
            "stop": sample.completion.stop,
            "reward": sample.reward,
            "advantage": _mean(numbers_of(advantage)),
            **({"advantages": [round(number, 6) for number in advantage]} if isinstance(advantage, tuple) else {}),
            **{key: getattr(sample.verdict, key, None) for key in ("correct", "well_formed", "answer", "reason")},
            **({"correct": None} if sample.verdict and sample.verdict.reason == NOT_JUDGED else {}),
            **sample.info,
        }
        for stream, advantages, first in zip(streams, [*report.advantages, *none], firsts, strict=True)
        for g, (group, row) in enumerate(zip(stream.groups, advantages, strict=True), first)
        for k, (sample, advantage) in enumerate(zip(group.samples, row, strict=True))
    ]


def token_columns(report: "StepReport") -> "dict[str, np.ndarray]":
    """The step's completions as arrays, each role's in the order of its lines in `episodes.jsonl`.

    Under `ROLE/`, concatenated over all completions: `prompt_ids` and `token_ids` (int64) and `logprobs` (float64,
    nats, one for each of `token_ids`); for each completion: the lengths `prompt_tokens` and `tokens` (int64) and the
    `temperature` (float64).
    """
    said: dict[str, list[Completion]] = {}
    for stream in [*report.episode.streams, *report.episode.record]:
        own = said.setdefault(stream.role, [])
        own += [sample.completion for group in stream.groups for sample in group.samples]
    columns: dict[str, np.ndarray] = {}
    for role, completions in said.items():
        numbers: dict[str, Sequence[float]] = {
            "prompt_ids": [i for one in completions for i in one.prompt_ids],
            "token_ids": [i for one in completions for i in one.token_ids],
            "prompt_tokens": [len(one.prompt_ids) for one in completions],
            "tokens": [len(one.token_ids) for one in completions],
        }
        columns |= {f"{role}/{name}": np.array(values, np.int64) for name, values in numbers.items()}
        columns[f"{role}/logprobs"] = np.array([p for one in completions for p in one.logprobs], np.float64)
        columns[f"{role}/temperature"] = np.array([one.sampling.temperature for one in completions], np.float64)
    return columns


def progress_line(
    game: type[Game], metrics: Mapping[str, Any], steps: int | None, left: str = "", verbose: bool = False
) -> str:
    """A step in one line: each role's seat, accuracy and reward, the game's own words, the time `left`.

    Health metrics are shown if they look wrong; with `verbose` all of them, and the speed. `steps` is None if the game
    ends by itself.
    """
    log = metrics["game"]
    parts = [f"step {metrics['step']}" + ("" if steps is None else f"/{steps}")]
    for role, stream in metrics["streams"].items():
        shown = stream_words(game, role, stream, verbose)
        # A seat that is called like its role is named once.
        parts.append(f"{' '.join(dict.fromkeys((role, stream['seat'])))}: {', '.join(shown) or 'recorded only'}")
    parts += game.step_words(log)
    if what := metrics.get("nonfinite_what") or metrics.get("sampler_what") or game.why_skipped(log):
        parts.append(f"skipped, {what}")
    elif game.trains(log) and not any(stream["rows_trained"] for stream in metrics["streams"].values()):
        parts.append("no signal, nothing updated")
    if verbose:
        wall, tokens = metrics["wall_s"], metrics["tokens"]["generated"]
        parts.append(f"{tokens:,} tokens at {tokens / max(wall['generate'], 1e-9):.0f}/s, {wall['total']:.1f} s")
    return " | ".join([*parts, left] if left else parts)


def stream_words(game: type[Game], role: str, stream: Mapping[str, Any], verbose: bool) -> list[str]:
    """A role's accuracy and reward in words, then the health metrics that look wrong, or all if `verbose`."""
    accuracy, reward = stream["accuracy"], stream["reward_mean"]
    found = [] if accuracy is None else [f"{accuracy:.0%} {game.accuracy_of(role).word}"]
    if reward is not None:
        found.append(f"reward {reward:.2f}")
    for known in MEANINGS.values():
        value = value_in(known, stream) if known.part == "streams" and known.group else None
        if value is not None and known.key not in ("accuracy", "reward_mean"):
            excused = known.key in ("truncated", "loops") and harmless(value, stream["accuracy"])
            if verbose or (value > known.most and not excused):
                found.append(f"{known.name} {value_in_words(value, known.unit)}")
    return found


def warning_kind(sentence: str) -> str:
    """The kind of a warning: its sentence without numbers and quoted text."""
    return re.sub(r"(?<= )(['\"]).*\1(?= )|[\d.]+", "", sentence)


def warned(rows: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """The number of steps at which a game gave each kind of warning, by its last wording."""
    found: dict[str, tuple[str, int]] = {}
    for sentence in (str(each) for row in rows for each in row.get("warnings") or ()):
        kind = warning_kind(sentence)
        found[kind] = sentence, found.get(kind, ("", 0))[1] + 1
    return dict(found.values())


def only_finite(values: Any) -> Any:
    """Nested JSON with None for every number that is not finite."""
    if isinstance(values, Mapping):
        return {key: only_finite(value) for key, value in values.items()}
    if isinstance(values, list | tuple):
        return [only_finite(value) for value in values]
    return None if isinstance(values, float) and not math.isfinite(values) else values


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


# An answer that is right for this many different references is reported: two may differ only in their unit.
FEWEST_REFERENCES = 3
# Kinds of problems that have one answer.
KINDS = frozenset({"math", CHOICE, "reasoning-gym"})


def right_for_all(streams: Sequence[Stream]) -> list[str]:
    """A warning about the answer that is right for the most different references of a step; none if they are few.

    Answers and references count as equal if they vote alike, or have the same text if they have no vote.
    """
    paid: dict[tuple[str, str], Counter[str]] = {}
    texts: dict[tuple[str, str], str] = {}
    for role, group in ((stream.role, group) for stream in streams for group in stream.groups):
        problem, verdicts = group.problem, [sample.verdict for sample in group.samples]
        if problem is None or problem.answer is None or problem.kind not in KINDS:
            continue
        for answer in {verdict.answer for verdict in verdicts if verdict and verdict.correct and verdict.answer}:
            key = role, _class(answer)
            texts.setdefault(key, answer)
            paid.setdefault(key, Counter())[_class(str(problem.answer))] += 1
    worst = max(paid, key=lambda key: len(paid[key]), default=None)
    if worst is None or len(paid[worst]) < FEWEST_REFERENCES:
        return []
    text, found = shorten(texts[worst], 80, placeholder=" ..."), paid[worst]
    return [
        f"the {worst[0]}'s answer {text!r} is right on {found.total()} problems with {len(found)} different "
        "references: it earns its reward without solving them, and the seat will learn nothing else (docs/answers.md)"
    ]


def _class(text: str) -> str:
    return vote_key(text) or text.strip()

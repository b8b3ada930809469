"""A finished step as text and JSON: its lines in the run folder, its line on the terminal, its exchanges.

An exchange is what one side said and what its rival made of it: a draft and its challenge, or a completion by itself in
games without a rival. Its rows are lines of `episodes.jsonl`.
"""

import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from lite_selfplay.credit import has_variance
from lite_selfplay.data import Sample, Stream
from lite_selfplay.games.prompts import fill
from lite_selfplay.listener import clock, printable
from lite_selfplay.summaries import code, plain

if TYPE_CHECKING:
    from lite_selfplay.trainer import Advantages, StepReport, StreamUpdate

Row = Mapping[str, Any]
"""A line of `episodes.jsonl`."""

CONVERSION, REGRESSION = "the challenge was right, the draft wrong", "the draft was right, the challenge wrong"
BOTH_RIGHT, BOTH_WRONG = "both right", "both wrong"
RIGHT, WRONG = "right", "wrong"
KINDS = (CONVERSION, REGRESSION, BOTH_RIGHT, BOTH_WRONG, RIGHT, WRONG)
"""What an exchange can be, the most telling first; the last two are of games whose completions meet no rival."""

RULES = {
    "kinds": "the latest exchange of each kind in turn: " + "; ".join(KINDS[:4]),
    "first": "the first exchanges of the run, in the order they were played",
    "spread": "the first exchange of evenly spaced steps, from the first step to the last",
}
"""How exchanges are chosen, so that nobody picks the nice ones by hand."""


def stream_metrics(stream: Stream, advantages: "Advantages", update: "StreamUpdate") -> dict[str, Any]:
    """One stream's line of `metrics.jsonl`. Shares are over all completions of the stream, masked ones included."""
    samples = [sample for group in stream.groups for sample in group.samples]
    rewards = [sample.reward for sample in samples if math.isfinite(sample.reward)]
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


def exchanges(rows: Iterable[Row]) -> list[list[Row]]:
    """The exchanges among rows, in their order: a draft and a completion that names it.

    Where no completion names a draft, each stands for itself.
    """
    rows = list(rows)
    drafts = {(row["step"], row["group"], row["sample"]): row for row in rows if row["role"] == "drafter"}
    keyed = [((row["step"], row["group"], row.get("draft")), row) for row in rows]
    return [[drafts[key], row] for key, row in keyed if key in drafts] or [[row] for row in rows]


def kind_of(exchange: Sequence[Row]) -> str:
    """Which of `KINDS` an exchange is."""
    if len(exchange) == 1:
        return RIGHT if exchange[0]["correct"] else WRONG
    draft, challenge = (bool(row["correct"]) for row in exchange)
    if draft:
        return BOTH_RIGHT if challenge else REGRESSION
    return CONVERSION if challenge else BOTH_WRONG


def shown_exchange(rows: Iterable[Row]) -> list[Row]:
    """The exchange of a step that a display shows: the first of the most telling kind there is, as `KINDS` orders them.

    Empty where there are no rows.
    """
    return min(exchanges(rows), key=lambda exchange: KINDS.index(kind_of(exchange)), default=[])


def choose_exchanges(rows: Iterable[Row], count: int, rule: str = "kinds") -> list[list[Row]]:
    """At most `count` exchanges of a run by one of `RULES`."""
    found = exchanges(rows)
    if rule == "first":
        return found[:count]
    return (_spread if rule == "spread" else _latest_of_each_kind)(found, count)


def _latest_of_each_kind(found: Sequence[list[Row]], count: int) -> list[list[Row]]:
    by_kind: dict[str, list[list[Row]]] = {kind: [] for kind in KINDS}
    for exchange in reversed(found):
        by_kind[kind_of(exchange)].append(exchange)
    return [exchange for turn in zip_longest(*by_kind.values()) for exchange in turn if exchange is not None][:count]


def _spread(found: Sequence[list[Row]], count: int) -> list[list[Row]]:
    """A single one is of the last step."""
    first: dict[int, list[Row]] = {}
    for exchange in found:
        first.setdefault(exchange[0]["step"], exchange)
    steps, count = list(first), min(count, len(first))
    places = [round(i * (len(steps) - 1) / (count - 1)) for i in range(count)] if count > 1 else [-1] * count
    return [first[steps[place]] for place in places]


def problem_text(exchange: Sequence[Row]) -> str:
    """The problem of an exchange: its first prompt, without the instruction that the solver's template adds."""
    return str(exchange[0]["prompt"]).removesuffix(fill("solver", problem="")).strip()


def exchanges_markdown(title: str, chosen: Sequence[Sequence[Row]], rule: str) -> str:
    """Exchanges as a page of Markdown, with the rule they were chosen by at its top."""
    parts = [f"# {plain(title)}", f"Chosen by rule (`{rule}`): {RULES[rule]}. Nothing was picked by hand."]
    if not chosen:
        parts.append("There are no exchanges to show.")
    for number, exchange in enumerate(chosen, 1):
        first = exchange[0]
        parts.append(f"## {number}. Step {first['step'] + 1}, {plain(str(first['problem_id']))}: {kind_of(exchange)}")
        parts += ["The problem:", _fenced(problem_text(exchange))]
        for i, row in enumerate(exchange):
            if i:
                parts += _seen(exchange[0]["prompt"], row["prompt"])
            parts.append(f"{plain(row['role'])}, seat {code(row['seat'])}: {verdict(row)}, reward {row['reward']:g}")
            parts.append(_fenced(row["text"]))
    return "\n\n".join(parts) + "\n"


def _seen(drafter_saw: str, challenger_saw: str) -> list[str]:
    if challenger_saw == drafter_saw:
        return ["The challenger saw the same, and nothing of the draft."]
    if challenger_saw.startswith(drafter_saw):
        return ["The challenger saw the same, and then:", _fenced(challenger_saw.removeprefix(drafter_saw))]
    return ["The challenger saw:", _fenced(challenger_saw)]


def _fenced(text: str) -> str:
    """A block that shows text as it stands, whatever fences are in it."""
    text = printable(text).strip() or "(nothing)"
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}text\n{text}\n{fence}"


def verdict(row: Row) -> str:
    """`right`, `wrong (the reason)`, or `not judged`."""
    if row["correct"] is None:
        return "not judged"
    reason = row.get("reason")
    return RIGHT if row["correct"] else f"{WRONG} ({reason})" if reason not in (None, "", WRONG) else WRONG


def progress_line(metrics: Mapping[str, Any], steps: int, seconds_left: float) -> str:
    """A step in one line: who played what, how often right, at which reward, at what speed."""
    parts = [f"step {metrics['step'] + 1}/{steps}"]
    for role, stream in metrics["streams"].items():
        accuracy = "" if stream["accuracy"] is None else f"{stream['accuracy']:.0%} right, "
        parts.append(f"{role} {stream['seat']}: {accuracy}reward {stream['reward_mean'] or 0:.2f}")
    parts += [f"{key} {value}" for key, value in metrics["game"].items() if key in ("conversions", "regressions")]
    if metrics.get("nonfinite_what") is not None:
        parts.append(f"skipped, {metrics['nonfinite_what']}")
    elif not any(stream["rows_trained"] for stream in metrics["streams"].values()):
        parts.append("no signal, nothing moved")
    wall, tokens = metrics["wall_s"], metrics["tokens"]["generated"]
    parts.append(f"{tokens:,} tokens at {tokens / max(wall['generate'], 1e-9):.0f}/s")
    parts.append(f"{wall['total']:.1f} s, {clock(seconds_left)} left")
    return " | ".join(parts)


def flat(metrics: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Nested metrics as `a/b/c: number`, for trackers."""
    result: dict[str, float] = {}
    for key, value in metrics.items():
        if isinstance(value, Mapping):
            result |= flat(value, f"{prefix}{key}/")
        elif isinstance(value, int | float) and math.isfinite(value):
            result[f"{prefix}{key}"] = value
    return result


def only_finite(values: Any) -> Any:
    """Nested JSON with None in the place of every number that is not finite, which JSON cannot hold."""
    if isinstance(values, Mapping):
        return {key: only_finite(value) for key, value in values.items()}
    if isinstance(values, list | tuple):
        return [only_finite(value) for value in values]
    return None if isinstance(values, float) and not math.isfinite(values) else values


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None

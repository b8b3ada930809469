"""A finished step as text and JSON: its lines in the run folder, its line on the terminal, its exchanges.

An exchange is what one side said and what its rival made of it: a draft and its challenge, a proposed question and an
answer to it, or a completion by itself in games without a rival. Its rows are lines of `episodes.jsonl`.
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
from lite_selfplay.games.propose_solve import REASONS
from lite_selfplay.listener import clock, printable
from lite_selfplay.summaries import accuracy_word, code, plain

if TYPE_CHECKING:
    from lite_selfplay.trainer import Advantages, StepReport, StreamUpdate

Row = Mapping[str, Any]
"""A line of `episodes.jsonl`."""

CONVERSION, REGRESSION = "the challenge was right, the draft wrong", "the draft was right, the challenge wrong"
BOTH_RIGHT, BOTH_WRONG = "both right", "both wrong"
RIGHT, WRONG = "right", "wrong"
AGREES, DIFFERS = "the answer agrees with the label", "the answer does not agree with the label"
UNANSWERED, NO_QUESTION, NOT_JUDGED = "a question by itself", "no question", "not judged"
KINDS = (
    *(CONVERSION, REGRESSION, BOTH_RIGHT, BOTH_WRONG),
    *(AGREES, DIFFERS),
    *(RIGHT, WRONG),
    *(UNANSWERED, NO_QUESTION, NOT_JUDGED),
)
"""What an exchange can be, the most telling first: of a draft and its challenge, of a question and an answer to it, of
a completion that meets no rival, and what has nothing to be judged by."""

RULES = {
    "kinds": "the latest exchange of each kind in turn, the most telling kind first",
    "first": "the first exchanges of the run, in the order they were played",
    "spread": "the first exchange of evenly spaced steps, from the first step to the last",
}
"""How exchanges are chosen, so that nobody picks the nice ones by hand."""


_KEPT = "kept"
_REFUSED = frozenset(REASONS) - {""}
_OF_PROPOSALS = _REFUSED - {"no_answer"}  # which is also said of answers


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
    """The exchanges among rows, in their order.

    A draft and a completion that names it; or a proposed question with the first answer that agrees with its label, and
    with the first that does not. Where nothing names another, each completion stands for itself.
    """
    rows = list(rows)
    drafts = {(row["step"], row["group"], row["sample"]): row for row in rows if row["role"] == "drafter"}
    keyed = [((row["step"], row["group"], row.get("draft")), row) for row in rows]
    if pairs := [[drafts[key], row] for key, row in keyed if key in drafts]:
        return pairs
    return _questions(rows) if any(is_proposal(row) or _is_answer(row) for row in rows) else [[row] for row in rows]


def _questions(rows: Sequence[Row]) -> list[list[Row]]:
    """Proposals, each with at most two answers to it, which may come at a later step; those without one alone."""
    proposals: dict[str, Row] = {}
    for row in rows:
        if is_proposal(row) and row.get("question") is not None:
            proposals.setdefault(row["question"], row)
    answered = {row["question"] for row in rows if _is_answer(row)}
    found: list[list[Row]] = []
    seen: set[tuple[Any, bool]] = set()
    for row in rows:
        name = row.get("question")
        if _is_answer(row):
            if (name, bool(row["correct"])) not in seen:
                seen.add((name, bool(row["correct"])))
                found.append([proposals[name], row] if name in proposals else [row])
        elif not is_proposal(row) or name is None or (name not in answered and proposals[name] is row):
            found.append([row])
    return found


def is_proposal(row: Row) -> bool:
    """Whether a completion proposes a question, or was meant to, in a game that writes its own problems."""
    if "question" in row:
        return row["question"] is None or row["question"] != row["problem_id"]
    return row.get("reason") in _OF_PROPOSALS


def _is_answer(row: Row) -> bool:
    return row.get("question") is not None and row["question"] == row["problem_id"]


def kind_of(exchange: Sequence[Row]) -> str:
    """Which of `KINDS` an exchange is."""
    last = exchange[-1]
    if is_proposal(last):
        return NO_QUESTION if _fate(last) in _REFUSED else UNANSWERED
    if last["correct"] is None:
        return NOT_JUDGED
    if _is_answer(last):
        return AGREES if last["correct"] else DIFFERS
    if len(exchange) == 1:
        return RIGHT if last["correct"] else WRONG
    draft, challenge = (bool(row["correct"]) for row in exchange)
    if draft:
        return BOTH_RIGHT if challenge else REGRESSION
    return CONVERSION if challenge else BOTH_WRONG


def subject(exchange: Sequence[Row]) -> str:
    """What an exchange is about, by its name: a problem, or a question that was proposed."""
    last = exchange[-1]
    return str(last.get("question") or last["problem_id"] or "a problem")


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
        first.setdefault(exchange[-1]["step"], exchange)
    steps, count = list(first), min(count, len(first))
    places = [round(i * (len(steps) - 1) / (count - 1)) for i in range(count)] if count > 1 else [-1] * count
    return [first[steps[place]] for place in places]


def problem_text(exchange: Sequence[Row]) -> str:
    """The problem of an exchange, without the instruction that the solver's template adds.

    What its first side was asked; of a question and its answer, the question.
    """
    asked = exchange[-1] if _is_answer(exchange[-1]) else exchange[0]
    return str(asked["prompt"]).removesuffix(fill("solver", problem="")).strip()


def exchanges_markdown(title: str, chosen: Sequence[Sequence[Row]], rule: str) -> str:
    """Exchanges as a page of Markdown, with the rule they were chosen by at its top."""
    parts = [f"# {plain(title)}", f"Chosen by rule (`{rule}`): {RULES[rule]}. Nothing was picked by hand."]
    if not chosen:
        parts.append("There are no exchanges to show.")
    for number, exchange in enumerate(chosen, 1):
        title = f"Step {exchange[-1]['step'] + 1}, {plain(subject(exchange))}: {kind_of(exchange)}"
        parts += [f"## {number}. {title}", "The problem:", _fenced(problem_text(exchange))]
        for i, row in enumerate(exchange):
            if is_proposal(row) and len(exchange) > 1:
                parts += [f"What {plain(row['role'])} was asked:", _fenced(row["prompt"])]
            elif i and not _is_answer(row):
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
    """What became of a completion, in words.

    `right`, `wrong (the reason)` or `not judged`; an answer to a proposed question `agrees with the label` or does not;
    a proposal is `accepted`, `not accepted (too easy)` or `no question (off format)`.
    """
    if is_proposal(row):
        fate = _fate(row)
        if fate == _KEPT or row["correct"]:
            return "accepted"
        return f"{NO_QUESTION if fate in _REFUSED else 'not accepted'} ({_words(fate)})" if fate else NOT_JUDGED
    if row["correct"] is None:
        return NOT_JUDGED
    yes, no = ("agrees with the label", "does not agree with the label") if _is_answer(row) else (RIGHT, WRONG)
    reason = row.get("reason")
    return yes if row["correct"] else f"{no} ({_words(reason)})" if reason not in (None, "", WRONG) else no


def outcome(row: Row) -> bool | None:
    """Whether a completion was right or agrees with its label; None where nobody judged that."""
    return None if is_proposal(row) else row["correct"]


def _fate(row: Row) -> str:
    """What a game wrote of a proposal: a reason, or that it was kept."""
    return str(row.get("fate") or row.get("reason") or "")


def _words(reason: Any) -> str:
    return str(reason).replace("_", " ")


def progress_line(metrics: Mapping[str, Any], steps: int, seconds_left: float) -> str:
    """A step in one line: who played what, how often right, at which reward, at what speed."""
    parts = [f"step {metrics['step'] + 1}/{steps}"]
    for role, stream in metrics["streams"].items():
        word = accuracy_word(role, [metrics])
        accuracy = "" if stream["accuracy"] is None else f"{stream['accuracy']:.0%} {word}, "
        parts.append(f"{role} {stream['seat']}: {accuracy}reward {stream['reward_mean'] or 0:.2f}")
    parts += [f"{key} {value}" for key, value in metrics["game"].items() if key in ("conversions", "regressions")]
    if told := harvest(metrics["game"]):
        parts.append(told)
    if metrics.get("nonfinite_what") is not None:
        parts.append(f"skipped, {metrics['nonfinite_what']}")
    elif metrics["game"].get("skipped") is True:
        parts.append("skipped, no question to train on")
    elif not any(stream["rows_trained"] for stream in metrics["streams"].values()):
        parts.append("no signal, nothing moved")
    wall, tokens = metrics["wall_s"], metrics["tokens"]["generated"]
    parts.append(f"{tokens:,} tokens at {tokens / max(wall['generate'], 1e-9):.0f}/s")
    parts.append(f"{wall['total']:.1f} s, {clock(seconds_left)} left")
    return " | ".join(parts)


def harvest(log: Mapping[str, Any]) -> str:
    """How many of a step's proposals were left to train on; empty where a game proposes nothing."""
    if not log.get("proposals"):
        return ""
    most = max((log.get("refused") or {"": 0}).items(), key=lambda item: item[1])
    refused = f", most refused: {_words(most[0])} {most[1]}" if most[1] else ""
    return f"{log.get('usable', 0)} of {log['proposals']} questions usable{refused}"


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

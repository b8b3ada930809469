"""Studies of the questions that a run's proposers wrote: are their labels right, how hard are they, what about?

Sources: PasoDoble, section 5.5.1 (accuracy of question-answer pairs by pass rate) and 5.5.5 (difficulty and domains
over training). The paper asks GPT-5-mini for reference answers, difficulty and domain. Here a reference is what can be
computed, or what a file says; difficulty is one less the pass rate; domains follow from words (`domains.py`).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from statistics import stdev
from typing import Any

from lite_selfplay.data import Completion, Problem, Sampling
from lite_selfplay.games.presentation import Row, percent, value_in_words
from lite_selfplay.games.propose_solve.collapse import BINS, label_is_right
from lite_selfplay.games.propose_solve.domains import domain_of
from lite_selfplay.games.studies import Study, Window, mean, share_with_interval, window_names, within
from lite_selfplay.tasks.split import content_key
from lite_selfplay.verify.exact import judge
from lite_selfplay.verify.latex import values


@dataclass(frozen=True)
class Question:
    """A question that was proposed and answered at a step.

    `pass_rate`: the share of its answers that agree with its label, in [0, 1]; where there is none, as on a tie, the
    share of the largest class. `right`: whether the label is the true answer, None where that is not known. `by_file`:
    the truth was given, not computed. `source`: the text that its proposer read, where there was one.
    """

    step: int
    text: str
    label: str | None
    pass_rate: float
    right: bool | None = None
    by_file: bool = False
    source: str = ""


References = Mapping[str, str]
"""True answers by the content of their questions (`lite_selfplay.tasks.split.content_key`)."""


def question(
    step: int, text: str, label: str | None, pass_rate: float, references: References, source: str = ""
) -> Question:
    """A question whose label is compared with the reference, where there is one, else with the value it computes to."""
    given = references.get(content_key(Problem("", text, None)))
    if given is None:
        return Question(step, text, label, pass_rate, label_is_right(text, label), source=source)
    right = None if label is None else judge([values(given)], label)
    return Question(step, text, label, pass_rate, right, True, source)


def completion_of(row: Row) -> Completion:
    """A row of `episodes.jsonl` as the completion it was; its token ids are not kept."""
    return Completion(row["prompt"], row["text"], (), (), (), row["stop"], row["seat"], -1, Sampling())


def labels_by_pass_rate(questions: Sequence[Question], windows: Sequence[Window]) -> Study:
    """How often the label that answers are compared with is right, by pass rate and over the steps."""
    labelled = [each for each in questions if each.label is not None]
    groups = {_bin_name(i): [each for each in labelled if _bin(each.pass_rate) == i] for i in range(BINS)}
    groups["all"] = labelled
    names = [window_names([window])[0] for window in windows]
    if len(windows) > 1:
        groups |= {name: within(labelled, window, _step) for name, window in zip(names, windows, strict=True)}
    found = {name: _accuracy(group) for name, group in groups.items()}
    judged = found["all"]["judged"]
    by_file = sum(each.by_file and each.right is not None for each in labelled)
    whence = f"{judged - by_file} computed, as bare calculations" + (f", {by_file} from the file" if by_file else "")
    unknown = len(labelled) - judged
    notes = [
        f"a true answer is known of {judged} of {len(labelled)} labelled questions ({whence})"
        + (f"; of the other {unknown} nothing is known: --references gives answers to them" if unknown else ""),
    ]
    ties = len(questions) - len(labelled)
    if ties:
        notes.append(f"{ties} answered questions had no label, since no answer had a majority: they are left out")
    rows = [
        [name, str(f["questions"]), str(f["judged"]), share_with_interval(f["right"], f["judged"])]
        for name, f in found.items()
    ]
    return Study(
        "label_accuracy",
        "accuracy of labels by pass rate",
        ["pass rate", "questions", "truth known", "labels right [95%]"],
        rows,
        {"groups": [{"group": name, **f} for name, f in found.items()], "without_label": ties},
        notes,
    )


def _accuracy(questions: Sequence[Question]) -> dict[str, Any]:
    verdicts = [each.right for each in questions if each.right is not None]
    return {
        "questions": len(questions),
        "judged": len(verdicts),
        "right": sum(verdicts),
        "accuracy": mean(verdicts),
    }


def difficulty_and_domains(questions: Sequence[Question], windows: Sequence[Window]) -> Study:
    """How hard the questions of each window are, and what they are about."""
    parts = [within(questions, window, _step) for window in windows]
    hard = [[1 - each.pass_rate for each in part] for part in parts]
    counts = [Counter(domain_of(each.text) for each in part) for part in parts]
    order = [domain for domain, _ in sum(counts, Counter[str]()).most_common()]
    spread = [stdev(row) if len(row) > 1 else None for row in hard]
    effective = [_effective(count) for count in counts]
    figures: list[list[str]] = [
        ["questions answered", *(str(len(part)) for part in parts)],
        ["difficulty (1 - pass rate), mean", *(value_in_words(mean(row), "number") for row in hard)],
        ["difficulty, standard deviation", *(value_in_words(value, "number") for value in spread)],
        *(
            [domain, *(percent(count[domain] / count.total()) if count else "-" for count in counts)]
            for domain in order
        ),
        ["domains, effective number", *(value_in_words(value, "number") for value in effective)],
    ]
    data = {
        "questions": [len(part) for part in parts],
        "difficulty": [mean(row) for row in hard],
        "difficulty_std": spread,
        "domains": {domain: [count[domain] for count in counts] for domain in order},
        "effective_domains": effective,
    }
    notes = ["domains are told by words; their effective number is the exponential of their entropy"]
    return Study("domains", "difficulty and domains over time", ["", *window_names(windows)], figures, data, notes)


def _effective(counts: Counter[str]) -> float | None:
    shares = [count / counts.total() for count in counts.values()]
    return exp(-sum(share * log(share) for share in shares)) if shares else None


def _bin(rate: float) -> int:
    return min(BINS - 1, int(rate * BINS + 1e-9))


def _bin_name(number: int) -> str:
    return f"{100 * number // BINS} to {100 * (number + 1) // BINS}%"


def _step(each: Question) -> int:
    return each.step


def questions_of(rows: Iterable[Row], read: Callable[[Row], Question | None]) -> list[Question]:
    """The questions of proposers' rows, each once, by `Sample.info["question"]`; `read` gives a row's, or None."""
    found: dict[str, Question] = {}
    for row in rows:
        name = row.get("question")
        if isinstance(name, str) and name not in found and (made := read(row)) is not None:
            found[name] = made
    return list(found.values())

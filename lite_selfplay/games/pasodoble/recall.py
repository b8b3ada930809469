"""How much of PasoDoble's questions stands in the passage that they were written from.

Recall is ROUGE-L's: the longest common subsequence of words over the words of the question (Lin and Och 2004), by the
package rouge-score, without stemming; exact match: the whole question stands in the passage, blanks and case aside.
Related: PasoDoble, section 5.5.3. Its table 7 asks GPT-5 what a question was drawn from; its table 8 has a model
continue the beginning of each question, which needs a model and is not measured here.
"""

from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any

from lite_selfplay.games.presentation import value_in_words
from lite_selfplay.games.propose_solve.collapse import plain
from lite_selfplay.games.propose_solve.diversity import terms
from lite_selfplay.games.propose_solve.questions import Question
from lite_selfplay.games.studies import Study, Window, evenly, mean, window_names, within

MOST = 1000
"""Questions that are compared with their passages, evenly taken from the whole run where there are more."""
COPIED = 0.8
"""A question is called copied if its recall is this or more."""


class _Terms:
    """Words, numbers and signs: rouge-score's own tokens are Latin letters and digits alone."""

    def tokenize(self, text: str) -> list[str]:
        return terms(text)


@cache
def _scorer() -> Any:
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(["rougeL"], tokenizer=_Terms())


@lru_cache(2 * MOST)
def rouge_l_recall(question: str, passage: str) -> float:
    """The share of a question's words that stand in a passage in the same order, in [0, 1]; 0 without words."""
    return float(_scorer().score(question, passage)["rougeL"].recall)


def exact_match(question: str, passage: str) -> bool:
    """Whether the whole question stands in a passage, blanks and case aside."""
    return plain(question) in plain(passage)


def recall_of_knowledge(questions: Sequence[Question], windows: Sequence[Window]) -> Study:
    """ROUGE-L recall and exact match of questions against their passages, over the steps."""
    read = [each for each in questions if each.source]
    taken = evenly(read, MOST)
    parts = [within(taken, window, lambda q: q.step) for window in windows]
    recalls = [[rouge_l_recall(each.text, each.source) for each in part] for part in parts]
    exact = [mean([exact_match(each.text, each.source) for each in part]) for part in parts]
    copied = [mean([recall >= COPIED for recall in row]) for row in recalls]
    means = [mean(row) for row in recalls]
    rows = [
        ["questions from a passage", *(str(len(part)) for part in parts)],
        ["ROUGE-L recall, mean", *(value_in_words(value, "share") for value in means)],
        [f"recall of {COPIED:.0%} or more", *(value_in_words(value, "share") for value in copied)],
        ["exact match", *(value_in_words(value, "share") for value in exact)],
    ]
    data = {"questions": [len(part) for part in parts], "rouge_l_recall": means, "copied": copied, "exact_match": exact}
    notes = ["recall: words of the question that stand in its passage in the same order"]
    if len(taken) < len(read):
        notes.append(f"{len(taken)} of {len(read)} questions, evenly taken")
    without = len(questions) - len(read)
    if without:
        notes.append(f"{without} questions were written without a passage: nothing to compare them with")
    return Study("recall", "recall of questions from the knowledge", ["", *window_names(windows)], rows, data, notes)

"""How different questions are: their places in two dimensions, and their mean distance.

A question is the TF-IDF vector of its words, numbers and signs, and of pairs of these, at length 1. Its place is its
two principal components. Sources: SQLM, section 5.5 and figure 3 (PCA of questions; the paper does not say of which
vectors); smooth idf as scikit-learn has it. Plain arithmetic, no torch.
"""

import itertools
import re
from collections import Counter
from collections.abc import Sequence
from math import log
from typing import TYPE_CHECKING, Any

from lite_selfplay.games.presentation import percent, value_in_words
from lite_selfplay.games.propose_solve.questions import Question
from lite_selfplay.games.studies import Point, Study, Window, evenly, window_names, within

if TYPE_CHECKING:
    from numpy import ndarray
    from scipy.sparse import csr_matrix

MOST = 2000
"""Questions in the plane, evenly taken from the whole run where there are more."""

_TERM = re.compile(r"\d+|[^\W\d]+|[^\w\s]")


def question_map(questions: Sequence[Question], windows: Sequence[Window]) -> Study:
    """Where the questions of each window lie, and how far they are from each other."""
    taken = evenly(questions, MOST)
    vectors = tfidf([each.text for each in taken])
    coordinates, explained = principal_components(vectors)
    points = [Point(each.step, float(x), float(y), each.text) for each, (x, y) in zip(taken, coordinates, strict=True)]
    order = {id(each): i for i, each in enumerate(taken)}
    parts = [[order[id(each)] for each in within(taken, window, lambda q: q.step)] for window in windows]
    distances = [mean_distance(vectors[part]) if len(part) > 1 else None for part in parts]
    different = [len({" ".join(terms(taken[i].text)) for i in part}) / len(part) if part else None for part in parts]
    rows = [
        ["questions", *(str(len(part)) for part in parts)],
        ["different ones", *(value_in_words(share, "share") for share in different)],
        ["mean distance of two (1 - cosine)", *(value_in_words(value, "number") for value in distances)],
    ]
    notes = [
        f"PCA over TF-IDF of words and pairs of words: the plane holds {percent(sum(explained))} of the variance "
        f"({', '.join(map(percent, explained))}); its directions are those of this run alone"
    ]
    if len(taken) < len(questions):
        notes.append(f"{len(taken)} of {len(questions)} questions, evenly taken")
    data: dict[str, Any] = {
        "explained": explained,
        "mean_distance": distances,
        "different": different,
        "points": [{"step": p.step + 1, "x": p.x, "y": p.y, "question": p.label} for p in points],
    }
    return Study("diversity", "diversity of questions", ["", *window_names(windows)], rows, data, notes, points)


def terms(text: str) -> list[str]:
    """The words, numbers and single signs of a text, in one case."""
    return _TERM.findall(text.casefold())


def tfidf(texts: Sequence[str]) -> "csr_matrix":
    """TF-IDF of texts over terms and pairs of terms, (texts, terms), each row of length 1, or 0 for an empty text.

    A count times `ln((1 + n) / (1 + texts with the term)) + 1`.
    """
    from scipy.sparse import csr_matrix

    counts = [_counts(terms(text)) for text in texts]
    seen = Counter(term for count in counts for term in count)
    columns = {term: i for i, term in enumerate(seen)}
    values, indices, starts = [], [], [0]
    for count in counts:
        row = [n * (log((1 + len(texts)) / (1 + seen[term])) + 1) for term, n in count.items()]
        length = sum(value * value for value in row) ** 0.5
        values += [value / length for value in row]
        indices += [columns[term] for term in count]
        starts.append(len(values))
    return csr_matrix((values, indices, starts), shape=(len(texts), len(columns)), dtype=float)


def principal_components(vectors: "csr_matrix") -> tuple["ndarray", list[float]]:
    """The first two principal components of each row, (rows, 2), and the share of the variance that each explains.

    From the eigenvectors of the centred products of rows, which are as many as rows and not as terms. Each component
    has the sign that makes its largest entry positive; one without variance is 0.
    """
    import numpy as np
    from scipy.linalg import eigh

    n = vectors.shape[0]
    coordinates, explained = np.zeros((n, 2)), [0.0, 0.0]
    if n < 2:
        return coordinates, explained
    products = (vectors @ vectors.T).toarray()
    centred = products - products.mean(0) - products.mean(1)[:, None] + products.mean()
    found, directions = eigh(centred, subset_by_index=[n - 2, n - 1])
    total = float(np.trace(centred))
    for place, (value, direction) in enumerate(zip(found[::-1], directions.T[::-1], strict=True)):
        if value > 1e-9:
            sign = np.sign(direction[np.argmax(np.abs(direction))])
            coordinates[:, place] = direction * sign * np.sqrt(value)
            explained[place] = float(value) / total
    return coordinates, explained


def mean_distance(vectors: "csr_matrix") -> float:
    """The mean of 1 - cosine over all pairs of rows of length 1, in [0, 1]; there must be two rows at least."""
    n = vectors.shape[0]
    total = vectors.sum(axis=0)
    lengths = vectors.multiply(vectors).sum()
    return 1.0 - float((total @ total.T).item() - lengths) / (n * (n - 1))


def _counts(found: Sequence[str]) -> Counter[str]:
    pairs = (f"{a} {b}" for a, b in itertools.pairwise(found))
    return Counter([*found, *pairs])

"""What the processes of a run send each other: a JSON value and arrays of numbers, as bytes. Nothing is unpickled.

A message is the length of its head (8 bytes), the head, which is JSON and names the arrays, and the arrays as they lie
in memory. What a peer sent is checked before it is believed: it can be wrong, and cannot run anything.
"""

import json
import math
import struct
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from lite_selfplay.data import StopReason, TokenScores, Verdict
from lite_selfplay.models.generation.sampling import Generation

LARGEST = 2**30
"""Bytes of a message. A million completion tokens with their log-probabilities are 8 MB."""

Arrays = Mapping[str, NDArray[Any]]

_KINDS = {"i4": "<i4", "f4": "<f4", "u1": "|u1"}
_HEAD = struct.Struct("<Q")
_STOPS: tuple[StopReason, ...] = get_args(StopReason)


class BadMessage(ValueError):
    """Bytes that are no message, or whose arrays do not hold what they should."""


def pack(value: Any, arrays: Arrays | None = None) -> bytes:
    """A message of a JSON value and one-dimensional arrays (int32, float32 or uint8) by name."""
    parts = {name: np.ascontiguousarray(array) for name, array in (arrays or {}).items()}
    listed = [[name, array.dtype.str[1:], len(array)] for name, array in parts.items()]
    head = json.dumps({"value": value, "arrays": listed}).encode()
    return b"".join([_HEAD.pack(len(head)), head, *(array.tobytes() for array in parts.values())])


def unpack(message: bytes | memoryview) -> tuple[Any, dict[str, NDArray[Any]]]:
    """The value and the arrays of a message. Raises BadMessage for anything else."""
    try:
        (size,) = _HEAD.unpack_from(message)
        place = _HEAD.size + size
        head = json.loads(bytes(message[_HEAD.size : place]))
        arrays = {}
        for name, kind, length in head["arrays"]:
            if type(length) is not int or length < 0:
                raise ValueError(f"an array of {length!r} numbers")
            array = np.frombuffer(message, _KINDS[kind], length, place)
            arrays[str(name)] = array
            place += array.nbytes
        if place != len(message):
            raise ValueError(f"{len(message) - place} bytes too many")
        return head["value"], arrays
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError, struct.error) as error:
        raise BadMessage(f"no message: {error}") from None


# What a table's rows are sent as


def pack_generations(rows: Sequence[Generation]) -> dict[str, NDArray[Any]]:
    """Completions as arrays: ids and log-probabilities one after another, how many are each one's, and how it ended."""
    return {
        "lengths": np.array([len(row.token_ids) for row in rows], "<i4"),
        "ids": np.array([token for row in rows for token in row.token_ids], "<i4"),
        "logprobs": np.array([value for row in rows for value in row.logprobs], "<f4"),
        "stops": np.array([_STOPS.index(row.stop) for row in rows], "|u1"),
    }


def unpack_generations(arrays: Arrays) -> list[Generation]:
    """The completions that `pack_generations` took; log-probabilities are rounded to float32. Raises BadMessage."""
    edges = _edges(arrays, "ids", "logprobs")
    stops = arrays["stops"].tolist()
    if len(stops) != len(edges) - 1 or any(stop >= len(_STOPS) for stop in stops) or np.any(arrays["ids"] < 0):
        raise BadMessage("no completions")
    ids, logprobs = arrays["ids"].tolist(), arrays["logprobs"].tolist()
    return [
        Generation(ids[a:b], logprobs[a:b], _STOPS[stop]) for (a, b), stop in zip(pairwise(edges), stops, strict=True)
    ]


def pack_scores(rows: Sequence[TokenScores]) -> dict[str, NDArray[Any]]:
    """Log-probabilities and entropies of completions, as `pack_generations` packs theirs."""
    return {
        "lengths": np.array([len(row.logprobs) for row in rows], "<i4"),
        "logprobs": np.array([value for row in rows for value in row.logprobs], "<f4"),
        "entropies": np.array([value for row in rows for value in row.entropies], "<f4"),
    }


def unpack_scores(arrays: Arrays) -> list[TokenScores]:
    """What `pack_scores` took, rounded to float32. Raises BadMessage."""
    edges = _edges(arrays, "logprobs", "entropies")
    logprobs, entropies = arrays["logprobs"].tolist(), arrays["entropies"].tolist()
    return [TokenScores(logprobs[a:b], entropies[a:b]) for a, b in pairwise(edges)]


def verdict_to_json(verdict: Verdict) -> list[Any]:
    return [verdict.correct, verdict.score, verdict.answer, verdict.well_formed, verdict.reason]


def verdict_from_json(values: Any) -> Verdict:
    """The verdict that `verdict_to_json` took. Raises BadMessage."""
    try:
        correct, score, answer, well_formed, reason = values
    except (TypeError, ValueError):
        raise BadMessage("no verdict") from None
    kinds = ((correct, bool), (score, (int, float)), (answer, (str, type(None))), (well_formed, bool), (reason, str))
    if not all(isinstance(value, kind) for value, kind in kinds) or not math.isfinite(score):
        raise BadMessage("no verdict")
    return Verdict(correct, score, answer, well_formed, reason)


def _edges(arrays: Arrays, *names: str) -> list[int]:
    """Where each row's numbers begin and end. Raises BadMessage where an array is missing or of another length."""
    try:
        lengths = arrays["lengths"].tolist()
        edges = [0, *accumulate(lengths)]
        fits = min(lengths, default=0) >= 0 and all(len(arrays[name]) == edges[-1] for name in names)
    except LookupError as error:
        raise BadMessage(f"no array {error}") from None
    if not fits:
        raise BadMessage("the lengths of rows do not fit their numbers")
    return edges

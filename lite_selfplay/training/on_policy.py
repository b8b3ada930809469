"""Which samples may train a seat: whose they are, how they were sampled, and that their numbers are finite.

It loads no torch, so that `testing.check_game` can hold a game to it.
"""

import math
from collections.abc import Iterator

from lite_selfplay.credit import stream_advantages
from lite_selfplay.data import Sample, Stream
from lite_selfplay.errors import GameError

Advantages = list[list[float | None]]
"""A stream's advantages, group by group; None for a sample that is masked."""


class NotFinite(Exception):
    """Ends a step's update: a number is not finite, and the message says which."""


def require_policy(stream: Stream, seat: str) -> None:
    """Raises GameError for a sample that does not follow its seat's tempered policy and would train it as if it did.

    What top-p, top-k, min-p, a repetition penalty or greedy decoding chose has other probabilities than the policy's. A
    replay divides by the probabilities it was sampled with, which greedy decoding alone does not have. Masked samples
    are not looked at, nor examples, which have no ratio to anything and may come from anywhere.
    """
    for sample in _with_a_ratio(stream):
        sampling = sample.completion.sampling
        if sampling.temperature == 0 if stream.replay else sampling.off_policy:
            raise GameError(
                f"the {stream.role}'s stream trains seat {seat!r} on a completion sampled with "
                f"{', '.join(sampling.off_policy)}, which does not follow the seat's own probabilities: in play(), ask "
                f"{stream.role} without it (only the temperature may differ, above 0), mask the sample, or make it an "
                "example: an advantage and no reward"
            )


def require_fresh(stream: Stream, seat: str, version: int) -> None:
    """Raises GameError for an on-policy sample that is not the seat's, or was sampled before its weights last changed.

    `version` counts those changes.
    """
    for sample in () if stream.replay else _with_a_ratio(stream):
        completion = sample.completion
        if (completion.seat, completion.weights_version) != (seat, version):
            raise GameError(
                f"the {stream.role}'s stream trains seat {seat!r} at update {version}, "
                f"but holds a completion by {completion.seat!r} at update {completion.weights_version}"
            )


def finite_advantages(stream: Stream, seat: str) -> Advantages:
    """A stream's advantages. Raises NotFinite if a number of an unmasked sample, or an advantage, is not finite."""
    who = f"{stream.role} (seat {seat})"
    for sample in _unmasked(stream):
        given = () if sample.advantage is None else (sample.advantage,)
        earned = () if sample.reward is None else (sample.reward,)
        numbers = {"a reward": earned, "an advantage": given, "a log-probability": sample.completion.logprobs}
        for what, values in numbers.items():
            odd = next((value for value in values if not math.isfinite(value)), None)
            if odd is not None:
                raise NotFinite(f"{what} of {who} is {odd}")
    try:
        result = stream_advantages(stream)
    except OverflowError:
        raise NotFinite(f"an advantage of {who} is too large a number") from None
    if not all(math.isfinite(value) for row in result for value in row if value is not None):
        raise NotFinite(f"an advantage of {who} is not finite")
    return result


def _unmasked(stream: Stream) -> Iterator[Sample]:
    return (sample for group in stream.groups for sample in group.samples if not sample.masked)


def _with_a_ratio(stream: Stream) -> Iterator[Sample]:
    """Samples whose gradient is weighted by a ratio of probabilities, if only one that is 1."""
    return (sample for sample in _unmasked(stream) if not sample.is_example)

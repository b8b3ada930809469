"""Which samples may train a seat: whose they are, how they were sampled, and whether their numbers are finite.

It loads no torch, so that `testing.check_game` can use it.
"""

import contextlib
import math

from lite_selfplay.credit import numbers_of, stream_advantages
from lite_selfplay.data import Advantage, Sample, Stream
from lite_selfplay.errors import GameError

Advantages = list[list[Advantage | None]]  # of a stream, group by group; None for a sample in no policy term


class NotFinite(Exception):
    """Ends a step's update: a number is not finite, and the message says which."""


def finite_advantages(stream: Stream, seat: str) -> Advantages:
    """A stream's advantages. Raises NotFinite if a number of an unmasked sample, or an advantage, is not finite."""
    who = f"{stream.role} (seat {seat})"
    for sample in _unmasked(stream):
        numbers = {"a reward": [sample.reward], "an advantage": numbers_of(sample.advantage)}
        for name, values in {**numbers, "a log-probability": sample.completion.logprobs}.items():
            odd = next((value for value in values if value is not None and not math.isfinite(value)), None)
            if odd is not None:
                raise NotFinite(f"{name} of {who} is {odd}")
    with contextlib.suppress(OverflowError):
        result = stream_advantages(stream)
        if all(math.isfinite(number) for row in result for value in row for number in numbers_of(value)):
            return result
    raise NotFinite(f"an advantage of {who} is too large a number")


def require_on_policy(stream: Stream, seat: str, version: int | None = None) -> None:
    """Raises GameError for a sample that would train a seat as on-policy but was not sampled from its policy.

    Top-p, top-k, min-p, a repetition penalty and greedy decoding change the probabilities of the policy at its
    temperature. A replay divides by the noted probabilities, which only greedy decoding lacks. `version` counts the
    changes of the seat's weights; if it is given, samples must come from this seat at this version, except in a replay.
    Masked samples are not checked, nor examples, which have no ratio and may come from anywhere.
    """
    for sample in (sample for sample in _unmasked(stream) if not sample.is_example):
        completion, sampling = sample.completion, sample.completion.sampling
        if sampling.temperature == 0 if stream.replay else sampling.off_policy:
            raise GameError(
                f"the {stream.role}'s stream trains seat {seat!r} on a completion sampled with "
                f"{', '.join(sampling.off_policy)}, which does not follow the seat's own probabilities: in play(), ask "
                f"{stream.role} without it (only the temperature may differ, above 0), mask the sample, or make it an "
                "example: an advantage and no reward"
            )
        fresh = version is None or (completion.seat, completion.weights_version) == (seat, version)
        if not (stream.replay or fresh):
            raise GameError(
                f"the {stream.role}'s stream trains seat {seat!r} at update {version}, "
                f"but holds a completion by {completion.seat!r} at update {completion.weights_version}"
            )


def _unmasked(stream: Stream) -> list[Sample]:
    return [sample for group in stream.groups for sample in group.samples if not sample.masked]

"""Hostile inputs: mutations of valid ones, each from a seed of its own, thrown at a reader with a clock and a limit.

Input number N of a reader is made by `random.Random("READER N")`, so that a failure names all it takes to see it again.
`LITE_SELFPLAY_FUZZ` says how many inputs the long form has.
"""

import contextlib
import os
import random
import resource
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from lite_selfplay.errors import LiteSelfPlayError

FEW, MANY = 50, int(os.environ.get("LITE_SELFPLAY_FUZZ") or 100_000)
LONGEST_S = 1.0
"""Seconds of the processor that reading one input may take."""
MOST_BYTES = 4 << 30
"""How much more memory than before may be asked for."""

sizes = pytest.mark.parametrize(
    "inputs", [pytest.param(FEW, id="few"), pytest.param(MANY, id="many", marks=pytest.mark.long)]
)

NUMBERS = (0, 1, -1, 2, 7, 127, 128, 255, 2**15, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**60, 2**63 - 1, 2**64 - 1)
ODD_JSON: tuple[Any, ...] = (
    None, True, False, 0, -1, 1.5, 1e308, 2**63, 10**30, "", " ", "x", "0", "ä\u2028\0", "\ud800", [], {}, [[]], [None],
    {"": None}, {"any_of": []}, "a" * 300, [0] * 50, -0.0,
)  # fmt: skip


def fuzz(
    name: str,
    inputs: int,
    make: Callable[[random.Random], Any],
    read: Callable[[Any], object],
    *,
    refuses: bool = True,
) -> None:
    """Give a reader so many inputs. Fails where anything but an error of this library comes out, or it takes long.

    `refuses`: some of them have to be refused; what a model writes is never wrong.
    """
    slowest, read_whole = 0.0, 0
    began = time.monotonic()
    with memory_limited():
        for number in range(inputs):
            given = make(random.Random(f"{name} {number}"))
            seconds, fine = _timed(name, number, given, read)
            if seconds > LONGEST_S:  # once more: something may have been imported
                seconds = min(seconds, _timed(name, number, given, read)[0])
            assert seconds <= LONGEST_S, f"{name}, input {number}: {seconds:.1f} s for {given!r:.2000}"
            slowest, read_whole = max(slowest, seconds), read_whole + fine
    took = time.monotonic() - began
    print(f"{name}: {inputs:,} inputs, {read_whole:,} read, slowest {slowest:.3f} s, {took:.0f} s in all")
    assert read_whole, "nothing was read"
    assert (read_whole < inputs) == refuses, "as many were refused as there are, or none"


def _timed(name: str, number: int, given: Any, read: Callable[[Any], object]) -> tuple[float, bool]:
    started, fine = time.process_time(), True
    try:
        read(given)
    except LiteSelfPlayError:
        fine = False
    except BaseException as error:
        raise AssertionError(f"{name}, input {number}: {type(error).__name__}: {error}; {given!r:.2000}") from error
    return time.process_time() - started, fine


@contextlib.contextmanager
def memory_limited() -> Iterator[None]:
    """A context in which memory runs out for this process before it does for the machine."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    statm = Path("/proc/self/statm")
    if statm.exists():
        used = int(statm.read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MOST_BYTES, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def of_file(file: Path, reads: Callable[[Path], object]) -> Callable[[bytes], object]:
    """Reads bytes from a file of this name."""

    def read_bytes(content: bytes) -> object:
        file.write_bytes(content)
        return reads(file)

    return read_bytes


def mutated_bytes(rng: random.Random, content: bytes, pieces: Sequence[bytes] = ()) -> bytes:
    """Bytes with some flipped, removed, doubled or inserted, or with a number of a header replaced."""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        place, kind = rng.randrange(len(content) + 1), rng.randrange(6)
        before, after = content[:place], content[place:]
        if kind == 0:
            content = before + bytes([rng.randrange(256)]) + after[1:]
        elif kind == 1:
            content = before + after[rng.choice((1, 1, 4, 20)) :]
        elif kind == 2:
            content = before + after[: rng.randrange(40)] + after
        elif kind == 3:
            content = before if rng.random() < 0.3 else after
        elif kind == 4 and pieces:
            content = before + rng.choice(pieces) + after[rng.choice((0, 0, 3)) :]
        else:
            width = rng.choice("IQ")
            number = struct.pack(f"<{width}", rng.choice(NUMBERS) % (2**32 if width == "I" else 2**64))
            content = before + number + after[len(number) :]
    return content


def mutated_text(rng: random.Random, text: str, pieces: Sequence[str] = ()) -> str:
    """A text with some pieces removed, doubled, replaced or inserted."""
    for _ in range(rng.choice((1, 1, 2, 3))):
        place, kind = rng.randrange(len(text) + 1), rng.randrange(5)
        before, after = text[:place], text[place:]
        if kind == 0 and pieces:
            text = before + rng.choice(pieces) + after
        elif kind == 1:
            text = before + after[rng.randrange(1, 5) :]
        elif kind == 2 and pieces:
            text = before + rng.choice(pieces) + after[rng.randrange(1, 12) :]
        elif kind == 3:
            text = before + after[: rng.randrange(30)] * rng.choice((2, 2, 50)) + after
        else:
            text = before + chr(rng.choice((0, 10, 34, 92, 123, 0x2028, 0xD7FF, rng.randrange(128)))) + after
    return text


def mutated_json(rng: random.Random, value: Any) -> Any:
    """A JSON value with one value in it, at any depth, replaced, removed or put under another key."""
    if not isinstance(value, dict | list) or not value or rng.random() < 0.15:
        return rng.choice(ODD_JSON)
    place = rng.choice(list(value) if isinstance(value, dict) else range(len(value)))
    changed: Any = dict(value) if isinstance(value, dict) else list(value)
    if rng.random() < 0.2:
        del changed[place]
    elif isinstance(changed, dict) and rng.random() < 0.1:
        changed[rng.choice(("", "x", "step", "*", "a.b"))] = changed.pop(place)
    else:
        changed[place] = mutated_json(rng, value[place])
    return changed

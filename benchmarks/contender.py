"""Shared by the processes that are compared ("contenders"): their protocol, memory measurements and prompts.

A benchmark starts a contender as `SCRIPT KIND SETTING DESCRIPTOR`. It loads, warms up, and reports this in a JSON line
on that descriptor; from then on it answers each line on stdin with one such line.
"""

import contextlib
import ctypes
import hashlib
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from harness import Reply, Setting

from lite_selfplay.games.prompts import fill
from lite_selfplay.models.chat_template import Chat
from lite_selfplay.tasks import load_task

NEVER = 2**30
"""An id beyond any vocabulary: as the only end-of-sequence token, it lets every completion run to its cap."""


class Parent:
    """The benchmark that started this process."""

    def __init__(self, descriptor: int) -> None:
        self._out = os.fdopen(descriptor, "w", encoding="utf-8")

    def tell(self, **reply: Any) -> None:
        self._out.write(json.dumps(reply) + "\n")
        self._out.flush()

    def hear(self) -> Reply:
        """The next message. Exits once the benchmark has closed the stream."""
        line = sys.stdin.readline()
        if not line:
            raise SystemExit(0)
        message: Reply = json.loads(line)
        return message


def main(kinds: Mapping[str, Callable[[Parent, Setting], None]]) -> None:
    """Run the contender that the command line names."""
    kind, setting, descriptor = sys.argv[1:]
    kinds[kind](Parent(int(descriptor)), Setting(**json.loads(setting)))


class Memory:
    """The process's resident memory in bytes: after loading, and its peaks."""

    def __init__(self) -> None:
        self._loaded, self._peak_before = 0, 0

    def loaded(self) -> None:
        """Mark the end of loading: the peak is reset, if the system allows it."""
        give_back()
        self._peak_before = max(self._peak_before, resident("VmHWM"))
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        self._loaded = resident("VmRSS")

    def report(self) -> dict[str, int]:
        """Memory after loading (`loaded`); its peaks since then (`peak`, `gpu_peak`) and in all (`total_peak`)."""
        peak = resident("VmHWM")
        gpu = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
        return {"loaded": self._loaded, "peak": peak, "total_peak": max(peak, self._peak_before), "gpu_peak": gpu}


def resident(key: str) -> int:
    """`VmRSS` or `VmHWM` of this process in bytes; the peak in both cases if the system has no /proc."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
            if line.startswith(f"{key}:"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def give_back() -> None:
    """Let the C library return freed memory, so that resident memory is what is in use."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def clock() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def about(dtype: torch.dtype) -> dict[str, Any]:
    """Facts that a contender reports about itself."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    return {"threads": torch.get_num_threads(), "device": device, "dtype": str(dtype).removeprefix("torch.")}


# Prompts and rewards


def prompt_texts(setting: Setting) -> list[str]:
    problems = [problem.text for problem in load_task(setting.tasks).problems]
    if setting.ask is None:
        return [fill("solver", problem=problem) for problem in problems]
    return [f"{problem}\n\n{setting.ask}" for problem in problems]


def prompt_ids(chat: Chat, texts: Sequence[str], length: int | None = None) -> list[list[int]]:
    """The token ids of prompts; with `length`, each is repeated and cut to this many tokens."""
    ids = [chat.encode(text).ids for text in texts]
    return ids if length is None else [(row * (length // len(row) + 1))[:length] for row in ids]


def fingerprint(prompts: Sequence[Sequence[int]]) -> str:
    """A hash of token ids."""
    return hashlib.sha256(json.dumps([list(row) for row in prompts]).encode()).hexdigest()[:16]


class HashReward:
    """A reward in [0, 1) that is a hash of a completion's text: every group has variance, so every update happens.

    It takes texts or conversations, as this library and TRL pass them. `tokens` counts the completion tokens since it
    was last set to 0; `asked_at` is the time of the last call.
    """

    __name__ = "hash_of_the_text"

    def __init__(self) -> None:
        self.tokens, self.asked_at = 0, 0.0

    def __call__(self, completions: Sequence[Any], completion_ids: Sequence[Sequence[int]], **_: Any) -> list[float]:
        self.asked_at = clock()
        self.tokens += sum(map(len, completion_ids))
        texts = [text if isinstance(text, str) else text[0]["content"] for text in completions]
        return [int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "big") / 2**32 for text in texts]


def answer_rounds(
    parent: Parent, setting: Setting, memory: Memory, play: Callable[..., list[int]], facts: Mapping[str, Any]
) -> None:
    """Warm up, report `facts`, then play the round that each message asks for and report seconds and lengths.

    `play(number, group_size, cap, prompts)` takes token ids and returns lengths. The memory reported is that since the
    last message with `fresh`.
    """
    chat = Chat.load(facts["path"])
    texts = prompt_texts(setting)
    prompts = prompt_ids(chat, texts)
    memory.loaded()
    play(0, setting.group_size, setting.cap, prompts)
    lengths = [len(row) for row in prompts]
    parent.tell(**facts, prompt_tokens=lengths, prompts=fingerprint(prompts))
    while True:
        message = parent.hear()
        if message["fresh"]:
            memory.loaded()
        prompts = prompt_ids(chat, texts, message["prompt_tokens"])
        started = clock()
        sampled = play(message["number"] + 1, message["group_size"], message["cap"], prompts)
        seconds = clock() - started
        parent.tell(seconds=seconds, tokens=sum(sampled), lengths=sampled, memory=memory.report())

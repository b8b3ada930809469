"""What the processes of the contenders share: how they speak, how they measure memory, what they are asked.

A contender is started by a benchmark as `SCRIPT KIND SETTING DESCRIPTOR`, loads, warms up, and says so in one JSON line
on that descriptor; then it answers each line of stdin with one.
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
from lite_selfplay.models.chat import Chat
from lite_selfplay.tasks import load_task

NEVER = 2**30
"""An id that no vocabulary reaches: as the only end of a sequence, it lets every completion run to its cap."""


class Parent:
    """The benchmark that started this process."""

    def __init__(self, descriptor: int) -> None:
        self._out = os.fdopen(descriptor, "w", encoding="utf-8")

    def tell(self, **reply: Any) -> None:
        self._out.write(json.dumps(reply) + "\n")
        self._out.flush()

    def hear(self) -> Reply:
        """The next message. Leaves where nobody speaks any more."""
        line = sys.stdin.readline()
        if not line:
            raise SystemExit(0)
        message: Reply = json.loads(line)
        return message


def main(kinds: Mapping[str, Callable[[Parent, Setting], None]]) -> None:
    """Be the contender that the command line asks for."""
    kind, setting, descriptor = sys.argv[1:]
    kinds[kind](Parent(int(descriptor)), Setting(**json.loads(setting)))


class Memory:
    """The process's resident memory in bytes: what it holds once it has loaded, and its peaks."""

    def __init__(self) -> None:
        self._loaded, self._peak_before = 0, 0

    def loaded(self) -> None:
        """From here on it is work: the peak starts anew, where the system lets it."""
        give_back()
        self._peak_before = max(self._peak_before, resident("VmHWM"))
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        self._loaded = resident("VmRSS")

    def report(self) -> dict[str, int]:
        """`loaded`; `peak`, of the work; `total_peak`, loading included; `gpu_peak`, of the work."""
        peak = resident("VmHWM")
        gpu = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
        return {"loaded": self._loaded, "peak": peak, "total_peak": max(peak, self._peak_before), "gpu_peak": gpu}


def resident(key: str) -> int:
    """`VmRSS` or `VmHWM` of this process in bytes; its peak for either where the system has no /proc."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
            if line.startswith(f"{key}:"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def give_back() -> None:
    """Let the C library return what has been freed, so that resident memory is what is in use."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def clock() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def about(dtype: torch.dtype) -> dict[str, Any]:
    """What a contender says of itself."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    return {"threads": torch.get_num_threads(), "device": device, "dtype": str(dtype).removeprefix("torch.")}


# What is asked


def prompt_texts(setting: Setting) -> list[str]:
    problems = [problem.text for problem in load_task(setting.tasks).problems]
    if setting.ask is None:
        return [fill("solver", problem=problem) for problem in problems]
    return [f"{problem}\n\n{setting.ask}" for problem in problems]


def prompt_ids(chat: Chat, texts: Sequence[str], length: int | None = None) -> list[list[int]]:
    """The ids of prompts; with `length`, each repeated and cut to that many."""
    ids = [chat.encode(text).ids for text in texts]
    return ids if length is None else [(row * (length // len(row) + 1))[:length] for row in ids]


def fingerprint(prompts: Sequence[Sequence[int]]) -> str:
    """Equal for equal ids."""
    return hashlib.sha256(json.dumps([list(row) for row in prompts]).encode()).hexdigest()[:16]


class HashReward:
    """A reward of [0, 1) that follows from a completion's text and means nothing: groups vary, so every update happens.

    Takes texts or conversations, as this library and TRL hand them over. `tokens` counts what it was given since it was
    last set to 0, and `asked_at` is when that was.
    """

    __name__ = "hash_of_the_text"

    def __init__(self) -> None:
        self.tokens, self.asked_at = 0, 0.0

    def __call__(self, completions: Sequence[Any], completion_ids: Sequence[Sequence[int]], **_: Any) -> list[float]:
        self.asked_at = clock()
        self.tokens += sum(map(len, completion_ids))
        texts = [said if isinstance(said, str) else said[0]["content"] for said in completions]
        return [int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "big") / 2**32 for text in texts]


def answer_rounds(
    parent: Parent, setting: Setting, memory: Memory, play: Callable[..., list[int]], facts: Mapping[str, Any]
) -> None:
    """Warm up, tell `facts`, then play what each message asks for and tell the seconds and the completions' lengths.

    `play(number, group_size, cap, prompts)` takes ids and returns lengths. The memory told is that since the last
    message that was `fresh`.
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
        said = play(message["number"] + 1, message["group_size"], message["cap"], prompts)
        seconds = clock() - started
        parent.tell(seconds=seconds, tokens=sum(said), lengths=said, memory=memory.report())

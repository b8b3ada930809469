"""Seats that are measured without a model."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from lite_selfplay.data import Completion, Problem, Sampling, StopReason, Verdict


class Scripted(ABC):
    """Seats that read from a script: `script(seat, prompt, k)` is a seat's k-th sample; a token is a character.

    What is asked is kept in `calls`. How it is judged is a subclass's to say.
    """

    thinks = False

    def __init__(self, script: Callable[[str, str, int], str], longest_prompt: int = 10_000):
        self._script, self._longest = script, longest_prompt
        self.calls: list[tuple[str, list[str], int, list[list[int]], Sampling]] = []

    def sample(
        self,
        seat: str,
        prompts: Sequence[str],
        n: int,
        sampling: Sampling,
        seeds: Sequence[Sequence[int]],
        beginnings: Sequence[str] | None = None,
    ) -> list[list[Completion]]:
        assert [len(row) for row in seeds] == [n] * len(prompts)
        self.calls.append((seat, list(prompts), n, [list(row) for row in seeds], sampling))
        starts = beginnings or [""] * len(prompts)
        pairs = list(zip(prompts, starts, strict=True))
        return [[self._say(seat, prompt, start, k, sampling) for k in range(n)] for prompt, start in pairs]

    def _say(self, seat: str, prompt: str, start: str, k: int, sampling: Sampling) -> Completion:
        unread = len(prompt) > self._longest
        text = "" if unread else self.reply(seat, prompt, start, k)
        stop: StopReason = "prompt_too_long" if unread else "eos" if len(text) <= sampling.max_tokens else "length"
        for mark in sampling.stop:
            if mark in text:
                text, stop = text.partition(mark)[0] + mark, "string"
        ids = tuple(map(ord, text[: sampling.max_tokens]))
        return Completion(prompt, text, (), ids, (-1.0,) * len(ids), stop, seat, 0, sampling, start)

    def reply(self, seat: str, prompt: str, start: str, k: int) -> str:
        """What a seat says after the beginning of a reply."""
        return self._script(seat, prompt, k)

    def verify(self, pairs: Sequence[tuple[Completion, Problem]]) -> list[Verdict]:
        return [self.judge(completion, problem) for completion, problem in pairs]

    @abstractmethod
    def judge(self, completion: Completion, problem: Problem) -> Verdict:
        """What is found of a completion."""

    def tokenize(self, text: str) -> list[int]:
        return list(map(ord, text))

    def detokenize(self, ids: Sequence[int]) -> str:
        return "".join(map(chr, ids))

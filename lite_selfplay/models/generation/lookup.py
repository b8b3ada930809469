"""Prompt lookup: the tokens that followed the same words earlier in a text are proposed as the next ones."""

from collections.abc import Sequence

# The numbers of last tokens that are searched for earlier in the text.
SHORTEST, LONGEST = 2, 6


class Text:
    """A prompt and the tokens sampled after it."""

    def __init__(self, ids: Sequence[int]):
        self.ids = list(ids)
        self._read, self._ends = 0, dict[tuple[int, ...], int]()

    def following(self, count: int) -> list[int]:
        """Propose `count` tokens: find the last tokens earlier in the text (as many as possible, the latest place) and
        return what followed them there, padded with zeros."""
        for end in range(self._read + 1, len(self.ids)):
            for length in range(SHORTEST, min(LONGEST, end) + 1):
                self._ends[tuple(self.ids[end - length : end])] = end
        self._read = len(self.ids) - 1
        endings = (tuple(self.ids[-length:]) for length in range(LONGEST, SHORTEST - 1, -1))
        begin = next((self._ends[ending] for ending in endings if ending in self._ends), len(self.ids))
        return [*self.ids[begin : begin + count], *[0] * count][:count]

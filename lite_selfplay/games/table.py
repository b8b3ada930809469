"""The table: everything a game may ask for while it plays one step.

The live table (`lite_selfplay.training.rollout`) samples from a model. The scripted one (`lite_selfplay.testing`) reads
lines from a list, so that a game's rules are tested in milliseconds.
"""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from lite_selfplay.data import Completion, Example, Problem, Sampling, TokenScores, Verdict


class Reader(Protocol):
    """The means to read a completion: the base's tokenizer, and whether its template has a reasoning mode."""

    thinks: bool
    """Whether the base's chat template asks for a `<think>` block."""

    def tokenize(self, text: str) -> list[int]:
        """Token ids of plain text under the base's tokenizer, without special tokens."""

    def detokenize(self, ids: Sequence[int]) -> str:
        """The text of token ids."""


class Table(Reader, Protocol):
    """Draws problems, samples completions of roles, and judges them: a game's whole interface to a run."""

    rng: random.Random
    """Derived from the run's seed and the step: the only randomness a game may use."""

    def draw(self, source: str, n: int) -> list[Problem]:
        """The next `n` items of a source. The position in the source is part of a checkpoint."""

    @property
    def folder(self) -> Path:
        """The game's own folder in the run's, for data too large for `state`: see `games.collections`.

        A run resumed at an earlier step still finds the files of later steps there.
        """

    def ask(
        self,
        role: str,
        prompts: Sequence[str],
        n: int = 1,
        sampling: Sampling | None = None,
        *,
        beginnings: Sequence[str] | None = None,
        seat: str | None = None,
    ) -> list[list[Completion]]:
        """`n` completions of each prompt by the seat that plays `role` in this step, in the order of the prompts.

        All prompts of a step belong in one call. `sampling` None takes the role's own. `beginnings`, one per prompt:
        the first part of the reply, which is continued; each ends the `prefill` of its completions. `seat` names
        another seat, a snapshot or `base` to sample instead. If a prompt with its beginning is over the limit, its
        completions have no tokens and `stop="prompt_too_long"`.
        """

    def completed(self, example: Example) -> Completion:
        """An example as the completion it teaches, in the chat template's tokens, without log-probabilities."""

    def everything(self, source: str) -> Sequence[Problem]:
        """All items of a source, always in the same order; its position stays."""

    def evaluate(self, role: str, prompts: Sequence[str], problems: Sequence[Problem], n: int = 1) -> list[Verdict]:
        """Verdicts on `n` answers to each prompt by the seat that plays `role`; those of one prompt are adjacent.

        Answer k to prompt i has the same seed at every call and step, so that two calls differ by the seat alone.
        """

    def score(
        self, role: str, completions: Sequence[Completion], *, seat: str | None = None, after: Sequence[str] = ()
    ) -> list[TokenScores]:
        """Log-probabilities and entropies of completions under the seat that plays `role` in this step, computed as the
        trainer does; `seat` names another seat, a snapshot or `base`. `after` has another prompt for each to be read
        after; if that is over the limit, its scores are empty."""

    def read_answer(self, completion: Completion) -> str | None:
        """The final answer of a completion, as the checker reads it; None if there is none."""

    def verify(self, pairs: Sequence[tuple[Completion, Problem]]) -> list[Verdict]:
        """Verdicts on completions, by their problems' answers, in order; `well_formed` is set as well."""

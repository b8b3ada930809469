"""The table: what a game may ask for while it plays one step.

The live table (`lite_selfplay.training.rollout`) samples from a model; the scripted one (`lite_selfplay.testing`) reads
lines from a list, so that a game's rules are tested in milliseconds.
"""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from lite_selfplay.data import Completion, Example, Problem, Sampling, TokenScores, Verdict


class Reader(Protocol):
    """What it takes to read a completion: the base's tokenizer, and whether its template thinks."""

    thinks: bool
    """Whether the base's chat template asks for a `<think>` block."""

    def tokenize(self, text: str) -> list[int]:
        """Token ids of plain text under the base's tokenizer, without special tokens."""

    def detokenize(self, ids: Sequence[int]) -> str:
        """The text of token ids."""


class Table(Reader, Protocol):
    """Draws problems, samples completions of roles, and judges them. A game sees nothing else of the machinery."""

    rng: random.Random
    """Derived from the run's seed and the step: the only randomness a game may use."""

    def draw(self, source: str, n: int) -> list[Problem]:
        """The next `n` items of a source. Its position is part of a checkpoint."""

    @property
    def folder(self) -> Path:
        """A folder of the game's own in the run's, for what is too large for `state`: see `games.collections`.

        A run that goes on from an earlier step finds there what later steps had written.
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

        A whole step's prompts belong in one call. `sampling` None takes the role's own. `beginnings`, one for each
        prompt, are how the reply begins that is gone on with; each ends the `prefill` of its completions. `seat` names
        another seat, a snapshot or `base` that speaks instead. A prompt over the limit, its beginning included, comes
        back with no tokens and `stop="prompt_too_long"`.
        """

    def completed(self, example: Example) -> Completion:
        """An example as the completion it teaches, in the chat template's tokens; nobody has sampled it."""

    def everything(self, source: str) -> Sequence[Problem]:
        """All items of a source, in an order that never changes; its position stays where it is."""

    def evaluate(self, role: str, prompts: Sequence[str], problems: Sequence[Problem], n: int = 1) -> list[Verdict]:
        """`n` answers to each prompt by the seat that plays `role`, judged by its problem: a prompt's n in a row.

        Answer k to prompt i has the same seed at every call and every step, so that two calls differ by the seat alone.
        """

    def score(self, role: str, completions: Sequence[Completion], *, seat: str | None = None) -> list[TokenScores]:
        """Log-probabilities and entropies of completions under the seat that plays `role` in this step, as the trainer
        computes them; `seat` names another, a snapshot or `base`."""

    def read_answer(self, completion: Completion) -> str | None:
        """The answer that a completion commits to, as the checker reads it; None where there is none."""

    def verify(self, pairs: Sequence[tuple[Completion, Problem]]) -> list[Verdict]:
        """Judge completions against their problems' answers, in order. `well_formed` is filled in as well."""

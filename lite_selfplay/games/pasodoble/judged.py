"""What becomes of PasoDoble's proposals in a step, and whether the step is an update."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lite_selfplay.credit import has_variance
from lite_selfplay.data import Group, Stream
from lite_selfplay.games.pasodoble.rewards import Gate, pass_rate
from lite_selfplay.games.propose_solve.game import SHOWN_CHARACTERS
from lite_selfplay.games.propose_solve.proposals import Proposal


@dataclass(frozen=True)
class Judged:
    """A proposal and what became of it. `diversity` is None where it was not asked about, `group` where nobody solved
    it; `invalid` says why a well-formed question trains no solver."""

    proposal: Proposal
    name: str
    reward: float = 0.0
    diversity: float | None = None
    group: Group | None = None
    invalid: str = ""

    @property
    def valid(self) -> bool:
        return self.proposal.usable and not self.invalid

    @property
    def rate(self) -> float | None:
        return pass_rate(self.group) if self.group else None


def openers(judged: Sequence[Judged], groups: Sequence[Group], gate: Gate, *, frozen: bool) -> list[Judged]:
    """The questions that make their step an update; without one it is skipped.

    `groups` are the proposers' samples. `retained`: every question that trains the solver. `valid` (section 3.5): every
    question that pays its proposer, one that is always solved among them; with a `frozen` proposer, whom that would
    help nobody, as `retained`. `pass_rate` (release): every question that trains the solver, if the proposals of some
    group are not all paid alike.
    """
    if gate == "valid" and not frozen:
        return [each for each in judged if each.reward > 0]
    if gate == "pass_rate" and not any(map(has_variance, groups)):
        return []
    return [each for each in judged if each.valid]


def in_vain(tried: Sequence[Stream], learned: Sequence[Stream]) -> list[Stream]:
    """What was sampled and nobody learns from, for the record; all that was `tried` in a step that is skipped."""
    kept = {id(group) for stream in learned for group in stream.groups}
    left = [replace(stream, groups=[group for group in stream.groups if id(group) not in kept]) for stream in tried]
    return [stream for stream in left if stream.groups or not learned]


def well_formed(proposal: Proposal) -> bool:
    """Whether a proposal is a question with an answer, if only one that gives it away."""
    return proposal.reason in ("", "leaks")


def refused_texts(judged: Sequence[Judged]) -> dict[str, str]:
    """The beginning of the first proposal of each reason for which none was kept."""
    reasons = [(each.proposal.reason or each.invalid, each.proposal.completion.text) for each in judged]
    return {reason: text[:SHOWN_CHARACTERS] for reason, text in reversed(reasons) if reason}

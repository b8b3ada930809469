"""What Agon says of its reward stacks (section 4.4) after normalisation, over every outcome of a group of four."""

from collections.abc import Sequence
from itertools import product

import pytest

from lite_selfplay.credit import advantages
from lite_selfplay.games.agon.agon import Reward, agon_reward
from lite_selfplay.games.baselines.grpo import solo_reward

N = 4
GROUPS = list(product((0, 1), repeat=N))
FORMATS = (False, True)


def stack(kind: Reward, challenges: Sequence[int], drafts: Sequence[int], phi: bool) -> list[float]:
    """The group's rewards, of a constant format."""
    return [agon_reward(b, a, phi, kind=kind) for b, a in zip(challenges, drafts, strict=True)]


def close(one: Sequence[float], other: Sequence[float]) -> bool:
    return list(one) == pytest.approx(list(other), abs=1e-3)  # credit divides by the deviation plus 1e-4


@pytest.mark.parametrize("phi", FORMATS)
@pytest.mark.parametrize("draft", [0, 1])
def test_a_shared_opponent_gives_grpos_advantages(draft: int, phi: bool):
    for challenges in GROUPS:
        grpo = advantages([solo_reward(c, phi) for c in challenges])
        for kind in ("adv", "margin", "coop"):
            assert close(advantages(stack(kind, challenges, [draft] * N, phi)), grpo)


def test_with_a_format_that_varies_it_does_not():
    formats = (True, False, True, False)
    one = advantages([agon_reward(b, 0, phi) for b, phi in zip((1, 1, 0, 0), formats, strict=True)])
    other = advantages([solo_reward(b, phi) for b, phi in zip((1, 1, 0, 0), formats, strict=True)])
    assert not close(one, other)


@pytest.mark.parametrize("phi", FORMATS)
def test_margin_equals_coop_where_the_opponents_outcome_is_constant_and_only_there(phi: bool):
    for challenges, drafts in product(GROUPS, GROUPS):
        same = close(
            advantages(stack("margin", challenges, drafts, phi)), advantages(stack("coop", challenges, drafts, phi))
        )
        if len(set(drafts)) == 1:
            assert same
        else:
            # 3 c(b) - c(a) is no line in c(b) where drafts differ beside equal challenges.
            assert same == (len(set(zip(challenges, drafts, strict=True))) == len(set(challenges)) == 2)


@pytest.mark.parametrize("phi", FORMATS)
def test_adv_differs_from_coop_exactly_where_the_drafts_of_right_challenges_differ(phi: bool):
    for challenges, drafts in product(GROUPS, GROUPS):
        adv, coop = (stack(kind, challenges, drafts, phi) for kind in ("adv", "coop"))
        bonus = [b * (1 - a) for b, a in zip(challenges, drafts, strict=True)]
        assert [x - y for x, y in zip(adv, coop, strict=True)] == bonus
        beaten = {a for b, a in zip(challenges, drafts, strict=True) if b}
        assert close(advantages(adv), advantages(coop)) == (len(beaten) < 2)

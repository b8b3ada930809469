"""From a stream to microbatches: which rows share one, and that their shares sum to 1."""

import math
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lite_selfplay.config import RoleConfig
from lite_selfplay.data import Completion, Group, Sample, Sampling, Stream
from lite_selfplay.models.logprobs.batch import Way
from lite_selfplay.training.losses import LossRow
from lite_selfplay.training.updates import microbatches, parts, rows_of

PLAIN = RoleConfig()


def completion(prompt: int = 4, tokens: int = 4, temperature: float = 1.0, max_tokens: int = 64) -> Completion:
    sampling = Sampling(temperature=temperature, max_tokens=max_tokens)
    return Completion("?", "!", (1,) * prompt, (2,) * tokens, (-1.0,) * tokens, "eos", "A", 0, sampling)


def row(prompt: int = 4, tokens: int = 4, temperature: float = 1.0, advantage: float = 1.0) -> LossRow:
    return LossRow(completion(prompt, tokens, temperature), advantage)


A_ROW = st.builds(row, *[st.integers(1, 20)] * 2, st.sampled_from([0.7, 1.0]), st.sampled_from([-1.0, 0.0, 0.5]))
ROWS = st.lists(A_ROW, min_size=1, max_size=12)
# An entropy term, so that rows without advantage stay.
ANY_LOSS = st.sampled_from([RoleConfig(loss=loss, entropy=0.01) for loss in ("grpo", "dr_grpo", "dapo", "sequence")])


@pytest.mark.parametrize(("loss", "scales"), [("grpo", [2 / 3, 1 / 3]), ("dapo", [1, 1])])
def test_scales_by_hand(loss, scales):
    # Widths 4 + 2 and 4 + 6: two short rows take 12 padded tokens, the long one would make it 3 * 10.
    rows = [row(tokens=2), row(tokens=6), row(tokens=2)]
    micros = microbatches(rows, "A", RoleConfig(loss=loss), token_budget=20, way=Way.WHOLE)
    assert [[r.tokens for r in micro.rows] for micro in micros] == [[2, 2], [6]]
    assert [
        (micro.scale, micro.row_share, micro.token_share, micro.stream_tokens, micro.tokens) for micro in micros
    ] == [
        (scales[0], 2 / 3, 0.4, 10, 4),
        (scales[1], 1 / 3, 0.6, 10, 6),
    ]


@settings(deadline=None)
@given(ROWS, ANY_LOSS, st.integers(1, 200), st.sampled_from([Way.PACKED, Way.WHOLE]))
def test_every_row_is_in_one_microbatch_of_one_temperature_within_the_budget(rows, role, budget, way):
    micros = microbatches(rows, "A", role, budget, way=way)
    assert Counter(id(r) for micro in micros for r in micro.rows) == Counter(map(id, rows))
    assert math.fsum(micro.row_share for micro in micros) == pytest.approx(1)
    assert math.fsum(micro.token_share for micro in micros) == pytest.approx(1)
    assert {micro.stream_tokens for micro in micros} == {sum(r.tokens for r in rows)}
    for micro in micros:
        assert {r.completion.sampling.temperature for r in micro.rows} == {micro.temperature}
        assert [(r.completion.prompt_ids, r.completion.token_ids) for r in micro.rows] == list(micro.batch.rows)
        width = max(len(r.completion.prompt_ids) + r.tokens for r in micro.rows)
        cost = micro.batch.cost if way is Way.PACKED else width * len(micro.rows)
        assert len(micro.rows) == 1 or cost <= budget


def test_rows_of_one_prompt_stay_together_where_that_is_cheaper():
    # Two prompts of 50 tokens, four rows of 2 to 5 tokens each: whole rows by length would take 8 * 55 = 440 tokens;
    # by prompt, 2 * 49 for the shared part and 8 * 6 for the rest.
    prompts = [(1,) * 50, (2,) * 50]
    rows = [LossRow(replace(completion(50, n), prompt_ids=prompts[n % 2]), 1.0) for n in (2, 3, 4, 5) * 2]
    (micro,) = microbatches(rows, "A", PLAIN, token_budget=2 * 49 + 8 * 6, way=Way.PACKED)
    assert [r.completion.prompt_ids[0] for r in micro.rows] == [1, 1, 1, 1, 2, 2, 2, 2]
    assert len(microbatches(rows, "A", PLAIN, token_budget=2 * 49 + 8 * 6, way=Way.WHOLE)) == 4


def test_padding_counts_and_a_row_larger_than_the_budget_is_alone():
    def sizes(rows: list[LossRow], budget: int) -> list[int]:
        return [len(micro.rows) for micro in microbatches(rows, "A", PLAIN, token_budget=budget, way=Way.WHOLE)]

    assert sizes([row(tokens=1), row(tokens=100), row(tokens=1)], 10) == [2, 1]
    two = [row(prompt=10, tokens=1), row(prompt=1, tokens=5)]  # of 11 and 6 tokens: 2 * 11 together
    assert (sizes(two, 21), sizes(two, 22)) == ([1, 1], [2])


def test_the_most_tokens_are_those_of_the_whole_stream_and_greedy_rows_are_read_at_temperature_one():
    rows = [LossRow(completion(max_tokens=8), 1.0), LossRow(completion(tokens=6, max_tokens=32), 1.0)]
    assert [micro.max_tokens for micro in microbatches(rows, "A", PLAIN, token_budget=1, way=Way.PACKED)] == [32, 32]
    (greedy,) = microbatches([row(temperature=0.0)], "B", PLAIN, token_budget=100, way=Way.PACKED)
    assert (greedy.seat, greedy.role, greedy.temperature) == ("B", PLAIN, 1.0)


@pytest.mark.parametrize("role", [RoleConfig(beta=0.1), RoleConfig(entropy=0.1), RoleConfig(entropy=-0.1)])
def test_a_kl_or_entropy_term_needs_no_advantage(role):
    (micro,) = microbatches([row(advantage=0.0)], "A", role, token_budget=100, way=Way.PACKED)
    assert len(micro.rows) == 1
    assert microbatches([row(advantage=0.0)] * 3, "A", PLAIN, token_budget=100, way=Way.PACKED) == []
    assert microbatches([], "A", role, token_budget=100, way=Way.PACKED) == []


def test_rows_without_a_gradient_count_in_the_shares_and_never_reach_the_model():
    rows = [row(tokens=2, advantage=0.0), row(tokens=3, advantage=1.0), row(tokens=5, advantage=0.0)]
    (micro,) = microbatches(rows, "A", PLAIN, token_budget=100, way=Way.PACKED)
    assert [r.tokens for r in micro.rows] == [3]
    assert (micro.row_share, micro.token_share, micro.stream_tokens) == (1 / 3, 0.3, 10)
    assert micro.scale * 1.0 == pytest.approx(sum(r.advantage for r in rows) / 3)


EARNED = [[1.0, 2.0], [None, -1.0], [None]]


@pytest.mark.parametrize(
    ("role", "options", "earned", "rows"),
    [
        # By tokens: 0 has no token, 2 is masked, 1 was cut off, 5 is of a dropped group.
        (PLAIN, {}, EARNED, [[(3, 1.0, None)], [(1, -1.0, None)]]),
        (RoleConfig(beta=0.1), {}, EARNED, [[(3, 1.0, None)], [(1, -1.0, None)], [(5, 0.0, None)]]),
        (RoleConfig(mask_truncated=True), {}, [[1.0, 2.0], [None, None], [None]], [[(3, 1.0, None)]]),
        # Another program sampled: the ratio is to its log-probabilities.
        (PLAIN, {"elsewhere": True}, EARNED, [[(3, 1.0, 3)], [(1, -1.0, 1)]]),
    ],
)
def test_rows_are_the_samples_in_a_term_that_have_a_token(role, options, earned, rows):
    def sample(tokens: int, **values) -> Sample:
        return Sample(replace(completion(tokens=tokens), stop="length" if tokens == 1 else "eos"), 0.0, **values)

    groups = [Group([sample(3), sample(0)]), Group([sample(2, masked=True), sample(1)]), Group([sample(5)])]
    found, kept = rows_of(Stream("r", groups), EARNED, role, **options)
    assert found == earned
    assert [[(r.tokens, r.advantage, r.old and len(r.old)) for r in group] for group in kept] == rows
    with pytest.raises(ValueError, match="zip"):
        rows_of(Stream("r", groups), [[1.0, 1.0]], role, **options)


def test_a_stream_in_parts_by_hand():
    def lengths(groups: list[list[int]], count: int) -> list[list[int]]:
        rows = [[row(tokens=n) for n in group] for group in groups]
        return [[r.tokens for r in part] for part in parts(rows, count)]

    # Groups stay whole: of five in two parts, two and three; of three in two, one and two.
    assert lengths([[1, 2], [3, 4], [5, 6], [7, 8], [9, 10]], 2) == [[1, 2, 3, 4], [5, 6, 7, 8, 9, 10]]
    assert lengths([[1, 2], [3], [4, 5, 6]], 2) == [[1, 2], [3, 4, 5, 6]]
    # Fewer groups than parts: row by row. Fewer rows than parts: some are empty.
    assert lengths([[1, 2, 3, 4]], 2) == [[1, 2], [3, 4]]
    assert lengths([[1, 2], [3]], 5) == [[], [1], [], [2], [3]]
    assert lengths([[1, 2], [3]], 1) == [[1, 2, 3]]
    assert lengths([], 2) == [[], []]

"""Shared prefixes, and the cost of reading them, by hand."""

import functools
import itertools

from hypothesis import given
from hypothesis import strategies as st

from lite_selfplay.models.logprobs.batch import Batch, Row, Way, cut, pad


def row(prompt: list[int], tokens: int) -> Row:
    return prompt, [9] * tokens


PROMPTS = st.lists(st.integers(1, 2), min_size=1, max_size=8)
ROWS = st.lists(st.builds(row, PROMPTS, st.integers(1, 5)), max_size=10)


def costs(rows: list[Row]) -> dict[Way, int]:
    return {way: Batch.of(rows, way).cost for way in Way}


def test_a_group_shares_all_but_the_last_token_of_its_prompt():
    rows = [row([1, 2, 3, 4], tokens) for tokens in (2, 5, 3)]
    batch = Batch.of(rows)
    assert [(p.length, p.rows, p.longest) for p in batch.prefixes] == [(3, 3, 9)]
    assert batch.plain_cost == 3 * (4 + 5)
    assert batch.shared_cost == 3 + 3 * 6
    assert batch.shares
    # Packed: what is shared, and of each row the prompt's last token and its completion.
    assert costs(rows) == {Way.WHOLE: 27, Way.PACKED: 3 + 3 + 6 + 4}
    assert batch.own == [[4, 9, 9], [4, 9, 9, 9, 9, 9], [4, 9, 9, 9]]


def test_prompts_that_part_share_up_to_there():
    batch = Batch.of([row([1, 2, 3, 7, 7], 1), row([1, 2, 3, 8], 1), row([1, 2, 3, 9, 9, 9], 1)])
    assert [(p.length, p.rows) for p in batch.prefixes] == [(3, 3)]
    assert batch.shared_cost == 3 + 3 * (7 - 3)
    assert batch.packed_cost == 3 + 3 + 2 + 4


@given(ROWS)
def test_fewest_tokens_are_read_of_all_ways_to_share_prefixes(rows):
    @functools.cache
    def least(start):
        """Tokens of the rows from `start` on, by trying every end of the first prefix."""
        if start == len(rows):
            return 0
        return min(alone(rows[start:end]) + least(end) for end in range(start + 1, len(rows) + 1))

    assert Batch.of(rows).packed_cost == least(0)


def alone(rows: list[Row]) -> int:
    """Tokens of rows with one shared prefix, shared tokens counted once."""
    columns = itertools.takewhile(lambda ids: len(set(ids)) == 1, zip(*(prompt for prompt, _ in rows), strict=False))
    shared = min(len(list(columns)), *(len(prompt) - 1 for prompt, _ in rows))
    return shared + sum(len(prompt) - shared + len(completion) for prompt, completion in rows)


def test_different_prompts_are_read_whole_and_values_come_back_row_by_row():
    rows = [row([1, 1, 1], 1), row([2, 2, 2], 1)]
    assert not Batch.of(rows).shares
    assert costs(rows) == dict.fromkeys(Way, 8)
    batch = Batch.of([([1], [5, 6]), ([2, 3], [7]), ([4], [])])
    assert batch.completion_ids == [5, 6, 7]
    assert batch.split([0.1, 0.2, 0.3]) == [[0.1, 0.2], [0.3], []]


@given(ROWS)
def test_a_shared_prefix_is_shared_indeed_and_every_row_is_in_one(rows):
    batch = Batch.of(rows)
    assert list(batch.rows) == rows
    prefixes = [prefix for prefix in batch.prefixes for _ in range(prefix.rows)]
    for prefix, (prompt, completion) in zip(prefixes, rows, strict=True):
        assert prompt[: prefix.length] == prefix.ids
        assert prefix.length < len(prompt)
        assert len(prompt) + len(completion) <= prefix.longest
    cost = costs(rows)
    assert cost[Way.PACKED] <= cost[Way.WHOLE]


# Cutting


def chunks_of(rows: list[Row], budget: int, way: Way) -> tuple[list[list[Row]], int]:
    """The rows of each chunk, and the cost of all."""
    found = cut(rows, lambda it: it, budget, way)
    assert all(list(batch.rows) == chunk and batch.way is way for chunk, batch in found)
    return [chunk for chunk, _ in found], sum(batch.cost for _, batch in found)


def test_rows_are_cut_where_the_budget_ends_and_what_is_read_once_is_counted_once():
    # Whole rows: two of 2 + 1 tokens take 6; a third of 2 + 4 would make it 3 * 6, and takes 6 by itself.
    rows = [row([1, 1], 1), row([2, 2], 1), row([3, 3], 4)]
    assert chunks_of(rows, 6, Way.WHOLE) == ([rows[:2], rows[2:]], 12)
    assert chunks_of(rows, 18, Way.WHOLE) == ([rows], 18)
    assert chunks_of(rows, 1, Way.WHOLE) == ([[one] for one in rows], 3 + 3 + 6)
    # Four tokens shared, then two of each row; whole rows would take 3 * 6.
    rows = [row([1, 2, 3, 4, 5], 1)] * 3
    assert chunks_of(rows, 4 + 3 * 2, Way.PACKED) == ([rows], 10)
    assert chunks_of(rows, 4 + 3 * 2, Way.WHOLE) == ([[one] for one in rows], 18)


def test_kinds_never_share_a_chunk():
    items = ["a1", "a2", "b3", "a4"]
    found = cut(items, lambda item: row([int(item[1])], 1), 100, Way.WHOLE, kind=lambda item: item[0])
    assert [(chunk, batch.cost) for chunk, batch in found] == [(["a1", "a2"], 4), (["b3"], 2), (["a4"], 2)]


@given(ROWS, st.integers(1, 60), st.sampled_from(Way))
def test_chunks_hold_all_rows_in_order_within_the_budget_and_grow_while_they_can(rows, budget, way):
    chunks, _ = chunks_of(rows, budget, way)
    assert [one for chunk in chunks for one in chunk] == rows
    assert all(len(chunk) == 1 or Batch.of(chunk, way).cost <= budget for chunk in chunks)
    for chunk, following in itertools.pairwise(chunks):
        assert Batch.of([*chunk, following[0]], way).cost > budget


def test_padding_on_either_side():
    for left, ids, mask in ((False, [4, 0, 0], [1, 0, 0]), (True, [0, 0, 4], [0, 0, 1])):
        assert [each.tolist() for each in pad([[1, 2, 3], [4]], left=left)] == [[[1, 2, 3], ids], [[1, 1, 1], mask]]

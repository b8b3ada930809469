"""What rows share at their beginning, and what reading them costs, by hand."""

from hypothesis import given
from hypothesis import strategies as st

from lite_selfplay.prefixes import Reading

ROWS = st.lists(st.tuples(st.lists(st.integers(1, 2), min_size=1, max_size=8), st.integers(1, 5)), max_size=10)


def test_a_group_shares_all_but_the_last_token_of_its_prompt():
    reading = Reading.of([([1, 2, 3, 4], 2), ([1, 2, 3, 4], 5), ([1, 2, 3, 4], 3)])
    assert [(p.length, p.rows, p.longest) for p in reading.prefixes] == [(3, 3, 9)]
    assert reading.plain_cost == 3 * (4 + 5)
    assert reading.shared_cost == 3 + 3 * 6
    assert reading.shares
    assert reading.cost() == 21
    assert reading.cost(sharing=False) == 27


def test_prompts_that_part_share_up_to_there():
    reading = Reading.of([([1, 2, 3, 7, 7], 1), ([1, 2, 3, 8], 1), ([1, 2, 3, 9, 9, 9], 1)])
    assert [(p.length, p.rows) for p in reading.prefixes] == [(3, 3)]
    assert reading.shared_cost == 3 + 3 * (7 - 3)


def test_a_prefix_is_not_shortened_where_its_rows_would_lose_more():
    # Three rows share 9 tokens; a fourth has 2 in common with them: 2 gained, 2 * 7 lost.
    long, other = [1, 1] + [2] * 8, [1, 1] + [3] * 8
    reading = Reading.of([(long, 1)] * 3 + [(other, 1)])
    assert [(p.length, p.rows) for p in reading.prefixes] == [(9, 3), (9, 1)]


def test_a_prompt_that_is_the_beginning_of_another_keeps_its_last_token():
    reading = Reading.of([([1, 2, 3], 1), ([1, 2, 3, 4], 1)])
    assert [(p.length, p.rows) for p in reading.prefixes] == [(2, 2)]


def test_different_prompts_are_read_whole():
    reading = Reading.of([([1, 1, 1], 1), ([2, 2, 2], 1)])
    assert not reading.shares
    assert reading.cost() == reading.plain_cost == 8


def test_a_prompt_of_one_token_cannot_be_shared():
    assert not Reading.of([([1], 3), ([1], 3)]).shares


def test_nothing_costs_nothing():
    assert Reading().cost() == 0


@given(ROWS)
def test_a_shared_prefix_is_shared_indeed_and_every_row_is_in_one(rows):
    reading = Reading.of(rows)
    assert reading.rows == len(rows)
    i = 0
    for prefix in reading.prefixes:
        members = rows[i : i + prefix.rows]
        i += prefix.rows
        for prompt, rest in members:
            assert prompt[: prefix.length] == prefix.prompt[: prefix.length]
            assert prefix.length < len(prompt)
            assert len(prompt) + rest <= prefix.longest
    assert reading.cost() <= reading.plain_cost

"""The number of slots, worked out by hand."""

import pytest

from lite_selfplay.models.generation.layout import CHECK_EVERY, MOST_ROWS, Layout, Slot


@pytest.mark.parametrize(
    ("asked", "mixed", "rows", "positions", "longs"),
    [
        # 256 prompts of 120 tokens with answers of 4,096: 256 + 4,096 + 16 positions, in whole 128s 4,480.
        ((256, 120, 4096, 2_000_000), True, 256, 4480, 0),
        # 275,000 tokens: 16 of 256 rows have 4,480 positions, and (275,000 - 71,680) / 256 = 794 are 768 for each.
        ((256, 120, 4096, 275_000), True, 256, 768, 16),
        # 150,000: (150,000 - 71,680) / 256 = 305 is less than 512; 224 rows: (150,000 - 14 * 4,480) / 224 = 389;
        # 192: (150,000 - 12 * 4,480) / 192 = 501; 160: (150,000 - 10 * 4,480) / 160 = 657.
        ((256, 120, 4096, 150_000), True, 160, 640, 10),
        ((256, 120, 4096, 275_000), False, 32, 4480, 0),  # 61 of that length: 32 is the next size below
        ((60, 300, 512, 10**6), True, 64, 1152, 0),  # room for prompts of 512, and 512 + 512 + 16
        ((5, 100, 100, 10), True, 1, 384, 0),  # one row may hold more than all
        ((5000, 100, 16, 10**8), True, MOST_ROWS, 384, 0),
    ],
)
def test_slots_by_hand(asked, mixed, rows, positions, longs):
    layout = Layout.of(*asked, mixed=mixed)
    assert (layout.rows, layout.positions, layout.longs) == (rows, positions, longs)
    assert layout.total <= max(asked[3], layout.longest)
    own, spare = layout.slots
    ends = [slot.first + slot.positions for slot in (*own, *spare)]
    assert ([slot.first for slot in (*own, *spare)], ends[-1]) == ([0, *ends[:-1]], layout.total)
    assert all(slot.positions >= asked[1] + asked[2] + CHECK_EVERY for slot in spare or own)
    # Where the heads of a slot begin
    assert Slot(first=20, positions=5).starts(heads=3) == [60, 65, 70]

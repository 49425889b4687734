"""The size of a transaction on a slow link, and the time that a record has."""

from __future__ import annotations

import pytest

from sidecar.engine.partition import Partition
from sidecar.runtime.transaction.pace import BYTES_MAX, ITEMS_MAX, LARGE_BYTES, QUICK_S, SLOW_S, Pace, fewer
from tests.clocks import NOW_MS


@pytest.mark.parametrize(
    ("rate", "size"), [(200_000, 1_500), (20_000, 1_500), (2_000, 1_500), (250, 1_500), (10_000, 100_000)]
)
def test_all_of_it_arrives_at_any_rate_above_one_message_per_transaction_time(rate: int, size: int) -> None:
    """A transaction fails when it takes longer than 6 seconds, one of a large message after 18."""
    pace, left, seconds, failures = Pace(), 1_200, 0.0, 0
    while left:
        items = min(left, pace.items_max, max(1, pace.bytes_max // size))
        took, carried = items * size / rate, items * size
        limit = 18.0 if 0 < pace.slow_bytes <= carried else 6.0
        if took > limit:
            failures += 1
            seconds += limit
            pace.failed(limit, items, carried, unknown=False)
        else:
            seconds += took
            left -= items
            pace.committed(took, items, carried, more=left > 0)
        assert failures < 12, "it does not time out again and again"
    assert seconds < 1_200 * size / rate + 12 * 18


def test_what_was_slow_by_chance_is_soon_made_up_for() -> None:
    pace = Pace()
    for _ in range(20):
        pace.failed(SLOW_S + 1, pace.items_max, LARGE_BYTES + 1, unknown=False)
    assert (pace.items_max, pace.slow_bytes) == (1, LARGE_BYTES + 1)
    for _ in range(15):
        pace.committed(0.1, pace.items_max, LARGE_BYTES + 1, more=True)
    assert (pace.items_max, pace.bytes_max, pace.slow_bytes) == (ITEMS_MAX, BYTES_MAX, 0)


def test_a_large_message_that_is_late_by_itself_needs_the_longest_time_until_as_much_was_quick() -> None:
    pace = Pace()
    pace.failed(SLOW_S + 1, 1, 50_000, unknown=False)
    assert pace.slow_bytes == 50_000
    pace.committed(0.1, 1, 49_999, more=False)
    assert pace.slow_bytes == 50_000, "a smaller one says nothing about it"
    pace.committed(SLOW_S + 1, 1, 50_000, more=False)
    assert pace.slow_bytes == 50_000, "it did need that time"
    pace.committed(SLOW_S, 1, 50_000, more=False)
    assert pace.slow_bytes == 0


def test_a_message_that_had_the_longest_time_is_not_late_because_of_the_link() -> None:
    pace = Pace()
    pace.failed(SLOW_S + 1, 1, 50_000, unknown=False)
    pace.failed(18.0, 1, 50_000, unknown=False)
    assert pace.slow_bytes == 0


@pytest.mark.parametrize(("items", "size"), [(1, LARGE_BYTES), (2, 1_000_000)])
def test_a_small_message_or_one_of_several_never_needs_the_longest_time(items: int, size: int) -> None:
    pace = Pace()
    pace.failed(SLOW_S + 1, items, size, unknown=False)
    assert pace.slow_bytes == 0


def test_quick_transactions_that_had_all_there_was_say_nothing_about_larger_ones() -> None:
    pace = Pace()
    pace.failed(SLOW_S + 1, 8_000, 8_000, unknown=False)
    pace.committed(QUICK_S / 2, 5, 5, more=False)
    assert pace.items_max == 2_000


def test_a_transaction_that_fails_at_once_says_nothing_about_the_link_unless_its_outcome_is_unknown() -> None:
    pace = Pace()
    pace.failed(0.1, 8_000, 8_000, unknown=False)
    assert pace.items_max == ITEMS_MAX
    pace.failed(0.1, 8_000, 8_000, unknown=True)
    assert pace.items_max == 2_000


def test_with_one_message_each_transaction_takes_one_in_or_fires_one_in_turn() -> None:
    idle, due = Partition(0), Partition(1)
    due.next_due_ms = NOW_MS - 1
    for fire_first in (True, False):
        share = fewer([idle, due], {0, 1}, 1, NOW_MS, fire_first=fire_first)
        assert (share.partitions, share.ingest, share.fire_due) == ([idle], [0], False), "nothing is due there"
        share = fewer([due, idle], {0, 1}, 1, NOW_MS, fire_first=fire_first)
        assert (share.partitions, share.ingest, share.fire_due) == ([due], [] if fire_first else [1], fire_first)
    assert fewer([idle, due], {0, 1}, 2, NOW_MS, fire_first=False) == ([idle, due], [0, 1], True)
    assert fewer([idle, due], (), 1, NOW_MS, fire_first=False) == ([due], [], True)

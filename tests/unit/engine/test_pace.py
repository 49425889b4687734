"""The size of a transaction on a slow link."""

from __future__ import annotations

import pytest

from sidecar.engine.partition import Partition
from sidecar.runtime.transaction.pace import BYTES_MAX, ITEMS_MAX, QUICK_S, SLOW_S, Pace, fewer
from tests.clocks import NOW_MS


@pytest.mark.parametrize("rate", [200_000, 20_000, 2_000, 100], ids=lambda rate: f"{rate} bytes a second")
def test_all_of_it_arrives_at_any_rate_above_one_message_per_transaction_time(rate: int) -> None:
    """1,500 bytes each, of a transaction that fails when it takes longer than 8 seconds, of one message than 18."""
    pace, left, seconds, failures = Pace(), 12_000, 0.0, 0
    while left:
        items = min(left, pace.items_max, max(1, pace.bytes_max // 1_500))
        took = items * 1_500 / rate
        limit = 18.0 if pace.alone else 8.0
        if took > limit:
            failures += 1
            seconds += limit
            pace.failed(limit, items, unknown=False)
        else:
            seconds += took
            left -= items
            pace.committed(took, items, more=left > 0)
        assert failures < 12, "it does not run into the same time-out again and again"
    assert seconds < 12_000 * 1_500 / rate + 12 * 18


def test_what_was_slow_by_chance_is_soon_made_up_for() -> None:
    pace = Pace()
    for _ in range(20):
        pace.failed(SLOW_S + 1, pace.items_max, unknown=False)
    assert (pace.items_max, pace.alone) == (1, True)
    for _ in range(15):
        pace.committed(0.1, pace.items_max, more=True)
    assert (pace.items_max, pace.bytes_max, pace.alone) == (ITEMS_MAX, BYTES_MAX, False)


def test_quick_transactions_that_had_all_there_was_say_nothing_about_larger_ones() -> None:
    pace = Pace()
    pace.failed(SLOW_S + 1, 8_000, unknown=False)
    pace.committed(QUICK_S / 2, 5, more=False)
    assert pace.items_max == 2_000


def test_a_transaction_that_fails_at_once_says_nothing_about_the_link_unless_its_outcome_is_unknown() -> None:
    pace = Pace()
    pace.failed(0.1, 8_000, unknown=False)
    assert pace.items_max == ITEMS_MAX
    pace.failed(0.1, 8_000, unknown=True)
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

"""What a consumer may commit, for any order in which its messages are done."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from retry_sidecar import Consumed, RepeatFilter, Result, RetryingStopped
from retry_sidecar.headers import Header
from retry_sidecar.progress import Progress


def message(offset: int, *headers: Header, topic: str = "orders") -> Consumed:
    """Return a message of partition 0."""
    return Consumed(topic, 0, offset, None, None, list(headers))


def delivery(offset: int, timer_id: bytes, group: bytes = b"shop", origin: bytes = b"orders") -> Consumed:
    """Return what a sidecar delivers."""
    return message(offset, ("retry-origin-topic", origin), ("retry-group", group), ("retry-timer-id", timer_id))


@given(st.permutations(range(8)), st.integers(0, 8))
def test_no_offset_is_committed_beyond_a_message_that_is_not_done(order: list[int], done: int) -> None:
    progress = Progress("shop", 10)
    for offset in range(8):
        assert progress.begin(message(offset)) is None
    for offset in order[:done]:
        progress.finish(message(offset))
    first_open = min(order[done:], default=8)
    assert progress.offsets() == ({("orders", 0): first_open} if done else {})


def test_a_committed_offset_is_forgotten_unless_the_partition_has_come_further() -> None:
    progress = Progress("shop", 10)
    for offset in (0, 1):
        progress.begin(message(offset))
    progress.finish(message(0))
    taken = progress.offsets()
    progress.finish(message(1))
    progress.committed(taken)
    assert progress.offsets() == {("orders", 0): 2}
    progress.committed(progress.offsets())
    assert progress.offsets() == {}


def test_a_delivery_for_another_group_is_skipped_and_committed() -> None:
    progress = Progress("shop", 10)
    assert progress.begin(delivery(5, b"0-1-2", group=b"billing")) is Result.OTHER_GROUP
    assert progress.offsets() == {("orders", 0): 6}


def test_a_repeat_is_skipped_only_when_the_first_one_is_done() -> None:
    progress = Progress("shop", 10)
    assert progress.begin(delivery(5, b"0-1-2")) is None
    assert progress.begin(delivery(6, b"0-1-2")) is None
    progress.finish(delivery(5, b"0-1-2"))
    assert progress.begin(delivery(7, b"0-1-2")) is Result.REPEAT
    assert progress.begin(delivery(8, b"0-3-4")) is None


def test_a_timer_id_that_was_copied_from_another_topic_is_no_repeat() -> None:
    repeats = RepeatFilter()
    repeats.add(delivery(0, b"0-1-2"))
    assert repeats.is_repeat(delivery(1, b"0-1-2"))
    assert not repeats.is_repeat(delivery(1, b"0-1-2", origin=b"shipments"))
    assert not repeats.is_repeat(message(1))


def test_a_filter_remembers_the_newest_timer_ids() -> None:
    repeats = RepeatFilter(2)
    for number in (b"1", b"2", b"3"):
        repeats.add(delivery(0, number))
    assert [repeats.is_repeat(delivery(0, number)) for number in (b"1", b"2", b"3")] == [False, True, True]
    none = RepeatFilter(0)
    none.add(delivery(0, b"1"))
    assert not none.is_repeat(delivery(0, b"1"))
    with pytest.raises(ValueError, match="remember=-1: allowed are 0"):
        RepeatFilter(-1)


def test_nothing_begins_after_a_stop_and_the_first_reason_stays() -> None:
    progress = Progress("shop", 10)
    progress.begin(message(3))
    progress.stop("orders-0@3 failed with KeyError")
    progress.stop("later")
    with pytest.raises(RetryingStopped, match="orders-0@3 failed with KeyError"):
        progress.begin(message(4))
    assert progress.offsets() == {}

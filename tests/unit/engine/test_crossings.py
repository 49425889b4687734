"""Which timers of a lane may have to wait."""

from __future__ import annotations

from sidecar.engine.crossings import BUCKETS, Crossings, bucket_of
from sidecar.engine.rows import Rows, encode_due, lane_of

LANE = lane_of("orders", b"k")


def known() -> Crossings:
    crossings = Crossings()
    crossings.read([], 1)
    return crossings


def rows(*timers: tuple[bytes, int, int]) -> list[tuple[bytes, bytes]]:
    return sorted((Rows(0).lane_row(lane, offset), encode_due(due_ms)) for lane, offset, due_ms in timers)


def test_timers_in_the_order_of_their_dues_do_not_wait() -> None:
    crossings = known()
    for due_ms in (5, 5, 9):
        crossings.append(LANE, due_ms)
    assert not any(crossings.may_wait(LANE, due_ms) for due_ms in (5, 9))


def test_a_timer_waits_up_to_the_due_of_an_earlier_one() -> None:
    crossings = known()
    crossings.append(LANE, 9)
    crossings.append(LANE, 5)
    assert crossings.may_wait(LANE, 5)
    assert not crossings.may_wait(LANE, 9)


def test_a_timer_that_is_stored_again_may_be_ahead_of_any_other() -> None:
    crossings = known()
    crossings.append(LANE, 5)
    crossings.insert(LANE, 9)
    assert crossings.may_wait(LANE, 8)


def test_another_bucket_knows_nothing_of_it() -> None:
    other = next(
        each for each in (lane_of("orders", b"%d" % n) for n in range(9)) if bucket_of(each) != bucket_of(LANE)
    )
    crossings = known()
    crossings.insert(LANE, 9)
    crossings.append(other, 5)
    assert not crossings.may_wait(other, 5)


def test_nothing_is_known_until_the_index_is_read_to_its_end() -> None:
    crossings = Crossings()
    slices = rows((LANE, 1, 7), (LANE, 2, 9), (LANE, 3, 8))
    crossings.read(slices[:2], 2)
    assert crossings.may_wait(LANE, 10**9)
    assert crossings.read_from == slices[1][0] + b"\0"
    crossings.read(slices[2:], 2)
    assert crossings.may_wait(LANE, 8)
    assert not crossings.may_wait(LANE, 9)


def test_lanes_of_one_bucket_do_not_cross_in_the_index() -> None:
    many = [lane_of("orders", b"%d" % number) for number in range(2 * BUCKETS)]
    shared = next(each for each in many if bucket_of(each) == bucket_of(LANE))
    crossings = Crossings()
    crossings.read(rows((LANE, 1, 7), (shared, 2, 9)), 9)
    assert not any(crossings.may_wait(lane, due_ms) for lane in (LANE, shared) for due_ms in (7, 8))

"""Limits learnt from topics that refuse large records."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from sidecar.changelog.codec import CHECKPOINT_KEY, BlockKey, block_key, encode_block
from sidecar.changelog.entry import MOVING, lasting
from sidecar.engine.ports import Outgoing
from sidecar.engine.rows import Identity
from sidecar.engine.transaction import Plan
from sidecar.kafka.producer import Refusal, Refused, Unwritten
from sidecar.runtime.transaction.commit import Result, Work
from sidecar.runtime.transaction.oversize import Oversize
from tests.clocks import NOW_MS

DLQ, CHANGELOG, STATUS = "dlq", "changelog", "status"
LIMIT = 300_000
WORK = Work(Plan(NOW_MS, [], frozenset()), {}, b"", Identity("", ""), "retry", CHANGELOG, STATUS)
RESULT = Result(WORK, 0.1, batch_bytes=100_000)


def refused(number: int, size: int, topic: str = "orders", target: int = 0) -> Refused:
    outgoing = Outgoing(topic, -1, None, bytes(size), [], NOW_MS, b"%016d" % number)
    return Refused(3, outgoing, Refusal.LARGE, "too large", target)


def block(*offsets: int, size: int = 10, partition_plan: int = 0) -> Unwritten:
    entries = [
        MOVING.pack(NOW_MS, offset, NOW_MS, 0, 0)
        + lasting(NOW_MS, NOW_MS, 0, 3, 1, b"orders", None, None, bytes(size), [])
        for offset in offsets
    ]
    value = encode_block(0, {"orders": (len(entries), 0)}, entries)
    return Unwritten(CHANGELOG, 3, block_key(BlockKey(NOW_MS, 1, partition_plan)), value)


def learn(
    oversize: Oversize, *records: Refused, unwritten: Sequence[Unwritten] = (), batch_bytes: int = 100_000
) -> tuple[list[int], list[int]]:
    result = dataclasses.replace(RESULT, refused=records, unwritten=unwritten, batch_bytes=batch_bytes)
    fires, dead_letters = oversize.learn(result, (DLQ,), lambda _: LIMIT)
    return [int(each.outgoing.source) for each in fires], [int(each.outgoing.source) for each in dead_letters]


def unstorable(oversize: Oversize) -> set[tuple[int, int]]:
    """Return partition and offset of the timers that the changelog refused."""
    return {(partition, offset) for partition, offset, _ in oversize.unstorable}


def test_a_record_larger_than_a_batch_was_one_by_itself_and_so_was_the_only_one_that_a_partition_refused() -> None:
    oversize = Oversize()
    assert learn(oversize, refused(1, 100_001), refused(2, 200_000)) == ([1, 2], [])
    assert learn(oversize, refused(3, 10), refused(4, 10, target=1)) == ([3, 4], [])
    assert not oversize.singly


def test_of_a_batch_that_is_refused_each_record_is_tried_as_a_batch_by_itself() -> None:
    oversize = Oversize()
    assert learn(oversize, refused(1, 10), refused(2, 10)) == ([], [])
    assert oversize.singly
    assert learn(oversize, refused(1, 10), refused(2, 10), batch_bytes=1) == ([1, 2], [])


def test_a_dead_letter_is_cut_to_the_limit_then_to_a_lower_one_then_to_the_bone_then_it_waits() -> None:
    oversize = Oversize()
    place = (3, b"%016d" % 7)
    for limit, cut, hopeless in (
        (300_000, 300_000, []),
        (900, 900, []),
        (900, 0, []),
        (900, None, [7]),
        (10**6, 10**6, []),
    ):
        result = dataclasses.replace(RESULT, refused=[refused(7, 400_000, DLQ)])
        fires, dead_letters = oversize.learn(result, (DLQ,), {DLQ: limit}.__getitem__)
        assert (fires, [int(each.outgoing.source) for each in dead_letters]) == ([], hopeless)
        assert oversize.cut_dead_letters.get(place) == cut


def test_a_timer_alone_in_a_block_that_the_changelog_refuses_cannot_be_stored() -> None:
    oversize = Oversize()
    learn(oversize, unwritten=[block(5)])
    assert unstorable(oversize) == {(3, 5)}
    assert not oversize.singly


def test_of_a_block_of_several_each_is_tried_as_a_block_by_itself() -> None:
    oversize = Oversize()
    learn(oversize, unwritten=[block(5, 6)])
    assert (oversize.unstorable, oversize.singly) == ({}, True)
    learn(oversize, unwritten=[block(5, size=50), block(6, size=50, partition_plan=1)], batch_bytes=1)
    assert unstorable(oversize) == {(3, 5), (3, 6)}


def test_a_checkpoint_that_is_too_large_says_nothing_about_any_message() -> None:
    oversize = Oversize()
    learn(oversize, unwritten=[Unwritten(CHANGELOG, 3, CHECKPOINT_KEY, bytes(50))], batch_bytes=1)
    assert (oversize.unstorable, oversize.cut_dead_letters) == ({}, {})
    assert oversize.stuck.keys() == {3}


def test_a_timer_that_is_stored_again_though_the_changelog_refused_it_holds_its_partition_back() -> None:
    oversize = Oversize()
    learn(oversize, unwritten=[block(5, size=50)])
    assert not oversize.stuck
    learn(oversize, unwritten=[block(5, 6)])
    assert not oversize.stuck, "the other one may be too large"
    learn(oversize, unwritten=[block(5, size=50)], batch_bytes=1)
    assert oversize.stuck.keys() == {3}
    learn(oversize, refused(1, 100_001))
    assert not oversize.stuck, "it was not this transaction's fault"


def test_an_answer_that_the_status_topic_does_not_take_is_left_out() -> None:
    oversize = Oversize()
    learn(oversize, unwritten=[Unwritten(STATUS, 3, b"o/x/1", bytes(50))])
    assert oversize.unanswerable == {(3, b"o/x/1")}


def test_what_was_learnt_of_a_partition_is_forgotten_with_it() -> None:
    oversize = Oversize()
    learn(oversize, refused(7, 400_000, DLQ), unwritten=[block(5), Unwritten(STATUS, 3, b"o/x/1", b"")])
    oversize.clear({2})
    assert all((oversize.cut_dead_letters, oversize.unstorable, oversize.unanswerable))
    oversize.clear({3})
    assert not any((oversize.cut_dead_letters, oversize.unstorable, oversize.unanswerable))

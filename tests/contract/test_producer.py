"""The transactional producer: what is seen, what is refused and in which words, who is fenced."""

from __future__ import annotations

import pytest

from sidecar.engine.ports import Outgoing
from sidecar.errors import InvariantViolated, TransactionFailed
from sidecar.kafka.admin.offsets import Committed
from sidecar.kafka.producer import Refusal
from sidecar.model import ANY_PARTITION
from sidecar.runtime.ports import Producer
from tests.contract.side import Listener, Side, drained

pytestmark = pytest.mark.broker

LIMIT = 3_000


def outgoing(
    topic: str, value: bytes | None, key: bytes | None = b"k", partition: int = 0, number: int = 0
) -> Outgoing:
    return Outgoing(topic, partition, key, value, [("h", b"1"), ("h", None)], 0, number.to_bytes(16, "big"))


def begun(side: Side, transactional_id: str = "") -> Producer:
    producer = side.producer(transactional_id or side.name("tid"))
    producer.init(30.0)
    producer.begin()
    return producer


class TestProducer:
    def test_what_is_committed_is_seen_and_what_is_aborted_is_not(self, side: Side) -> None:
        side.create(side.changelog, 2)
        producer = begun(side)
        drained(producer.write_changelog(side.changelog, 1, [(b"a", b"lost")]))
        producer.abort()
        producer.begin()
        drained(producer.write_changelog(side.changelog, 1, [(b"a", b"1"), (b"b", None)]))
        drained(producer.write_changelog(side.changelog, 0, [(b"c", b"3")]))
        producer.commit()
        assert producer.claim()
        seen = side.committed(side.changelog, lambda found: len(found) >= 3)
        assert [each[:3] for each in seen] == [(0, b"c", b"3"), (1, b"a", b"1"), (1, b"b", None)]

    def test_the_next_changelog_offset_is_the_one_behind_what_was_written(self, side: Side) -> None:
        side.create(side.changelog, 1)
        producer = begun(side)
        drained(producer.write_changelog(side.changelog, 0, [(b"a", b"1"), (b"b", b"2")]))
        producer.commit()
        assert dict(producer.next_changelog_offsets) == {0: 2}
        producer.begin()
        drained(producer.write_changelog(side.changelog, 0, [(b"c", b"3")]))
        producer.commit()
        assert dict(producer.next_changelog_offsets) == {0: 4}, "a marker lies between"

    def test_a_delivery_keeps_key_value_and_headers(self, side: Side) -> None:
        origin = side.name("origin")
        side.create(origin, 2)
        producer = begun(side)
        drained(producer.write_outgoing(0, [outgoing(origin, None, None, 1)], traced=True))
        producer.commit()
        (seen,) = side.committed(origin, lambda found: len(found) >= 1)
        assert seen == (1, None, None, [("h", b"1"), ("h", None)])
        assert producer.delivered_to == {(origin, 1)}

    def test_a_delivery_that_is_too_large_is_named_with_its_partition(self, side: Side) -> None:
        origin = side.name("origin")
        side.create(origin, 2, LIMIT)
        producer = begun(side)
        drained(producer.write_outgoing(5, [outgoing(origin, b"v" * LIMIT, partition=1)], traced=True))
        with pytest.raises(TransactionFailed) as failed:
            producer.commit()
        assert (failed.value.unknown, failed.value.fenced) == (False, False)
        (refused,) = producer.refused
        assert (refused.partition, refused.why, refused.target) == (5, Refusal.LARGE, 1)

    def test_a_batch_that_is_too_large_is_refused_whole(self, side: Side) -> None:
        origin = side.name("origin")
        side.create(origin, 1, LIMIT)
        producer = begun(side)
        records = [outgoing(origin, b"v" * 1_000, number=number) for number in range(4)]
        drained(producer.write_outgoing(0, records, traced=True))
        with pytest.raises(TransactionFailed):
            producer.commit()
        assert {each.why for each in producer.refused} == {Refusal.LARGE}
        assert len(producer.refused) == 4

    def test_small_batches_fit_a_small_topic(self, side: Side) -> None:
        origin = side.name("origin")
        side.create(origin, 1, LIMIT)
        producer = side.producer(side.name("tid"), LIMIT - 500)
        producer.init(30.0)
        producer.begin()
        records = [outgoing(origin, b"v" * 1_000, number=number) for number in range(4)]
        drained(producer.write_outgoing(0, records, traced=True))
        producer.commit()
        assert len(side.committed(origin, lambda found: len(found) >= 4)) == 4

    def test_a_changelog_record_that_is_too_large_is_handed_back(self, side: Side) -> None:
        side.create(side.changelog, 1, LIMIT)
        producer = begun(side)
        drained(producer.write_changelog(side.changelog, 0, [(b"a", b"v" * LIMIT)]))
        with pytest.raises(TransactionFailed) as failed:
            producer.commit()
        assert (failed.value.unknown, failed.value.replace) == (False, True)
        assert [(each.topic, each.partition, each.key) for each in producer.unwritten] == [(side.changelog, 0, b"a")]

    def test_a_record_without_a_key_has_its_whole_batch_refused_in_a_compacted_topic(self, side: Side) -> None:
        origin = side.name("origin")
        side.create(origin, 1, compacted=True)
        producer = begun(side)
        records = [outgoing(origin, b"v", None if number == 1 else b"k", number=number) for number in range(4)]
        drained(producer.write_outgoing(0, records, traced=True))
        with pytest.raises(TransactionFailed):
            producer.commit()
        assert [each.why for each in producer.refused] == [Refusal.NAMED] * 4
        assert not producer.accepted

    def test_a_partition_that_a_topic_does_not_have_refuses_one_record(self, side: Side) -> None:
        origin = side.name("origin")
        side.create(origin, 1)
        producer = begun(side)
        drained(producer.write_outgoing(0, [outgoing(origin, b"v")], traced=True))
        drained(producer.write_outgoing(0, [outgoing(origin, b"v", partition=7)], traced=True))
        if not producer.refused:  # the library looked the topic up only now
            with pytest.raises(TransactionFailed):
                producer.commit()
        assert [each.why for each in producer.refused] == [Refusal.GONE]

    def test_what_would_go_unchecked_by_the_broker_is_a_bug(self, side: Side) -> None:
        side.create(side.changelog, 1)
        producer = side.producer(side.name("tid"))
        with pytest.raises(InvariantViolated, match="before older producers are fenced"):
            producer.begin()
        producer.init(30.0)
        producer.begin()
        with pytest.raises(InvariantViolated, match="while the one before is open"):
            producer.begin()
        for offsets in ({}, {0: -1001}):
            with pytest.raises(InvariantViolated, match="commits no offsets"):
                producer.send_offsets(side.topic, offsets, b"")
        drained(producer.write_changelog(side.changelog, 0, [(b"a", b"1")]))
        producer.commit()
        assert producer.next_changelog_offsets == {0: 1}

    def test_a_newer_producer_of_the_same_id_fences_the_older_one(self, side: Side) -> None:
        side.create(side.changelog, 1)
        transactional_id = side.name("tid")
        origin = side.name("origin")
        side.create(origin, 1)
        older = begun(side, transactional_id)
        drained(older.write_changelog(side.changelog, 0, [(b"a", b"older")]))
        drained(older.write_outgoing(0, [outgoing(origin, b"v")], traced=True))
        newer = side.producer(transactional_id)
        newer.init(30.0)
        with pytest.raises(TransactionFailed) as failed:
            older.commit()
        assert failed.value.replace
        assert not older.refused, "a fence is no fault of a record"
        assert not older.unwritten_for
        newer.begin()
        drained(newer.write_changelog(side.changelog, 0, [(b"a", b"newer")]))
        newer.commit()
        assert [each.value for each in side.committed(side.changelog, lambda found: len(found) >= 1)] == [b"newer"]

    def test_offsets_of_a_member_that_left_are_refused_and_the_producer_lives_on(self, side: Side) -> None:
        side.create(side.topic, 1)
        side.create(side.changelog, 1)
        listener = Listener()
        former = side.consumer(listener)

        def member() -> bytes | None:
            for records in former.poll(10, 0.1):
                assert not list(records)
            return former.membership() if listener.owned else None

        stale = side.eventually(member, "a member has joined")
        assert stale is not None
        former.close()
        other = Listener()
        later = side.consumer(other)

        def joined() -> bool:
            for records in later.poll(10, 0.1):
                assert not list(records)
            return bool(other.owned)

        side.eventually(joined, "another member has joined")
        producer = begun(side)
        drained(producer.write_changelog(side.changelog, 0, [(b"a", b"1")]))
        with pytest.raises(TransactionFailed) as failed:
            producer.send_offsets(side.topic, {0: 0}, stale)
        assert (failed.value.unknown, failed.value.replace) == (False, False)
        producer.abort()
        producer.begin()
        drained(producer.write_changelog(side.changelog, 0, [(b"a", b"2")]))
        fresh = later.membership()
        assert fresh is not None
        producer.send_offsets(side.topic, {0: 3}, fresh, {0: "of a checkpoint"})
        producer.commit()
        assert [each.value for each in side.committed(side.changelog, lambda found: len(found) >= 1)] == [b"2"]
        asked = side.brokers().committed(side.topic, [0])
        side.eventually(asked.done, "the group's offsets are told")
        assert dict(asked.result()) == {0: Committed(3, "of a checkpoint")}

    def test_a_key_chooses_the_same_partition_each_time(self, side: Side) -> None:
        origin = side.name("origin")
        side.create(origin, 4)
        producer = begun(side)
        records = [outgoing(origin, b"v", b"one key", ANY_PARTITION, number) for number in range(5)]
        drained(producer.write_outgoing(0, records, traced=True))
        producer.commit()
        seen = side.committed(origin, lambda found: len(found) >= 5)
        assert len({each.partition for each in seen}) == 1

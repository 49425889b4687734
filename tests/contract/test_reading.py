"""Consumer, changelog reader, and what a recovery asks: who sees what, from where, and what of an open transaction."""

from __future__ import annotations

import pytest

from sidecar.engine.delivered import Delivery
from sidecar.engine.ports import Outgoing
from sidecar.engine.restore import ChangelogRead
from sidecar.kafka.admin.offsets import Bounds, Committed
from sidecar.kafka.origin_search import Found, Wanted
from sidecar.model import ANY_PARTITION, Headers, Record, StoredOffset
from sidecar.runtime.ports import ChangelogReader, Consumer, Producer
from tests.contract.side import Listener, Side, drained

pytestmark = pytest.mark.broker


def polled(consumer: Consumer) -> list[Record]:
    return [record for records in consumer.poll(100, 0.1) for record in records]


def polled_once(consumer: Consumer) -> list[Record]:
    return [record for records in consumer.poll(100, 0.001) for record in records]


def joined(side: Side, consumer: Consumer, listener: Listener, partitions: int) -> None:
    """Poll until so many partitions are assigned; nothing is read meanwhile."""

    def ask() -> bool:
        assert not polled(consumer), "read before it was told from where"
        return len(listener.owned) == partitions and consumer.membership() is not None

    side.eventually(ask, "the consumer has joined")


def collected(side: Side, consumer: Consumer, count: int) -> list[Record]:
    found: list[Record] = []

    def ask() -> bool:
        found.extend(polled(consumer))
        return len(found) >= count

    side.eventually(ask, f"{count} records are read")
    return found


class TestConsumer:
    def test_partitions_come_paused_and_are_read_from_where_they_are_sought(self, side: Side) -> None:
        side.create(side.topic, 2)
        for number in range(3):
            side.send(side.topic, 1, b"k", b"%d" % number, [("a", None), ("a", b"1")])
        listener = Listener()
        consumer = side.consumer(listener)
        assert consumer.membership() is None
        joined(side, consumer, listener, 2)
        consumer.seek(1, 1)
        assert not polled(consumer)
        consumer.resume([1])
        found = collected(side, consumer, 2)
        assert [(each.partition, each.offset, each.value) for each in found] == [(1, 1, b"1"), (1, 2, b"2")]
        assert found[0].headers == [("a", None), ("a", b"1")]
        assert found[0].timestamp_ms > 0

    def test_membership_begins_when_the_partitions_are_known(self, side: Side) -> None:
        side.create(side.topic, 2)
        listener = Listener()
        consumer = side.consumer(listener)

        def is_member() -> bool:
            # Many times in a row, since a member is told its partitions some milliseconds after it has joined.
            return any(not polled_once(consumer) and consumer.membership() is not None for _ in range(200))

        side.eventually(is_member, "it is a member")
        assert len(listener.owned) == 2

    def test_what_is_paused_is_not_read_until_it_is_resumed(self, side: Side) -> None:
        side.create(side.topic, 1)
        listener = Listener()
        consumer = side.consumer(listener)
        joined(side, consumer, listener, 1)
        consumer.seek(0, 0)
        consumer.resume([0])
        side.send(side.topic, 0, None, b"first")
        assert [each.value for each in collected(side, consumer, 1)] == [b"first"]
        consumer.pause([0])
        side.send(side.topic, 0, None, b"second")
        assert not [record for _ in range(5) for record in polled(consumer)]
        consumer.resume([0])
        assert [each.value for each in collected(side, consumer, 1)] == [b"second"]

    def test_a_position_that_the_log_does_not_have_is_told(self, side: Side) -> None:
        side.create(side.topic, 1)
        listener = Listener()
        consumer = side.consumer(listener)
        joined(side, consumer, listener, 1)
        consumer.seek(0, 50)
        consumer.resume([0])

        def lost() -> bool:
            assert not polled(consumer)
            return listener.offsets_lost == [0]

        side.eventually(lost, "the lost position is told")

    def test_an_aborted_or_open_transaction_is_not_read(self, side: Side) -> None:
        side.create(side.topic, 1)
        producer = side.producer(side.name("tid"))
        producer.init(30.0)
        producer.begin()
        drained(producer.write_changelog(side.topic, 0, [(b"a", b"aborted")]))
        producer.abort()
        side.send(side.topic, 0, b"b", b"seen")
        listener = Listener()
        consumer = side.consumer(listener)
        joined(side, consumer, listener, 1)
        consumer.seek(0, 0)
        consumer.resume([0])
        assert [each.value for each in collected(side, consumer, 1)] == [b"seen"]

    def test_a_member_that_leaves_gives_its_partitions_to_the_others(self, side: Side) -> None:
        side.create(side.topic, 2)
        one, two = Listener(), Listener()
        first, second = side.consumer(one), side.consumer(two)

        def shared() -> bool:
            polled(first)
            polled(second)
            return len(one.owned) == len(two.owned) == 1

        side.eventually(shared, "both have a partition")
        assert one.owned.isdisjoint(two.owned)
        first.close()
        assert not one.owned

        def all_of_them() -> bool:
            polled(second)
            return two.owned == {0, 1}

        side.eventually(all_of_them, "the other has both")

    def test_a_static_member_takes_over_from_the_one_that_has_its_id(self, side: Side) -> None:
        side.create(side.topic, 2)
        one, two = Listener(), Listener()
        first = side.consumer(one, "an-id")
        joined(side, first, one, 2)
        second = side.consumer(two, "an-id")
        joined(side, second, two, 2)
        second.close()

        def fenced() -> bool:
            polled(first)
            return one.lost_partitions == {0, 1}

        side.eventually(fenced, "the first one lost its partitions")


class TestBrokers:
    def test_nothing_is_committed_at_first(self, side: Side) -> None:
        side.create(side.topic, 2)

        def told() -> dict[int, Committed | None]:
            """Ask until the group's coordinator has all of them: a question too early leaves partitions out."""
            asked = side.brokers().committed(side.topic, [0, 1])
            side.eventually(asked.done, "the question is answered")
            return dict(asked.result())

        assert side.eventually(lambda: len(found := told()) == 2 and found, "the offsets are told") == {
            0: None,
            1: None,
        }

    def test_an_open_transaction_on_one_partition_does_not_keep_the_others_from_their_answer(self, side: Side) -> None:
        side.create(side.topic, 2)
        listener = Listener()
        consumer = side.consumer(listener)
        joined(side, consumer, listener, 2)
        membership = consumer.membership()
        assert membership is not None
        transactional_id = side.name("tid")

        def told() -> dict[int, Committed | None]:
            """Ask while a transaction is open; the one before ends with its producer."""
            producer = side.producer(transactional_id)
            producer.init(30.0)
            for partition, ends in ((0, True), (1, False)):
                producer.begin()
                producer.send_offsets(side.topic, {partition: 5}, membership)
                if ends:
                    producer.commit()
            asked = side.brokers().committed(side.topic, [0, 1])
            side.eventually(asked.done, "the question is answered")
            return dict(asked.result())

        assert side.eventually(lambda: told() == {0: Committed(5, "")}, "the other partition is told")

    def test_bounds_count_what_is_not_committed_and_markers_too(self, side: Side) -> None:
        side.create(side.changelog, 2)
        producer = side.producer(side.name("tid"))
        producer.init(30.0)
        producer.begin()
        drained(producer.write_changelog(side.changelog, 0, [(b"a", b"1"), (b"b", b"2")]))
        producer.commit()
        brokers = side.brokers()

        def ends() -> bool:
            asked = brokers.bounds({side.changelog: [0, 1]})
            side.eventually(asked.done, "the bounds are told")
            found = asked.result()
            assert tuple(found[side.changelog, 1]) == (0, 0)
            return tuple(found[side.changelog, 0]) == (0, 3)

        side.eventually(ends, "the marker is written")

    def test_a_topic_that_was_made_again_has_another_id(self, side: Side) -> None:
        side.create(side.topic, 1)
        brokers = side.brokers()

        def told() -> str:
            asked = brokers.topics([side.topic])
            side.eventually(asked.done, "the topic is told")
            return "" if asked.errors([0]) else asked.id_of(side.topic)

        before = side.eventually(told, "the id is told")
        side.recreate(side.topic, 1)
        side.eventually(lambda: told() not in ("", before), "there is another id")


class TestChangelogReader:
    def read_to(self, side: Side, reader: ChangelogReader, target: int) -> list[ChangelogRead]:
        found: list[ChangelogRead] = []

        def ask() -> bool:
            found.extend(reader.read(0.05).get(0, ()))
            return reader.position(0) >= target

        side.eventually(ask, f"position {target} is reached")
        return found

    def test_committed_records_are_read_up_to_the_end_behind_an_aborted_tail(self, side: Side) -> None:
        side.create(side.changelog, 1)
        producer = side.producer(side.name("tid"))
        producer.init(30.0)
        for value, ends in ((b"1", producer.commit), (b"2", producer.commit), (b"3", producer.abort)):
            producer.begin()
            drained(producer.write_changelog(side.changelog, 0, [(b"a", value)]))
            ends()
        asked = side.brokers().bounds({side.changelog: [0]})
        side.eventually(asked.done, "the bounds are told")
        reader = side.reader()
        reader.start(0, 2)
        found = self.read_to(side, reader, asked.result()[side.changelog, 0].end)
        assert [(each.offset, each.key, each.value) for each in found] == [(2, b"a", b"2")]

    def test_an_offset_that_the_log_does_not_have_is_told_once(self, side: Side) -> None:
        side.create(side.changelog, 1)
        reader = side.reader()
        reader.start(0, 70)

        def lost() -> bool:
            assert not reader.read(0.05)
            return list(reader.take_lost()) == [0]

        side.eventually(lost, "the lost position is told")

    def test_what_is_stopped_is_read_no_more(self, side: Side) -> None:
        side.create(side.changelog, 1)
        side.send(side.changelog, 0, b"a", b"1")
        reader = side.reader()
        reader.start(0, 0)
        self.read_to(side, reader, 1)
        reader.stop(0)
        side.send(side.changelog, 0, b"b", b"2")
        assert not [records for _ in range(5) for records in reader.read(0.05).values()]
        reader.start(0, 1)
        assert [each.key for each in self.read_to(side, reader, 2)] == [b"b"]


class TestSearch:
    """Of origins, for what a transaction delivered that was lost in the changelog."""

    def deliver(self, producer: Producer, origin: str, timer: bytes) -> None:
        headers: Headers = [("trace", None), ("retry-timer-id", timer)]
        record = Outgoing(origin, ANY_PARTITION, b"k", b"v", headers, 0, bytes(16))
        drained(producer.write_outgoing(0, [record], traced=False))

    def searched(self, side: Side, *wanted: Wanted) -> Found:
        asked = side.search(wanted)
        side.eventually(asked.done, "the search is over")
        return asked.result()

    def test_what_is_committed_is_found_and_what_was_aborted_or_is_open_is_not(self, side: Side) -> None:
        origin = side.name("orders")
        side.create(side.topic, 1)
        side.create(origin, 2)
        began_ms = side.clock.wall_ms() - 60_000
        producer, other = side.producer(side.name("tid")), side.producer(side.name("tid"))
        for each in (producer, other):
            each.init(30.0)
        for timer, end in ((b"0-1-5", producer.commit), (b"0-2-5", producer.abort), (b"1-3-5", producer.commit)):
            producer.begin()
            self.deliver(producer, origin, timer)
            end()
        side.committed(origin, lambda seen: len(seen) == 2)
        found = self.searched(side, *(Wanted(number, [origin], began_ms, Bounds(0, 0)) for number in (0, 1)))
        assert found.deliveries == {
            0: [Delivery(StoredOffset(1), 5, origin)],
            1: [Delivery(StoredOffset(3), 5, origin)],
        }
        assert found.unread == {}
        later = self.searched(side, Wanted(0, [origin], side.clock.wall_ms() + 60_000, Bounds(0, 0)))
        assert later.deliveries == {0: []}
        other.begin()
        self.deliver(other, origin, b"0-4-5")
        found = self.searched(side, Wanted(0, [origin], began_ms, Bounds(0, 0)))
        assert [each.offset for each in found.deliveries[0]] == [1]

    def test_records_that_are_read_again_name_origins(self, side: Side) -> None:
        origin = side.name("orders")
        side.create(side.topic, 1)
        side.create(origin, 1)
        side.send(side.topic, 0, None, b"v", [("retry-origin-topic", origin.encode())])
        producer = side.producer(side.name("tid"))
        producer.init(30.0)
        producer.begin()
        self.deliver(producer, origin, b"0-0-5")
        producer.commit()
        side.committed(origin, lambda seen: len(seen) == 1)
        found = self.searched(side, Wanted(0, [], side.clock.wall_ms() - 60_000, Bounds(0, 1)))
        assert found.deliveries == {0: [Delivery(StoredOffset(0), 5, origin)]}

    def test_a_topic_that_does_not_exist_is_said(self, side: Side) -> None:
        side.create(side.topic, 1)
        name = side.name("gone")
        assert self.searched(side, Wanted(0, [name], 0, Bounds(0, 0))).unread.keys() == {name}

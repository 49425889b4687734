"""What is looked up and published beside transactions: the catalogue of topics, the watch, the status records."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from sidecar.contract.status import partition_key
from sidecar.engine.group.merge import Start
from sidecar.engine.group.view import PartitionView
from sidecar.engine.partition import Partition, State
from sidecar.engine.ports import Origin
from sidecar.kafka.admin.marker_watch import MarkerWatch
from sidecar.kafka.admin.topic_watch import TopicWatch
from sidecar.kafka.clock_guard import ClockGuard
from sidecar.runtime.ports import Catalogue, Status
from sidecar.runtime.reporting.starts import OwnStart
from sidecar.runtime.reporting.status import StatusPublisher
from tests.contract.side import Seen, Side, drained

pytestmark = pytest.mark.broker


class TestCatalogue:
    def look(self, side: Side, catalogue: Catalogue, name: str, *, exists: bool) -> None:
        """Ask until a definite answer says what is expected; answers may be outdated for a while."""

        def told() -> bool:
            catalogue.advance(side.clock.monotonic_s())
            if name in (catalogue.origins if exists else catalogue.unknown):
                return True
            catalogue.want([name])
            return False

        side.eventually(told, f"the broker says whether {name} exists")

    def test_a_topic_that_exists_has_its_partitions_and_its_limit(self, side: Side) -> None:
        name = side.name("origin")
        side.create(name, 3, 20_000)
        catalogue = side.catalogue()
        self.look(side, catalogue, name, exists=True)
        assert catalogue.origins[name] == Origin(3, 20_000)
        assert name in catalogue.allowed
        assert name not in catalogue.denied
        assert name not in catalogue.unknown
        assert name not in catalogue.leaderless

    def test_a_topic_that_does_not_exist_is_unknown_for_a_short_time(self, side: Side) -> None:
        name = side.name("origin")
        catalogue = side.catalogue()
        self.look(side, catalogue, name, exists=False)
        assert name not in catalogue.origins

        def forgotten() -> bool:
            catalogue.advance(side.clock.monotonic_s())
            return name not in catalogue.unknown

        side.eventually(forgotten, "the answer is too old")

    def test_a_topic_that_is_deleted_is_unknown_when_it_is_looked_up_again(self, side: Side) -> None:
        name = side.name("origin")
        side.create(name, 1)
        catalogue = side.catalogue()
        self.look(side, catalogue, name, exists=True)
        side.delete(name)

        def gone() -> bool:
            catalogue.advance(side.clock.monotonic_s())
            if name not in catalogue.unknown:
                catalogue.invalidate(name)
            return name in catalogue.unknown

        side.eventually(gone, "the topic is unknown")
        assert name not in catalogue.origins

    def test_several_topics_are_told_each_for_itself(self, side: Side) -> None:
        there, missing = side.name("origin"), side.name("origin")
        side.create(there, 2)
        catalogue = side.catalogue()

        def told() -> bool:
            catalogue.advance(side.clock.monotonic_s())
            catalogue.want([there, missing])
            return there in catalogue.origins and missing in catalogue.unknown

        side.eventually(told, "both are told")
        assert missing not in catalogue.origins


class TestTopicWatch:
    def test_partitions_of_a_former_topic_are_named_and_no_others(self, side: Side) -> None:
        side.create(side.topic, 1)
        side.create(side.changelog, 1)
        watch = TopicWatch(side.brokers().topics, side.clock, side.topic, side.changelog)
        partition = Partition(0)

        def ids() -> tuple[str, ...]:
            found = watch.topic_ids()
            return found if all(found) else ()

        def recover() -> None:
            input_id, changelog_id = side.eventually(ids, "the ids are told")
            partition.checkpoint = replace(
                partition.checkpoint, input_topic_id=input_id, changelog_topic_id=changelog_id
            )

        for name in (side.topic, side.changelog):
            recover()
            assert not watch.replaced([partition])
            side.recreate(name, 1)
            side.eventually(lambda: watch.replaced([partition]) == {0}, f"the former {name} is noticed")
        recover()
        side.eventually(ids, "it is looked at again")
        assert not watch.replaced([partition])


class TestMarkerWatch:
    def test_a_transaction_has_no_end_until_it_is_committed(self, side: Side) -> None:
        side.create(side.changelog, 1)
        brokers, producer, partition = side.brokers(), side.producer(side.name("tid")), Partition(0)
        watch = MarkerWatch(brokers.bounds, side.clock, side.changelog)
        producer.init(30.0)
        producer.begin()
        drained(producer.write_changelog(side.changelog, 0, [(b"a", b"1"), (b"b", b"2")]))
        partition.changelog_offset = 2
        watch.committed([partition])
        side.eventually(lambda: watch.missing([partition]) == {0}, "its end is missed")
        producer.commit()
        assert dict(producer.next_changelog_offsets) == {0: partition.changelog_offset}

        def is_past() -> bool:
            question = brokers.bounds({side.changelog: [0]})
            side.eventually(question.done, "the end is told")
            return question.result()[side.changelog, 0].end == partition.changelog_offset + 1

        side.eventually(is_past, "the marker is there")


class TestStatus:
    last_start: Start | None = None
    """Of the group, as far as it is read: see `GroupStarts`."""
    start: OwnStart

    def published(self, side: Side, guard: ClockGuard) -> tuple[StatusPublisher, str]:
        topic = side.name("status")
        side.create(topic, 2)
        self.start = OwnStart(self, "one")
        return StatusPublisher(side.writer(), topic, side.clock, guard, start=self.start), topic

    def views(self, found: Sequence[Seen]) -> list[Seen]:
        return [each for each in found if each.key != self.start.key]

    def delivered(self, side: Side, status: Status, views: Sequence[PartitionView]) -> None:
        def told() -> bool:
            status.advance(views)
            return status.delivered_s > float("-inf")

        side.eventually(told, "the broker has accepted a record")

    def test_a_view_is_written_to_its_partition_and_measures_the_clock(self, side: Side) -> None:
        guard = ClockGuard(side.clock, 60_000)
        status, topic = self.published(side, guard)
        assert guard.skew_ms is None
        view = PartitionView(partition=1, state=State.RUNNING, owner="one", url=None, pending=7)
        self.delivered(side, status, [view])
        assert guard.skew_ms is not None
        assert abs(guard.skew_ms) < 30_000
        (seen, *_) = self.views(side.committed(topic, lambda found: len(self.views(found)) >= 1))
        assert (seen.partition, seen.key) == (1, partition_key(1))
        assert PartitionView.from_json(seen.value or b"") == view
        status.close(10.0)

    def test_a_start_is_written_once_to_the_partition_that_orders_all_starts(self, side: Side) -> None:
        status, topic = self.published(side, ClockGuard(side.clock, 60_000))

        def written() -> bool:
            status.advance([])
            return self.start.is_written

        side.eventually(written, "the broker has accepted it")
        status.advance([])
        status.close(10.0)
        found = side.committed(topic, lambda found: len(found) >= 1)
        assert [(each.partition, each.key, each.value) for each in found] == [(0, self.start.key, self.start.value)]

    def test_the_last_view_of_a_released_partition_names_no_owner(self, side: Side) -> None:
        status, topic = self.published(side, ClockGuard(side.clock, 60_000))
        view = PartitionView(partition=0, state=State.RUNNING, owner="one", url=None, pending=7)
        self.delivered(side, status, [view])
        status.publish_release(view)
        status.close(60.0)

        def released(found: Sequence[Seen]) -> bool:
            views = self.views(found)
            last = PartitionView.from_json(views[-1].value or b"") if views else None
            return last is not None and (last.state, last.owner, last.pending) == (State.CLOSED, "", 7)

        side.committed(topic, released)

"""A transaction that the brokers report as committed and never end in the changelog is ended by the next one there."""

from __future__ import annotations

import random

from sidecar.kafka.admin.offsets import Committed
from sidecar.runtime.transaction.commit import Settled, settle
from sidecar.settings import Settings
from tests.simulation.fakes.cluster import Cluster, Link
from tests.simulation.fakes.membership import pack
from tests.simulation.fakes.producer import FakeProducer
from tests.simulation.fakes.timeline import InstanceClock, Timeline

SETTINGS = Settings(streams_app_id="app")
MEMBER = "one"
COMMITTED = Committed(5, "of a checkpoint")


class Left:
    """A changelog in which a committed transaction has no marker."""

    def __init__(self) -> None:
        rng = random.Random(1)
        self.timeline = Timeline(rng)
        self.cluster = Cluster(self.timeline, rng)
        for name in (SETTINGS.input_topic, SETTINGS.changelog_topic):
            self.cluster.create(name, 1, 1_000_000)
        group = self.cluster.group
        group.partitions = 1
        group.join(MEMBER, None)
        group.sync(MEMBER, ())
        former = self.producer()
        self.cluster.markers_wait = True
        former.begin()
        for _ in former.write_changelog(SETTINGS.changelog_topic, 0, [(b"a", b"1"), (b"c", b"2")]):
            pass
        former.send_offsets(SETTINGS.input_topic, {0: 5}, pack(MEMBER, group.generation), {0: COMMITTED.metadata})
        former.commit()
        assert self.cluster.leave_open(SETTINGS.changelog_topic, 0) == 1
        self.cluster.markers_wait = False

    def producer(self) -> FakeProducer:
        clock = InstanceClock(self.timeline)
        made = FakeProducer(self.cluster, Link(), clock, SETTINGS, "app-one")
        made.init(30.0)
        return made

    def settled(self, generation: int) -> Settled:
        settled = settle(SETTINGS, self.producer(), 0, COMMITTED, pack(MEMBER, generation))
        self.timeline.advance(1.0)
        return settled

    def seen(self) -> list[bytes | None]:
        """Return the keys that a reader of committed records gets."""
        return [each.row.key for each in self.cluster.log(SETTINGS.changelog_topic, 0).read(0, 100)[0]]


def test_what_was_left_open_is_committed_with_a_transaction_that_changes_nothing() -> None:
    left = Left()
    group = left.cluster.group
    assert not left.seen(), "no reader gets past it"
    assert left.settled(group.generation).error is None
    assert left.seen()[:2] == [b"a", b"c"]
    assert (group.offsets, group.metadata) == ({0: 5}, {0: COMMITTED.metadata})


def test_a_former_owner_may_not_end_it() -> None:
    left = Left()
    settled = left.settled(left.cluster.group.generation - 1)
    assert settled.error is not None
    assert not settled.error.unknown
    assert not left.seen()

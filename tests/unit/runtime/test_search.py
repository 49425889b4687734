"""The searches of the origins after a transaction was lost in the changelog: shared, bounded, and said."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from sidecar.changelog.codec import Checkpoint
from sidecar.engine.delivered import NOTHING, Delivered, Delivery
from sidecar.engine.partition import Partition
from sidecar.kafka.admin.offsets import Bounds
from sidecar.kafka.origin_search import ORIGINS_MAX, Found, Wanted
from sidecar.model import StoredOffset
from sidecar.runtime.partitions import search
from sidecar.runtime.partitions.search import WAIT_S, Searches
from tests.clocks import HandClock
from tests.simulation.memory_store import MemoryStore
from tests.simulation.stage import NOW, Stage

SKEW_MS = 60_000
AGAIN = Bounds(40, 60)


class Asked:
    """A question; the test says when it is answered."""

    def __init__(self, wanted: Sequence[Wanted]) -> None:
        self.wanted = wanted
        self.found: Found | None = None

    def done(self) -> bool:
        return self.found is not None

    def result(self) -> Found:
        assert self.found is not None
        return self.found


class Harness:
    """Searches with a clock and a store."""

    def __init__(self) -> None:
        self.clock = HandClock()
        self.asked: list[Asked] = []
        self.searches = Searches(self._ask, self.clock, SKEW_MS, lambda topic: f"permit {topic}")
        self.store = MemoryStore()

    def _ask(self, wanted: Sequence[Wanted]) -> Asked:
        self.asked.append(Asked(wanted))
        return self.asked[-1]

    def want(self, number: int, checkpoint: Checkpoint | None = None) -> Partition:
        partition = Partition(number, checkpoint=checkpoint or Checkpoint(sequence=7, wall_ms=NOW))
        self.searches.want(partition, *AGAIN)
        return partition

    def over(self) -> dict[int, Delivered]:
        return dict(self.searches.advance(self.store))


@pytest.fixture
def harness() -> Harness:
    return Harness()


def test_those_that_wait_share_a_search_and_those_that_come_later_share_the_next(harness: Harness) -> None:
    one, _ = harness.want(0), harness.want(1)
    assert harness.over() == {}
    assert one.reason.startswith("its origins are searched")
    harness.want(2)
    assert harness.over() == {}
    (asked,) = harness.asked
    assert [each.number for each in asked.wanted] == [0, 1]
    asked.found = Found({1: [Delivery(StoredOffset(50), 5, "orders")]})
    over = harness.over()
    assert over == {0: NOTHING, 1: Delivered(again=frozenset({(50, "orders")}), until=60)}
    assert harness.over() == {}
    assert [each.number for each in harness.asked[1].wanted] == [2]


def test_the_origins_with_most_that_is_pending_come_first(harness: Harness) -> None:
    stage = Stage()
    stage.commit(NOW, *(stage.send(NOW + 5_000, origin) for origin in ("B", "A", "A")))
    harness.searches.want(stage.partition, *AGAIN)
    harness.over()
    assert list(harness.asked[0].wanted[0].origins) == ["A", "B"]
    many = replace(stage.partition.checkpoint, sequence=9)
    partition = Partition(1, checkpoint=many)
    partition.counts.origins.update({f"o{number}": 1 for number in range(ORIGINS_MAX + 1)})
    harness.asked[0].found = Found()
    harness.over()
    harness.searches.want(partition, *AGAIN)
    harness.over()
    assert len(harness.asked[1].wanted[0].origins) == ORIGINS_MAX


def test_only_what_is_pending_or_comes_again_counts_however_much_is_found(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "SIFTED", 2)
    stage = Stage()
    sent = [stage.send(NOW + due) for due in (5, 5_000, 6_000)]
    stage.commit(NOW, *sent)
    stage.commit(NOW + 10)
    harness.store = stage.store
    harness.searches.want(stage.partition, 3, 5)
    harness.over()
    deliveries = [Delivery(StoredOffset(each.offset), each.due_ms, each.origin) for each in sent[:2]]
    again = Delivery(StoredOffset(4), 9, "B")
    harness.asked[0].found = Found({0: [*deliveries, again]}, records=3)
    assert harness.over() == {}, "a slice at a time"
    with capture_logs() as lines:
        over = harness.over()
    assert over == {0: Delivered(frozenset(deliveries[1:]), again=frozenset({(4, "B")}), until=5)}
    assert [(line["event"], line["found"], line["records"]) for line in lines] == [("origins_searched", 2, 3)]


def test_no_partition_waits_for_longer_than_the_bound(harness: Harness) -> None:
    harness.want(0)
    harness.over()
    harness.clock.now_s += WAIT_S + 1
    with capture_logs() as lines:
        assert harness.over() == {0: NOTHING}
    assert [line["event"] for line in lines] == ["origins_not_searched", "origins_searched"]
    harness.want(1)
    harness.over()
    assert len(harness.asked) == 2, "it does not wait for the one that hangs"


def test_what_could_not_be_read_is_said_once_with_what_to_grant(harness: Harness) -> None:
    harness.want(0)
    harness.want(1)
    harness.over()
    harness.asked[0].found = Found(unread={"orders": "Topic authorization failed", "bills": "slow"}, denied=["orders"])
    with capture_logs() as lines:
        assert harness.over() == {0: NOTHING, 1: NOTHING}
    (line,) = [line for line in lines if line["event"] == "origins_not_searched"]
    assert line["fix"] == "permit orders"
    assert line["reason"] == "orders: Topic authorization failed; bills: slow"
    assert line["partitions"] == [0, 1]


def test_a_partition_that_was_released_is_not_waited_for(harness: Harness) -> None:
    harness.want(0)
    harness.over()
    harness.searches.drop(0)
    harness.asked[0].found = Found({0: [Delivery(StoredOffset(50), 5, "orders")]})
    assert harness.over() == {}
    harness.want(0)
    harness.over()
    assert len(harness.asked) == 2, "nothing is known of it"


def test_what_was_found_holds_for_the_next_recovery_though_a_transaction_has_removed_a_part_of_it(
    harness: Harness,
) -> None:
    partition = harness.want(0)
    harness.over()
    harness.asked[0].found = Found({0: [Delivery(StoredOffset(offset), 5, "orders") for offset in (50, 55)]})
    partition.delivered = harness.over()[0]
    partition.checkpoint = replace(partition.checkpoint, sequence=8, next_input_offset=52, highest_input_offset=52)
    harness.searches.on_committed({0: partition})
    assert harness.searches.knows(0)
    harness.searches.want(partition, 52, None)
    assert harness.over() == {0: Delivered(again=frozenset({(55, "orders")}), until=60)}
    assert len(harness.asked) == 1
    partition.delivered = NOTHING
    harness.searches.on_committed({0: partition})
    assert not harness.searches.knows(0)


def test_a_checkpoint_without_a_time_is_not_searched_for(harness: Harness) -> None:
    harness.want(0, Checkpoint(sequence=7))
    assert harness.over() == {0: NOTHING}
    assert not harness.asked

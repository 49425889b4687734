"""Where the input is read from when changelog and committed offset are not of the same transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import pytest
from structlog.testing import capture_logs

from sidecar.changelog.codec import CHECKPOINT_KEY, Checkpoint, encode_checkpoint
from sidecar.changelog.offset_mark import OffsetMark
from sidecar.engine.delivered import Delivered, Delivery
from sidecar.engine.partition import Partition, State
from sidecar.engine.ports import Mutations
from sidecar.engine.restore import ChangelogRead
from sidecar.engine.rows import meta_row
from sidecar.kafka.admin.offsets import Bounds, Committed
from sidecar.kafka.origin_search import Found, Wanted
from sidecar.model import StoredOffset
from sidecar.runtime.partitions.recovery import Recovery
from sidecar.runtime.partitions.search import Searches
from sidecar.runtime.partitions.start_offsets import Topics
from tests.clocks import HandClock
from tests.simulation.memory_store import MemoryStore
from tests.simulation.stage import IDENTITY

TOPIC = "an-id"
EVENTS = {"changelog_rolled_back", "committed_offset_rolled_back", "committed_offset_gone"}
SKEW_MS = 60_000
WALL_MS = 1_700_000_000_000
HERE = Checkpoint(sequence=7, next_input_offset=40, highest_input_offset=40, input_topic_id=TOPIC, wall_ms=WALL_MS)


class Cluster:
    """Brokers and changelog of one partition: a checkpoint in the log, and what the group has committed."""

    errors: Mapping[int, str] = {}

    def __init__(self, checkpoint: Checkpoint | None, committed: Committed | None, *, end: int | None = None) -> None:
        self._end = end
        """Of the changelog, of which nothing is stable then."""
        self.store = MemoryStore()
        self._log = [] if checkpoint is None else [ChangelogRead(0, CHECKPOINT_KEY, encode_checkpoint(checkpoint))]
        self._unread: list[ChangelogRead] = []
        self._committed = committed
        self._clock = HandClock()
        self.rolled_back: list[int] = []
        self.wanted: list[Wanted] = []
        """What is to be searched for in the origins."""
        self.found = Found()
        self.partition = Partition(0)
        self._next: list[int] = []
        self._recovery = Recovery(
            Question(self),
            self,
            self._clock,
            Topics("retry", "changelog", "group"),
            IDENTITY,
            Searches(self._search, self._clock, SKEW_MS, str),
            running=lambda _partition, offset: self._next.append(offset),
            restored=lambda _seconds: None,
            input_lost=lambda _partition, _records: None,
            rolled_back=self.rolled_back.append,
        )

    def knows(self, checkpoint: Checkpoint, offset: int) -> None:
        """The store has applied a transaction whose checkpoint had this offset in the changelog."""
        rows = Mutations()
        row = meta_row(IDENTITY, checkpoint, offset + 1, restored=True, to_confirm=offset)
        rows.rows[self.partition.rows.meta] = row
        self.store.apply([rows])

    def again(self) -> None:
        """Recover once more."""
        self._recovery.start([self.partition])
        self._advance(9)
        assert self.partition.state is State.RUNNING

    def committed_one(self) -> None:
        """A transaction was committed since."""
        self._recovery.on_committed({0: self.partition})

    def recovered(self) -> tuple[int, set[str]]:
        """Return the offset from which the input is read, and what is said of it."""
        self._recovery.start([self.partition])
        with capture_logs() as lines:
            self._advance(9)
        (offset,) = self._next
        return offset, EVENTS & {str(line["event"]) for line in lines}

    def _search(self, wanted: Sequence[Wanted]) -> AskedOrigins:
        self.wanted += wanted
        return AskedOrigins(self)

    def left_open(self) -> list[tuple[int, Committed] | None]:
        """Return what is said at first, and after a while."""
        self._recovery.start([Partition(0)])
        return [self._advance(2), self._advance(9)]

    def _advance(self, times: int) -> tuple[int, Committed] | None:
        for _ in range(times):
            self._clock.now_s += 1.0
            self._recovery.advance(self.store, others_run=False)
        return self._recovery.left_open()

    def committed(self) -> dict[int, Committed | None]:
        return {0: self._committed}

    def bounds(self) -> dict[tuple[str, int], Bounds]:
        return {("retry", 0): Bounds(0, 1_000), ("changelog", 0): Bounds(0, self._end or 2)}

    # The changelog's reader

    def start(self, partition: int, offset: int, topic_id: str = "") -> None:
        assert partition == 0
        self._unread = [] if self._end else [each for each in self._log if each.offset >= offset]

    def stop(self, partition: int) -> None: ...

    def read(self, _timeout_s: float) -> dict[int, list[ChangelogRead]]:
        self._clock.now_s += 0.001
        read, self._unread = self._unread, []
        return {0: read} if read else {}

    def take_lost(self) -> Sequence[int]:
        return []

    def error_of(self, _partition: int) -> str:
        return ""

    def position(self, _partition: int) -> int:
        return -1001 if self._end else 2


class Asked:
    """An answered question of any kind."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def done(self) -> bool:
        return True

    def id_of(self, topic: str) -> str:
        return TOPIC if topic == "retry" else IDENTITY.changelog_topic_id


class AskedTopics(Asked):
    def errors(self, _numbers: Sequence[int]) -> dict[int, str]:
        return {}


class AskedOffsets(Asked):
    errors: Mapping[int, str] = {}

    def result(self) -> dict[int, Committed | None]:
        return self._cluster.committed()


class AskedBounds(Asked):
    errors: Mapping[int, str] = {}

    def result(self) -> dict[tuple[str, int], Bounds]:
        return self._cluster.bounds()


class AskedOrigins(Asked):
    def result(self) -> Found:
        return self._cluster.found


class Question:
    """Implements `sidecar.runtime.ports.Brokers`."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def committed(self, _topic: str, _partitions: Sequence[int]) -> AskedOffsets:
        return AskedOffsets(self._cluster)

    def topics(self, _names: Sequence[str]) -> AskedTopics:
        return AskedTopics(self._cluster)

    def bounds(self, _partitions: Mapping[str, Sequence[int]]) -> AskedBounds:
        return AskedBounds(self._cluster)


def marked(offset: int, sequence: int, began_at: int, topic: str = TOPIC) -> Committed:
    return Committed(offset, str(OffsetMark(sequence, began_at, topic)))


def test_a_transaction_that_the_changelog_lacks_is_ingested_again() -> None:
    cluster = Cluster(HERE, marked(60, 8, 40))
    assert cluster.recovered() == (40, {"changelog_rolled_back"})
    assert cluster.rolled_back == [0]


def test_the_first_transaction_is_ingested_again_from_where_the_group_began() -> None:
    assert Cluster(None, marked(600, 1, 500)).recovered() == (500, {"changelog_rolled_back"})


def test_a_transaction_that_began_where_an_operator_had_set_the_group_is_ingested_again_from_there() -> None:
    assert Cluster(HERE, marked(20, 8, 10)).recovered() == (10, {"changelog_rolled_back"})


def test_a_changelog_that_lacks_several_transactions_is_continued_from_its_checkpoint() -> None:
    assert Cluster(HERE, marked(90, 12, 85)).recovered() == (40, {"changelog_rolled_back"})


def test_offsets_that_lack_what_the_changelog_has_are_not_ingested_again() -> None:
    cluster = Cluster(HERE, marked(30, 6, 25))
    assert cluster.recovered() == (40, {"committed_offset_rolled_back"})
    assert not cluster.rolled_back


def test_an_offset_that_is_the_checkpoint_s_is_not_rolled_back_although_the_changelog_was_written_again() -> None:
    assert Cluster(HERE, marked(40, 6, 25)).recovered() == (40, set())


def test_offset_and_changelog_of_the_same_transaction_go_together() -> None:
    assert Cluster(HERE, marked(40, 7, 30)).recovered() == (40, set())


@pytest.mark.parametrize("metadata", ["", "by hand", 'spark [9,"a-checkpoint"]', "embedded ", 'embedded ["x"]'])
@pytest.mark.parametrize("offset", [10, 500])
def test_an_offset_without_a_mark_was_set_by_an_operator_and_wins(metadata: str, offset: int) -> None:
    assert Cluster(HERE, Committed(offset, metadata)).recovered() == (offset, set())


def test_an_offset_of_a_former_input_topic_says_nothing_of_this_one() -> None:
    assert Cluster(None, marked(60, 1, 50, "a former id")).recovered() == (0, {"changelog_rolled_back"})
    assert Cluster(HERE, marked(60, 6, 50, "a former id")).recovered() == (40, {"committed_offset_rolled_back"})
    assert Cluster(HERE, marked(60, 8, 50, "a former id")).recovered() == (40, {"changelog_rolled_back"})


def test_without_a_committed_offset_the_checkpoint_has_it() -> None:
    assert Cluster(HERE, None).recovered() == (40, {"committed_offset_gone"})


# What such a transaction delivered


def test_its_deliveries_are_searched_for_where_the_input_is_read_again() -> None:
    cluster = Cluster(HERE, marked(60, 8, 40))
    cluster.found = Found({0: [Delivery(StoredOffset(41), 5, "orders")]}, records=9)
    cluster.recovered()
    assert cluster.wanted == [Wanted(0, [], WALL_MS - 2 * SKEW_MS, Bounds(40, 60))]
    assert cluster.partition.delivered == Delivered(again=frozenset({(41, "orders")}), until=60)
    assert cluster.partition.state is State.RUNNING


def test_only_while_the_changelog_lacks_it() -> None:
    for committed in (marked(40, 7, 30), marked(30, 6, 25), Committed(10, ""), None):
        cluster = Cluster(HERE, committed)
        cluster.recovered()
        assert not cluster.wanted


def test_what_a_store_had_that_the_changelog_lacks_is_searched_for_though_the_offset_was_rolled_back_too() -> None:
    cluster = Cluster(HERE, marked(40, 7, 30))
    ahead = msgspec.structs.replace(HERE, sequence=9, next_input_offset=55, assignment=5)
    cluster.knows(ahead, offset=1)
    cluster.recovered()
    assert cluster.wanted == [Wanted(0, [], WALL_MS - 2 * SKEW_MS, Bounds(40, 55))]


def test_a_recovery_that_repeats_does_not_search_again_before_something_was_committed() -> None:
    cluster = Cluster(HERE, marked(60, 8, 40))
    cluster.found = Found({0: [Delivery(StoredOffset(41), 5, "orders")]})
    cluster.recovered()
    found = cluster.partition.delivered
    cluster.again()
    assert cluster.partition.delivered == found
    assert len(cluster.wanted) == 1
    cluster.committed_one()
    cluster.again()
    assert len(cluster.wanted) == 2


def test_without_a_checkpoint_nothing_tells_where_to_search() -> None:
    cluster = Cluster(None, marked(600, 1, 500))
    cluster.recovered()
    assert not cluster.wanted


def test_what_was_delivered_before_an_operator_set_the_offset_back_does_not_count() -> None:
    cluster = Cluster(HERE, Committed(60, str(OffsetMark(8, 40, TOPIC, set_back_ms=WALL_MS - 1_000))))
    cluster.recovered()
    assert [each.since_ms for each in cluster.wanted] == [WALL_MS - 1_000 + 2 * SKEW_MS]


# A transaction that has no marker in the changelog

APPLIED = msgspec.structs.replace(HERE, assignment=5)
OFFSET = 7
"""In the changelog, of the checkpoint that the store applied."""


def stuck(end: int = OFFSET + 1, sequence: int = 7, applied: Checkpoint = APPLIED) -> Cluster:
    cluster = Cluster(None, marked(40, sequence, 30), end=end)
    cluster.knows(applied, OFFSET)
    return cluster


def test_a_committed_transaction_at_the_end_of_the_log_that_never_gets_stable_is_left_open() -> None:
    assert stuck().left_open() == [None, (0, marked(40, 7, 30))]


def test_what_may_be_another_transaction_is_not_ended() -> None:
    assert stuck(end=OFFSET + 2).left_open() == [None, None], "something follows"
    assert stuck(sequence=6).left_open() == [None, None], "its offsets are not committed"

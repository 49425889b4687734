"""What a search of the origins looks at, and where it stops: the real search on the logs of the simulated brokers."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from sidecar.engine.delivered import Delivery
from sidecar.kafka import origin_search
from sidecar.kafka.admin.offsets import Bounds
from sidecar.kafka.origin_search import Found, Search, Wanted
from sidecar.model import Headers, StoredOffset
from tests.clocks import HandClock
from tests.simulation.fakes.cluster import Cluster, Link
from tests.simulation.fakes.logs import Fate, Row, Transaction
from tests.simulation.fakes.searching import FakeLogReader
from tests.simulation.fakes.timeline import Timeline

SINCE_MS = 1_000
NONE_AGAIN = Bounds(0, 0)


def timer(text: str) -> Headers:
    return [("trace", None), ("retry-timer-id", text.encode())]


class Brokers:
    """A retry topic and two origins."""

    def __init__(self) -> None:
        self.cluster = Cluster(Timeline(random.Random(1)), random.Random(2))
        for name in ("retry", "orders", "bills"):
            self.cluster.create(name, 2, 1_000_000)
        self.link = Link()
        self.clock = HandClock()
        self.allowed: Callable[[str], bool] = lambda _topic: True

    def write(self, topic: str, headers: Headers, at_ms: int, *, partition: int = 0) -> None:
        self.cluster.log(topic, partition).append([Row(b"k", b"v", headers)], at_ms, None)

    def written(self, topic: str, headers: Headers, fate: Fate) -> None:
        """Write in a transaction that ends so, or does not end."""
        transaction = Transaction("tid", 0.0, fate)
        log = self.cluster.log(topic, 0)
        log.append([Row(b"k", b"v", headers)], SINCE_MS, transaction)
        if fate is not Fate.OPEN:
            log.mark(transaction)

    def search(self, *wanted: Wanted) -> Found:
        def open_reader(topic: str) -> FakeLogReader:
            return FakeLogReader(self.cluster, self.link, self.clock, topic)

        return Search(open_reader, "retry", self.allowed, wanted, self.clock).run()  # type: ignore[arg-type]  # as much of it as is used

    def orders(self) -> list[int]:
        """Return the offsets of timers of partition 0 that are found in an origin."""
        found = self.search(Wanted(0, ["orders"], SINCE_MS, NONE_AGAIN))
        return [each.offset for each in found.deliveries[0]]


@pytest.fixture
def brokers() -> Brokers:
    return Brokers()


def test_deliveries_are_found_by_partition_with_the_origin_that_has_them(brokers: Brokers) -> None:
    brokers.write("orders", timer("0-5-70"), SINCE_MS)
    brokers.write("orders", timer("1-6-80"), SINCE_MS, partition=1)
    brokers.write("bills", timer("0-7-90"), SINCE_MS)
    brokers.write("orders", timer("2-8-90"), SINCE_MS)
    found = brokers.search(*(Wanted(number, ["orders", "bills"], SINCE_MS, NONE_AGAIN) for number in (0, 1)))
    assert found.deliveries == {
        0: [Delivery(StoredOffset(5), 70, "orders"), Delivery(StoredOffset(7), 90, "bills")],
        1: [Delivery(StoredOffset(6), 80, "orders")],
    }
    assert (found.unread, found.records) == ({}, 4)


def test_what_is_older_than_a_partition_wants_does_not_count_for_it(brokers: Brokers) -> None:
    for at_ms, offset in ((SINCE_MS - 1, 1), (SINCE_MS + 5, 2), (SINCE_MS - 1, 3), (SINCE_MS, 4)):
        brokers.write("orders", timer(f"0-{offset}-70"), at_ms)
        brokers.write("orders", timer(f"1-{offset}-70"), at_ms)
    wanted = Wanted(0, ["orders"], SINCE_MS, NONE_AGAIN), Wanted(1, [], SINCE_MS + 1, NONE_AGAIN)
    found = brokers.search(*wanted).deliveries
    assert [each.offset for each in found[0]] == [2, 4]
    assert [each.offset for each in found[1]] == [2]


def test_only_what_is_committed_is_found_and_an_open_transaction_is_waited_for_as_long_as_there_is_time(
    brokers: Brokers,
) -> None:
    brokers.written("orders", timer("0-1-70"), Fate.ABORTED)
    brokers.written("orders", timer("0-2-70"), Fate.COMMITTED)
    brokers.written("orders", timer("0-3-70"), Fate.OPEN)
    brokers.written("orders", timer("0-4-70"), Fate.COMMITTED)
    found = brokers.search(Wanted(0, ["orders"], SINCE_MS, NONE_AGAIN))
    assert [each.offset for each in found.deliveries[0]] == [2]
    assert "open transaction" in found.unread["orders"]
    assert origin_search.SEARCH_S <= brokers.clock.now_s < origin_search.SEARCH_S + 1


def test_an_origin_that_takes_all_its_time_leaves_the_next_one_its_own(brokers: Brokers) -> None:
    brokers.written("orders", timer("0-3-70"), Fate.OPEN)
    brokers.write("bills", timer("0-7-90"), SINCE_MS)
    found = brokers.search(Wanted(0, ["orders", "bills"], SINCE_MS, NONE_AGAIN))
    assert [each.offset for each in found.deliveries[0]] == [7]
    assert found.unread.keys() == {"orders"}


def test_records_that_are_read_again_name_origins_too(brokers: Brokers) -> None:
    for name in ("bills", "orders"):
        brokers.write("retry", [("retry-origin-topic", name.encode())], 0)
    brokers.write("orders", timer("0-1-70"), SINCE_MS)
    brokers.write("bills", timer("0-0-70"), SINCE_MS)
    found = brokers.search(Wanted(0, [], SINCE_MS, Bounds(1, 2)))
    assert found.deliveries == {0: [Delivery(StoredOffset(1), 70, "orders")]}


def test_what_the_settings_do_not_allow_as_an_origin_is_not_read(brokers: Brokers) -> None:
    brokers.allowed = lambda topic: topic == "bills"
    brokers.write("retry", [("retry-origin-topic", b"orders")], 0)
    brokers.write("orders", timer("0-0-70"), SINCE_MS)
    found = brokers.search(Wanted(0, ["bills"], SINCE_MS, Bounds(0, 1)))
    assert (found.deliveries, found.unread) == ({0: []}, {})


def test_a_missing_permission_or_topic_is_said_and_the_others_are_searched(brokers: Brokers) -> None:
    brokers.cluster.topics["orders"].may_read = False
    brokers.write("bills", timer("0-7-90"), SINCE_MS)
    found = brokers.search(Wanted(0, ["orders", "gone", "bills"], SINCE_MS, NONE_AGAIN))
    assert [each.offset for each in found.deliveries[0]] == [7]
    assert found.denied == ["orders"]
    assert found.unread.keys() == {"orders", "gone"}


@pytest.mark.parametrize("value", [b"", b"0-5", b"x-5-70", b"\xff", b"9-5-70"])
def test_what_is_no_id_of_such_a_partition_is_none(brokers: Brokers, value: bytes) -> None:
    brokers.write("orders", [("retry-timer-id", value)], SINCE_MS)
    brokers.write("orders", [], SINCE_MS)
    assert brokers.orders() == []


def test_the_last_records_are_looked_at_when_there_are_too_many(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    for offset in range(10):
        brokers.write("orders", timer(f"0-{offset}-70"), SINCE_MS)
    monkeypatch.setattr(origin_search, "RECORDS_MAX", 8)
    found = brokers.search(Wanted(0, ["orders"], SINCE_MS, NONE_AGAIN))
    assert [each.offset for each in found.deliveries[0]] == [6, 7, 8, 9], "an equal share for both partitions"
    assert "last 8 records" in found.unread["orders"]


def test_the_bytes_are_bounded(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(origin_search, "SLICE_RECORDS", 2)
    monkeypatch.setattr(origin_search, "BYTES_MAX", 50)
    for offset in range(10):
        brokers.write("orders", timer(f"0-{offset}-70"), SINCE_MS)
    found = brokers.search(Wanted(0, ["orders"], SINCE_MS, NONE_AGAIN))
    assert [each.offset for each in found.deliveries[0]] == [0, 1]
    assert "50 bytes" in found.unread["orders"]


def test_no_more_origins_than_the_bound_are_searched(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(origin_search, "ORIGINS_MAX", 1)
    brokers.write("bills", timer("0-7-90"), SINCE_MS)
    found = brokers.search(Wanted(0, ["orders", "bills"], SINCE_MS, NONE_AGAIN))
    assert found.deliveries == {0: []}
    assert found.unread.keys() == {"bills"}


def test_brokers_that_do_not_answer_are_said(brokers: Brokers) -> None:
    brokers.link.cut = True
    found = brokers.search(Wanted(0, ["orders"], SINCE_MS, NONE_AGAIN))
    assert found.unread == {"orders": "Local: Timed out"}

"""The buffer between consumer and plan: order, shares, bytes, and that the end of an assignment drops it all."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable, Iterator

import pytest

from sidecar.contract import DIALECTS
from sidecar.engine.ingest import Ingest
from sidecar.engine.items import Arrival, Dead, Item
from sidecar.engine.ports import Origin
from sidecar.model import Record
from sidecar.policy import Policy, PolicyConfig
from sidecar.runtime.partitions.buffer import AHEAD_MAX, BUFFER_ITEMS_MAX, Buffer
from tests.clocks import NOW_MS


@pytest.fixture
def origins() -> dict[str, Origin]:
    return {"orders": Origin(4, 1_000_000)}


@pytest.fixture
def unknown() -> dict[str, float]:
    return {}


@pytest.fixture
def forbidden() -> dict[str, float]:
    return {}


@pytest.fixture
def buffer(origins: dict[str, Origin], unknown: dict[str, float], forbidden: dict[str, float]) -> Buffer:
    policy = Policy(PolicyConfig(delays_ms=(1000,), max_delay_ms=86_400_000))
    ingest = Ingest(
        policy,
        list(DIALECTS.values()),
        origins,
        unknown,
        input_topic="retry",
        app_id="app",
        forbidden=forbidden,
    )
    return Buffer(ingest)


def records(
    partition: int,
    offsets: Iterable[int],
    origin: str | None = "orders",
    value: bytes | None = b"v",
    trace: bytes | None = None,
) -> list[Record]:
    headers: list[tuple[str, bytes | None]] = [] if origin is None else [("retry-origin-topic", origin.encode())]
    if trace is not None:
        headers.append(("stack-trace", trace))
    return [Record(partition, offset, NOW_MS, b"k", value, headers) for offset in offsets]


def offsets(items: Iterable[Item]) -> list[int]:
    return [item.offset for item in items]


def test_records_become_items_in_their_order(buffer: Buffer) -> None:
    buffer.begin(0, 5)
    assert buffer.ingest([*records(0, [5, 6]), *records(0, [7], origin=None), *records(0, [8])], NOW_MS) == set()
    batch = buffer.batches([0], 100, 1_000_000)[0]
    assert offsets(batch) == [5, 6, 7, 8]
    assert [type(item) for item in batch] == [Arrival, Arrival, Dead, Arrival]
    assert buffer.ready == 0


def test_a_partition_that_is_not_held_takes_nothing(buffer: Buffer) -> None:
    buffer.ingest(records(3, [0, 1]), NOW_MS)
    buffer.begin(3, 0)
    assert buffer.ready == 0


def test_what_was_consumed_before_the_position_is_dropped(buffer: Buffer) -> None:
    """After a seek the client library may still hand out a record that it had fetched."""
    buffer.begin(0, 10)
    buffer.ingest(records(0, [8, 9, 10, 10, 12, 11, 13]), NOW_MS)
    assert offsets(buffer.batches([0], 100, 1_000_000)[0]) == [10, 12, 13]
    assert buffer.lags({0: 20, 1: 5}) == {0: 6}


def test_the_end_of_a_tenure_drops_records_and_items_and_their_bytes(buffer: Buffer) -> None:
    buffer.begin(0, 0)
    buffer.begin(1, 0)
    buffer.ingest([*records(0, range(5)), *records(0, range(5, 10), "new"), *records(1, range(3))], NOW_MS)
    buffer.drop(0)
    assert buffer.ready == 3
    assert buffer.lags({0: 9, 1: 3}) == {1: 0}
    buffer.begin(0, 4)
    assert buffer.batches([0, 1], 100, 1_000_000).keys() == {1}
    assert buffer.bytes == 0


def test_a_record_whose_origin_is_not_known_holds_back_its_own_partition_only(
    buffer: Buffer, origins: dict[str, Origin]
) -> None:
    buffer.begin(0, 0)
    buffer.begin(1, 0)
    came = [*records(0, [0]), *records(0, [1], "new"), *records(0, [2]), *records(1, [0, 1])]
    assert buffer.ingest(came, NOW_MS) == {"new"}
    assert buffer.examine(NOW_MS, 100) == {"new"}
    assert {number: offsets(batch) for number, batch in buffer.batches([0, 1], 100, 1_000_000).items()} == {
        0: [0],
        1: [0, 1],
    }
    origins["new"] = Origin(1, 1_000_000)
    assert buffer.examine(NOW_MS, 100) == set()
    assert offsets(buffer.batches([0], 100, 1_000_000)[0]) == [1, 2]


def test_a_definite_answer_that_there_is_no_such_topic_lets_the_partition_go_on(
    buffer: Buffer, unknown: dict[str, float]
) -> None:
    buffer.begin(0, 0)
    assert buffer.ingest([*records(0, [0], "gone"), *records(0, [1])], NOW_MS) == {"gone"}
    unknown["gone"] = 0.0
    assert buffer.examine(NOW_MS, 100) == set()
    dead, arrival = buffer.batches([0], 100, 1_000_000)[0]
    assert isinstance(dead, Dead)
    assert dead.reason == "origin-unknown"
    assert isinstance(arrival, Arrival)


def test_the_origins_of_all_that_waits_are_asked_for_together(buffer: Buffer, unknown: dict[str, float]) -> None:
    buffer.begin(0, 0)
    many = [record for n in range(500) for record in records(0, [n], f"made-up-{n}")]
    buffer.ingest(many, NOW_MS)
    names = buffer.examine(NOW_MS, 5_000)
    assert names == {f"made-up-{n}" for n in range(500)}
    assert buffer.examine(NOW_MS, 5_000) == {"made-up-0"}, "what was asked for once is not looked up again"
    unknown.update(dict.fromkeys(names, 0.0))
    assert buffer.examine(NOW_MS, 5_000) == set()
    assert buffer.ready == 500


def test_so_many_records_are_looked_at_for_their_origins(buffer: Buffer) -> None:
    buffer.begin(0, 0)
    buffer.ingest([record for n in range(3_000) for record in records(0, [n], f"made-up-{n}")], NOW_MS)
    assert len(buffer.examine(NOW_MS, 5_000)) == AHEAD_MAX


def test_a_topic_that_may_not_be_looked_at_is_dead_lettered_with_the_right_that_is_missing(
    buffer: Buffer, forbidden: dict[str, float]
) -> None:
    buffer.begin(0, 0)
    forbidden["secret"] = 0.0
    assert buffer.ingest(records(0, [0], "secret"), NOW_MS) == set()
    (dead,) = buffer.batches([0], 100, 1_000_000)[0]
    assert isinstance(dead, Dead)
    assert dead.reason == "origin-not-allowed"
    assert b"Describe and Write" in dict(dead.headers)["retry-dlq-detail"]  # type: ignore[operator]


def test_partitions_share_a_plan_and_leave_each_other_what_they_do_not_need(buffer: Buffer) -> None:
    for number, count in ((0, 2), (1, 100), (2, 100)):
        buffer.begin(number, 0)
        buffer.ingest(records(number, range(count)), NOW_MS)
    shares = {number: len(batch) for number, batch in buffer.batches([0, 1, 2], 62, 1_000_000).items()}
    assert shares == {0: 2, 1: 30, 2: 30}
    assert buffer.ready == 140


def test_a_plan_is_bounded_in_bytes_but_always_takes_one(buffer: Buffer) -> None:
    buffer.begin(0, 0)
    buffer.ingest(records(0, range(5), value=bytes(100_000)), NOW_MS)
    assert offsets(buffer.batches([0], 100, 150_000)[0]) == [0, 1]
    assert offsets(buffer.batches([0], 100, 10)[0]) == [2]


def test_the_bytes_grow_with_what_comes_and_are_none_when_all_was_taken(buffer: Buffer) -> None:
    buffer.begin(0, 0)
    buffer.ingest(records(0, range(3), value=bytes(1_000)), NOW_MS)
    assert buffer.bytes >= 3_000
    buffer.batches([0], 2, 1_000_000)
    assert 0 < buffer.bytes < 3_000
    buffer.batches([0], 100, 1_000_000)
    assert buffer.bytes == 0


def test_headers_weigh_as_much_as_values(buffer: Buffer) -> None:
    """A stack trace in a header is what messages of this kind often carry."""
    buffer.begin(0, 0)
    buffer.begin(1, 0)
    buffer.ingest(
        [*records(0, range(5), trace=bytes(100_000)), *records(1, range(2), None, trace=bytes(100_000))], NOW_MS
    )
    assert buffer.bytes >= 700_000
    assert offsets(buffer.batches([0], 100, 150_000)[0]) == [0, 1]
    assert offsets(buffer.batches([1], 100, 100_000)[1]) == [0]


def test_the_bytes_stay_true_while_more_always_waits(buffer: Buffer) -> None:
    buffer.begin(0, 0)
    buffer.ingest(records(0, [0], trace=bytes(1_000)), NOW_MS)
    one = buffer.bytes
    for offset in range(1, 100):
        buffer.ingest(records(0, [offset], trace=bytes(1_000)), NOW_MS)
        assert offsets(buffer.batches([0], 1, 1_000_000)[0]) == [offset - 1]
    assert buffer.bytes == one


def test_a_partition_full_of_records_that_wait_for_an_answer_does_not_hold_up_the_others(buffer: Buffer) -> None:
    for number in range(4):
        buffer.begin(number, 0)
    buffer.ingest(records(2, range(12), "new", bytes(400_000)), NOW_MS)
    assert buffer.room() == {0, 1, 3}, "its share is a quarter of a half"
    buffer.ingest(records(1, range(80), value=bytes(400_000)), NOW_MS)
    assert buffer.room() == set(), "what a plan can take fills it for all"
    buffer.batches([1], 10, 100_000_000)
    assert buffer.room() == {0, 1, 3}


def test_a_partition_that_waits_for_a_dlq_takes_no_room_from_the_others(buffer: Buffer) -> None:
    buffer.begin(0, 0)
    buffer.begin(1, 0)
    buffer.ingest(records(0, range(BUFFER_ITEMS_MAX + 1)), NOW_MS)
    buffer.ingest(records(1, range(3)), NOW_MS)
    assert buffer.room() == set()
    buffer.block(0, "dlq", 7)
    assert (buffer.room(), buffer.ready, buffer.ample) == ({1}, 3, False)
    assert buffer.lags({0: 10, 1: 10}) == {0: 3, 1: 7}
    buffer.ingest(records(0, range(50_001, 50_010)), NOW_MS)
    assert buffer.ready == 3, "what was on its way is read again"
    buffer.begin(0, 7)
    assert not buffer.blocked
    buffer.ingest(records(0, range(7, 9)), NOW_MS)
    assert offsets(buffer.batches([0], 10, 1_000_000)[0]) == [7, 8]
    buffer.block(1, "dlq", 3)
    buffer.drop(1)
    assert not buffer.blocked, "it belongs to another owner"


def test_a_buffer_is_ample_before_it_is_full(buffer: Buffer) -> None:
    """By its bytes or by its items; between the two limits nothing has to be paused."""
    for number, (offsets_of, value) in enumerate(((range(60), bytes(440_000)), (range(40_001), None))):
        assert not buffer.ample
        buffer.begin(number, 0)
        buffer.ingest(records(number, offsets_of, value=value), NOW_MS)
        assert buffer.ample
        assert buffer.room() == set(range(number + 1))
        buffer.batches([number], 100_000, 100_000_000)


def test_a_partition_has_room_again_when_its_records_could_be_examined(
    buffer: Buffer, origins: dict[str, Origin]
) -> None:
    buffer.begin(0, 0)
    buffer.begin(1, 0)
    buffer.ingest(records(0, range(20), "new", bytes(450_000)), NOW_MS)
    assert buffer.room() == {1}
    origins["new"] = Origin(1, 1_000_000)
    buffer.examine(NOW_MS, 100)
    assert buffer.room() == {0, 1}
    assert offsets(buffer.batches([0], 100, 100_000_000)[0]) == list(range(20))
    assert buffer.bytes == 0


def test_what_waits_is_what_came(buffer: Buffer, origins: dict[str, Origin]) -> None:
    came = [
        Record(0, 0, NOW_MS, None, None, [("retry-origin-topic", b"new"), ("a", None), ("a", b""), ("é", b"\xff")]),
        Record(0, 1, -1, b"", b"", None),
        Record(0, 2, -1, b"k", b"v", [("retry-origin-topic", b"orders"), ("retry-retry", b"1")]),
    ]
    buffer.begin(0, 0)
    buffer.ingest(came, NOW_MS)
    origins["new"] = Origin(1, 1_000_000)
    buffer.examine(NOW_MS, 100)
    waited = buffer.batches([0], 100, 1_000_000)[0]
    buffer.drop(0)
    buffer.begin(0, 0)
    buffer.ingest(came, NOW_MS)
    assert waited == buffer.batches([0], 100, 1_000_000)[0]
    assert [type(item) for item in waited] == [Arrival, Dead, Arrival]


@pytest.mark.parametrize("origin", ["new", None], ids=["they wait for an answer", "they go to the DLQ"])
def test_very_many_headers_take_about_the_memory_that_they_came_in(buffer: Buffer, origin: str | None) -> None:
    def came() -> Iterator[Record]:
        for offset in range(40):
            (record,) = records(0, [offset], origin)
            assert record.headers is not None
            record.headers.extend((f"name-{at % 97}", b"%d" % at) for at in range(5_000))
            yield record

    buffer.begin(0, 0)
    tracemalloc.start()
    try:
        buffer.ingest(came(), NOW_MS)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken < 2 * buffer.bytes
    assert buffer.bytes < 40 * 5_000 * 20


def test_dead_letters_with_very_many_headers_are_few_in_a_plan(buffer: Buffer) -> None:
    buffer.begin(0, 0)
    hostile = [record for offset in range(3) for record in records(0, [offset], None)]
    for record in hostile:
        assert record.headers is not None
        record.headers.extend(("h", None) for _ in range(50_000))
    buffer.ingest([*hostile, *records(0, [3, 4], None)], NOW_MS)
    first = buffer.batches([0], 100, 10_000_000)[0]
    assert offsets(first) == [0, 1]
    buffer.put_back({0: first})
    assert [offsets(buffer.batches([0], 100, 10_000_000)[0]) for _ in range(2)] == [[0, 1], [2, 3, 4]]
    assert buffer.bytes == 0

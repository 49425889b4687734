"""The compiled hot path gives what the Python beside it gives, byte for byte, or leaves it to Python."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sidecar.changelog import codec
from sidecar.changelog.entry import BEHIND, DEFERRED, HEAD, KEY_BYTES, MOVING, ORDERED, lasting
from sidecar.contract import DIALECTS, Dialect
from sidecar.engine import hot
from sidecar.engine.deliver import Rendering
from sidecar.engine.ingest import Ingest
from sidecar.engine.items import Arrival, Dropped, Ordered
from sidecar.engine.overlay import Overlay, SlotEntries
from sidecar.engine.partition import Partition
from sidecar.engine.ports import Origin
from sidecar.engine.records import block_values
from sidecar.engine.restore import restore_entry
from sidecar.engine.rows import lane_of
from sidecar.model import Headers, Record
from sidecar.policy import Policy, PolicyConfig
from sidecar.runtime.partitions.buffer import Buffer
from sidecar.wheel.geometry import level_ends_ms
from tests.property.test_header_parsing import any_lists
from tests.simulation.memory_store import MemoryStore

pytestmark = pytest.mark.skipif(not hot.COMPILED, reason="the hot path is not compiled here: it needs a C compiler")

NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
POLICIES = [
    PolicyConfig(),
    PolicyConfig(fatal=("com.*",), droppable=("E",), max_attempts=3, delays_ms=(0, 1000)),
    PolicyConfig(retriable=("E", "com.acme.*"), origin_topics=("o*",), ibm_delays_ms=(5,)),
    PolicyConfig(by_origin=(PolicyConfig(name="orders", delays_ms=(1, 2, 3)),)),
    PolicyConfig(by_origin=(PolicyConfig(name="orders", order_by_key=True),), fatal=("E",)),
    PolicyConfig(jitter=0.5),
    PolicyConfig(order_by_key=True, max_age_ms=HOUR_MS),
    PolicyConfig(max_age_ms=HOUR_MS),
    PolicyConfig(by_name=(PolicyConfig(name="slow", delays_ms=(HOUR_MS,)),), by_exception=(("E*", "slow"),)),
]
sizes = st.sampled_from([0, 1, 31, 32, 255, 256, 65_535, 65_536]) | st.integers(0, 700)
payloads = st.none() | sizes.map(lambda size: b"p" * size)
lengths = [31, 32, 255, 256]
texts = st.text(max_size=40) | st.sampled_from([*("n" * each for each in lengths), "retry-colour", "retry-controls"])
plain_lists = st.tuples(
    st.lists(
        st.sampled_from(
            [
                ("retry-delay-ms", b"60000"),
                ("retry-attempt", b"1"),
                ("retry-exception", b"E"),
                ("retry-exception", "Fehler-ä".encode()),
                ("retry-group", b"billing"),
                ("retry-policy", b"slow"),
                ("retry-first-ms", b"%d" % (NOW_MS - HOUR_MS)),
                ("retry-due-ms", b"%d" % (NOW_MS + 5)),
                ("retry-due-ms", b"%d" % 10**18),
            ]
        ),
        unique_by=lambda header: header[0],
    ),
    st.lists(st.tuples(texts, payloads), max_size=20),
).map(lambda both: [("retry-origin-topic", b"orders"), *both[0], *both[1]])
ibm_plain_lists = st.tuples(
    st.sampled_from([b"orders", b'"orders"', b'""orders"']),
    st.sampled_from([b"E", b'"com.acme.X"']),
    st.lists(
        st.sampled_from([("x-ibm-retry-attempts", b'"1"'), ("x-ibm-retry-attempts", b"2"), ("t", b"1")]), max_size=2
    ),
).map(
    lambda three: [
        ("x-ibm-retry-origin-topic", three[0]),
        ("x-ibm-retry-exception-type", three[1]),
        ("x-ibm-retry-timestamp-ms", b"%d" % NOW_MS),
        *three[2],
    ]
)
instants = st.sampled_from([-1, 0, NOW_MS, NOW_MS - 7, NOW_MS + 7]) | st.integers(-1, 2**63 - 1)


def ingest(config: PolicyConfig, dialects: list[Dialect], *, compressed: bool) -> Ingest:
    origins = {"orders": Origin(3, 1_200), "x": Origin(1, 1_048_588)}
    return Ingest(Policy(config), dialects, origins, {"gone"}, input_topic="retry", app_id="app", compressed=compressed)


def test_plain_records_are_not_left_to_python() -> None:
    taken = ingest(PolicyConfig(), list(DIALECTS.values()), compressed=True)
    native: Headers = [("retry-origin-topic", b"orders"), ("retry-delay-ms", b"1000"), ("trace", b"abc")]
    ibm: Headers = [
        ("x-ibm-retry-origin-topic", b'"orders"'),
        ("x-ibm-retry-exception-type", b"E"),
        ("x-ibm-retry-timestamp-ms", b"%d" % NOW_MS),
    ]
    for headers in (native, ibm):
        found = taken.plain.examine(Record(0, 7, NOW_MS, b"k", b"v" * 900, headers), NOW_MS)  # type: ignore[union-attr]
        assert isinstance(found, Arrival), headers
    ordered = ingest(PolicyConfig(order_by_key=True), list(DIALECTS.values()), compressed=True)
    for headers in (native, ibm):
        keyed, bare = (Record(0, 7, NOW_MS, key, b"v", headers) for key in (b"k", None))
        found = ordered.plain.examine(keyed, NOW_MS)  # type: ignore[union-attr]
        assert isinstance(found, Ordered), headers
        assert found.lane == lane_of("orders", b"k")
        assert isinstance(ordered.plain.examine(bare, NOW_MS), Arrival), headers  # type: ignore[union-attr]


@settings(max_examples=1500)
@given(
    headers=st.none() | any_lists | plain_lists | ibm_plain_lists,
    key=payloads,
    value=payloads,
    timestamp_ms=instants,
    arrived_ms=st.just(NOW_MS) | st.integers(0, 2**62),
    config=st.sampled_from(POLICIES),
    dialects=st.sampled_from(
        [
            *(["native"], ["ibm"], ["native", "ibm"], ["ibm", "native"]),
            *(["spring", "native"], ["native", "etf1", "ibm"], ["ibm", "sky", "native"]),
        ]
    ),
    compressed=st.booleans(),
)
def test_a_record_gives_the_same_arrival_or_is_left_to_python(
    headers: Headers | None,
    key: bytes | None,
    value: bytes | None,
    timestamp_ms: int,
    arrived_ms: int,
    config: PolicyConfig,
    dialects: list[str],
    compressed: bool,
) -> None:
    compiled = ingest(config, [DIALECTS[name] for name in dialects], compressed=compressed)
    record = Record(2, 12, timestamp_ms, key, value, headers)
    if compiled.plain is None:
        # Another dialect may claim a record first.
        assert dialects[0] not in {"native", "ibm"}
        return
    fast = compiled.plain.examine(record, arrived_ms)
    # Twice: the second time topics and exceptions are known.
    assert fast == compiled.plain.examine(record, arrived_ms)
    if fast is not None:
        expected = compiled.examine_any(record, arrived_ms)
        assert (type(fast), fast) == (type(expected), expected)
        assert type(fast) in {Arrival, Ordered}


lastings = st.builds(
    lasting,
    st.integers(0, 2**63 - 1),
    st.integers(-1, 2**63 - 1),
    st.integers(0, 1002),
    st.integers(0, 1002),
    st.sampled_from([1, 2, 3]),
    st.sampled_from([b"orders", "ü".encode(), b"\xff"]),
    st.sampled_from([None, b"id"]),
    payloads,
    payloads,
    any_lists | plain_lists | ibm_plain_lists,
    st.sampled_from([-1, 0, 7]),
)
entries = st.builds(
    lambda due_ms, offset, level, flags, stays, same: (
        MOVING.pack(int.from_bytes(stays[:8], "big") if same else due_ms, offset, due_ms, level, flags) + stays
    ),
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**64 - 1),
    st.integers(0, 7),
    st.sampled_from([0, DEFERRED, ORDERED, ORDERED | DEFERRED | BEHIND]),
    lastings,
    st.booleans(),
)
spoilt = st.builds(
    lambda entry, at, byte, end: b"".join((entry[: at % len(entry)], bytes([byte]), entry[at % len(entry) + 1 :]))[
        : end or None
    ],
    entries,
    st.integers(0, 10_000),
    st.integers(0, 255),
    st.sampled_from([0, 0, -1, -5, 54, 60]),
)


def outcome(call: Callable[[], object]) -> object:
    """Return what a call returns, or the kind and the text of what it raises."""
    try:
        return call()
    except Exception as error:  # noqa: BLE001  # compared with that of the other
        return type(error), str(error)


@settings(max_examples=1500)
@given(entry=entries | spoilt, keeps=st.booleans())
@example(entry=b"", keeps=True)
def test_an_entry_gives_the_same_delivery_or_the_same_error(entry: bytes, keeps: bool) -> None:
    python, compiled = Rendering(3, keeps_entries=keeps), Rendering(3, keeps_entries=keeps)
    expected = outcome(lambda: [python.due(entry)])
    found = outcome(
        lambda: hot.deliver.read_plain(3, [entry], compiled.origins, compiled.due, 10**6, keeps, compiled.rows.lane)[0]
    )
    assert found == expected
    assert not isinstance(found, list) or type(found[0][4]) is type(expected[0][4])  # type: ignore[index]


@given(st.lists(entries, max_size=5), st.integers(1, 30))
def test_reading_ends_behind_the_same_entry_when_no_headers_are_left(some: list[bytes], limit: int) -> None:
    python = Rendering(0, keeps_entries=True)
    dues = [(each, outcome(lambda each=each: [python.due(each)])) for each in some]  # type: ignore[misc]
    good = [each for each, due in dues if isinstance(due, list)]
    make, left, expected = Rendering(0, keeps_entries=True), limit, []
    for each in good:
        expected.append(made := make.due(each))
        left -= len(made[4].headers)
        if left <= 0:
            break
    assert hot.deliver.read_plain(0, good, {}, make.due, limit, True, make.rows.lane) == (expected, left)


arrivals = st.builds(
    lambda gap, due_ms, origin, retry_id, replace, stays, key: (gap, (due_ms, origin, stays, retry_id, replace), key),
    st.integers(1, 3),
    st.integers(NOW_MS - 5, NOW_MS + 5)
    | st.sampled_from([end_ms + each for end_ms in level_ends_ms(NOW_MS) for each in (-1, 0, 1)])
    | st.integers(NOW_MS, NOW_MS + 400 * 24 * HOUR_MS)
    | st.integers(0, 2**63 - 1),
    st.sampled_from(["orders", "x", "ü"]),
    st.sampled_from([None, None, None, b"id"]),
    st.sampled_from([False, False, False, True]),
    sizes.map(lambda size: b"s" * size),
    st.none() | st.sampled_from([b"k", b"l"]),
)
ordered_arrivals = st.builds(
    lambda due_ms, key: (1, (due_ms, "orders", b"s", None, False), key),
    st.integers(NOW_MS + HOUR_MS + 1, NOW_MS + HOUR_MS + 9),
    st.sampled_from([b"k", b"l"]),
)
runs = st.lists(arrivals | st.none(), max_size=60) | st.lists(ordered_arrivals, min_size=2, max_size=10)
"""Of arrivals of any kind, two of one lane come in one run once in a thousand lists."""


@given(
    runs,
    st.integers(0, 2**40),
    st.sampled_from([0, 3, 10**6]),
    st.sampled_from([0, NOW_MS - 5, NOW_MS + HOUR_MS]),
    st.sampled_from([100, 300, 2**31 - 1]),
)
@example([(1, (end_ms, "orders", b"s", None, False), None) for end_ms in level_ends_ms(NOW_MS)], 0, 0, 0, 2**31 - 1)
def test_a_run_of_arrivals_is_stored_alike(
    steps: list[tuple[int, tuple[int, str, bytes, bytes | None, bool], bytes | None] | None],
    base: int,
    seen: int,
    watermark_ms: int,
    bytes_max: int,
) -> None:
    batch: list[Arrival | Ordered | Dropped] = []
    offset = 0
    for step in steps:
        offset += 1 if step is None else step[0]
        if step is None:
            batch.append(Dropped(offset, ""))
        else:
            due_ms, origin, stays, retry_id, replace = step[1]
            arrival = Arrival(offset, due_ms, origin, stays, retry_id, replace)
            key = step[2]
            batch.append(arrival if key is None else Ordered(offset, arrival, lane_of(origin, key)))
    python, compiled = overlay(base, watermark_ms), overlay(base, watermark_ms)
    at = 0
    while at < len(batch):
        behind = compiled.store_plain(batch, at, seen, bytes_max)
        assert behind == python.store_plain(tuple(batch), at, seen, bytes_max)
        for item in batch[at:behind]:
            each = item.arrival if isinstance(item, Ordered) else item
            assert isinstance(each, Arrival)
            assert each.due_ms > NOW_MS
            assert each.offset >= seen
            assert each.retry_id is None
            assert not each.replace
            assert len(each.lasting) + MOVING.size <= bytes_max
        at = behind + 1
    for one in (compiled, python):
        one.lanes.finish(one.mutations.rows)
    assert list(compiled.mutations.rows.items()) == list(python.mutations.rows.items())
    for crossings in ("latest_ms", "until_ms"):
        ours, theirs = (getattr(one.partition.crossings, crossings) for one in (compiled, python))
        assert ours == theirs
    for counts in ("slots", "origins", "deferred"):
        assert getattr(compiled.delta, counts) == getattr(python.delta, counts)
    assert {slot: (group.entries, group.origins) for slot, group in compiled.groups.items()} == {
        slot: (group.entries, group.origins) for slot, group in python.groups.items()
    }


@given(
    st.integers(0, 5),
    st.lists(st.tuples(sizes, st.sampled_from(["orders", "x", "ü", "o" * 249])), max_size=60),
    st.sampled_from([1, 100, 1_000, 512 * 1024]),
)
def test_the_entries_of_a_slot_are_packed_alike(level: int, some: list[tuple[int, str]], bytes_max: int) -> None:
    group = SlotEntries()
    group.entries = [b"e" * (HEAD.size + size) for size, _ in some]
    group.origins = [origin for _, origin in some]
    assert hot.blocks.pack(level, group.entries, group.origins, bytes_max) == list(
        block_values(level, group, bytes_max)
    )


def test_a_slot_of_too_many_origins_is_left_to_python() -> None:
    names = [f"{number}" for number in range(0x10000)]
    assert hot.blocks.pack(0, [b"e"] * len(names), names, 512 * 1024) is None
    assert hot.blocks.pack(0, [b"e"], ["o" * 0x10000], 512 * 1024) is None


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(-1, 2), plain_lists | ibm_plain_lists | any_lists), max_size=30),
    st.integers(0, 40),
)
def test_records_are_buffered_alike(steps: list[tuple[int, int, Headers]], fails_at: int) -> None:
    """Of partitions that have a buffer and one that has none, some seen before, until reading fails."""
    offsets = [10] * 4
    records: list[Record] = []
    for number, step, headers in steps:
        offsets[number] += step
        records.append(Record(number, offsets[number], NOW_MS, b"k", b"v", headers))

    def read() -> Iterator[Record]:
        yield from records[:fails_at]
        if fails_at < len(records):
            raise RuntimeError("the connection is gone")

    def buffered(*, compiled: bool) -> object:
        examines = ingest(PolicyConfig(), list(DIALECTS.values()), compressed=True)
        if not compiled:
            examines.plain = None
        buffer = Buffer(examines)
        for number in range(3):
            buffer.begin(number, 10)
        unresolved = outcome(lambda: buffer.ingest(read(), NOW_MS))
        lags = buffer.lags(dict.fromkeys(range(4), 1_000))
        return unresolved, buffer.bytes, lags, buffer.waits, buffer.batches(range(4), 100, 10**9)

    assert buffered(compiled=True) == buffered(compiled=False)


def overlay(base: int, watermark_ms: int) -> Overlay:
    partition = Partition(4)
    partition.checkpoint = msgspec.structs.replace(partition.checkpoint, offset_base=base, watermark_ms=watermark_ms)
    return Overlay(partition, MemoryStore(), NOW_MS)


@given(st.lists(entries, min_size=1, max_size=10, unique_by=lambda entry: entry[:KEY_BYTES]))
def test_entries_of_a_block_are_restored_alike(some: list[bytes]) -> None:
    partition = Partition(4)
    value = codec.encode_block(0, {"orders": (len(some), 0)}, some)
    head = codec.decode_block_head(value)

    def restored(*, compiled: bool) -> dict[bytes, bytes | None]:
        rows: dict[bytes, bytes | None] = {}
        timers, others = hot.ingest.Timers(partition.rows.timer), some
        if compiled:
            others = timers.add(value, head.lengths, head.entries_at)
            timers.pour(rows)
        for entry in others:
            restore_entry(rows, rows, partition, entry)
        assert not timers
        return rows

    assert outcome(lambda: restored(compiled=True)) == outcome(lambda: restored(compiled=False))


@given(st.lists(st.lists(entries, min_size=1, max_size=10), max_size=5))
def test_plain_entries_of_many_blocks_come_in_key_order_and_the_last_one_holds(blocks: list[list[bytes]]) -> None:
    partition = Partition(4)
    expected: dict[bytes, bytes | None] = {}
    timers = hot.ingest.Timers(partition.rows.timer)
    for some in blocks:
        value = codec.encode_block(0, {"orders": (len(some), 0)}, some)
        head = codec.decode_block_head(value)
        others = timers.add(value, head.lengths, head.entries_at)
        for entry in some:
            if entry not in others:
                restore_entry(expected, {}, partition, entry)
    assert list(timers) == sorted(expected.items())
    assert len(timers) >= len(expected)


@pytest.mark.parametrize(("lengths", "at"), [([9], 0), ([-1], 0), ([4, 5], 0), ([8], 1), ([1], 9), ([1], -1)])
def test_an_entry_that_ends_behind_its_block_is_refused(lengths: list[int], at: int) -> None:
    with pytest.raises(IndexError, match="an entry ends behind its block"):
        hot.ingest.Timers(b"t").add(bytes(8), lengths, at)

"""Bytes: what goes in comes out, keys sort as timers do, and damaged bytes are known for what they are."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sidecar.changelog import codec
from sidecar.changelog.codec import Block, BlockKey, Checkpoint, Closed, Closure, Engine, FormerAssignment, Unfinished
from sidecar.changelog.entry import DEFERRED, HEAD, MOVING, head, lasting, moved, origin_of, payload, retry_id_of
from sidecar.engine.rows import FORMAT, Meta, Rows, after, decode_meta, encode_meta
from sidecar.errors import FormatUnknown, RecordCorrupt
from sidecar.model import Headers, StoredOffset
from sidecar.wheel.counts import Counts
from tests.golden.examples import EXAMPLES, Example

u8, u16, u32, u64 = (st.integers(0, 2**bits - 1) for bits in (8, 16, 32, 64))
i64 = st.integers(-(2**63), 2**63 - 1)
texts = st.text(st.characters(codec="utf-8"), max_size=30)
maybe_bytes = st.none() | st.just(b"") | st.binary(max_size=40)
headers = st.lists(st.tuples(texts, maybe_bytes), max_size=5)
retry_ids = st.none() | texts.filter(bool).map(str.encode)
closures = st.builds(Closed, st.sampled_from(Closure), u64)
checkpoints = st.builds(
    Checkpoint,
    st.sampled_from(Engine),
    u64,
    u64,
    u64,
    u64,
    u64,
    texts,
    u64,
    st.dictionaries(texts, closures, max_size=3),
    st.none() | st.builds(Unfinished, u64, u32, u32, u32, i64, i64),
    assignment=u64,
    former=st.lists(st.builds(FormerAssignment, u64, u64), max_size=3).map(tuple),
)
entries = st.binary(min_size=HEAD.size, max_size=200)


@st.composite
def blocks(draw: st.DrawFn) -> Block:
    """Draw a block whose counts are those of its entries."""
    held = draw(st.lists(st.tuples(texts, st.booleans(), entries), min_size=1, max_size=6))
    origins: dict[str, tuple[int, int]] = {}
    for origin, is_deferred, _ in held:
        count, deferred = origins.get(origin, (0, 0))
        origins[origin] = count + 1, deferred + is_deferred
    return Block(draw(u8), origins, [entry for _, _, entry in held])


SELF_CHECKING = [
    example for example in EXAMPLES if example.name in {"checkpoint-value", "block-value", "removed-value"}
]
READERS: list[Callable[[bytes], object]] = [
    codec.decode_checkpoint,
    codec.decode_block,
    codec.check_removed,
    codec.decode_key,
    decode_meta,
    head,
    lambda data: payload(data, 0),
    lambda data: Counts().load(data[:-8], data[-8:]),
]
framed = st.binary(max_size=80).map(codec._framed)


@given(
    u64,
    u64,
    u64,
    u8,
    u64,
    i64,
    u16,
    u16,
    u8,
    st.integers(-1, 2**31 - 1),
    texts,
    retry_ids,
    maybe_bytes,
    maybe_bytes,
    headers,
)
def test_an_entry_gives_back_what_was_put_in(  # noqa: PLR0917 - every field of an entry
    due_ms: int,
    offset: int,
    requested_ms: int,
    level: int,
    first_ms: int,
    timestamp_ms: int,
    attempt: int,
    limit: int,
    dialect: int,
    origin_partition: int,
    origin: str,
    retry_id: bytes | None,
    key: bytes | None,
    value: bytes | None,
    came: Headers,
) -> None:
    name = origin.encode()
    body = lasting(first_ms, timestamp_ms, attempt, limit, dialect, name, retry_id, key, value, came, origin_partition)
    entry = MOVING.pack(due_ms, offset, requested_ms, level, 0) + body
    fixed = head(entry)
    assert fixed[:5] == (due_ms, offset, requested_ms, level, 0)
    assert fixed[5:11] == (first_ms, timestamp_ms, attempt, limit, dialect, origin_partition)
    assert (origin_of(entry, fixed), retry_id_of(entry, fixed)) == (origin, retry_id)
    start = HEAD.size + fixed.origin_length + fixed.retry_id_length
    assert payload(entry, start) == (key, value, came)
    again = moved(entry, due_ms=requested_ms, requested_ms=due_ms, level=1, flags=DEFERRED)
    assert head(again) == (requested_ms, offset, due_ms, 1, DEFERRED, *fixed[5:])
    assert again[MOVING.size :] == body


@given(checkpoints)
def test_a_checkpoint_gives_back_what_was_put_in(checkpoint: Checkpoint) -> None:
    assert codec.decode_checkpoint(codec.encode_checkpoint(checkpoint)) == checkpoint


@given(blocks())
def test_a_block_gives_back_what_was_put_in(block: Block) -> None:
    assert codec.decode_block(codec.encode_block(*block)) == block


@given(u64, u64, u16)
def test_record_keys_come_back(slot_end_ms: int, sequence: int, part: int) -> None:
    key = BlockKey(slot_end_ms, sequence, part)
    assert codec.decode_key(codec.block_key(key)) == key
    assert codec.decode_key(codec.removed_key(StoredOffset(sequence), slot_end_ms)) == (sequence, slot_end_ms)


@given(texts, texts, u64, checkpoints, st.booleans())
def test_a_meta_row_gives_back_what_was_put_in(
    cluster: str, topic: str, offset: int, checkpoint: Checkpoint, restored: bool
) -> None:
    meta = Meta(FORMAT, cluster, topic, offset, checkpoint, restored=restored)
    assert decode_meta(encode_meta(meta)) == meta


places = st.tuples(u32, u64, u64)


@given(places, places)
@example((0, 255, 2**64 - 1), (0, 256, 0))
def test_rows_of_timers_sort_by_partition_due_and_offset(one: tuple[int, ...], other: tuple[int, ...]) -> None:
    rows = [
        Rows(partition).timer + MOVING.pack(due_ms, offset, 0, 0, 0)[:16] for partition, due_ms, offset in (one, other)
    ]
    assert (rows[0] < rows[1], rows[0] == rows[1]) == (one < other, one == other)


@given(u32, u32, u64, u64)
def test_no_row_of_one_partition_lies_in_the_range_of_another(ours: int, theirs: int, due_ms: int, offset: int) -> None:
    row = Rows(theirs).timer + MOVING.pack(due_ms, offset, 0, 0, 0)[:16]
    prefix = Rows(ours).timer
    assert (prefix <= row < after(prefix)) == (ours == theirs)


@given(st.binary(min_size=1, max_size=6).filter(lambda prefix: prefix.strip(b"\xff")), st.binary(max_size=6))
def test_what_begins_with_a_prefix_lies_in_its_range(prefix: bytes, rest: bytes) -> None:
    assert prefix <= prefix + rest < after(prefix)


@pytest.mark.parametrize("reader", READERS)
@given(data=st.binary(max_size=300) | framed)
def test_strange_bytes_are_called_corrupt_or_unknown_and_nothing_else(
    reader: Callable[[bytes], object], data: bytes
) -> None:
    assert isinstance(error_of(reader, data), FormatUnknown | RecordCorrupt | None)


@pytest.mark.parametrize(
    "written",
    [
        example
        for example in EXAMPLES
        if ("value" in example.name or "entry" in example.name) and example.written != codec.REMOVED  # has no body
    ],
)
@given(data=st.data())
def test_so_are_damaged_ones_under_a_right_checksum(written: Example, data: st.DataObject) -> None:
    checked = written in SELF_CHECKING
    body = bytearray(written.written[codec._FRAME.size :] if checked else written.written)
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(body[: data.draw(st.integers(0, len(body)))]) if data.draw(st.booleans()) else bytes(body)
    error = error_of(written.read, codec._framed(cut) if checked else cut)
    assert isinstance(error, FormatUnknown | RecordCorrupt | None)


def error_of(reader: Callable[[bytes], object], data: bytes) -> Exception | None:
    """Return what the reader raises."""
    try:
        reader(data)
    except Exception as error:  # noqa: BLE001 - which one it is, is the question
        return error
    return None


@pytest.mark.parametrize("written", SELF_CHECKING, ids=lambda written: written.name)
@given(data=st.data())
def test_a_flipped_bit_is_found(written: Example, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, 8 * len(written.written) - 1))
    damaged = bytearray(written.written)
    damaged[at // 8] ^= 1 << at % 8
    with pytest.raises((FormatUnknown, RecordCorrupt)):
        written.read(bytes(damaged))


@pytest.mark.parametrize("written", SELF_CHECKING, ids=lambda written: written.name)
@given(data=st.data())
def test_a_value_that_was_cut_off_is_found(written: Example, data: st.DataObject) -> None:
    length = data.draw(st.integers(0, len(written.written) - 1))
    with pytest.raises((FormatUnknown, RecordCorrupt)):
        written.read(written.written[:length])

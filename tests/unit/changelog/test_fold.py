"""The meaning of a changelog, by its definition."""

from __future__ import annotations

import pytest

from sidecar.changelog import codec
from sidecar.changelog.codec import BlockKey, Checkpoint
from sidecar.changelog.entry import KEY, MOVING, lasting
from sidecar.errors import FormatUnknown, RecordCorrupt
from sidecar.model import StoredOffset
from tests.fold import LogRecord, fold


def timer(due_ms: int, offset: int) -> bytes:
    return MOVING.pack(due_ms, offset, due_ms, 0, 0) + lasting(due_ms, 0, 0, 3, 1, b"A", None, None, None, [])


def block(*keys: tuple[int, int], sequence: int = 1) -> LogRecord:
    entries = [timer(*key) for key in keys]
    return codec.block_key(BlockKey(1000, sequence, 0)), codec.encode_block(0, {"A": (len(entries), 0)}, entries)


def removed(due_ms: int, offset: int) -> LogRecord:
    return codec.removed_key(StoredOffset(offset), due_ms), codec.REMOVED


def watermark(due_ms: int, offset: int) -> LogRecord:
    checkpoint = Checkpoint(watermark_ms=due_ms, watermark_offset=offset)
    return codec.CHECKPOINT_KEY, codec.encode_checkpoint(checkpoint)


def pending(*records: LogRecord) -> list[tuple[int, int]]:
    return [KEY.unpack(key) for key in sorted(fold(records).pending)]


def test_a_timer_in_a_block_is_pending() -> None:
    assert pending(block((5, 1), (7, 2))) == [(5, 1), (7, 2)]


def test_a_timer_at_or_below_the_watermark_is_gone_by_its_whole_key() -> None:
    assert pending(block((4, 9), (5, 1), (5, 2), (5, 3), (6, 0)), watermark(5, 2)) == [(5, 3), (6, 0)]


def test_a_removed_timer_is_gone_and_no_other() -> None:
    assert pending(block((5, 1), (6, 1), (5, 2)), removed(5, 1)) == [(5, 2), (6, 1)]


def test_a_removed_record_that_says_more_than_its_key_is_corrupt() -> None:
    with pytest.raises(RecordCorrupt, match="says all in its key"):
        fold([(codec.removed_key(StoredOffset(1), 5), codec._framed(bytes(8)))])


def test_the_last_record_of_a_key_holds() -> None:
    assert pending(watermark(6, 1), block((5, 1), (6, 1)), watermark(5, 1)) == [(6, 1)]


def test_a_tombstone_takes_its_record_away() -> None:
    key, _ = block((5, 1))
    assert pending(block((5, 1)), (key, None)) == []
    assert pending(block((5, 1)), removed(5, 1), (codec.removed_key(StoredOffset(1), 5), None)) == [(5, 1)]


def test_the_order_of_different_keys_does_not_matter() -> None:
    records = [watermark(4, 0), removed(5, 1), block((5, 1), (5, 2))]
    assert pending(*records) == pending(*reversed(records)) == [(5, 2)]


def test_nothing_means_nothing() -> None:
    empty = fold([])
    assert (empty.checkpoint, empty.pending, empty.removed, empty.blocks) == (Checkpoint(), {}, set(), set())


def test_a_key_in_two_blocks_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="a timer key is in two blocks"):
        fold([block((5, 1)), block((5, 1), sequence=2)])


def test_a_record_that_cannot_be_read_is_never_skipped() -> None:
    with pytest.raises(FormatUnknown):
        fold([(b"x", b"")])
    with pytest.raises(RecordCorrupt):
        fold([(codec.removed_key(StoredOffset(1), 5), b"\x01")])

"""Encoding of records: blocks and their cuts, versions, and the texts of errors."""

from __future__ import annotations

import pytest

from sidecar.changelog import codec
from sidecar.changelog.codec import BLOCK_BYTES_MAX, Block, BlockKey
from sidecar.changelog.entry import DEFERRED, HEAD, MOVING, lasting, moved
from sidecar.engine.overlay import Overlay
from sidecar.engine.partition import Partition
from sidecar.engine.records import block_records
from sidecar.errors import FormatUnknown, RecordCorrupt
from sidecar.model import StoredOffset
from sidecar.wheel.geometry import level_of, slot_of
from tests.simulation.memory_store import MemoryStore
from tests.simulation.stage import NOW, TERMS


def overlay_of(*timers: tuple[int, int]) -> Overlay:
    """Return an overlay that stores timers of (delay, size of the value)."""
    overlay = Overlay(Partition(0), MemoryStore(), NOW)
    for offset, (delay_ms, size) in enumerate(timers):
        due_ms = NOW + delay_ms
        body = lasting(due_ms, NOW, 0, 3, 1, b"A", None, None, bytes(size), [])
        overlay.store_new(StoredOffset(offset), due_ms, body, "A", None)
    return overlay


def blocks_of(overlay: Overlay) -> dict[BlockKey, Block]:
    found = {}
    for key, value in block_records(overlay, sequence=9, terms=TERMS):
        decoded = codec.decode_key(key)
        assert isinstance(decoded, BlockKey)
        assert decoded not in found
        found[decoded] = codec.decode_block(value or b"")
    return found


def test_all_that_one_transaction_stores_in_a_slot_is_one_block() -> None:
    blocks = blocks_of(overlay_of((1, 10), (500, 10), (999, 10), (1000, 10)))
    assert {key: len(block.entries) for key, block in blocks.items()} == {
        BlockKey(NOW + 1000, 9, 0): 3,
        BlockKey(NOW + 2000, 9, 0): 1,
    }


def test_a_block_is_cut_before_it_grows_beyond_its_size() -> None:
    blocks = blocks_of(overlay_of(*((1, 100_000) for _ in range(12))))
    assert [key.part for key in blocks] == [0, 1, 2]
    assert [len(block.entries) for block in blocks.values()] == [5, 5, 2]
    assert all(sum(map(len, block.entries)) <= BLOCK_BYTES_MAX for block in blocks.values())


def test_a_huge_entry_is_a_block_by_itself() -> None:
    blocks = blocks_of(overlay_of((1, 10), (1, 900_000), (1, 10), (1, 900_000)))
    assert [len(block.entries) for block in blocks.values()] == [1, 1, 1, 1]


def test_parts_are_counted_per_slot_end_whatever_the_level() -> None:
    end_ms = -(-(NOW + 1000) // 64_000) * 64_000
    overlay = overlay_of((end_ms - NOW - 1, 10))
    ((level, slot),) = overlay.groups
    # Two levels of one slot end do not meet in one plan as the levels are chosen now; the keys must not rely on it.
    other = 1 - level
    group = overlay.groups[other, slot_of(end_ms - 1, other)]
    group.origins += ["A"]
    group.entries += [moved(overlay.groups[level, slot].entries[0], due_ms=end_ms - 1, requested_ms=0, level=other)]
    keys = [codec.decode_key(key) for key, _ in block_records(overlay, sequence=9, terms=TERMS)]
    assert keys == [BlockKey(end_ms, 9, 0), BlockKey(end_ms, 9, 1)]


def test_a_block_says_its_level_and_counts_its_entries_by_origin() -> None:
    overlay = overlay_of((70_000, 10))
    stored = next(iter(overlay.groups.values())).entries[0]
    overlay.take(stored)
    overlay.store_again(stored, NOW + 70_001, NOW, DEFERRED)
    overlay.store_new(
        StoredOffset(7), NOW + 70_002, lasting(NOW, NOW, 0, 3, 1, "ü".encode(), None, None, None, []), "ü", None
    )
    (block,) = blocks_of(overlay).values()
    assert block.level == level_of(NOW + 70_001, NOW) == 1
    assert block.origins == {"A": (1, 1), "ü": (1, 0)}


def test_a_newer_format_says_which_version_reads_it() -> None:
    value = b"\x02" + codec.REMOVED[1:]
    with pytest.raises(FormatUnknown, match="format version 2; this version reads 1: run the version that wrote it"):
        codec.check_removed(value)


@pytest.mark.parametrize("key", [None, b"", b"x", b"b", b"b" + bytes(17), b"r" + bytes(7), b"r" + bytes(8), b"c\x00"])
def test_a_key_of_no_known_kind_is_unknown(key: bytes | None) -> None:
    with pytest.raises(FormatUnknown):
        codec.decode_key(key)


def test_a_block_with_an_entry_that_is_too_short_is_corrupt() -> None:
    with pytest.raises(RecordCorrupt, match=f"at least {HEAD.size} are needed"):
        codec.decode_block(codec.encode_block(0, {"A": (1, 0)}, [bytes(MOVING.size)]))

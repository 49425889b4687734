"""Converts changelog records into the state, and the state into changelog records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from operator import itemgetter

from msgspec.structs import replace

from sidecar.changelog.codec import (
    BLOCK_BYTES_MAX,
    CHECKPOINT_KEY,
    BlockKey,
    Engine,
    block_key,
    check_removed,
    decode_block,
    decode_checkpoint,
    decode_key,
    encode_block,
)
from sidecar.changelog.entry import KEY_BYTES, LEVEL_AT, due_ms_of
from sidecar.errors import invariant
from sidecar.spark.state.blocks import by_origin
from sidecar.spark.state.entries import META, BufferedEntries, Meta, StoredEntries, decode_meta, encode
from sidecar.spark.state.shard_store import ShardStore
from sidecar.wheel.geometry import slot_end_ms, slot_of


def take_over(partition: int, stored: StoredEntries, records: Iterable[tuple[bytes | None, bytes | None]]) -> None:
    """Write changelog records into the state; as in the fold, their order does not matter.

    Tombstones may be given or left out: the watermark has passed what they delete.

    Args:
        partition: A partition of the input topic.
        stored: Entries of the partition.
        records: Any part of its changelog. A checkpoint must be the last one of the changelog.
    """
    state = BufferedEntries(stored)
    value = state.get(META)
    meta = Meta(settled=False) if value is None else decode_meta(value)
    store = ShardStore(state, meta, partition)
    for record_key, record_value in records:
        if record_key is None or record_value is None:
            continue
        key, body = bytes(record_key), bytes(record_value)
        if key == CHECKPOINT_KEY:
            meta.checkpoint = replace(decode_checkpoint(body), engine=Engine.SPARK)
            continue
        decoded = decode_key(key)
        if isinstance(decoded, BlockKey):
            store.import_block(body, decoded.slot_end_ms)
        elif decoded is not None:
            check_removed(body)
            store.import_removed(decoded)
    store.save()
    state.put(META, encode(meta))
    state.flush()


def timers_of(block: bytes, watermark: bytes) -> Iterator[bytes]:
    """Yield the entries of a block in the state or the changelog that the watermark has not passed."""
    return (entry for entry in decode_block(block).entries if entry[:KEY_BYTES] > watermark)


def sorted_blocks(
    entries: Iterable[tuple[int, bytes]], sequences: Mapping[int, int]
) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield partition, key and value of the changelog records for blocks with these entries, one block at a time.

    Args:
        entries: Partition and entry, sorted by partition, slot end and level. None of them may be in another block of
            the changelog, since no timer key is in two.
        sequences: The sequence of the next checkpoint by partition, which names the blocks.
    """
    last = (-1, -1)
    for (partition, end_ms), of_slot in groupby(entries, key=_slot_end):
        invariant(
            (partition, end_ms) > last,
            "timers to export are not sorted, and one block would replace another",
            partition=partition,
            slot_end_ms=end_ms,
            last=last,
        )
        last = partition, end_ms
        part = 0
        for level, of_level in groupby((entry for _, entry in of_slot), key=itemgetter(LEVEL_AT)):
            for held in _cut(of_level):
                key = block_key(BlockKey(end_ms, sequences[partition], part))
                yield partition, key, encode_block(level, by_origin(held), held)
                part += 1


def slot_end_of(entry: bytes) -> int:
    """Return the end of the slot in which an entry was stored."""
    level = entry[LEVEL_AT]
    return slot_end_ms(slot_of(due_ms_of(entry), level), level)


def _slot_end(row: tuple[int, bytes]) -> tuple[int, int]:
    partition, entry = row
    return partition, slot_end_of(entry)


def _cut(entries: Iterable[bytes]) -> Iterator[list[bytes]]:
    held: list[bytes] = []
    size = 0
    for entry in entries:
        if held and size + len(entry) > BLOCK_BYTES_MAX:
            yield held
            held, size = [], 0
        held.append(entry)
        size += len(entry)
    yield held

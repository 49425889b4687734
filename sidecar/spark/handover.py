"""From the changelog into the state, record by record, and from the state into changelog records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from msgspec.structs import replace

from sidecar.changelog.codec import (
    BLOCK_BYTES_MAX,
    CHECKPOINT_KEY,
    BlockKey,
    Engine,
    block_key,
    decode_checkpoint,
    decode_key,
    encode_block,
)
from sidecar.changelog.entry import LEVEL_AT
from sidecar.errors import InvariantViolated
from sidecar.spark.blocks import by_origin
from sidecar.spark.cells import META, Cells, Meta, decode_meta, encode
from sidecar.spark.shard_store import ShardStore
from sidecar.wheel.geometry import slot_end_ms, slot_of


def take_over(partition: int, cells: Cells, records: Iterable[tuple[bytes | None, bytes | None]]) -> None:
    """Write changelog records into the state; their order does not matter, as it does not to the fold.

    Tombstones may be left out or come in: what they delete lies behind the watermark.

    Args:
        partition: Of the input topic.
        cells: Its state.
        records: Any part of its changelog. The checkpoint must be the last one there is.
    """
    value = cells.get(META)
    meta = Meta(settled=False) if value is None else decode_meta(value)
    store = ShardStore(cells, meta, partition)
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
            store.import_removed(decoded, body)
    store.save()
    cells.put(META, encode(meta))


def pending_entries(partition: int, cells: Mapping[bytes, bytes]) -> Iterator[bytes]:
    """Yield the entry of each message that is pending; `cells` is all of the partition's state."""
    yield from ShardStore(_ReadOnly(cells), decode_meta(cells[META]), partition).entries()


def removed_records(partition: int, cells: Mapping[bytes, bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Yield the changelog records that say what was removed."""
    yield from ShardStore(_ReadOnly(cells), decode_meta(cells[META]), partition).removed()


def block_records(entries: Iterable[bytes], sequence: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield the changelog records of blocks with these entries.

    Args:
        entries: In any order; none of them may be in another block of the changelog, as no timer key is in two.
        sequence: Of the checkpoint that they come before; names the blocks.
    """
    groups: dict[tuple[int, int], list[bytes]] = {}
    sizes: dict[tuple[int, int], int] = {}
    parts: dict[int, int] = {}

    def block(level: int, end_ms: int) -> tuple[bytes, bytes]:
        held = groups.pop((level, end_ms))
        del sizes[level, end_ms]
        part = parts.get(end_ms, 0)
        parts[end_ms] = part + 1
        return block_key(BlockKey(end_ms, sequence, part)), encode_block(level, by_origin(held), held)

    for entry in entries:
        level = entry[LEVEL_AT]
        place = (level, slot_end_ms(slot_of(int.from_bytes(entry[:8], "big"), level), level))
        groups.setdefault(place, []).append(entry)
        sizes[place] = sizes.get(place, 0) + len(entry)
        if sizes[place] >= BLOCK_BYTES_MAX:
            yield block(*place)
    for place in list(groups):
        yield block(*place)


class _ReadOnly:
    """Cells that nobody writes."""

    def __init__(self, cells: Mapping[bytes, bytes]) -> None:
        self._cells = cells

    def get(self, cell: bytes) -> bytes | None:
        return self._cells.get(cell)

    def put(self, cell: bytes, value: bytes) -> None:
        raise InvariantViolated(f"a state that is only read was written: {cell!r}, {len(value)} bytes")

    def remove(self, cell: bytes) -> None:
        raise InvariantViolated(f"a state that is only read was written: {cell!r}")

"""What stops a restore: records and rows that cannot be read, and those of another engine."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from sidecar.changelog import codec
from sidecar.changelog.codec import BlockKey, Checkpoint, Engine
from sidecar.engine.ports import Mutations
from sidecar.engine.restore import ChangelogRead
from sidecar.engine.rows import FORMAT, Meta, decode_meta, encode_meta
from sidecar.errors import FormatUnknown, PartitionStopped, RecordCorrupt, StoreCorrupt
from tests.simulation.memory_store import MemoryStore
from tests.unit.engine.test_restore import ONE, lived, restore_into


@pytest.mark.parametrize(
    ("key", "value", "error"),
    [
        (b"?", b"", FormatUnknown),
        (b"c", b"\x02", FormatUnknown),
        (b"c", b"\x01\x00\x00\x00\x00x", RecordCorrupt),
        (codec.block_key(BlockKey(1001, 1, 0)), codec.encode_block(0, *ONE), RecordCorrupt),
        (codec.block_key(BlockKey(1000, 1, 0)), codec.encode_block(9, *ONE), RecordCorrupt),
    ],
    ids=["key", "version", "checksum", "no slot ends there", "no such level"],
)
def test_a_record_that_cannot_be_read_stops_the_partition_and_is_named(
    key: bytes, value: bytes, error: type[PartitionStopped]
) -> None:
    store = MemoryStore()
    _, restore = restore_into(store)
    restore.begin(0, 99)
    with pytest.raises(error, match="app-changelog, partition 0, offset 42: "):
        restore.apply([ChangelogRead(42, key, value)], "app-changelog")
    assert dict(store.rows) == {}


def test_a_partition_of_the_other_engine_is_not_taken_over() -> None:
    _, restore = restore_into(MemoryStore())
    restore.begin(0, 9)
    restore.apply([ChangelogRead(0, b"c", codec.encode_checkpoint(Checkpoint(engine=Engine.SPARK)))], "changelog")
    assert restore.settle()
    with pytest.raises(PartitionStopped, match="last written by the spark engine; hand it over first"):
        restore.finish(1)


@pytest.mark.parametrize("what", ["meta", "format", "counter"])
def test_a_strange_row_is_a_corrupt_store_and_no_stopped_partition(what: str) -> None:
    stage = lived()
    rows = stage.partition.rows
    meta = decode_meta(stage.store.rows[rows.meta])
    strange = {
        "meta": {rows.meta: b"\xff"},
        "format": {rows.meta: encode_meta(replace(meta, format=9))},
        "counter": {rows.counter + b"O\xff": bytes(8)},
    }
    mutations = Mutations()
    mutations.rows.update(strange[what])
    stage.store.apply([mutations])
    _, restore = restore_into(stage.store)
    with pytest.raises(StoreCorrupt, match="the state folder is strange"):
        restore.begin(0, stage.log.end)


def test_a_folder_of_before_commits_were_confirmed_is_believed() -> None:
    meta = Meta(FORMAT, "cluster", "topic", 7, Checkpoint(sequence=3))
    assert decode_meta(msgspec.msgpack.encode(msgspec.to_builtins(meta)[:6])) == meta
    assert meta.to_confirm == -1

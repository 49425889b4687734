"""A changelog and a state folder on file are read, and the same messages wait."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from sidecar.changelog.codec import BlockKey, RemovedKey, decode_key
from sidecar.engine.partition import Partition, State
from sidecar.engine.ports import Mutations, Store
from sidecar.engine.restore import ChangelogRead, Restore
from sidecar.engine.rows import FORMAT, decode_meta, encode_meta
from sidecar.errors import StoreCorrupt
from sidecar.store.rocks import RocksStore
from tests.fold import fold
from tests.golden.history import pending_of, read_changelog, read_pending, unpack_state_folder
from tests.simulation.audit import check_fold, rows_of
from tests.simulation.memory_log import MemoryLog
from tests.simulation.memory_store import MemoryStore
from tests.simulation.world import IDENTITY


@pytest.fixture
def log() -> MemoryLog:
    """The changelog on file."""
    made = MemoryLog()
    made.records = read_changelog()
    made.end = made.records[-1].offset + 2  # the commit marker
    return made


def restored(log: MemoryLog, store: Store) -> tuple[Partition, list[ChangelogRead]]:
    """Restore a partition, and return it with the records that were read behind the folder's place."""
    partition = Partition(0)
    partition.transition_to(State.RESTORING)
    restore = Restore(partition, store, IDENTITY)
    left = log.left_for(restore)
    if left:
        restore.apply(left, "changelog")
    while not restore.settle():
        pass
    restore.finish(log.end)
    return partition, left


def test_the_changelog_has_records_of_every_kind() -> None:
    keys = [decode_key(each.key) for each in read_changelog()]
    assert {type(key) for key in keys} == {BlockKey, RemovedKey, type(None)}
    assert len(read_pending()) >= 10


def test_the_changelog_says_what_waited(log: MemoryLog) -> None:
    folded = fold((each.key, each.value) for each in log.records)
    assert pending_of(folded.pending.values()) == read_pending()


def test_an_empty_folder_is_filled_from_it(log: MemoryLog) -> None:
    store = MemoryStore()
    partition, _ = restored(log, store)
    check_fold(partition, store, fold((each.key, each.value) for each in log.records))
    assert pending_of(rows_of(store, partition.rows.timer).values()) == read_pending()


def test_the_state_folder_is_continued_where_it_stood(log: MemoryLog, tmp_path: Path) -> None:
    unpack_state_folder(tmp_path)
    store = RocksStore(tmp_path)
    try:
        partition, left = restored(log, store)
        assert 0 < len(left) < len(log.records) / 2, "it is not read from its start"
        check_fold(partition, store, fold((each.key, each.value) for each in log.records))
        assert pending_of(rows_of(store, partition.rows.timer).values()) == read_pending()
        assert partition.counts.pending == len(read_pending())
    finally:
        store.close()


def test_a_state_folder_of_a_later_format_is_for_the_quarantine(log: MemoryLog, tmp_path: Path) -> None:
    """The runtime sets it aside and restores from the changelog."""
    unpack_state_folder(tmp_path)
    store, row = RocksStore(tmp_path), Partition(0).rows.meta
    try:
        later = Mutations()
        later.rows[row] = encode_meta(replace(decode_meta(store.get(row) or b""), format=FORMAT + 1))
        store.apply([later])
        with pytest.raises(StoreCorrupt, match=f"rows of format {FORMAT + 1}; this version reads {FORMAT}"):
            restored(log, store)
    finally:
        store.close()

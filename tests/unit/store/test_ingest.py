"""Sorted files that RocksDB ingests: what they hold over, and what is left of them when the process dies."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from sidecar.engine.partition import Partition
from sidecar.engine.ports import Mutations, Store
from sidecar.engine.restore import Restore
from sidecar.engine.rows import Identity
from sidecar.errors import StoreFailed
from sidecar.store import rocks
from sidecar.store.inspect import ReadOnlyStore
from sidecar.store.rocks import INGESTED, UNMERGED_FILES, RocksStore
from tests.simulation.memory_store import MemoryStore
from tests.simulation.stage import IDENTITY, NOW, Stage
from tests.waiting import eventually

ROOT = Path(__file__).parents[3]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RocksStore]:
    store = RocksStore(tmp_path / "db")
    yield store
    store.close()


def ingest(store: RocksStore, rows: dict[bytes, bytes | None]) -> int:
    """Ingest rows; return the number of steps."""
    return sum(1 for _ in store.ingest(sorted(rows.items())))


def files(store: RocksStore) -> list[Path]:
    return list((store.folder / INGESTED).glob("*"))


def rows_of(store: RocksStore) -> dict[bytes, bytes]:
    return dict(store.items(b"a", b"z", limit=100))


def test_ingested_rows_hold_over_what_was_written_before(store: RocksStore) -> None:
    before = Mutations()
    before.rows = {b"a": b"1", b"b": b"1", b"c": b"1", b"d": b"1"}
    store.apply([before])
    wiped = Mutations()
    wiped.ranges = [(b"c", b"e")]
    store.apply([wiped])
    ingest(store, {b"d": b"2", b"b": None, b"a": b"2"})
    assert rows_of(store) == {b"a": b"2", b"d": b"2"}
    assert files(store) == []


def test_what_is_written_later_holds_over_ingested_rows(store: RocksStore) -> None:
    ingest(store, {b"%c" % name: b"1" for name in b"abcdef"})
    ingest(store, {b"b": b"2", b"c": None})
    later = Mutations()
    later.ranges, later.rows = [(b"e", b"f")], {b"a": None, b"d": b"3"}
    store.apply([later])
    assert rows_of(store) == {b"b": b"2", b"d": b"3", b"f": b"1"}


def test_rows_are_ingested_in_steps(store: RocksStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rocks, "INGEST_STEP_ROWS", 2)
    assert ingest(store, {b"%c" % name: b"1" for name in b"abcdef"}) >= 3
    assert len(rows_of(store)) == 6


def test_a_file_is_not_compressed_before_it_is_merged(store: RocksStore) -> None:
    """The thread that writes it would compress it, and merging would do so again."""
    ingest(store, {b"%03d" % number: bytes(1_000) for number in range(100)})
    assert store.size_bytes() > 100_000


def test_no_rows_are_no_file(store: RocksStore) -> None:
    assert ingest(store, {}) == 0
    assert not (store.folder / INGESTED).exists()


def test_an_ingestion_that_is_given_up_leaves_nothing(store: RocksStore) -> None:
    steps = store.ingest([(b"a", b"1")])
    next(steps)
    assert len(files(store)) == 1
    steps.close()
    assert files(store) == []
    assert rows_of(store) == {}


def unmerged(store: RocksStore) -> int:
    return int(store._db.property_value("rocksdb.num-files-at-level0") or 0)


def ingested_many(store: RocksStore) -> None:
    """Ingest files with the same keys: the first ones are put below those that are merged."""
    for number in range(UNMERGED_FILES * 3):
        ingest(store, {b"a": b"%d" % number, b"z": b"%d" % number})
    assert unmerged(store) >= UNMERGED_FILES * 2


def test_ingested_files_are_not_merged_until_it_is_wanted(store: RocksStore) -> None:
    """The restores of other partitions flush meanwhile."""
    ingested_many(store)
    store.flush()
    ingested_many(store)
    store.merge()
    eventually(lambda: unmerged(store) < UNMERGED_FILES, 60, "they are merged")
    assert store.get(b"a") == b"%d" % (UNMERGED_FILES * 3 - 1)


def test_their_size_begins_no_merging_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time, all that a restore has ingested so far would be written again."""
    monkeypatch.setattr(rocks, "LEVEL_BYTES", 64 * 1024)
    store = RocksStore(tmp_path / "small")
    for number in range(3):
        ingest(store, {b"%03d" % row: bytes([number]) * 1_000 for row in range(100)})
    merging = ("rocksdb.compaction-pending", "rocksdb.num-running-compactions")
    assert [store._db.property_int_value(name) for name in merging] == [0, 0]
    assert unmerged(store) == 2
    store.merge()
    eventually(lambda: unmerged(store) == 0, 60, "they are merged")
    assert store.get(b"000") == b"\x02" * 1_000
    store.close()


def test_an_ingestion_waits_for_merging_before_the_library_would(
    store: RocksStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library would keep the interpreter's lock: no request and no heartbeat would be answered."""
    ingested_many(store)
    monkeypatch.setattr(rocks, "UNMERGED_FILES_PAUSE", UNMERGED_FILES)
    steps = store.ingest([(b"a", b"last"), (b"z", b"last")])
    for _ in range(100):
        next(steps)
    assert files(store) == []
    store._merge_at(UNMERGED_FILES)
    eventually(lambda: next(steps, "ended") == "ended", 60, "it is ingested")
    assert store.get(b"a") == b"last"


def test_a_folder_that_cannot_take_the_file_is_named(store: RocksStore) -> None:
    (store.folder / INGESTED).write_bytes(b"")
    with pytest.raises(StoreFailed, match=str(store.folder)):
        ingest(store, {b"a": b"1"})


def test_a_store_for_reading_ingests_nothing(tmp_path: Path) -> None:
    RocksStore(tmp_path / "db").close()
    reading = ReadOnlyStore(tmp_path / "db")
    with pytest.raises(StoreFailed, match="for reading only"):
        ingest(reading, {b"a": b"1"})
    reading.close()


def lived() -> Stage:
    """Return a partition that stored, fired, moved and removed."""
    stage = Stage()
    stage.commit(NOW, *(stage.send(NOW + due, retry_id=b"x") for due in (5, 50, 5_000, 90_000)))
    stage.commit(NOW + 10, *(stage.send(NOW + due) for due in (20, 70_000)))
    return stage


def restore(store: Store, identity: Identity, step: Callable[[], object]) -> int:
    """Restore the partition, a record and a file at a time; return the offset that it started from."""
    stage, partition = lived(), Partition(0)
    one = Restore(partition, store, identity)
    start = one.begin(0, stage.log.end)
    if one.unconfirmed and not start:
        one.apply(stage.log.records, "changelog")  # which writes nothing
        one.start_over()
    for record in stage.log.from_offset(start):
        one.apply([record], "changelog")
        step()
        while not one.spill():
            step()
    while not one.settle():
        step()
    step()
    one.finish(stage.log.end)
    step()
    return start


def in_a_child(act: Callable[..., object], *args: object) -> int | None:
    """Run in a fork, which must not have a database open; return how it ended."""
    child = multiprocessing.get_context("fork").Process(target=act, args=args)
    child.start()
    child.join()
    return child.exitcode


def filled(folder: Path, identity: Identity) -> None:
    """Fill a folder and end with the number of steps that it took."""
    store = RocksStore(folder)
    steps = itertools.count()
    restore(store, identity, lambda: next(steps))
    store.close()
    sys.exit(next(steps))


def killed(folder: Path, at: int) -> None:
    steps = itertools.count(1)

    def step() -> None:
        if next(steps) == at:
            os.kill(os.getpid(), signal.SIGKILL)

    restore(RocksStore(folder), IDENTITY, step)


def checked(folder: Path, *, whole: bool) -> None:
    """Open what a killed process left, restore, and compare all rows."""
    store, memory = RocksStore(folder), MemoryStore()
    assert not (folder / INGESTED).exists()
    start = restore(store, IDENTITY, lambda: None)
    assert (start > 0) == whole, "only a restore that was finished is gone on from"
    restore(memory, IDENTITY, lambda: None)
    found = dict(store.items(b"\0", b"\xff", limit=10_000))
    own = Partition(0).rows
    assert found.keys() == memory.rows.keys()
    assert {row for row in found if found[row] != memory.rows[row]} <= {own.meta}
    store.close()


def kill_at_every_step(folder: Path) -> None:
    """Kill a restore at its first step, at its second one, and so on, over a folder of a former topic."""
    other = IDENTITY._replace(changelog_topic_id="other")
    steps = in_a_child(filled, folder / "0", other)
    assert steps is not None
    assert steps > 10
    for at in range(1, steps + 1):
        database = folder / str(at)
        shutil.copytree(folder / "0", database)
        assert in_a_child(killed, database, at) == -signal.SIGKILL
        assert in_a_child(partial(checked, database, whole=at == steps)) == 0, at


def test_a_restore_that_is_killed_at_any_step_is_right_after_the_next_one(tmp_path: Path) -> None:
    program = f"import pathlib; from {__name__} import *; kill_at_every_step(pathlib.Path({str(tmp_path)!r}))"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr

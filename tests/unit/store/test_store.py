"""The RocksDB adapter: ranges, atomic batches and errors. Canaries watch the library's own traps."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rocksdict import Options, Rdict, ReadOptions

from sidecar.engine.ports import Mutations
from sidecar.engine.rows import Rows, after
from sidecar.errors import StoreCorrupt, StoreFailed
from sidecar.runtime.state import OPEN_AGAIN_S, LocalState
from sidecar.store.classify import classify
from sidecar.store.folder import StateFolder
from sidecar.store.rocks import CACHE_BYTES, WRITE_BUFFER_BYTES, WRITE_ROWS, RocksStore
from tests.clocks import HandClock

ROOT = Path(__file__).parents[3]


def written(rows: dict[bytes, bytes | None], ranges: list[tuple[bytes, bytes]] | None = None) -> Mutations:
    mutations = Mutations()
    mutations.rows = rows
    mutations.ranges = ranges or []
    return mutations


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RocksStore]:
    store = RocksStore(tmp_path / "db")
    yield store
    store.close()


@pytest.fixture
def digits(store: RocksStore) -> RocksStore:
    """Rows 0 to 9, each with its own name as value."""
    store.apply([written({b"%d" % n: b"%d" % n for n in range(10)})])
    return store


def damaged(folder: Path) -> Path:
    """Make a database of 20,000 rows in which a data block in the middle of each file is damaged."""
    store = RocksStore(folder)
    store.apply([written({b"t%08d" % n: b"%0100d" % n for n in range(20_000)})])
    store.close()
    files = sorted(folder.glob("*.sst"))
    assert files
    for file in files:
        content = bytearray(file.read_bytes())
        middle = len(content) // 2
        content[middle : middle + 64] = bytes(byte ^ 0xFF for byte in content[middle : middle + 64])
        file.write_bytes(content)
    return folder


# Ranges


def test_a_range_has_its_lower_end_and_not_its_upper_one(digits: RocksStore) -> None:
    assert digits.keys(b"3", b"7", limit=100) == [b"3", b"4", b"5", b"6"]
    assert digits.values(b"3", b"7", limit=100, limit_bytes=1000) == [b"3", b"4", b"5", b"6"]
    assert digits.items(b"3", b"5", limit=100) == [(b"3", b"3"), (b"4", b"4")]
    assert digits.first(b"30", b"7") == b"4"


def test_an_empty_range_is_empty(digits: RocksStore) -> None:
    assert digits.keys(b"31", b"32", limit=100) == []
    assert digits.first(b"31", b"4") is None
    assert digits.get(b"31") is None


def test_a_scan_ends_at_the_number_of_rows(digits: RocksStore) -> None:
    assert digits.keys(b"0", b"9", limit=2) == [b"0", b"1"]
    assert digits.values(b"0", b"9", limit=2, limit_bytes=1000) == [b"0", b"1"]
    assert digits.items(b"0", b"9", limit=1) == [(b"0", b"0")]


def test_a_scan_gives_the_row_that_reaches_the_number_of_bytes_and_no_more(store: RocksStore) -> None:
    store.apply([written({b"%d" % n: bytes(10) for n in range(9)})])
    assert len(store.values(b"0", b"9", limit=100, limit_bytes=25)) == 3
    assert len(store.values(b"0", b"9", limit=100, limit_bytes=1)) == 1


def test_partitions_do_not_see_each_other_even_at_the_edges_of_their_prefixes(store: RocksStore) -> None:
    partitions = (0, 1, 0xFE, 0xFF, 0x100, 0xFFFF, 0xFFFFFF, 2**31 - 1)
    kinds = Rows(0).__slots__
    store.apply(
        [
            written({getattr(Rows(number), kind) + suffix: b"%d" % number for kind in kinds})
            for number in partitions
            for suffix in (b"", bytes(8), b"\xff" * 16)
        ]
    )
    for number in partitions:
        for lower, upper in Rows(number).ranges():
            assert store.values(lower, upper, limit=100, limit_bytes=1000) == [b"%d" % number] * 3


@pytest.mark.parametrize(
    ("prefix", "expected"),
    [
        (b"t\x00\x00\x00\x00", b"t\x00\x00\x00\x01"),
        (b"t\x00\x00\x00\xff", b"t\x00\x00\x01"),
        (b"t\x00\xff\xff\xff", b"t\x01"),
        (b"t\xff\xff\xff\xff", b"u"),
    ],
)
def test_the_end_of_a_prefix_is_the_least_key_above_all_that_begin_with_it(prefix: bytes, expected: bytes) -> None:
    assert after(prefix) == expected
    assert prefix + b"\xff" * 40 < expected


# Batches


def test_a_batch_first_deletes_its_ranges_and_then_writes_its_rows(digits: RocksStore) -> None:
    digits.apply([written({b"4": b"new", b"8": None}, [(b"3", b"6")])])
    assert digits.keys(b"0", b":", limit=100) == [b"0", b"1", b"2", b"4", b"6", b"7", b"9"]
    assert digits.get(b"4") == b"new"


def test_batches_of_several_partitions_are_one(store: RocksStore) -> None:
    store.apply([written({b"a": b"1"}), written({b"b": b"2"})])
    assert store.items(b"a", b"c", limit=10) == [(b"a", b"1"), (b"b", b"2")]


def test_what_was_closed_is_there_after_the_next_open(tmp_path: Path) -> None:
    store = RocksStore(tmp_path / "db")
    store.apply([written({b"a": b"1"})])
    store.close()
    again = RocksStore(tmp_path / "db")
    assert again.get(b"a") == b"1"
    again.close()


def test_a_process_that_is_killed_loses_only_the_end_and_no_batch_in_part(tmp_path: Path) -> None:
    """Each batch writes the same number to two rows far apart; without a log both are old, or both are new."""
    program = (
        "import os, sys; from pathlib import Path\n"
        "from sidecar.engine.ports import Mutations; from sidecar.store.rocks import RocksStore\n"
        "store = RocksStore(Path(sys.argv[1]))\n"
        "for n in range(1, 301):\n"
        "    m = Mutations(); m.rows = {b'a': b'%d' % n, b'z': b'%d' % n, b'm%d' % n: bytes(1000)}\n"
        "    store.apply([m])\n"
        "    n == 200 and store.flush()\n"
        "os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "db")], cwd=ROOT, check=False)
    assert done.returncode == -9
    store = RocksStore(tmp_path / "db")
    first, last = store.get(b"a"), store.get(b"z")
    kept = store.keys(b"m", b"n", limit=1000)
    store.close()
    assert first == last
    assert int(first or 0) >= 200
    assert len(kept) == int(first or 0)


def test_large_changes_are_written_in_batches_and_small_ones_and_those_that_may_not_be_cut_are_not(
    store: RocksStore,
) -> None:
    large = written({b"t%06d" % n: b"%d" % n for n in range(3 * WRITE_ROWS)} | {b"t": None}, [(b"s", b"u")])
    store.apply([written({b"t": b"old", b"t000001x": b"old"})])
    changes = store.prepare([large], (b"m", b"unfinished"))
    changes.put(b"m", b"whole")
    assert len(changes.batches) == 4
    assert changes.bytes > sum(batch.size_in_bytes() for batch in changes.batches)
    assert len(store.prepare([large]).batches) == 1
    assert len(store.prepare([written({b"a": b"1"})], (b"m", b"unfinished")).batches) == 1
    store.write(changes)
    assert store.items(b"m", b"u", limit=10_000) == [(b"m", b"whole"), *large.rows.items()][:-1]


def test_changes_that_end_in_the_middle_say_so(store: RocksStore) -> None:
    store.apply([written({b"m": b"before"})])
    changes = store.prepare([written({b"t%06d" % n: b"" for n in range(3 * WRITE_ROWS)})], (b"m", b"unfinished"))
    changes.put(b"m", b"whole")
    changes.batches[2] = None  # type: ignore[call-overload]  # the library refuses it
    with pytest.raises(StoreFailed):
        store.write(changes)
    assert store.get(b"m") == b"unfinished"
    assert len(store.keys(b"t", b"u", limit=10_000)) == 2 * WRITE_ROWS


def test_a_process_that_is_killed_loses_changes_in_several_batches_as_a_whole(tmp_path: Path) -> None:
    program = (
        "import os, sys; from pathlib import Path\n"
        "from sidecar.engine.ports import Mutations; from sidecar.store.rocks import RocksStore\n"
        "store = RocksStore(Path(sys.argv[1]))\n"
        "for n in range(1, 181):\n"
        "    m = Mutations(); m.rows = {b'a': b'%d' % n} | {b't%06d' % (n * 7919 % 10007 * 97 + i): bytes(300)"
        " for i in range(2500)} | {b'z': b'%d' % n}\n"
        "    changes = store.prepare([m], (b'm', b'unfinished')); changes.put(b'm', b'%d' % n)\n"
        "    store.write(changes)\n"
        "store._number('rocksdb.num-files-at-level0') or os._exit(1)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "db")], cwd=ROOT, check=False)
    assert done.returncode == -9
    store = RocksStore(tmp_path / "db")
    kept = {store.get(row) for row in (b"a", b"m", b"z")}
    store.close()
    assert len(kept) == 1
    assert 1 <= int(kept.pop() or 0) < 180, "some are flushed, and the last ones are lost"


def test_the_size_counts_what_is_not_flushed_yet(store: RocksStore) -> None:
    before = store.size_bytes()
    store.apply([written({b"a": bytes(1_000_000)})])
    assert store.size_bytes() >= before + 1_000_000


# Trouble


def test_a_folder_in_use_is_named_as_such(store: RocksStore) -> None:
    with pytest.raises(StoreFailed, match="in use by another process") as caught:
        RocksStore(store.folder)
    assert not isinstance(caught.value, StoreCorrupt)


def test_a_folder_in_use_by_another_process_is_named_as_such(store: RocksStore) -> None:
    program = (
        "import sys; from pathlib import Path; from sidecar.store.rocks import RocksStore\n"
        "from sidecar.errors import StoreCorrupt, StoreFailed\n"
        "try: RocksStore(Path(sys.argv[1]))\n"
        "except StoreFailed as e: print(isinstance(e, StoreCorrupt), e)\n"
    )
    said = subprocess.run(
        [sys.executable, "-c", program, str(store.folder)], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert said.startswith("False")
    assert "STATE_DIR" in said


def test_every_scan_over_a_damaged_block_is_an_error(tmp_path: Path) -> None:
    store = RocksStore(damaged(tmp_path / "db"))
    with pytest.raises(StoreCorrupt, match="damaged"):
        store.values(b"t", b"u", limit=1_000_000, limit_bytes=1_000_000_000)
    with pytest.raises(StoreCorrupt):
        store.keys(b"t", b"u", limit=1_000_000)
    with pytest.raises(StoreCorrupt):
        store.items(b"t", b"u", limit=1_000_000)


def test_a_folder_that_holds_something_else_is_damaged(tmp_path: Path) -> None:
    (tmp_path / "db").mkdir()
    (tmp_path / "db" / "CURRENT").write_bytes(b"not a database\n")
    with pytest.raises(StoreCorrupt):
        RocksStore(tmp_path / "db")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("a small file system needs the command mount: apt-get install mount")
    if mounted.returncode:
        pytest.skip(f"a small file system needs the right to mount one, as root has it: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_is_no_damage_and_the_store_opens_again_when_there_is_space(small_disk: Path) -> None:
    state = LocalState(StateFolder(small_disk), clock := HandClock())
    assert state.store is not None
    state.store.apply([written({b"a": b"flushed"})])
    state.store.flush()
    noise = random.Random(1)
    state.store.apply([written({b"t%08d" % n: noise.randbytes(1000) for n in range(12_000)})])
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(14 * 1024 * 1024))
    with pytest.raises(StoreFailed, match="no space left") as caught:
        state.store.flush()
    assert not isinstance(caught.value, StoreCorrupt)
    state.failed(caught.value)
    assert "no space left" in (state.blocker() or "")
    ballast.unlink()
    clock.now_s += OPEN_AGAIN_S
    state.maintain(committing=False)
    assert state.store is not None
    assert state.store.get(b"a") == b"flushed"
    assert state.quarantines == 0
    state.close()


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        ("IO error: lock hold by current process, acquire time 1", StoreFailed, "in use"),
        (
            "IO error: While lock file: /x/LOCK: Resource temporarily unavailable",
            StoreFailed,
            "in use",
        ),
        ("IO error: No space left on device: While appending to file", StoreFailed, "no space left"),
        ("IO error: While open a file for appending: /x: Permission denied", StoreFailed, "cannot be written"),
        ("IO error: Read-only file system: /x", StoreFailed, "cannot be written"),
        ("Corruption: block checksum mismatch", StoreCorrupt, "damaged"),
        ("Invalid argument: Column families not opened: x", StoreCorrupt, "damaged"),
    ],
)
def test_the_texts_of_the_library_become_what_somebody_can_act_on(
    text: str, kind: type[StoreFailed], said: str
) -> None:
    error = classify(Exception(text), "/state")
    assert type(error) is kind
    assert said in str(error)
    assert "/state" in str(error)


# The library's traps: where one of these fails, the library has changed, and the way around it can go


def test_a_reopened_database_keeps_its_options(tmp_path: Path) -> None:
    for _ in range(2):
        store = RocksStore(tmp_path / "db")
        log = (tmp_path / "db" / "LOG").read_text()
        store.close()
        assert f"capacity : {CACHE_BYTES}" in log
        assert f"Options.write_buffer_size: {WRITE_BUFFER_BYTES}" in log
        assert "cache_index_and_filter_blocks: 1" in log


def test_canary_a_lower_bound_is_written_over_the_upper_one(tmp_path: Path) -> None:
    database = Rdict(str(tmp_path / "db"), options=Options(raw_mode=True))
    for n in range(10):
        database[b"%d" % n] = b""
    bounds = ReadOptions()
    bounds.set_iterate_lower_bound(b"3")
    rows = database.iter(bounds)
    rows.seek(b"0")
    seen = []
    while rows.valid():
        seen.append(rows.key())
        rows.next()
    assert seen == [b"0", b"1", b"2"]
    del rows
    database.close()


def test_canary_an_iterator_ends_in_silence_where_a_block_is_damaged(tmp_path: Path) -> None:
    store = RocksStore(damaged(tmp_path / "db"))
    rows = store._seek(b"t", b"u")
    seen = 0
    while rows.valid():
        seen += 1
        rows.next()
    assert 0 < seen < 20_000
    with pytest.raises(Exception, match="Corruption"):
        rows.status()


def test_canary_the_library_raises_no_class_but_exception(store: RocksStore) -> None:
    with pytest.raises(Exception, match="lock hold") as caught:
        Rdict(str(store.folder), options=Options(raw_mode=True))
    assert type(caught.value) is Exception

"""The local store and its lifecycle: in memory as the simulation has it, RocksDB in a folder, and its plan B."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sidecar.engine.ports import Mutations, Prepared, Store
from sidecar.errors import InvariantViolated, StoreCorrupt, StoreFailed
from sidecar.runtime.ports import State
from sidecar.runtime.state import OPEN_AGAIN_S, LocalState
from sidecar.store import folder
from sidecar.store.folder import StateFolder
from sidecar.store.rocks import RocksStore
from tests.clocks import HandClock
from tests.contract.sqlite_store import SqliteStore
from tests.simulation.fakes.local import Disk, FakeState
from tests.simulation.memory_store import MemoryStore


@pytest.fixture(params=["fake", "rocksdb", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "fake":
        yield MemoryStore()
        return
    made = (RocksStore if request.param == "rocksdb" else SqliteStore)(tmp_path / "database")
    yield made
    made.close()


def put(store: Store, **rows: bytes | None) -> None:
    changes = Mutations()
    changes.rows = {name.encode(): value for name, value in rows.items()}
    store.apply([changes])


class TestStore:
    def test_a_row_has_the_value_that_was_written_last_or_none(self, store: Store) -> None:
        put(store, a=b"1", b=b"", c=b"3")
        put(store, a=b"2", c=None)
        assert [store.get(row) for row in (b"a", b"b", b"c", b"d")] == [b"2", b"", None, None]

    def test_a_range_has_its_start_and_not_its_end_in_order(self, store: Store) -> None:
        put(store, c=b"3", a=b"1", d=b"4", b=b"2")
        assert list(store.keys(b"b", b"d", limit=9)) == [b"b", b"c"]
        assert list(store.items(b"b", b"d", limit=9)) == [(b"b", b"2"), (b"c", b"3")]
        assert list(store.values(b"b", b"d", limit=9, limit_bytes=9)) == [b"2", b"3"]
        assert store.first(b"b", b"d") == b"b"
        assert store.first(b"bb", b"c") is None
        assert list(store.keys(b"b", b"b", limit=9)) == []

    def test_a_read_ends_at_its_limit_of_rows(self, store: Store) -> None:
        put(store, a=b"1", b=b"2", c=b"3")
        assert list(store.keys(b"a", b"z", limit=2)) == [b"a", b"b"]
        assert list(store.items(b"a", b"z", limit=1)) == [(b"a", b"1")]
        assert list(store.values(b"a", b"z", limit=2, limit_bytes=99)) == [b"1", b"2"]

    @pytest.mark.parametrize(("limit_bytes", "count"), [(1, 1), (10, 1), (11, 2), (20, 2), (21, 3)])
    def test_values_end_with_the_row_that_reaches_the_limit_of_bytes(
        self, store: Store, limit_bytes: int, count: int
    ) -> None:
        put(store, a=bytes(10), b=bytes(10), c=bytes(10))
        assert len(store.values(b"a", b"z", limit=9, limit_bytes=limit_bytes)) == count

    def test_the_last_row_of_a_range_excludes_its_end(self, store: Store) -> None:
        put(store, a=b"1", b=b"2", d=b"4")
        assert store.last(b"a", b"d") == (b"b", b"2")
        assert store.last(b"a", b"e") == (b"d", b"4")
        assert store.last(b"b", b"c") == (b"b", b"2")
        assert store.last(b"c", b"d") is None
        assert store.last(b"e", b"z") is None

    def test_a_seeker_finds_the_first_row_from_a_key_on(self, store: Store) -> None:
        put(store, a=b"1", c=b"3")
        find = store.seeker()
        assert [find(key) for key in (b"a", b"b", b"c", b"d")] == [b"a", b"c", b"c", None]

    def test_ranges_are_deleted_first_and_then_rows_are_written(self, store: Store) -> None:
        put(store, a=b"1", b=b"2", c=b"3")
        changes = Mutations()
        changes.rows = {b"b": b"new"}
        changes.ranges = [(b"a", b"c")]
        store.apply([changes])
        assert list(store.items(b"a", b"z", limit=9)) == [(b"b", b"new"), (b"c", b"3")]

    def test_later_changes_of_a_batch_win_and_a_row_that_is_added_comes_last(self, store: Store) -> None:
        first, second = Mutations(), Mutations()
        first.rows = {b"a": b"1", b"b": b"1", b"m": b"1"}
        second.rows = {b"a": None, b"b": b"2", b"m": b"2"}
        prepared = store.prepare([first, second])
        assert store.get(b"b") is None, "nothing is written yet"
        prepared.put(b"m", b"3")
        store.write(prepared)
        assert list(store.items(b"a", b"z", limit=9)) == [(b"b", b"2"), (b"m", b"3")]

    def test_its_size_is_known_and_a_flush_loses_nothing(self, store: Store) -> None:
        put(store, a=bytes(1_000))
        assert store.size_bytes() > 0
        store.flush()
        assert store.get(b"a") == bytes(1_000)

    def test_ingested_rows_are_there_after_the_last_step_over_what_was_written_before(self, store: Store) -> None:
        put(store, a=b"1", b=b"2", c=b"3")
        steps = store.ingest([(b"a", b"new"), (b"b", None), (b"d", b"new")])
        next(steps)
        assert list(store.items(b"a", b"z", limit=9)) == [(b"a", b"1"), (b"b", b"2"), (b"c", b"3")]
        for _ in steps:
            pass
        assert list(store.items(b"a", b"z", limit=9)) == [(b"a", b"new"), (b"c", b"3"), (b"d", b"new")]
        put(store, a=b"later")
        assert store.get(b"a") == b"later"

    def test_what_is_not_ingested_to_the_end_leaves_nothing(self, store: Store) -> None:
        steps = store.ingest([(b"a", b"1")])
        next(steps)
        steps.close()
        assert store.get(b"a") is None

    @pytest.mark.parametrize(
        ("act", "said"),
        [
            (lambda store: store.keys(b"b", b"a", limit=1), "a scan ends before it begins"),
            (lambda store: store.apply([backwards()]), "a range to delete ends before it begins"),
            (lambda store: store.write(Strange()), "changes that another store prepared"),
        ],
    )
    def test_what_no_caller_may_do_is_a_bug(self, store: Store, act: Callable[[Store], object], said: str) -> None:
        with pytest.raises(InvariantViolated, match=said):
            act(store)


class Strange(Prepared):
    """What another store prepared."""

    def put(self, row: bytes, value: bytes) -> None: ...


def backwards() -> Mutations:
    changes = Mutations()
    changes.ranges = [(b"b", b"a")]
    return changes


class TestSqliteFolder:
    def test_a_second_process_is_told_that_the_folder_is_in_use(self, tmp_path: Path) -> None:
        store = SqliteStore(tmp_path)
        with pytest.raises(StoreFailed, match="in use"):
            SqliteStore(tmp_path)
        store.close()

    def test_what_is_written_is_there_when_it_is_opened_again(self, tmp_path: Path) -> None:
        store = SqliteStore(tmp_path)
        put(store, a=b"1")
        store.close()
        again = SqliteStore(tmp_path)
        assert again.get(b"a") == b"1"
        again.close()

    def test_a_damaged_file_is_no_store(self, tmp_path: Path) -> None:
        (tmp_path / "rows.sqlite").write_bytes(b"no database" * 1_000)
        with pytest.raises(StoreCorrupt, match="not a database"):
            SqliteStore(tmp_path)


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture(params=["fake", "rocksdb", "sqlite"])
def state(
    request: pytest.FixtureRequest, tmp_path: Path, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> Iterator[State]:
    if request.param == "sqlite":
        monkeypatch.setattr(folder, "RocksStore", SqliteStore)
    made: State = FakeState(Disk(), clock) if request.param == "fake" else LocalState(StateFolder(tmp_path), clock)
    yield made
    made.close()


class TestState:
    def test_a_store_is_open_from_the_start(self, state: State) -> None:
        assert state.store is not None
        assert state.blocker() is None
        state.close()
        assert state.store is None

    def test_a_store_that_fails_is_opened_again_after_a_while_with_what_it_had(
        self, state: State, clock: HandClock
    ) -> None:
        assert state.store is not None
        put(state.store, a=b"1")
        state.failed(StoreFailed("no space left"))
        assert state.store is None
        assert state.blocker()
        state.maintain(committing=False)
        assert state.store is None, "too early"
        clock.now_s += OPEN_AGAIN_S
        state.maintain(committing=True)
        assert state.store is None, "the commit thread may still write"
        state.maintain(committing=False)
        assert state.store is not None
        assert state.store.get(b"a") == b"1"
        assert (state.blocker(), state.quarantines) == (None, 0)

    @pytest.mark.parametrize("error", [StoreFailed("no space left"), StoreCorrupt("a checksum")])
    def test_a_store_that_failed_takes_nothing_from_a_commit_that_is_under_way(
        self, state: State, error: StoreFailed
    ) -> None:
        store = state.store
        assert store is not None
        state.failed(error)
        with pytest.raises(StoreFailed):
            put(store, a=b"1")

    def test_a_damaged_store_is_set_aside_and_an_empty_one_opened_at_once(self, state: State) -> None:
        assert state.store is not None
        put(state.store, a=b"1")
        state.failed(StoreCorrupt("a block does not match its checksum"))
        assert (state.store is None, state.quarantines) == (True, 1)
        state.maintain(committing=False)
        assert state.store is not None
        assert state.store.get(b"a") is None
        assert state.blocker() is None

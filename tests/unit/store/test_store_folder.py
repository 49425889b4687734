"""The state folder: its identity, and setting aside what cannot be trusted."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sidecar.engine.ports import Mutations
from sidecar.errors import StoreCorrupt, StoreFailed
from sidecar.runtime.state import FLUSH_EVERY_S, OPEN_AGAIN_S, LocalState
from sidecar.store.folder import DATABASE, StateFolder
from sidecar.store.rocks import RocksStore
from tests.clocks import HandClock


def _break(folder: Path) -> None:
    (folder / DATABASE / "CURRENT").write_bytes(b"nonsense")


def _row(value: bytes) -> Mutations:
    mutations = Mutations()
    mutations.rows[b"a"] = value
    return mutations


def test_the_instance_id_stays_with_its_folder(tmp_path: Path) -> None:
    first = StateFolder(tmp_path / "one").instance_id()
    assert first == StateFolder(tmp_path / "one").instance_id()
    assert first != StateFolder(tmp_path / "two").instance_id()


def test_a_lost_instance_id_is_replaced(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path)
    folder.instance_id()
    (tmp_path / "instance-id").write_text("")
    assert folder.instance_id()


def test_a_damaged_database_is_set_aside_and_an_empty_one_opened(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path)
    folder.open().close()
    _break(tmp_path)
    store = folder.open()
    assert folder.quarantines == 1
    assert store.get(b"a") is None
    assert (tmp_path / "rocksdb.quarantined" / "CURRENT").read_bytes() == b"nonsense"
    store.close()


def test_a_distrusted_database_is_set_aside_at_the_next_start_and_only_then(tmp_path: Path) -> None:
    state = LocalState(StateFolder(tmp_path), HandClock())
    assert state.store is not None
    state.store.apply([_row(b"wrong")])
    state.distrust()
    state.close()
    for quarantines in (1, 0):
        again = LocalState(StateFolder(tmp_path), HandClock())
        assert again.quarantines == quarantines
        assert again.store is not None
        assert again.store.get(b"a") is None
        again.close()
    assert (tmp_path / "rocksdb.quarantined").is_dir()


def test_a_folder_is_distrusted_even_if_its_database_is_gone(tmp_path: Path) -> None:
    StateFolder(tmp_path).distrust()
    StateFolder(tmp_path).open().close()
    assert sorted(each.name for each in tmp_path.iterdir()) == [DATABASE]


def test_only_the_newest_quarantine_is_kept(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path)
    for n in range(3):
        store = folder.open()
        store.apply([_row(b"%d" % n)])
        store.close()
        _break(tmp_path)
    folder.open().close()
    assert folder.quarantines == 3
    assert [each.name for each in tmp_path.iterdir() if "quarantined" in each.name] == ["rocksdb.quarantined"]


def test_a_database_in_use_is_not_set_aside(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path)
    store = folder.open()
    with pytest.raises(StoreFailed, match="in use"):
        StateFolder(tmp_path).open()
    assert folder.quarantines == 0
    assert not (tmp_path / "rocksdb.quarantined").exists()
    store.close()


def test_a_folder_that_cannot_be_made_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreFailed, match=r"STATE_DIR .*file/state cannot be written"):
        StateFolder(tmp_path / "file" / "state")


def test_a_store_that_turns_out_damaged_is_rebuilt_from_nothing(tmp_path: Path) -> None:
    clock = HandClock()
    state = LocalState(StateFolder(tmp_path), clock)
    assert state.store is not None
    state.store.apply([_row(b"1")])
    state.failed(StoreCorrupt("a block is damaged"))
    assert state.store is None
    assert "a block is damaged" in (state.blocker() or "")
    state.maintain(committing=False)
    assert state.store is not None
    assert state.store.get(b"a") is None
    assert (state.quarantines, state.blocker()) == (1, None)
    state.close()


def test_a_store_that_failed_otherwise_keeps_its_rows_and_is_opened_again_later(tmp_path: Path) -> None:
    clock = HandClock()
    state = LocalState(StateFolder(tmp_path), clock)
    assert state.store is not None
    state.store.apply([_row(b"1")])
    state.failed(StoreFailed("no space left"))
    state.maintain(committing=False)
    assert state.store is None
    clock.now_s += OPEN_AGAIN_S
    state.maintain(committing=True)
    assert state.store is None  # the commit thread may still hold the former one
    state.maintain(committing=False)
    assert state.store is not None
    assert state.store.get(b"a") == b"1"
    assert state.quarantines == 0
    state.close()


def test_nothing_is_begun_while_the_disk_is_nearly_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = LocalState(StateFolder(tmp_path), HandClock())
    monkeypatch.setattr(StateFolder, "free_bytes", lambda self: 1024)
    state.maintain(committing=False)
    assert f"STATE_DIR {tmp_path}" in (state.blocker() or "")
    monkeypatch.undo()
    state.maintain(committing=False)
    assert state.blocker() is None
    state.close()


def test_a_folder_that_goes_away_is_a_blocker_until_it_can_be_made_again(tmp_path: Path) -> None:
    clock = HandClock()
    folder = tmp_path / "state"
    state = LocalState(StateFolder(folder), clock)
    shutil.rmtree(folder)
    with pytest.raises(StoreFailed, match=f"STATE_DIR {folder} cannot be reached") as raised:
        state.maintain(committing=False)
    state.failed(raised.value)
    assert f"STATE_DIR {folder} cannot be reached" in (state.blocker() or "")
    state.maintain(committing=False)
    assert state.store is None
    clock.now_s += OPEN_AGAIN_S
    state.maintain(committing=False)
    assert state.store is not None
    assert state.blocker() is None
    state.close()


def test_a_flush_that_fails_is_for_those_who_use_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was not flushed is lost, so their partitions must be restored."""
    clock = HandClock()
    state = LocalState(StateFolder(tmp_path), clock)
    store = state.store

    def flush(_store: RocksStore) -> None:
        raise StoreFailed("no space left")

    monkeypatch.setattr(RocksStore, "flush", flush)
    clock.now_s += FLUSH_EVERY_S + 1
    with pytest.raises(StoreFailed, match="no space left"):
        state.maintain(committing=False)
    assert state.store is store
    monkeypatch.undo()
    state.close()


def test_a_database_of_another_kind_is_damaged_not_a_crash(tmp_path: Path) -> None:
    (tmp_path / DATABASE).write_text("a file where a folder should be")
    with pytest.raises(StoreFailed):
        RocksStore(tmp_path / DATABASE)
    folder = StateFolder(tmp_path)
    folder.open().close()
    assert folder.quarantines == 1

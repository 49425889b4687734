"""`retry-sidecar state inspect` on a folder: it tells what is there, and leaves no trace."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from sidecar import cli
from sidecar.contract.control import ControlKind
from sidecar.engine.partition import Partition
from sidecar.engine.ports import Mutations
from sidecar.engine.restore import Restore
from sidecar.engine.rows import Rows
from sidecar.errors import RecordCorrupt, StoreFailed
from sidecar.kafka import rebuild
from sidecar.model import TimerId
from sidecar.store import RocksStore
from sidecar.store import inspect as inspecting
from sidecar.store.inspect import ReadOnlyStore, partitions_of, survey
from tests.simulation.memory_store import MemoryStore
from tests.simulation.stage import IDENTITY, NOW, Stage

DATABASE = "rocksdb"
HOUR_MS = 3_600_000


def lived(number: int = 0) -> Stage:
    """Return a partition on which one timer has fired, one is cancelled, one moved and one put off: four are left."""
    stage = Stage(number)
    stage.commit(NOW, *(stage.send(NOW + due, retry_id=b"x") for due in (5, 50, 500, 5_000, 6_000)))
    stage.commit(NOW, stage.send(NOW + 7_000, "B"))
    stage.commit(NOW + 10, stage.control(ControlKind.RESCHEDULE, TimerId(number, 1, NOW + 50), NOW + 70_000))
    stage.commit(NOW + 20, stage.control(ControlKind.CANCEL, TimerId(number, 3, NOW + 5_000)))
    stage.commit(NOW + 30, stage.control(ControlKind.PAUSE, "A"))
    stage.commit(NOW + 600)
    return stage


def keep(folder: Path, *stages: Stage, close: bool = True, **more: bytes | None) -> RocksStore:
    """Write the rows of partitions, and more rows by name of the kind for partition 0, into a state folder."""
    store = RocksStore(folder / DATABASE)
    mutations = Mutations()
    for stage in stages:
        mutations.rows.update(stage.store.rows)
    for kind, value in more.items():
        mutations.rows[getattr(Rows(0), kind)] = value
    store.apply([mutations])
    if close:
        store.close()
    return store


def run(folder: Path, *arguments: str) -> Result:
    return CliRunner().invoke(cli.main, ["state", "inspect", "--state-dir", str(folder), *arguments])


def answer_of(folder: Path, *arguments: str) -> dict[str, Any]:
    result = run(folder, "--json", *arguments)
    assert result.exit_code == 0, result.output
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Return every file with its bytes and when it was written."""
    files = [each for each in folder.rglob("*") if each.is_file()]
    return {str(each): (each.read_bytes(), each.stat().st_mtime_ns) for each in files}


# What is told


def test_it_tells_what_the_partitions_of_a_folder_hold(tmp_path: Path) -> None:
    first, second = lived(), lived(3)
    keep(tmp_path, first, second)
    answer = answer_of(tmp_path)
    assert answer["source"] == str(tmp_path / DATABASE)
    assert (answer["total"], answer["by_origin"]) == (8, {"A": 6, "B": 2})
    assert (answer["by_partition"], answer["deferred"]) == ({"0": 4, "3": 4}, 2)
    assert answer["next_due_ms"] == first.partition.next_due_ms
    assert answer["complete"]
    for stage, found in zip((first, second), answer["partitions"], strict=True):
        assert found["partition"] == stage.partition.number
        assert found["pending"] == stage.partition.counts.pending == len(stage.folded().pending)
        assert found["watermark_ms"] == stage.partition.checkpoint.watermark_ms
        assert found["changelog_offset"] == stage.partition.changelog_offset
        assert found["sequence"] == stage.partition.checkpoint.sequence
        assert found["closed_origins"] == {"A": "paused"}
        assert (found["cluster_id"], found["changelog_topic_id"]) == IDENTITY[:2]
        assert found["counters_agree"]
        assert found["restored"]


def test_it_shows_the_same_to_people_and_says_where_a_restore_goes_on(tmp_path: Path) -> None:
    keep(tmp_path, lived())
    result = run(tmp_path, "--entries", "1")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith(f"{tmp_path / DATABASE}: 4 pending, 4 overdue, next due 2023-11-14 22:13:2")
    assert "cache of the changelog topic with id changelog-id on cluster cluster" in result.stdout
    (listed,) = [line for line in result.stdout.splitlines() if line.startswith(f"0-2-{NOW + 500} ")]
    assert listed.split()[:3] == [f"0-2-{NOW + 500}", "A", "x"]
    assert "(put off)" in listed


def test_entries_are_those_that_are_due_first_over_all_partitions(tmp_path: Path) -> None:
    stages = [Stage(0), Stage(1)]
    for stage in stages:
        number = stage.partition.number
        stage.commit(NOW, *(stage.send(NOW + due * 100 + number, retry_id=b"gr\xc3\xb6\xc3\x9fe") for due in (3, 1, 2)))
    keep(tmp_path, *stages)
    entries = answer_of(tmp_path, "--entries", "3")["entries"]
    assert [each["timer_id"] for each in entries] == [f"0-1-{NOW + 100}", f"1-1-{NOW + 101}", f"0-2-{NOW + 200}"]
    assert (entries[0]["retry_id"], entries[0]["origin"], entries[0]["due_ms"]) == ("größe", "A", NOW + 100)
    assert answer_of(tmp_path)["entries"] == []


def test_windows_and_overdue_are_exact_to_the_millisecond() -> None:
    stage = Stage()
    dues = (NOW + 1, NOW + 5_999, NOW + 6_000, NOW + 61_000, NOW + HOUR_MS, NOW + 500 * HOUR_MS)
    stage.commit(NOW, *(stage.send(due) for due in dues))
    batches: list[int] = []
    found = survey(stage.store, 0, NOW + 1_000, first=0, seen=batches.append)
    assert found.due_within == {"5s": 2, "1m": 3, "5m": 4, "1h": 5, "1d": 5, "later": 1}
    assert found.overdue == 1
    assert sum(batches) == found.pending == 6


def test_timers_are_counted_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspecting, "ROWS_MAX", 2)
    stage = Stage()
    stage.commit(NOW, *(stage.send(NOW + 100 * due) for due in range(1, 6)))
    batches: list[int] = []
    found = survey(stage.store, 0, NOW, first=3, seen=batches.append)
    assert batches == [2, 2, 1]
    assert (found.pending, len(found.first), found.agrees) == (5, 3, True)


def test_a_partition_without_its_meta_row_cannot_be_read() -> None:
    with pytest.raises(RecordCorrupt, match="the meta row is gone"):
        survey(MemoryStore(), 0, NOW, first=0, seen=print)


def test_a_folder_of_a_restore_on_its_way_says_so(tmp_path: Path) -> None:
    stage, half = lived(), Stage()
    restore = Restore(Partition(0), half.store, IDENTITY)
    restore.begin(0, stage.log.end)
    restore.apply(stage.log.records, "changelog")
    while not restore.spill():
        pass
    keep(tmp_path, half)
    answer = answer_of(tmp_path)
    assert (answer["total"], answer["partitions"][0]["restored"]) == (6, False)
    assert "A restore was on its way in partition 0" in run(tmp_path).stdout


def test_what_is_left_of_a_partition_that_moved_away_is_listed_apart(tmp_path: Path) -> None:
    own, moved = lived(), lived(3)
    moved.store.rows[moved.partition.rows.elsewhere] = NOW.to_bytes(8, "big")
    keep(tmp_path, own, moved)
    answer = answer_of(tmp_path, "--entries", "100")
    assert (answer["total"], answer["by_partition"], len(answer["entries"])) == (4, {"0": 4}, 4)
    assert [each["partition"] for each in answer["partitions"]] == [0]
    assert [(each["partition"], each["pending"], each["moved_ms"]) for each in answer["moved"]] == [(3, 4, NOW)]
    assert "moved to another instance, deleted soon" in run(tmp_path).stdout


def test_an_empty_database_holds_nothing(tmp_path: Path) -> None:
    keep(tmp_path)
    assert answer_of(tmp_path)["total"] == 0
    assert "a restore would begin at the start of the changelog" in run(tmp_path).stdout


# How it reads


def test_nothing_in_the_folder_is_changed_or_made(tmp_path: Path) -> None:
    keep(tmp_path, lived())
    before = contents(tmp_path)
    assert run(tmp_path).exit_code == 0
    assert contents(tmp_path) == before


def test_a_folder_in_use_is_read_as_far_as_it_is_flushed(tmp_path: Path) -> None:
    stage = lived()
    store = keep(tmp_path, stage, close=False)
    store.flush()
    stage.commit(NOW + 700, stage.send(NOW + 10 * HOUR_MS))
    unflushed = Mutations()
    unflushed.rows.update(stage.store.rows)
    store.apply([unflushed])
    assert answer_of(tmp_path)["total"] == 4
    assert store.get(stage.partition.rows.meta) == stage.store.rows[stage.partition.rows.meta]
    store.close()
    assert answer_of(tmp_path)["total"] == 5


def test_a_database_that_was_set_aside_can_be_named_itself(tmp_path: Path) -> None:
    keep(tmp_path, lived())
    aside = (tmp_path / DATABASE).rename(tmp_path / "rocksdb.quarantined")
    assert answer_of(aside)["total"] == 4


def test_the_store_refuses_to_be_written(tmp_path: Path) -> None:
    keep(tmp_path, lived())
    store = ReadOnlyStore(tmp_path)
    with pytest.raises(StoreFailed, match="open for reading only"):
        store.apply([Mutations()])
    store.flush()
    assert partitions_of(store) == [0]
    store.close()


# Trouble


def nothing(folder: Path) -> None:
    """Leave it as it is."""


def without_tables(folder: Path) -> None:
    keep(folder, lived())
    for file in (folder / DATABASE).glob("*.sst"):
        file.unlink()


def with_strange_tables(folder: Path) -> None:
    keep(folder, lived())
    for file in (folder / DATABASE).glob("*.sst"):
        file.write_bytes(bytes(byte ^ 0xFF for byte in file.read_bytes()))


@pytest.mark.parametrize(
    ("prepare", "said"),
    [
        (nothing, "holds no database: name a state folder with --state-dir"),
        (without_tables, "is gone: if a sidecar uses the folder then try again, else it is damaged"),
        (with_strange_tables, "is damaged: Corruption"),
    ],
)
def test_a_folder_that_cannot_be_read_is_a_clear_error(
    tmp_path: Path, prepare: Callable[[Path], None], said: str
) -> None:
    prepare(tmp_path)
    result = run(tmp_path)
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"{tmp_path / DATABASE}" in result.stderr
    assert said in result.stderr


def test_a_partition_that_cannot_be_read_is_named_and_the_others_are_counted(tmp_path: Path) -> None:
    keep(tmp_path, lived(0), lived(1), meta=b"\xff")
    result = run(tmp_path, "--json")
    answer = json.loads(result.stdout)
    assert (result.exit_code, answer["complete"]) == (1, False)
    assert answer["by_partition"] == {"1": 4}
    assert "does not decode" in answer["problems"]["0"]
    assert result.stderr.startswith("partition 0: the meta row of a partition does not decode")


def test_counters_that_disagree_with_the_timers_are_reported(tmp_path: Path) -> None:
    stage = lived()
    mutations = Mutations()
    mutations.rows[stage.partition.rows.counter + b"OA"] = (9).to_bytes(8, "big")
    stage.store.apply([mutations])
    keep(tmp_path, stage)
    result = run(tmp_path)
    assert result.exit_code == 1
    assert "partition 0: its counters say 10 and 4 messages are pending" in result.stderr


def test_without_a_broker_the_changelog_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rebuild, "ASK_S", 0.3)
    arguments = ["state", "inspect", "--changelog", "--bootstrap-servers", "127.0.0.1:1"]
    result = CliRunner().invoke(cli.main, arguments)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("no answer from Kafka at 127.0.0.1:1")

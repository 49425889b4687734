"""`retry-sidecar state rebuild-changelog` and `state give-up`: what is shown, and when nothing may change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from sidecar.cli import main
from sidecar.kafka import rewrite
from sidecar.kafka.rewrite import Done, Outcome
from sidecar.store.folder import DATABASE
from sidecar.store.rocks import RocksStore

LACKING = {0: Done(Outcome.WHOLE), 1: Done(Outcome.GIVEN_UP, text="the topic has no checkpoint")}


def run(folder: Path, *words: str) -> Result:
    where = ["--state-dir", str(folder), "--bootstrap-servers", "broker:1", "--streams-app-id", "app"]
    return CliRunner().invoke(main, ["state", *words, *where])


@pytest.fixture
def database(tmp_path: Path) -> Path:
    RocksStore(tmp_path / DATABASE).close()
    return tmp_path / DATABASE


@pytest.fixture
def decided(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Each call of `give_up` with what it may do; the changelog lacks something in partition 1."""
    calls: list[bool] = []

    def give_up(_: object, *, decided: bool) -> dict[int, Done]:
        calls.append(decided)
        return LACKING

    monkeypatch.setattr(rewrite, "give_up", give_up)
    return calls


def test_give_up_changes_nothing_without_yes(database: Path, decided: list[bool]) -> None:
    result = run(database.parent, "give-up")
    assert result.exit_code == 1
    assert "partition 1: given up: the topic has no checkpoint" in result.output
    assert "--yes" in result.output
    assert decided == [False]
    assert database.is_dir()


def test_give_up_with_yes_sets_the_database_aside_before_it_writes(
    database: Path, decided: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    there: list[bool] = []
    look = rewrite.give_up

    def give_up(settings: Any, *, decided: bool) -> dict[int, Done]:
        there.append(database.is_dir())
        return look(settings, decided=decided)

    monkeypatch.setattr(rewrite, "give_up", give_up)
    result = run(database.parent, "give-up", "--yes")
    assert result.exit_code == 0, result.output
    assert decided == [False, True]
    assert there == [True, False], "an instance that starts in between must not go on with the rows"
    assert (database.parent / "rocksdb.given-up").is_dir()


def test_give_up_without_a_database_gives_up_what_the_changelog_lacks(tmp_path: Path, decided: list[bool]) -> None:
    result = run(tmp_path, "give-up", "--yes", "--json")
    assert result.exit_code == 0, result.output
    partitions = json.loads(result.stdout)["partitions"]
    assert partitions["1"] == {"outcome": "given up", "timers": 0, "text": "the topic has no checkpoint"}
    assert decided == [False, True]


def test_a_rebuild_shows_each_partition_and_fails_when_one_is_refused(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []

    def rebuild(*_: object, behind: bool, **__: object) -> dict[int, Done]:
        asked.append(behind)
        refused = {} if behind else {1: Done(Outcome.REFUSED, text="add --behind")}
        return {0: Done(Outcome.REBUILT, timers=1_200), **refused}

    monkeypatch.setattr(rewrite, "rebuild_changelog", rebuild)
    result = run(database.parent, "rebuild-changelog")
    assert result.exit_code == 1
    assert "partition 0: rebuilt, 1,200 messages written" in result.output
    assert "partition 1: refused: add --behind" in result.output
    done = run(database.parent, "rebuild-changelog", "--behind", "--json")
    assert done.exit_code == 0
    assert json.loads(done.stdout)["partitions"] == {"0": {"outcome": "rebuilt", "timers": 1_200, "text": ""}}
    assert asked == [False, True]


def test_a_rebuild_needs_a_folder_with_a_database(tmp_path: Path) -> None:
    result = run(tmp_path, "rebuild-changelog")
    assert result.exit_code != 0
    assert "--state-dir" in str(result.exception or "") + result.output
    assert not (tmp_path / DATABASE).exists()

"""Rows of partitions that moved to other instances: kept for a while, then deleted, and never by mistake."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pytest

from sidecar.engine.group.view import PartitionView
from sidecar.engine.partition import Partition
from sidecar.engine.ports import Mutations
from sidecar.engine.restore import Restore
from sidecar.engine.rows import Rows
from sidecar.runtime.partitions.leftovers import KEPT_MS, LOOK_EVERY_S, Leftovers
from sidecar.store import RocksStore
from sidecar.store.inspect import partitions_of
from tests.clocks import HandClock
from tests.simulation.stage import IDENTITY, NOW, Stage
from tests.unit.api.test_api_connect import view

LONG_S = KEPT_MS / 1000


class World:
    """A state folder that has had partitions 0 to 3, and what the group says of them."""

    def __init__(self, folder: Path) -> None:
        self.store = RocksStore(folder)
        self.clock = HandClock()
        self.group: list[PartitionView] = []
        self.restart()
        for number in range(4):
            stage = Stage(number)
            stage.commit(NOW, stage.send(NOW + 5_000, retry_id=b"x"), stage.send(NOW + 9_000))
            mutations = Mutations()
            mutations.rows.update(stage.store.rows)
            self.store.apply([mutations])

    def views(self) -> list[PartitionView]:
        return self.group

    def restart(self) -> None:
        self.leftovers = Leftovers(self, self.clock, "me")

    def look(self, owned: Collection[int], after_s: float = LOOK_EVERY_S) -> list[int]:
        """Let time pass and return the partitions that have rows after one more look."""
        self.clock.now_s += after_s
        self.leftovers.maintain(self.store, owned)
        return partitions_of(self.store)

    def rows_left(self, number: int) -> int:
        return sum(len(self.store.keys(*each, limit=100)) for each in Rows(number).ranges())


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_what_another_instance_has_had_for_ten_minutes_is_deleted_one_partition_at_a_look(world: World) -> None:
    world.group = [view(0, "me"), view(1, "me"), view(2, "two"), view(3, "two")]
    world.look({0, 1})
    assert world.look({0, 1}, LONG_S - 1) == [0, 1, 2, 3]
    assert world.look({0, 1}) == [0, 1, 3]
    assert world.look({0, 1}) == [0, 1]
    assert [world.rows_left(number) for number in (2, 3)] == [0, 0]
    assert world.rows_left(0) > 5


def test_a_partition_without_an_owner_is_kept_however_long(world: World) -> None:
    """Without a reachable broker no instance owns anything: dropping rows would mean full restores later."""
    world.group = [view(0, "", state="unknown"), view(1, "two", state="restoring"), view(2, "me"), view(3, "two")]
    world.look(())
    assert world.look((), LONG_S) == [0, 1, 2]
    assert world.look((), LONG_S * 9) == [0, 1, 2]


def test_what_is_owned_is_kept_whatever_the_group_says(world: World) -> None:
    world.group = [view(number, "two") for number in range(4)]
    world.look(range(4))
    assert world.look(range(4), LONG_S) == [0, 1, 2, 3]


def test_a_restart_does_not_start_the_ten_minutes_over(world: World) -> None:
    world.group = [view(3, "two")]
    world.look({0, 1, 2})
    world.restart()
    assert world.look({0, 1, 2}, LONG_S) == [0, 1, 2]


def test_a_partition_that_came_back_has_its_ten_minutes_again(world: World) -> None:
    world.group = [view(3, "two")]
    world.look({0, 1, 2})
    restore = Restore(Partition(3), world.store, IDENTITY)
    restore.begin(0, 10)
    while not restore.settle():
        pass
    assert world.store.get(Rows(3).elsewhere) is None
    world.look({0, 1, 2}, LONG_S)
    assert world.look({0, 1, 2}, LONG_S - 1) == [0, 1, 2, 3]
    assert world.look({0, 1, 2}) == [0, 1, 2]

"""The states of a partition, and when it has something to do."""

from __future__ import annotations

from itertools import product

import pytest

from sidecar.engine.partition import Partition, State
from sidecar.errors import InvariantViolated
from tests.simulation.stage import NOW, Stage

MOVES = {
    ("assigned", "assigned"),
    ("assigned", "restoring"),
    ("assigned", "stopped"),
    ("assigned", "closed"),
    ("restoring", "assigned"),
    ("restoring", "running"),
    ("restoring", "stopped"),
    ("restoring", "closed"),
    ("running", "assigned"),
    ("running", "stopped"),
    ("running", "closed"),
    ("stopped", "assigned"),
    ("stopped", "closed"),
}


@pytest.mark.parametrize(("old", "new"), [*product(State, State)])
def test_a_partition_moves_as_the_picture_says_and_not_otherwise(old: State, new: State) -> None:
    partition = Partition(3)
    partition.state = old
    if (old.value, new.value) in MOVES:
        partition.transition_to(new, "why")
        assert (partition.state, partition.reason) == (new, "why")
    else:
        with pytest.raises(InvariantViolated, match="no such transition partition=3"):
            partition.transition_to(new)
        assert partition.state is old


def test_it_begins_as_assigned() -> None:
    assert Partition(3).state is State.ASSIGNED


def test_it_has_nothing_to_do_when_nothing_waits() -> None:
    assert Partition(3).wakes_at_ms() is None


def test_it_wakes_for_the_next_timer_or_the_next_slot_end_whichever_is_first() -> None:
    stage = Stage()
    stage.commit(NOW, stage.send(NOW + 10))
    assert stage.partition.wakes_at_ms() == NOW + 10
    stage.commit(NOW + 10, stage.send(NOW + 9000))
    assert stage.partition.wakes_at_ms() == NOW + 1000


def test_it_wakes_at_once_for_removed_records_that_can_go() -> None:
    partition = Partition(3)
    partition.removed_passed = True
    assert partition.wakes_at_ms() == 0

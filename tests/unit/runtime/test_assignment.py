"""Which partitions are owned, what they wait for, and that nothing of a partition outlives its assignment."""

from __future__ import annotations

import dataclasses
from unittest.mock import Mock

from sidecar.engine.partition import State
from tests.unit.runtime.harness import FACTS, LoopHarness


def started(harness: LoopHarness) -> list[int]:
    """Return the partitions whose reset was begun last."""
    (partitions,) = harness.components.recovery.start.call_args.args
    return sorted(each.number for each in partitions)


def test_an_assigned_partition_waits_for_its_reset_or_for_larger_topics(harness: LoopHarness) -> None:
    harness.assignment.assign([0, 1, 2])
    assert harness.assignment.to_recover == {0, 1}
    assert harness.assignment.to_grow == {2}
    harness.assignment.grown(dataclasses.replace(FACTS, usable_partitions=3))
    assert harness.assignment.to_recover == {0, 1, 2}
    assert not harness.assignment.to_grow


def test_partitions_assigned_after_the_topics_have_grown_are_reset_at_once(harness: LoopHarness) -> None:
    harness.assignment.grown(dataclasses.replace(FACTS, usable_partitions=3))
    harness.assignment.assign([2])
    assert harness.assignment.to_recover == {2}


def test_what_waits_for_larger_topics_is_not_reset_with_the_others(harness: LoopHarness) -> None:
    harness.run(0)
    harness.assignment.assign([2])
    harness.assignment.recover({0, 2})
    assert harness.assignment.to_recover == {0}


def test_a_reset_of_all_drops_what_was_held_and_read_ahead(harness: LoopHarness) -> None:
    harness.run(0, 1)
    harness.ingest(0, 0, 1)
    harness.ahead.partitions[1] = Mock()
    harness.assignment.recover_all()
    assert harness.assignment.to_recover == {0, 1}
    assert harness.buffer.ready == 0
    assert not harness.ahead.partitions


def test_resets_begin_paused_and_without_partitions_that_are_stopped(harness: LoopHarness) -> None:
    harness.run(0, 1)
    harness.fetching.adjust(harness.assignment.running(), harness.assignment.partitions)
    harness.consumer.calls.clear()
    harness.assignment.partitions[1].transition_to(State.STOPPED, "its changelog cannot be read")
    harness.assignment.recover({0, 1})
    harness.assignment.start_recoveries()
    assert harness.consumer.calls == [("pause", [0, 1])]
    assert started(harness) == [0]
    assert not harness.assignment.to_recover


def test_nothing_of_a_partition_outlives_its_release(harness: LoopHarness) -> None:
    harness.run(0, 1)
    harness.ingest(0, 0)
    harness.ahead.partitions.update({0: Mock(), 1: Mock()})
    released = harness.assignment.partitions[0]
    harness.assignment.recover({0})
    harness.assignment.release(0)
    assert released.state is State.CLOSED
    assert harness.assignment.owned([0, 1]) == [harness.assignment.partitions[1]]
    assert harness.buffer.ready == 0
    assert harness.ahead.partitions.keys() == {1}
    assert not harness.assignment.to_recover
    harness.components.recovery.drop.assert_called_once_with(0)


def test_a_partition_that_was_never_owned_is_released_without_harm(harness: LoopHarness) -> None:
    harness.assignment.release(7)
    assert not harness.assignment.partitions

"""Which partitions are owned, what they wait for, and that nothing of a partition outlives its assignment."""

from __future__ import annotations

import dataclasses
from unittest.mock import Mock

from sidecar.engine.partition import State
from tests.unit.runtime.parts import FACTS, LoopParts


def started(parts: LoopParts) -> list[int]:
    """Return the partitions whose reset was begun last."""
    (partitions,) = parts.components.reset.start.call_args.args
    return sorted(each.number for each in partitions)


def test_an_assigned_partition_waits_for_its_reset_or_for_larger_topics(parts: LoopParts) -> None:
    parts.assignment.assign([0, 1, 2])
    assert parts.assignment.to_reset == {0, 1}
    assert parts.assignment.to_grow == {2}
    parts.assignment.grown(dataclasses.replace(FACTS, usable_partitions=3))
    assert parts.assignment.to_reset == {0, 1, 2}
    assert not parts.assignment.to_grow


def test_partitions_assigned_after_the_topics_have_grown_are_reset_at_once(parts: LoopParts) -> None:
    parts.assignment.grown(dataclasses.replace(FACTS, usable_partitions=3))
    parts.assignment.assign([2])
    assert parts.assignment.to_reset == {2}


def test_what_waits_for_larger_topics_is_not_reset_with_the_others(parts: LoopParts) -> None:
    parts.run(0)
    parts.assignment.assign([2])
    parts.assignment.reset({0, 2})
    assert parts.assignment.to_reset == {0}


def test_a_reset_of_all_drops_what_was_held_and_read_ahead(parts: LoopParts) -> None:
    parts.run(0, 1)
    parts.take_in(0, 0, 1)
    parts.ahead.partitions[1] = Mock()
    parts.assignment.reset_all()
    assert parts.assignment.to_reset == {0, 1}
    assert parts.held.ready == 0
    assert not parts.ahead.partitions


def test_resets_begin_paused_and_without_partitions_that_are_stopped(parts: LoopParts) -> None:
    parts.run(0, 1)
    parts.fetching.adjust(parts.assignment.running(), parts.assignment.partitions)
    parts.consumer.calls.clear()
    parts.assignment.partitions[1].transition_to(State.STOPPED, "its changelog cannot be read")
    parts.assignment.reset({0, 1})
    parts.assignment.start_resets()
    assert parts.consumer.calls == [("pause", [0, 1])]
    assert started(parts) == [0]
    assert not parts.assignment.to_reset


def test_nothing_of_a_partition_outlives_its_release(parts: LoopParts) -> None:
    parts.run(0, 1)
    parts.take_in(0, 0)
    parts.ahead.partitions.update({0: Mock(), 1: Mock()})
    released = parts.assignment.partitions[0]
    parts.assignment.reset({0})
    parts.assignment.release(0)
    assert released.state is State.CLOSED
    assert parts.assignment.owned([0, 1]) == [parts.assignment.partitions[1]]
    assert parts.held.ready == 0
    assert parts.ahead.partitions.keys() == {1}
    assert not parts.assignment.to_reset
    parts.components.reset.drop.assert_called_once_with(0)


def test_a_partition_that_was_never_owned_is_released_without_harm(parts: LoopParts) -> None:
    parts.assignment.release(7)
    assert not parts.assignment.partitions

"""When a transaction is planned, and what goes into it."""

from __future__ import annotations

from collections.abc import Sequence
from unittest.mock import Mock

import pytest

from sidecar.engine.partition import Partition
from sidecar.errors import RecordCorrupt, StoreCorrupt
from sidecar.runtime.planning import Planning
from sidecar.runtime.transaction.commit import Work
from tests.clocks import NOW_MS
from tests.simulation.memory_store import MemoryStore
from tests.unit.runtime.parts import LoopParts

MANY = 10_000


@pytest.fixture
def planning(parts: LoopParts) -> Planning:
    return Planning(parts.components, parts.assignment, parts.held, parts.ahead, parts.failures, parts.limits)


def next_work(parts: LoopParts, planning: Planning) -> Work | None:
    return planning.next(parts.assignment.running(), MemoryStore(), b"member")


def partition(parts: LoopParts, number: int) -> Partition:
    return parts.assignment.partitions[number]


def test_messages_are_planned_after_the_commit_interval(parts: LoopParts, planning: Planning) -> None:
    parts.run(0)
    assert not planning.is_due()
    parts.take_in(0, 0)
    assert planning.is_due(), "nothing was planned before"
    next_work(parts, planning)
    parts.take_in(0, 1)
    assert not planning.is_due()
    parts.clock.now_s += parts.components.settings.commit_interval_ms / 1000
    assert planning.is_due()


def test_a_full_transaction_is_planned_at_once(parts: LoopParts, planning: Planning) -> None:
    parts.run(0)
    next_work(parts, planning)
    while parts.held.ready < MANY:
        parts.take_in(0, *range(parts.held.ready, parts.held.ready + 500))
    assert planning.is_due()


def test_due_timers_are_planned_after_the_punctuation_interval(parts: LoopParts, planning: Planning) -> None:
    parts.run(0)
    next_work(parts, planning)
    partition(parts, 0).next_due_ms = NOW_MS
    assert not planning.is_due()
    parts.clock.now_s += parts.components.settings.punctuation_interval_ms / 1000
    assert planning.is_due()
    partition(parts, 0).next_due_ms = NOW_MS + 3_600_000
    assert not planning.is_due()


def test_a_poll_waits_until_the_next_plan_is_due(parts: LoopParts, planning: Planning) -> None:
    settings = parts.components.settings
    parts.run(0)
    next_work(parts, planning)
    assert planning.due_in_s(60.0) == 60.0
    partition(parts, 0).next_due_ms = parts.clock.wall_ms() + 5_000
    assert planning.due_in_s(60.0) == 5.0
    partition(parts, 0).next_due_ms = parts.clock.wall_ms()
    assert planning.due_in_s(60.0) == settings.punctuation_interval_ms / 1000
    parts.take_in(0, 0)
    assert planning.due_in_s(60.0) == min(settings.commit_interval_ms, settings.punctuation_interval_ms) / 1000
    parts.clock.now_s += 10.0
    assert planning.due_in_s(60.0) < 0


def test_a_transaction_is_made_of_what_is_held(parts: LoopParts, planning: Planning) -> None:
    parts.run(0, 1)
    parts.take_in(0, 0, 1)
    parts.take_in(1, 0)
    work = next_work(parts, planning)
    assert work is not None
    assert work.partitions == parts.assignment.partitions
    assert {part.number: part.taken_in for part in work.plan.parts} == {0: 2, 1: 1}
    assert {part.number: part.checkpoint.next_input_offset for part in work.plan.parts} == {0: 2, 1: 1}
    assert (work.membership, work.identity) == (b"member", parts.components.reset.identity)
    assert work.plan.now_ms == parts.clock.wall_ms()
    assert parts.held.ready == 0


def test_without_anything_to_do_there_is_no_transaction_and_nothing_is_read_ahead(
    parts: LoopParts, planning: Planning
) -> None:
    parts.run(0)
    parts.ahead.partitions[1] = Mock()
    assert next_work(parts, planning) is None
    assert not parts.ahead.partitions


def test_each_partition_gets_its_turn_when_a_transaction_has_only_one_message(
    parts: LoopParts, planning: Planning
) -> None:
    parts.run(0, 1)
    parts.take_in(0, 0, 1)
    parts.take_in(1, 0, 1)
    parts.failures.pace.items_max = 1
    turns: list[list[int]] = []
    for _ in range(4):
        work = next_work(parts, planning)
        assert work is not None
        turns.append([part.number for part in work.plan.parts])
    assert turns == [[1], [0], [1], [0]]


def test_a_row_that_cannot_be_read_damages_the_store(parts: LoopParts, planning: Planning) -> None:
    class Damaged(MemoryStore):
        def values(self, lower: bytes, upper: bytes, *, limit: int, limit_bytes: int) -> Sequence[bytes]:
            raise RecordCorrupt("an entry has 3 bytes")

    parts.run(0)
    partition(parts, 0).next_due_ms = NOW_MS
    with pytest.raises(StoreCorrupt, match="a row of the state folder cannot be read: an entry has 3 bytes"):
        planning.next(parts.assignment.running(), Damaged(), b"member")

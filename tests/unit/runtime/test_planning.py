"""When a transaction is planned, and what goes into it."""

from __future__ import annotations

from collections.abc import Sequence
from unittest.mock import Mock

import pytest

from sidecar.engine.partition import Partition
from sidecar.engine.ports import Origin
from sidecar.errors import RecordCorrupt, StoreCorrupt
from sidecar.model import Record
from sidecar.runtime.partitions.buffer import Blocked
from sidecar.runtime.planning import ANSWER_S, FULL, Planning
from sidecar.runtime.transaction.commit import Work
from sidecar.runtime.transaction.failures import DLQ_AGAIN_S
from tests.clocks import NOW_MS
from tests.simulation.memory_store import MemoryStore
from tests.simulation.stage import NOW, Stage
from tests.unit.runtime.harness import LoopHarness, record

MANY = 10_000


@pytest.fixture
def planning(harness: LoopHarness) -> Planning:
    return Planning(
        harness.components, harness.assignment, harness.buffer, harness.ahead, harness.failures, harness.limits
    )


def next_work(harness: LoopHarness, planning: Planning) -> Work | None:
    return planning.next(harness.assignment.running(), MemoryStore(), b"member")


def partition(harness: LoopHarness, number: int) -> Partition:
    return harness.assignment.partitions[number]


def test_messages_are_planned_after_the_commit_interval(harness: LoopHarness, planning: Planning) -> None:
    harness.run(0)
    assert not planning.is_due()
    harness.ingest(0, 0)
    assert planning.is_due(), "nothing was planned before"
    next_work(harness, planning)
    harness.ingest(0, 1)
    assert not planning.is_due()
    harness.clock.now_s += harness.components.settings.commit_interval_ms / 1000
    assert planning.is_due()


LETTER = record(0, 0)._replace(headers=[])
"""A message that names no origin: it must go to the DLQ."""


def wait_for_dlq(harness: LoopHarness, planning: Planning, *behind: Record) -> None:
    """Run two partitions, the first of which waits for a DLQ that was tried just now."""
    harness.run(0, 1)
    harness.origins["dlq"] = Origin(1, 1_000_000)
    harness.components.catalogue.denied = harness.components.catalogue.leaderless = ()
    harness.failures._close_dlq("dlq", "too small", harness.clock.now_s)
    harness.consumer.records = [LETTER, *behind]
    harness.fetching.poll(0)
    assert next_work(harness, planning) is None


def test_a_partition_that_waits_for_a_closed_dlq_is_not_planned_until_it_may_be_tried(
    harness: LoopHarness, planning: Planning
) -> None:
    wait_for_dlq(harness, planning, *(record(0, each) for each in range(1, 20)))
    assert harness.buffer.blocked == {0: Blocked("dlq", 0)}
    harness.clock.now_s += harness.components.settings.commit_interval_ms / 1000
    assert not planning.is_due()
    assert planning.due_in_s(60.0) == 60.0
    harness.ingest(1, 0)
    work = next_work(harness, planning)
    assert work is not None
    assert (list(work.partitions), work.closed_dlqs) == ([1], frozenset({"dlq"}))


def test_a_dlq_counts_as_tried_when_messages_of_the_partition_that_waits_for_it_were_planned(
    harness: LoopHarness, planning: Planning
) -> None:
    wait_for_dlq(harness, planning)
    harness.clock.now_s += DLQ_AGAIN_S
    assert harness.fetching.go_on(harness.assignment.running(), harness.limits.closed_dlqs(harness.failures)) == set()
    harness.ingest(1, 0)
    work = next_work(harness, planning)
    assert work is not None
    assert work.closed_dlqs == {"dlq"}, "the record was not fetched again yet"
    harness.consumer.records = [LETTER]
    harness.fetching.poll(0)
    harness.clock.now_s += 1
    work = next_work(harness, planning)
    assert work is not None
    assert (work.closed_dlqs, len(work.plan.partition_plans[0].dead_letters)) == (frozenset(), 1)


def test_a_full_transaction_is_planned_at_once(harness: LoopHarness, planning: Planning) -> None:
    harness.run(0)
    next_work(harness, planning)
    while harness.buffer.ready < MANY:
        harness.ingest(0, *range(harness.buffer.ready, harness.buffer.ready + 500))
    assert planning.is_due()


def test_due_timers_are_planned_after_the_punctuation_interval(harness: LoopHarness, planning: Planning) -> None:
    harness.run(0)
    next_work(harness, planning)
    partition(harness, 0).next_due_ms = NOW_MS
    assert not planning.is_due()
    harness.clock.now_s += harness.components.settings.punctuation_interval_ms / 1000
    assert planning.is_due()
    partition(harness, 0).next_due_ms = NOW_MS + 3_600_000
    assert not planning.is_due()


@pytest.mark.parametrize(("fired", "share"), [(1, 1 - 1 / FULL), (FULL // 2, 0.5), (FULL, 0), (2 * FULL, 0)])
def test_the_more_a_transaction_fires_the_sooner_is_the_next(
    harness: LoopHarness, planning: Planning, fired: int, share: float
) -> None:
    stage = Stage()
    stage.commit(NOW, *(stage.send(NOW + 1_000 + number) for number in range(fired)))
    harness.origins["A"] = Origin(4, 1_000_000)
    harness.run(0)
    harness.assignment.partitions[0] = stage.partition
    work = planning.next([stage.partition], stage.store, b"member")
    assert work is not None
    assert work.plan.deliveries == fired
    stage.partition.next_due_ms = NOW_MS
    wait_s = share * harness.components.settings.punctuation_interval_ms / 1000
    assert planning.due_in_s(60.0) == pytest.approx(wait_s)
    assert planning.is_due() == (wait_s == 0)
    harness.clock.now_s += wait_s + 0.001
    assert planning.is_due()


def test_a_scan_within_the_commit_interval_leaves_messages_to_the_next(
    harness: LoopHarness, planning: Planning
) -> None:
    stage = Stage()
    stage.commit(NOW, *(stage.send(NOW + 1_000) for _ in range(FULL)))
    harness.origins["A"] = Origin(4, 1_000_000)
    harness.run(0, 1)
    harness.assignment.partitions[0] = stage.partition
    assert next_work(harness, planning) is None
    harness.ingest(1, 0)
    harness.clock.now_s += harness.components.settings.commit_interval_ms / 2000
    numbers = harness.assignment.running()
    work = planning.next(numbers, stage.store, b"member")
    assert work is not None
    assert (work.plan.deliveries, list(work.partitions), harness.buffer.ready) == (FULL, [0], 1)
    harness.clock.now_s += harness.components.settings.commit_interval_ms / 2000
    assert planning.is_due()
    work = planning.next([partition(harness, 1)], stage.store, b"member")
    assert work is not None
    assert (list(work.partitions), harness.buffer.ready) == ([1], 0)


def test_messages_that_wait_for_an_origin_are_planned_when_the_answer_is_there(
    harness: LoopHarness, planning: Planning
) -> None:
    stage = Stage()
    stage.commit(NOW, stage.send(NOW + 1_000))
    harness.run(0)
    harness.assignment.partitions[0] = stage.partition
    harness.origins.clear()
    assert planning.next([stage.partition], stage.store, b"member") is None
    assert not planning.is_due()
    assert planning.due_in_s(60.0) <= ANSWER_S
    harness.origins["A"] = Origin(4, 1_000_000)
    assert planning.is_due()


def test_a_poll_waits_until_the_next_plan_is_due(harness: LoopHarness, planning: Planning) -> None:
    settings = harness.components.settings
    harness.run(0)
    next_work(harness, planning)
    assert planning.due_in_s(60.0) == 60.0
    partition(harness, 0).next_due_ms = harness.clock.wall_ms() + 5_000
    assert planning.due_in_s(60.0) == 5.0
    partition(harness, 0).next_due_ms = harness.clock.wall_ms()
    assert planning.due_in_s(60.0) == settings.punctuation_interval_ms / 1000
    harness.ingest(0, 0)
    assert planning.due_in_s(60.0) == min(settings.commit_interval_ms, settings.punctuation_interval_ms) / 1000
    harness.clock.now_s += 10.0
    assert planning.due_in_s(60.0) < 0


def test_a_transaction_is_made_of_what_is_held(harness: LoopHarness, planning: Planning) -> None:
    harness.run(0, 1)
    harness.ingest(0, 0, 1)
    harness.ingest(1, 0)
    work = next_work(harness, planning)
    assert work is not None
    assert work.partitions == harness.assignment.partitions
    assert {partition_plan.number: partition_plan.ingested for partition_plan in work.plan.partition_plans} == {
        0: 2,
        1: 1,
    }
    assert {
        partition_plan.number: partition_plan.checkpoint.next_input_offset
        for partition_plan in work.plan.partition_plans
    } == {0: 2, 1: 1}
    assert (work.membership, work.identity) == (b"member", harness.components.recovery.identity)
    assert work.plan.now_ms == harness.clock.wall_ms()
    assert harness.buffer.ready == 0


def test_without_anything_to_do_there_is_no_transaction_and_nothing_is_read_ahead(
    harness: LoopHarness, planning: Planning
) -> None:
    harness.run(0)
    harness.ahead.partitions[1] = Mock()
    assert next_work(harness, planning) is None
    assert not harness.ahead.partitions


def test_each_partition_gets_its_turn_when_a_transaction_has_only_one_message(
    harness: LoopHarness, planning: Planning
) -> None:
    harness.run(0, 1)
    harness.ingest(0, 0, 1)
    harness.ingest(1, 0, 1)
    harness.failures.pace.items_max = 1
    turns: list[list[int]] = []
    for _ in range(4):
        work = next_work(harness, planning)
        assert work is not None
        turns.append([partition_plan.number for partition_plan in work.plan.partition_plans])
    assert turns == [[1], [0], [1], [0]]


def test_a_transaction_of_one_message_takes_one_in_or_delivers_one(harness: LoopHarness, planning: Planning) -> None:
    """Both at once would be two suspects for ever when their topic refuses both."""
    stage = Stage()
    stage.commit(NOW, stage.send(NOW + 1_000))
    harness.origins["A"] = Origin(4, 1_000_000)
    harness.run(0)
    harness.assignment.partitions[0] = stage.partition
    harness.ingest(0, 1, 2)
    harness.failures.pace.items_max = 1
    done: list[tuple[int, int]] = []
    for _ in range(2):
        work = planning.next([stage.partition], stage.store, b"member")
        assert work is not None
        done.append((sum(each.ingested for each in work.plan.partition_plans), work.plan.deliveries))
    assert sorted(done) == [(0, 1), (1, 0)]


def test_a_row_that_cannot_be_read_damages_the_store(harness: LoopHarness, planning: Planning) -> None:
    class Damaged(MemoryStore):
        def values(self, lower: bytes, upper: bytes, *, limit: int, limit_bytes: int) -> Sequence[bytes]:
            raise RecordCorrupt("an entry has 3 bytes")

    harness.run(0)
    partition(harness, 0).next_due_ms = NOW_MS
    with pytest.raises(StoreCorrupt, match="a row of the state folder cannot be read: an entry has 3 bytes"):
        planning.next(harness.assignment.running(), Damaged(), b"member")

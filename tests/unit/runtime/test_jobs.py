"""Which job the commit thread gets, and what becomes of one that ends, fails or hangs."""

from __future__ import annotations

import threading

import pytest
from structlog.testing import capture_logs

from sidecar.errors import TransactionFailed
from sidecar.kafka.bounded import HANGS_S
from sidecar.kafka.config import BATCH_BYTES, MESSAGE_TIMEOUT_MAX_MS, MESSAGE_TIMEOUT_MS
from sidecar.runtime.jobs import GROW_AGAIN_S
from sidecar.runtime.planning import Planning
from sidecar.runtime.transaction.commit import Result, Work
from sidecar.runtime.transaction.pace import largest_record
from tests.simulation.memory_store import MemoryStore
from tests.unit.runtime.harness import FACTS, MEMBER, LoopHarness
from tests.waiting import eventually


def do_next(harness: LoopHarness) -> bool:
    """Let the next job run to its end; return whether there was one."""
    if not harness.jobs.prepare():
        return False
    eventually(lambda: harness.jobs.wait(0), 60, "the job is done")
    assert harness.jobs.finish() is None, "no transaction"
    return True


def test_the_first_job_is_a_producer(harness: LoopHarness) -> None:
    assert not harness.jobs.has_producer
    assert do_next(harness)
    assert harness.jobs.has_producer
    assert harness.made_for == (BATCH_BYTES, MESSAGE_TIMEOUT_MS)
    assert not do_next(harness), "nothing else is in the way of a transaction"


def test_a_producer_that_cannot_be_had_is_tried_again_later(
    harness: LoopHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(timeout_s: float) -> None:
        raise TransactionFailed(f"no coordinator in {timeout_s} s", unknown=False, replace=True)

    with monkeypatch.context() as patched:
        patched.setattr(harness.producer, "init", refuse)
        do_next(harness)
    assert not harness.jobs.has_producer
    assert harness.failures.waiting()
    do_next(harness)
    assert harness.jobs.has_producer


def test_a_producer_that_was_dropped_is_closed_and_replaced(harness: LoopHarness) -> None:
    do_next(harness)
    harness.jobs.drop_producer()
    assert harness.producer.closed
    assert not harness.jobs.has_producer
    assert do_next(harness)
    assert harness.jobs.has_producer


def test_topics_are_grown_for_partitions_that_wait_for_it_and_not_all_the_time(harness: LoopHarness) -> None:
    harness.components.grow_topics.return_value = FACTS
    do_next(harness)
    harness.assignment.assign([2])
    assert do_next(harness)
    harness.components.snapshots.set_cluster.assert_called_once_with("cluster", 3)
    assert harness.assignment.partitions[2].reason == "changelog and status have no such partition"
    assert not do_next(harness)
    harness.clock.now_s += GROW_AGAIN_S
    assert do_next(harness)


def test_a_job_that_hangs_is_left_behind_with_its_producer(
    harness: LoopHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    do_next(harness)
    answer = threading.Event()
    harness.components.grow_topics = answer.wait
    harness.assignment.assign([2])
    assert harness.jobs.prepare()
    try:
        assert not harness.jobs.abandon(), "it may still end"
        harness.clock.now_s += HANGS_S + 1
        assert not harness.jobs.abandon(), "its transaction is committed already"
        monkeypatch.setattr(harness.producer, "give_up", lambda: True)
        with capture_logs() as lines:
            assert harness.jobs.abandon()
        assert [line["event"] for line in lines] == ["commit_hangs"]
        assert not harness.jobs.busy
        assert not harness.jobs.has_producer
        assert do_next(harness), "another thread takes the next job"
        assert harness.jobs.has_producer
    finally:
        answer.set()


def test_a_producer_whose_start_hangs_is_left_behind(harness: LoopHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = threading.Event()
    with monkeypatch.context() as patched:
        patched.setattr(harness.producer, "init", lambda _timeout_s: answer.wait())
        assert harness.jobs.prepare()
        try:
            assert not harness.jobs.abandon(), "it may still end"
            harness.clock.now_s += HANGS_S + 1
            with capture_logs() as lines:
                assert not harness.jobs.abandon(), "there is no transaction, so no partition recovers"
        finally:
            answer.set()
    assert [line["event"] for line in lines] == ["commit_hangs", "producer_not_ready"]
    assert not harness.jobs.busy
    assert harness.failures.waiting()
    assert do_next(harness), "another thread makes the next producer"
    assert harness.jobs.has_producer


def planned(harness: LoopHarness) -> Work:
    """Plan what is held."""
    planning = Planning(
        harness.components, harness.assignment, harness.buffer, harness.ahead, harness.failures, harness.limits
    )
    work = planning.next(harness.assignment.running(), MemoryStore(), MEMBER)
    assert work is not None
    return work


def transaction(harness: LoopHarness) -> Result:
    """Carry what is held through a transaction."""
    harness.jobs.commit(planned(harness), MemoryStore())
    eventually(lambda: harness.jobs.wait(0), 60, "the transaction is over")
    result = harness.jobs.finish()
    assert result is not None
    return result


def test_a_transaction_is_committed_applied_and_handed_back(harness: LoopHarness) -> None:
    do_next(harness)
    harness.run(0)
    harness.ingest(0, 0, 1)
    assert transaction(harness).error is None
    assert harness.producer.committed == ([], {0: 2})
    assert harness.assignment.partitions[0].counts.pending == 2
    assert not harness.jobs.busy


def test_a_transaction_that_fails_is_aborted_and_handed_back_with_its_error(harness: LoopHarness) -> None:
    do_next(harness)
    harness.run(0)
    harness.ingest(0, 0, 1)
    harness.producer.fails = TransactionFailed("refused", unknown=False, replace=False)
    assert transaction(harness).error is harness.producer.fails
    assert harness.producer.aborted
    assert harness.assignment.partitions[0].counts.pending == 0


def test_a_record_as_large_as_one_that_was_late_gets_more_time_for_one_transaction(
    harness: LoopHarness,
) -> None:
    do_next(harness)
    harness.run(0)
    harness.ingest(0, 0)
    work = planned(harness)
    assert not harness.jobs.unfit(work.plan)
    harness.failures.pace.slow_bytes = largest_record(work.plan)
    assert harness.jobs.unfit(work.plan)
    harness.jobs.drop_producer()
    do_next(harness)
    assert harness.made_for == (BATCH_BYTES, MESSAGE_TIMEOUT_MAX_MS)
    assert not harness.jobs.unfit(work.plan), "this producer has the time"
    harness.ingest(0, 1)
    assert transaction(harness).error is None
    assert harness.producer.closed, "it would wait as long for a topic that gives no answer"
    do_next(harness)
    assert harness.made_for == (BATCH_BYTES, MESSAGE_TIMEOUT_MS)


def test_a_plan_of_smaller_records_needs_no_more_time(harness: LoopHarness) -> None:
    do_next(harness)
    harness.run(0)
    harness.ingest(0, 0)
    work = planned(harness)
    harness.failures.pace.slow_bytes = largest_record(work.plan) + 1
    assert not harness.jobs.unfit(work.plan)

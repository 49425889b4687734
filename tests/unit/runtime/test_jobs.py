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
from sidecar.runtime.transaction.commit import Result
from tests.simulation.memory_store import MemoryStore
from tests.unit.runtime.parts import FACTS, LoopParts
from tests.waiting import eventually


def do_next(parts: LoopParts) -> bool:
    """Let the next job run to its end; return whether there was one."""
    if not parts.jobs.prepare():
        return False
    eventually(lambda: parts.jobs.wait(0), 10, "the job is done")
    assert parts.jobs.finish() is None, "no transaction"
    return True


def test_the_first_job_is_a_producer(parts: LoopParts) -> None:
    assert not parts.jobs.has_producer
    assert do_next(parts)
    assert parts.jobs.has_producer
    assert parts.made_for == (BATCH_BYTES, MESSAGE_TIMEOUT_MS)
    assert not do_next(parts), "nothing else is in the way of a transaction"


def test_a_message_that_is_tried_alone_gets_a_producer_with_the_longest_timeout(parts: LoopParts) -> None:
    parts.failures.pace.alone = True
    do_next(parts)
    assert parts.made_for == (BATCH_BYTES, MESSAGE_TIMEOUT_MAX_MS)


def test_a_producer_that_cannot_be_had_is_tried_again_later(parts: LoopParts, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(timeout_s: float) -> None:
        raise TransactionFailed(f"no coordinator in {timeout_s} s", unknown=False, replace=True)

    with monkeypatch.context() as patched:
        patched.setattr(parts.producer, "init", refuse)
        do_next(parts)
    assert not parts.jobs.has_producer
    assert parts.failures.waiting()
    do_next(parts)
    assert parts.jobs.has_producer


def test_a_producer_that_was_dropped_is_closed_and_replaced(parts: LoopParts) -> None:
    do_next(parts)
    parts.jobs.drop_producer()
    assert parts.producer.closed
    assert not parts.jobs.has_producer
    assert do_next(parts)
    assert parts.jobs.has_producer


def test_topics_are_grown_for_partitions_that_wait_for_it_and_not_all_the_time(parts: LoopParts) -> None:
    parts.components.grow_topics.return_value = FACTS
    do_next(parts)
    parts.assignment.assign([2])
    assert do_next(parts)
    parts.components.snapshots.know_cluster.assert_called_once_with("cluster", 3)
    assert parts.assignment.partitions[2].reason == "changelog and status have no such partition"
    assert not do_next(parts)
    parts.clock.now_s += GROW_AGAIN_S
    assert do_next(parts)


def test_a_job_that_hangs_is_left_behind_with_its_producer(parts: LoopParts, monkeypatch: pytest.MonkeyPatch) -> None:
    do_next(parts)
    answer = threading.Event()
    parts.components.grow_topics = answer.wait
    parts.assignment.assign([2])
    assert parts.jobs.prepare()
    try:
        assert not parts.jobs.leave_behind(), "it may still end"
        parts.clock.now_s += HANGS_S + 1
        assert not parts.jobs.leave_behind(), "its transaction is committed already"
        monkeypatch.setattr(parts.producer, "give_up", lambda: True)
        with capture_logs() as lines:
            assert parts.jobs.leave_behind()
        assert [line["event"] for line in lines] == ["commit_hangs"]
        assert not parts.jobs.busy
        assert not parts.jobs.has_producer
        assert do_next(parts), "another thread takes the next job"
        assert parts.jobs.has_producer
    finally:
        answer.set()


def transaction(parts: LoopParts) -> Result:
    """Carry what is held through a transaction."""
    planning = Planning(parts.components, parts.assignment, parts.held, parts.ahead, parts.failures, parts.limits)
    store = MemoryStore()
    work = planning.next(parts.assignment.running(), store, b"member")
    assert work is not None
    parts.jobs.commit(work, store)
    eventually(lambda: parts.jobs.wait(0), 10, "the transaction is over")
    result = parts.jobs.finish()
    assert result is not None
    return result


def test_a_transaction_is_committed_applied_and_handed_back(parts: LoopParts) -> None:
    do_next(parts)
    parts.run(0)
    parts.take_in(0, 0, 1)
    assert transaction(parts).error is None
    assert parts.producer.committed == ([], {0: 2})
    assert parts.assignment.partitions[0].counts.pending == 2
    assert not parts.jobs.busy


def test_a_transaction_that_fails_is_aborted_and_handed_back_with_its_error(parts: LoopParts) -> None:
    do_next(parts)
    parts.run(0)
    parts.take_in(0, 0, 1)
    parts.producer.fails = TransactionFailed("refused", unknown=False, replace=False)
    assert transaction(parts).error is parts.producer.fails
    assert parts.producer.aborted
    assert parts.assignment.partitions[0].counts.pending == 0

"""Why an instance is not ready, in words."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from sidecar.errors import TransactionFailed
from sidecar.runtime.readiness import BROKER_ERROR_EVERY_S, Readiness
from tests.unit.runtime.harness import LoopHarness
from tests.waiting import eventually


@pytest.fixture
def readiness(harness: LoopHarness) -> Readiness:
    """Nothing is in the way."""
    components = harness.components
    components.guard.blocker.return_value = components.state.blocker.return_value = None
    components.status.delivered_s = 0.0
    harness.jobs.prepare()
    eventually(lambda: harness.jobs.wait(0), 60, "the producer is made")
    harness.jobs.finish()
    return Readiness(
        *(harness.clock, components.guard, components.state, components.status, harness.consumer),
        *(harness.assignment, harness.failures, harness.jobs),
    )


def test_an_instance_whose_partitions_run_is_ready(harness: LoopHarness, readiness: Readiness) -> None:
    harness.run(0, 1)
    assert readiness.reasons() == []


def test_clock_and_state_folder_are_in_the_way_of_every_transaction(harness: LoopHarness, readiness: Readiness) -> None:
    harness.components.guard.blocker.return_value = "the clock is off"
    harness.components.state.blocker.return_value = "the disk is full"
    assert readiness.blockers() == ["the clock is off", "the disk is full"]
    assert readiness.reasons() == ["the clock is off", "the disk is full"]


def test_partitions_that_do_not_run_are_named(harness: LoopHarness, readiness: Readiness) -> None:
    harness.run(0)
    harness.assignment.assign([1, 2])
    harness.assignment.not_grown("the permission Alter is missing")
    assert readiness.reasons() == [
        "partition 1 is assigned",
        "partition 2 is assigned: the permission Alter is missing",
    ]


def test_a_member_that_cannot_join_says_why(harness: LoopHarness, readiness: Readiness) -> None:
    harness.consumer.member = None
    assert readiness.reasons() == ["it has not joined the consumer group yet"]
    harness.consumer.refusal = "Group authorization failed"
    assert readiness.reasons() == ["it has not joined the consumer group yet: Group authorization failed"]


def test_a_missing_producer_is_a_reason_and_so_is_why(harness: LoopHarness, readiness: Readiness) -> None:
    harness.jobs.drop_producer()
    assert readiness.reasons() == ["the transactional producer is not ready yet"]
    for _ in range(3):
        harness.failures.renewal_failed(TransactionFailed("no coordinator", unknown=False, replace=True))
    assert readiness.reasons() == [
        "the transactional producer cannot be created: no coordinator",
        "the transactional producer is not ready yet",
    ]


def test_a_broker_error_is_a_reason_until_a_broker_takes_a_record(harness: LoopHarness, readiness: Readiness) -> None:
    harness.clock.now_s = 10.0
    readiness.broker_error("3/3 brokers are down")
    assert readiness.reasons() == ["no broker answers: 3/3 brokers are down"]
    harness.components.status.delivered_s = 11.0
    assert readiness.reasons() == []


def test_a_broker_error_is_logged_when_it_is_new_and_not_too_often(harness: LoopHarness, readiness: Readiness) -> None:
    with capture_logs() as lines:
        for text in ("down", "down", "refused"):
            readiness.broker_error(text)
        harness.clock.now_s += BROKER_ERROR_EVERY_S
        for text in ("refused", "down"):
            readiness.broker_error(text)
    assert [line["reason"] for line in lines] == ["down", "down"]

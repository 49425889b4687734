"""Errors that the loop handles, as far as they need no broker."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest
from structlog.testing import capture_logs

from sidecar.engine.partition import State
from sidecar.errors import BrokerUnavailable, CommandFailed, DuplicateInstance, StoreFailed, TopicsInvalid
from sidecar.kafka.admin.topics import TopicFacts
from sidecar.model import Record
from sidecar.runtime.fetching import POLL_RECORDS
from sidecar.runtime.jobs import GROW_AGAIN_S
from sidecar.runtime.loop import MAINTAIN_EVERY_S, POLL_BUSY_S, Loop
from sidecar.runtime.partitions.buffer import Buffer
from sidecar.runtime.transaction.commit import Committer
from sidecar.settings import Settings
from tests.clocks import HandClock
from tests.simulation.memory_store import MemoryStore
from tests.unit.runtime.harness import LoopHarness, record
from tests.waiting import eventually

FACTS = TopicFacts("cluster", 2, 1, "input-id", "changelog-id", 1, 1, 1)
"""The input has grown to two partitions; changelog and status have one."""


class Stage:
    """A loop that owns both partitions, with a producer; the test says what growing the topics comes to."""

    def __init__(self) -> None:
        self.clock = HandClock()
        self.grow: Callable[[], TopicFacts] = lambda: FACTS
        self.components = Mock()
        self.components.clock, self.components.facts, self.components.settings = self.clock, FACTS, Settings()
        self.components.catalogue.origins = {}
        self.components.grow_topics = lambda: self.grow()  # noqa: PLW0108 - the test sets another
        self.components.recovery.progress.return_value = (0.0, 0)
        self.components.recovery.left_open.return_value = None
        self.components.guard.blocker.return_value = self.components.state.blocker.return_value = None
        self.components.login_blocker.return_value = None
        self.components.status.delivered_s = 0.0
        self.components.guard.skew_ms = None
        self.components.restarts.take.return_value = self.components.topic_watch.replaced.return_value = set()
        self.components.marker_watch.missing.return_value = set()
        self.components.closed.advance.return_value = ()
        self.components.make_executor = partial(Committer, self.clock)
        self.consumer: Any = self.components.open_consumer.return_value
        self.consumer.end_offsets.return_value = {}
        self.loop = Loop(self.components)
        self.loop.assigned([0, 1])
        self.loop._jobs._producer = Mock()
        self.loop._assignment.to_recover.clear()

    def grown(self) -> list[tuple[str, str]]:
        """Let the topics be grown once; return the warnings."""
        self.clock.now_s += GROW_AGAIN_S
        self.loop._next_job()
        eventually(lambda: self.loop._jobs.wait(0), 60, "the job is done")
        with capture_logs() as lines:
            self.loop._finish_job()
        return [(str(line["event"]), str(line["reason"])) for line in lines if line["log_level"] == "warning"]

    def reasons(self) -> list[str]:
        return [each for each in self.loop._readiness.reasons() if each.startswith("partition 1")]


@pytest.fixture
def stage() -> Iterator[Stage]:
    made = Stage()
    yield made
    made.loop._jobs.close()


@pytest.mark.parametrize("kind", [BrokerUnavailable, CommandFailed, TopicsInvalid])
def test_topics_that_cannot_be_grown_are_the_reason_of_new_partitions_and_tried_again(
    kind: type[Exception], stage: Stage
) -> None:
    def refuse() -> TopicFacts:
        raise kind("topic app-status: Broker: Policy violation")

    stage.grow = refuse
    assert stage.grown() == [("topics_not_grown", "topic app-status: Broker: Policy violation")]
    assert stage.reasons() == ["partition 1 is assigned: topic app-status: Broker: Policy violation"]
    assert stage.grown() == [], "the same is logged once"
    stage.grow = lambda: dataclasses.replace(FACTS, notes=("the permission Alter is missing",))
    assert stage.grown() == [("topics_not_grown", "the permission Alter is missing")]
    stage.grow = lambda: dataclasses.replace(FACTS, usable_partitions=2)
    assert stage.grown() == []
    assert stage.loop._assignment.to_recover == {1}


def test_a_state_folder_that_goes_away_resets_what_runs_and_does_not_end_the_process(stage: Stage) -> None:
    """The store behind the partitions is gone, so what they keep in memory fits nothing any more."""
    for partition in stage.loop._assignment.partitions.values():
        partition.transition_to(State.RESTORING)
        partition.transition_to(State.RUNNING)
    failure = StoreFailed("STATE_DIR /state cannot be reached (No such file or directory)")
    stage.components.state.maintain.side_effect = failure
    stage.clock.now_s += MAINTAIN_EVERY_S
    stage.loop._maintain()
    stage.components.state.failed.assert_called_once_with(failure)
    assert 0 in stage.loop._assignment.to_recover


def test_partitions_of_a_topic_that_was_made_again_recover(stage: Stage) -> None:
    stage.loop._assignment.partitions[0].transition_to(State.RESTORING)
    stage.loop._assignment.partitions[0].transition_to(State.RUNNING)
    stage.components.topic_watch.replaced.side_effect = lambda running: {each.number for each in running}
    stage.clock.now_s += MAINTAIN_EVERY_S
    stage.loop._maintain()
    assert stage.loop._assignment.to_recover == {0}


def test_a_partition_whose_last_commit_has_no_marker_recovers(stage: Stage) -> None:
    stage.components.marker_watch.missing.side_effect = lambda _running: {0}
    stage.clock.now_s += MAINTAIN_EVERY_S
    stage.loop._maintain()
    assert stage.loop._assignment.to_recover == {0}


def test_the_end_holds_its_deadline_though_partitions_are_given_back_under_a_transaction(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    def wait(timeout_s: float) -> bool:
        waits.append(timeout_s)
        stage.clock.now_s += timeout_s
        return False

    monkeypatch.setattr(stage.loop._jobs._committer, "busy", True)
    monkeypatch.setattr(stage.loop._jobs._committer, "wait", wait)
    stage.loop.revoked([1])
    stage.consumer.close.side_effect = lambda: stage.loop.revoked([0])
    stage.loop.stop(2.0)
    assert waits == [5.0, 2.0, 0.0]
    stage.components.status.close.assert_called_once_with(0.0)
    stage.components.state.close.assert_not_called()


def test_records_wait_in_the_client_library_while_the_next_transactions_are_buffered(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To pause the partitions would drop what is fetched; the library fetches again up to a second after a resume."""
    polls: list[tuple[int, float]] = []
    waits: list[float] = []

    def poll(limit: int, timeout_s: float) -> Iterator[Iterator[Record]]:
        polls.append((limit, timeout_s))
        yield iter(())

    stage.consumer.poll = poll
    stage.components.ingest.plain = None
    committer = stage.loop._jobs._committer
    monkeypatch.setattr(committer, "busy", True)
    monkeypatch.setattr(committer, "wait", waits.append)
    for ample in (False, True):
        monkeypatch.setattr(Buffer, "ample", ample)
        stage.loop.run_once()
    monkeypatch.setattr(committer, "busy", False)
    monkeypatch.setattr(stage.loop, "_next_job", lambda: None)
    stage.loop.run_once()
    assert polls[:2] == [(POLL_RECORDS, POLL_BUSY_S), (1, 0)], "it waits for the transaction instead"
    assert waits[:2] == [0, POLL_BUSY_S]
    assert polls[2][0] == POLL_RECORDS, "without a transaction under way, nothing makes room"


def test_what_was_read_ahead_ends_with_the_tenure(stage: Stage) -> None:
    stage.loop._ahead.partitions.update({0: Mock(), 1: Mock()})
    stage.loop.revoked([1])
    assert stage.loop._ahead.partitions.keys() == {0}


def test_a_message_goes_through_the_loop_without_a_broker(harness: LoopHarness) -> None:
    """Consumer, producer and store are in memory; the loop knows them by their ports only."""
    components = harness.components
    components.open_consumer.return_value = harness.consumer
    components.state.store = MemoryStore()
    components.guard.blocker.return_value = components.state.blocker.return_value = None
    components.guard.skew_ms, components.status.delivered_s = None, 0.0
    components.restarts.take.return_value = components.topic_watch.replaced.return_value = set()
    components.marker_watch.missing.return_value = set()
    components.recovery.busy, components.recovery.progress.return_value = False, (0.0, 0)
    components.recovery.left_open.return_value = None
    loop = Loop(components)

    def comes_round(until: Callable[[], bool]) -> None:
        def once() -> bool:
            harness.clock.now_s += 0.1
            loop.run_once()
            return until()

        eventually(once, 60, "the loop has got so far")

    loop.assigned([0])
    comes_round(lambda: components.recovery.start.called)
    (partition,) = components.recovery.start.call_args.args[0]
    partition.transition_to(State.RESTORING)
    partition.transition_to(State.RUNNING)
    loop.running(partition, 7)
    assert harness.consumer.sought == {0: 7}
    harness.consumer.records = [record(0, 7)]
    comes_round(lambda: harness.producer.committed[1] == {0: 8})
    assert harness.consumer.calls[-1] == ("resume", [0])
    comes_round(lambda: bool(harness.producer.committed[0]))
    (fire,) = harness.producer.committed[0]
    assert (fire.topic, fire.value) == ("orders", b"v")
    loop.stop(10.0)
    assert partition.counts.pending == 0
    components.state.close.assert_called_once_with()


def test_each_restore_of_a_partition_is_later_than_the_one_before_by_the_brokers_clock() -> None:
    stage = Stage()
    partition = stage.loop._assignment.partitions[0]
    stage.components.guard.skew_ms = 400.0
    stage.loop.running(partition, 0)
    first_ms = partition.restored_ms
    assert first_ms == stage.clock.wall_ms() - 400
    stage.components.guard.skew_ms = 60_000.0  # the clock was set forward, and what it shows is known again
    stage.loop._assignment.end(0)
    stage.loop.running(partition, 0)
    assert partition.restored_ms == first_ms + 1


def test_an_end_whose_last_transaction_is_fenced_leaves_the_group(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process with this identity would end this one, which ends anyway."""
    monkeypatch.setattr(stage.loop._jobs._committer, "busy", True)
    monkeypatch.setattr(stage.loop._jobs._committer, "wait", lambda _: True)
    monkeypatch.setattr(stage.loop, "_finish_job", Mock(side_effect=DuplicateInstance("fenced")))
    stage.loop.stop(2.0)
    stage.consumer.close.assert_called_once_with()

"""The loop fetches only from partitions that run and have room."""

from __future__ import annotations

import pytest

from sidecar.engine.items import Arrival
from sidecar.engine.ports import Origin
from sidecar.errors import KafkaFailed
from sidecar.runtime.fetching import Fetching
from sidecar.runtime.partitions import buffer
from tests.unit.runtime.harness import LoopHarness, record


def adjust(harness: LoopHarness) -> list[tuple[str, list[int]]]:
    """Return what the consumer was told."""
    harness.consumer.calls.clear()
    harness.fetching.adjust(harness.assignment.running(), harness.assignment.partitions)
    return harness.consumer.calls


def test_partitions_are_fetched_once_they_run(harness: LoopHarness) -> None:
    harness.assignment.assign([0, 1])
    assert adjust(harness) == []
    for number in (0, 1):
        harness.assignment.release(number)
    harness.run(0, 1)
    assert adjust(harness) == [("resume", [0, 1])]
    assert adjust(harness) == [], "the same is not said twice"


def test_nothing_is_fetched_while_the_buffer_is_full(harness: LoopHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    harness.run(0, 1)
    adjust(harness)
    monkeypatch.setattr(buffer, "BUFFER_ITEMS_MAX", 1)
    harness.ingest(0, 0, 1)
    assert adjust(harness) == [("pause", [0, 1])]
    harness.buffer.batches([0], 10, 1_000_000)
    assert adjust(harness) == [("resume", [0, 1])]


def test_a_partition_that_waits_for_a_dlq_is_paused_until_it_may_be_tried_and_read_again(harness: LoopHarness) -> None:
    harness.run(0, 1)
    adjust(harness)
    harness.ingest(0, 0, 1, 2)
    harness.buffer.block(0, "dlq", 1)
    assert adjust(harness) == [("pause", [0])]
    assert harness.fetching.go_on(harness.assignment.running(), {"dlq"}) == set()
    assert adjust(harness) == [], "it stays paused"
    assert harness.fetching.go_on(harness.assignment.running(), {"pay-dlq"}) == set()
    assert harness.consumer.sought == {0: 1}
    assert adjust(harness) == [("resume", [0])]


def test_a_partition_that_cannot_be_read_again_recovers(harness: LoopHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(partition: int, offset: int) -> None:
        raise KafkaFailed(f"{partition} is not assigned at {offset}")

    harness.run(0)
    harness.buffer.block(0, "dlq", 1)
    monkeypatch.setattr(harness.consumer, "seek", refuse)
    assert harness.fetching.go_on(harness.assignment.running(), ()) == {0}
    assert harness.fetching.go_on([], ()) == set(), "it does not run"


def test_a_poll_takes_no_more_than_it_is_told_to(harness: LoopHarness) -> None:
    harness.run(0)
    harness.consumer.records = [record(0, offset) for offset in range(3)]
    harness.fetching.poll(0, 1)
    assert harness.buffer.ready == 1
    harness.fetching.poll(0)
    assert harness.buffer.ready == 3


def test_a_partition_that_was_released_is_not_paused(harness: LoopHarness) -> None:
    """The client library refuses to pause what is not assigned."""
    harness.run(0, 1)
    adjust(harness)
    del harness.assignment.partitions[1]
    assert adjust(harness) == [("pause", [])]


def test_a_partition_that_was_dropped_is_resumed_when_it_runs_again(harness: LoopHarness) -> None:
    harness.run(0)
    adjust(harness)
    harness.fetching.pause([0, 1])
    assert harness.consumer.calls[-1] == ("pause", [0])
    harness.fetching.drop(0)
    assert adjust(harness) == [("resume", [0])]


def test_a_drain_fetches_nothing(harness: LoopHarness) -> None:
    harness.run(0)
    harness.fetching = Fetching(harness.consumer, harness.buffer, harness.clock, ingests=False)
    assert adjust(harness) == []


def test_a_poll_says_which_origins_the_broker_must_be_asked_for(harness: LoopHarness) -> None:
    harness.run(0)
    assert harness.ingest(0, 0, 1, origin="invoices") == {"invoices"}
    assert harness.buffer.ready == 0
    harness.origins["invoices"] = Origin(1, 1_000_000)
    assert harness.fetching.poll(0) == set()
    assert harness.buffer.ready == 2


def test_the_lag_is_what_was_not_consumed_yet(harness: LoopHarness) -> None:
    harness.run(0)
    harness.ingest(0, 0, 1, 2)
    harness.consumer.ends = {0: 10, 1: 5}
    harness.fetching.measure_lag()
    assert harness.fetching.lag == {0: 7}


def test_what_comes_while_a_poll_waits_has_its_delay_from_its_own_timestamp(
    harness: LoopHarness,
) -> None:
    def wait() -> None:
        harness.clock.now_s += 0.1
        harness.consumer.records = [record(0, 0)._replace(timestamp_ms=harness.clock.wall_ms())]

    harness.run(0)
    harness.consumer.waits = wait
    harness.fetching.poll(0.1)
    ((item,),) = harness.buffer.batches([0], 10, 1_000_000).values()
    assert isinstance(item, Arrival)
    assert item.due_ms == harness.clock.wall_ms() + 1000

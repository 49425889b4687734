"""What is fetched: partitions that run and have room, and nothing else."""

from __future__ import annotations

import pytest

from sidecar.engine.items import Arrival
from sidecar.engine.ports import Origin
from sidecar.runtime.fetching import Fetching
from sidecar.runtime.partitions import held
from tests.unit.runtime.parts import LoopParts, record


def adjust(parts: LoopParts) -> list[tuple[str, list[int]]]:
    """Return what the consumer was told."""
    parts.consumer.calls.clear()
    parts.fetching.adjust(parts.assignment.running(), parts.assignment.partitions)
    return parts.consumer.calls


def test_partitions_are_fetched_once_they_run(parts: LoopParts) -> None:
    parts.assignment.assign([0, 1])
    assert adjust(parts) == []
    parts.run(0, 1)
    assert adjust(parts) == [("resume", [0, 1])]
    assert adjust(parts) == [], "the same is not said twice"


def test_nothing_is_fetched_while_the_buffer_is_full(parts: LoopParts, monkeypatch: pytest.MonkeyPatch) -> None:
    parts.run(0, 1)
    adjust(parts)
    monkeypatch.setattr(held, "HELD_ITEMS_MAX", 1)
    parts.take_in(0, 0, 1)
    assert adjust(parts) == [("pause", [0, 1])]
    parts.held.batches([0], 10, 1_000_000)
    assert adjust(parts) == [("resume", [0, 1])]


def test_a_partition_that_was_released_is_not_paused(parts: LoopParts) -> None:
    """The client library refuses to pause what is not assigned."""
    parts.run(0, 1)
    adjust(parts)
    del parts.assignment.partitions[1]
    assert adjust(parts) == [("pause", [])]


def test_a_partition_that_was_dropped_is_resumed_when_it_runs_again(parts: LoopParts) -> None:
    parts.run(0)
    adjust(parts)
    parts.fetching.pause([0, 1])
    assert parts.consumer.calls[-1] == ("pause", [0])
    parts.fetching.drop(0)
    assert adjust(parts) == [("resume", [0])]


def test_a_drain_fetches_nothing(parts: LoopParts) -> None:
    parts.run(0)
    parts.fetching = Fetching(parts.consumer, parts.held, parts.clock, takes_in=False)
    assert adjust(parts) == []


def test_a_poll_says_which_origins_the_broker_must_be_asked_for(parts: LoopParts) -> None:
    parts.run(0)
    assert parts.take_in(0, 0, 1, origin="invoices") == {"invoices"}
    assert parts.held.ready == 0
    parts.origins["invoices"] = Origin(1, 1_000_000)
    assert parts.fetching.poll(0) == set()
    assert parts.held.ready == 2


def test_the_lag_is_what_was_not_consumed_yet(parts: LoopParts) -> None:
    parts.run(0)
    parts.take_in(0, 0, 1, 2)
    parts.consumer.ends = {0: 10, 1: 5}
    parts.fetching.look_at_ends()
    assert parts.fetching.lag == {0: 7}


def test_what_comes_while_a_poll_waits_has_its_delay_from_its_own_timestamp(
    parts: LoopParts,
) -> None:
    def wait() -> None:
        parts.clock.now_s += 0.1
        parts.consumer.records = [record(0, 0)._replace(timestamp_ms=parts.clock.wall_ms())]

    parts.run(0)
    parts.consumer.waits = wait
    parts.fetching.poll(0.1)
    ((item,),) = parts.held.batches([0], 10, 1_000_000).values()
    assert isinstance(item, Arrival)
    assert item.due_ms == parts.clock.wall_ms() + 1000

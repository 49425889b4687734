"""The first steps after a handover: timers are counted in parts, and none is decided before its origin is known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sidecar.changelog.codec import Closed, Closure
from sidecar.contract.control import ControlKind
from sidecar.spark.handover.changelog import take_over
from sidecar.spark.state import blocks, shard_store
from sidecar.spark.state.entries import META, decode_meta
from sidecar.spark.stream.topic_metadata import TopicMetadata
from sidecar.spark.stream.wire import OutputPart
from tests.simulation.stage import TERMS, Stage
from tests.spark.state.dict_state import DictState
from tests.spark.stream.test_partition_step import NOW, World, order, outgoing, view

HOUR_MS = 3_600_000


def imported(stage: Stage, **topics: TopicMetadata) -> World:
    """Return a partition that begins with the state of the other engine in the changelog."""
    world = World(**topics)
    take_over(0, world.state, ((record.key, record.value) for record in stage.log.records))
    world.offset = stage.next_offset
    return world


def test_what_was_due_before_the_handover_fires_without_a_deferral() -> None:
    stage = Stage()
    stage.commit(NOW - HOUR_MS, *(stage.send(NOW - HOUR_MS + 500) for _ in range(3)), stage.send(NOW + HOUR_MS))
    world = imported(stage, A=TopicMetadata(2, 1_000_000))
    first, second = world.step(), world.step(wait_ms=1)
    assert first is not None
    assert second is not None
    assert (outgoing(first.output_parts), first.wakes_ms, world.asked) == ([], NOW + 1001, ["A"])
    assert outgoing(second.output_parts) == [("A", None)] * 3
    assert not second.tally.deferred


def test_a_closure_that_was_handed_over_counts_on_and_a_pause_holds() -> None:
    stage = Stage()
    closed = {"A": Closed(Closure.UNAUTHORISED, NOW - HOUR_MS)}
    stage.commit(
        NOW - HOUR_MS,
        *(stage.send(NOW + 2000, name) for name in "AB"),
        stage.control(ControlKind.PAUSE, "B"),
        terms=replace(TERMS, closed=closed),
    )
    world = imported(stage, A=TopicMetadata(2, 1_000_000, Closure.UNAUTHORISED.value), B=TopicMetadata(2, 1_000_000))
    sent = world.settle(world.record(("no", b"header")))
    for _ in range(4):
        sent += world.settle()
    assert outgoing(sent) == [("dlq", b"missing-header")]
    named = decode_meta(world.state.entries[META]).checkpoint.closed
    assert {name: (each.why, each.since_ms) for name, each in named.items()} == {
        "A": (Closure.UNAUTHORISED, NOW - HOUR_MS),
        "B": (Closure.PAUSED, NOW - HOUR_MS),
    }


def test_what_was_imported_is_counted_in_parts_and_what_comes_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage()
    for at in range(40):
        # Some in a slot of one block, some in one slot of many blocks.
        near = stage.send(NOW + 60_000 + at * 1000, retry_id=b"n%d" % at)
        stage.commit(NOW - HOUR_MS, near, stage.send(NOW + 500 * HOUR_MS + at, "B"))
    stage.commit(NOW - HOUR_MS, stage.control(ControlKind.CANCEL, b"n39"))
    sizes: list[int] = []
    monkeypatch.setattr(DictState, "get", lambda self, state_key: _noted(self, state_key, sizes))
    monkeypatch.setattr(shard_store, "SETTLE_BYTES", 1_000)
    monkeypatch.setattr(blocks, "AHEAD_BYTES", 500)
    world = imported(
        stage, A=TopicMetadata(2, 1_000_000), B=TopicMetadata(2, 1_000_000), orders=TopicMetadata(2, 1_000_000)
    )
    read: list[int] = []
    early: list[OutputPart] = []
    came = [world.record(*order(0))]
    while not decode_meta(world.state.entries[META]).settled:
        sizes.clear()
        result, came = world.step(*came, wait_ms=1), []
        assert result is not None
        assert result.wakes_ms == world.now_ms + 1
        read.append(sum(sizes))
        early += result.output_parts
    assert len(read) > 5
    assert max(read) < 2_500
    assert view(early[:1])["state"] == "restoring"
    meta = decode_meta(world.state.entries[META])
    assert meta.counts() == stage.partition.counts
    assert (meta.uncounted, meta.counted_blocks) == ([], 0)
    world.now_ms = NOW + 100_000
    sent = [*early, *world.settle()]
    assert outgoing(sent) == [("orders", None)] + [("A", None)] * 39
    assert view(sent)["state"] == "running"
    assert view(sent)["pending"] == 40


def _noted(state: DictState, state_key: bytes, sizes: list[int]) -> bytes | None:
    value = state.entries.get(state_key)
    if state_key[:1] == b"b":
        sizes.append(len(value or b""))
    return value

"""Reading ahead changes nothing but the time at which the work is done."""

from __future__ import annotations

import dataclasses
import gc
import random

import pytest

from sidecar.contract.control import ControlKind
from sidecar.engine import read_ahead
from sidecar.engine.apply import apply_committed
from sidecar.engine.items import Item
from sidecar.engine.read_ahead import Ahead
from sidecar.errors import InvariantViolated
from sidecar.model import TimerId
from tests.simulation.stage import IDENTITY, NOW, TERMS, Stage, fired

FEW = dataclasses.replace(TERMS, deliveries_max=4)


def _items(stage: Stage, rng: random.Random, now_ms: int) -> list[Item]:
    items: list[Item] = []
    for _ in range(rng.randrange(14)):
        due_ms = now_ms + rng.choice([-5, 1, 3, 8, 20, 400])
        retry_id = rng.choice([None, b"x", b"y"])
        items.append(stage.send(due_ms, retry_id=retry_id, replace=retry_id is not None and rng.random() < 0.4))
    if (timers := stage.timers()) and rng.random() < 0.3:
        timer = rng.choice(timers)
        target = TimerId(stage.partition.number, timer.offset, timer.first_ms)
        items.append(stage.control(rng.choice([ControlKind.CANCEL, ControlKind.RESCHEDULE]), target, now_ms + 2))
    return items


@pytest.mark.parametrize("seed", range(20))
def test_a_plan_that_was_read_ahead_is_the_plan_that_reads_the_store(seed: int) -> None:
    """Half of the reading is done before the plan under way is applied, half after it."""
    rng = random.Random(seed)
    stage, ahead, now_ms, used = Stage(), Ahead(limit_bytes=4_000), NOW, 0
    for _ in range(120):
        items = _items(stage, rng, now_ms)
        plain = stage.plan(now_ms, *items, terms=FEW)
        made = stage.plan(now_ms, *items, terms=dataclasses.replace(FEW, ahead=ahead.partitions))
        used += sum(len(each.rows) for each in ahead.partitions.values())
        if not plain.partition_plans:
            ahead.clear()
        else:
            (expected,), (partition_plan,) = plain.partition_plans, made.partition_plans
            assert partition_plan.deliveries == expected.deliveries
            assert partition_plan.checkpoint == expected.checkpoint
            assert partition_plan.records == expected.records
            assert partition_plan.counts == expected.counts
            ahead.begin(made.read_aheads({0: stage.partition}))
            if ahead.busy and rng.random() < 0.5:
                ahead.advance(stage.store, 3)
            apply_committed(
                stage.store, stage.partition, partition_plan, IDENTITY, stage.log.commit(partition_plan.records)
            )
            while ahead.busy and rng.random() < 0.8:
                ahead.advance(stage.store, 3)
        now_ms += rng.choice([0, 1, 5, 5, -1])
    assert used > 20


def test_it_holds_few_messages_that_have_very_many_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_ahead, "AHEAD_HEADERS_MAX", 1_000)
    stage, ahead = Stage(), Ahead()
    stage.commit(NOW, *[stage.send(NOW + 1, headers=[("h", None)] * 400) for _ in range(9)])
    made = stage.plan(NOW + 9, terms=FEW)
    (partition_plan,) = made.partition_plans
    assert fired(partition_plan) == [0]
    ahead.begin(made.read_aheads({0: stage.partition}))
    while ahead.busy:
        ahead.advance(stage.store, 10)
    assert len(ahead.partitions[0].rows) == 3


def test_a_plan_leaves_nothing_to_the_garbage_collector() -> None:
    """A plan holds tens of thousands of objects: a cycle through them would cost more than the work itself."""
    stage = Stage()
    stage.commit(NOW, *[stage.send(NOW + 1 + at % 50) for at in range(200)])
    gc.collect()
    gc.disable()
    try:
        for step in range(5):
            stage.plan(NOW + 60, stage.send(NOW + 100), stage.control(ControlKind.CANCEL, b"none"), terms=FEW)
            assert gc.collect() == 0, step
    finally:
        gc.enable()


def test_a_released_partition_is_read_again_by_the_next_assignment() -> None:
    """Its next owner may cancel what waits here, and give the partition back."""
    stage, ahead = Stage(), Ahead()
    stage.commit(NOW, *[stage.send(NOW + 1) for _ in range(9)])
    ahead.begin(stage.plan(NOW + 1, terms=FEW).read_aheads({0: stage.partition}))
    stage.commit(NOW + 1, terms=FEW)
    ahead.advance(stage.store)
    # An owner who does not know the origin yet cancels one and fires nothing, so the watermark stays.
    cancel = stage.control(ControlKind.CANCEL, TimerId(0, 5, NOW + 1))
    stage.commit(NOW + 1, cancel, terms=dataclasses.replace(FEW, origins={}))
    with pytest.raises(InvariantViolated):
        stage.plan(NOW + 1, terms=dataclasses.replace(TERMS, ahead=ahead.partitions))
    ahead.drop(0)
    assert fired(stage.plan(NOW + 1, terms=dataclasses.replace(TERMS, ahead=ahead.partitions)).partition_plans[0]) == [
        4,
        6,
        7,
        8,
    ]

"""The store on state entries gives plan() the same as the embedded engine's store: both run the same worlds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from unittest.mock import patch

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.changelog.codec import Checkpoint, Engine
from sidecar.contract.control import ControlKind, Target
from sidecar.contract.filter import MessageFilter
from sidecar.engine.items import Arrival, Item
from sidecar.engine.partition import Partition, State
from sidecar.engine.plan import plan
from sidecar.engine.transaction import PartitionPlan, Terms
from sidecar.model import DUE_MS_MAX, TimerId
from sidecar.spark.state import blocks, pages, retry_ids, shard_store
from sidecar.spark.state.entries import META, Meta, decode_meta, encode
from sidecar.spark.state.shard_store import ShardStore
from tests.simulation.stage import NOW, TERMS, Stage
from tests.spark.state.dict_state import DictState, pending


class Twin:
    """One partition on state entries; every step begins from the bytes, as every micro-batch does."""

    def __init__(self) -> None:
        self.state = DictState()
        self.state.put(META, encode(Meta()))

    def commit(self, now_ms: int, items: Sequence[Item], terms: Terms) -> tuple[PartitionPlan | None, Sequence[Item]]:
        meta = decode_meta(self.state.entries[META])
        store = ShardStore(self.state, meta, 0)
        partition = Partition(0, State.RUNNING, checkpoint=meta.checkpoint, counts=meta.counts())
        assert store.split_due(now_ms) == now_ms
        partition.next_due_ms = store.next_due_ms()
        planned = plan([partition], {0: items} if items else {}, store, now_ms, terms)
        for part in planned.partition_plans:
            store.apply(part)
            meta.checkpoint = msgspec.structs.replace(part.checkpoint, engine=Engine.SPARK)
            meta.count(part.counts)
        store.finish()
        meta.last_step_ms = now_ms
        self.state.put(META, encode(meta))
        return (planned.partition_plans[0] if planned.partition_plans else None), planned.left.get(0, ())

    def pending(self) -> dict[bytes, bytes]:
        return pending(self.state.entries)


delays = st.integers(-5, 1500) | st.integers(0, 200_000) | st.integers(0, 10**8)
ids = st.sampled_from([None, b"a", b"b"])
sends = st.tuples(st.just("send"), delays, st.sampled_from("AB"), ids, st.booleans())
filters = st.tuples(st.none() | st.sampled_from("AB"), st.none() | st.integers(-5, 10**6), st.integers(0, 10**8))
commands = st.tuples(
    st.sampled_from([ControlKind.CANCEL, ControlKind.FIRE, ControlKind.RESCHEDULE]),
    st.sampled_from([b"a", b"b"]) | st.integers(0, 30) | filters,
    delays,
)
pauses = st.tuples(st.sampled_from([ControlKind.PAUSE, ControlKind.RESUME]), st.sampled_from("AB"), st.just(0))
steps = st.tuples(
    st.integers(0, 3000) | st.integers(0, 10**6) | st.integers(0, 10**8),
    st.lists(sends | commands | pauses, max_size=8),
)


worlds = st.lists(steps, min_size=1, max_size=12)
World = list[tuple[int, list[tuple[object, ...]]]]


@settings(max_examples=100)
@given(worlds, st.integers(2, 7))
def test_plans_are_the_same_on_both_stores(world: World, at_once: int) -> None:
    _same(world, at_once)


@settings(max_examples=100)
@given(worlds, st.integers(2, 7))
def test_plans_are_the_same_however_often_blocks_are_merged_split_and_spread(world: World, at_once: int) -> None:
    with (
        patch.multiple(blocks, FULL_BYTES=300, MERGED=2, PAGE_REFS=2),
        patch.multiple(retry_ids, ROWS_MAX=2, ROOT_ROWS_MAX=2, SPREADS=1, SPREAD_ROWS=2),
        patch.multiple(shard_store, SPLIT_BYTES=200),
        patch.multiple(pages, PAGE_SHIFT=1, GROUP_SHIFT=1),
    ):
        _same(world, at_once)


def _same(world: World, at_once: int) -> None:
    stage, twin, now_ms = Stage(), Twin(), NOW
    terms = replace(TERMS, deliveries_max=at_once)
    ids: list[TimerId] = []
    for wait_ms, acts in world:
        now_ms += wait_ms
        items: Sequence[Item] = [_item(stage, now_ms, act, ids) for act in acts]
        for _ in range(200):
            planned = stage.plan(now_ms, *items, terms=terms)
            left = list(planned.left.get(0, ()))
            theirs, twins_left = twin.commit(now_ms, items, terms)
            ours = stage.commit(now_ms, *items, terms=terms) if planned.partition_plans else None
            if theirs is None:  # then all that the other one does is to delete blocks from its changelog
                assert ours is None or not (ours.ingested or ours.deliveries or ours.dead_letters or ours.deferred)
                break
            assert ours is not None
            assert theirs.deliveries == ours.deliveries
            assert theirs.dead_letters == ours.dead_letters
            assert theirs.control_outcomes == ours.control_outcomes
            assert theirs.counts == ours.counts
            assert theirs.deferred == ours.deferred
            assert _comparable(theirs) == _comparable(ours)
            assert list(twins_left) == left
            assert twin.pending() == stage.folded().pending
            items = left
        else:
            raise AssertionError("it does not come to an end")


def _comparable(part: PartitionPlan) -> Checkpoint:
    return msgspec.structs.replace(part.checkpoint, sequence=0)


def _item(stage: Stage, now_ms: int, act: tuple[object, ...], ids: list[TimerId]) -> Item:
    if act[0] == "send":
        _, delay_ms, origin, retry_id, take_place = act
        assert isinstance(delay_ms, int)
        assert isinstance(origin, str)
        assert retry_id is None or isinstance(retry_id, bytes)
        item = stage.send(now_ms + delay_ms, origin, retry_id=retry_id, replace=bool(take_place and retry_id))
        ids.append(TimerId(0, item.offset, item.due_ms))
        return item
    kind, target, delay_ms = act
    assert isinstance(kind, ControlKind)
    assert isinstance(delay_ms, int)
    to: Target
    if isinstance(target, int):
        to = ids[target % len(ids)] if ids else TimerId(0, 5, 5)
    elif isinstance(target, tuple):
        origin, from_ms, span_ms = target
        start_ms = 0 if from_ms is None else now_ms + from_ms
        to = MessageFilter(origin, due_from=start_ms, due_to=DUE_MS_MAX if from_ms is None else start_ms + span_ms)
    else:
        assert isinstance(target, str | bytes)
        to = target
    return stage.control(kind, to, now_ms + delay_ms if kind is ControlKind.RESCHEDULE else 0)


def test_a_state_that_is_empty_again_leaves_no_entries_but_its_own() -> None:
    stage, twin = Stage(), Twin()
    items: list[Arrival] = [stage.send(NOW + 3_600_000 + n, retry_id=b"%d" % n) for n in range(50)]
    twin.commit(NOW, items, TERMS)
    assert len(twin.state.entries) > 3
    control = stage.control(ControlKind.CANCEL, b"7")
    twin.commit(NOW + 10, [control], TERMS)
    part, _ = twin.commit(NOW + 4_000_000, [], TERMS)
    assert part is not None
    assert len(part.deliveries) == 49
    twin.commit(NOW + 8_000_000, [stage.send(NOW)], TERMS)
    assert set(twin.state.entries) == {META}

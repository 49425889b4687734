"""Single messages are read from the state as from the embedded engine's store: both hold the same worlds."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.api.messages.listing import AsOf, MessageBody, MessageDetailBody, Page, Position, Unread, Wanted
from sidecar.clock import SystemClock
from sidecar.engine.items import Item
from sidecar.engine.selection import Selection
from sidecar.errors import StoreFailed
from sidecar.model import TimerId
from sidecar.serving.local_messages import LocalEntries
from sidecar.spark.reads import reader
from sidecar.spark.reads.board import Board
from sidecar.spark.reads.entries import QueryEntries
from sidecar.spark.reads.questions import ListPending, PartitionAnswer, Wish
from sidecar.spark.reads.reader import answer
from sidecar.spark.state.entries import META, decode_meta, encode
from sidecar.wheel.geometry import WIDTHS_MS
from tests.simulation.stage import NOW, TERMS, Stage
from tests.spark.state.test_shard_store import Twin, World, _item, worlds
from tests.unit.api.test_api import Snapshots
from tests.unit.engine.test_view import EMPTY

OWN = replace(EMPTY, owner="me", url="http://driver:8080")
BATCH, INSTANT = 7, NOW - 5


class DirectBoard(Board):
    """Answers from a state at once."""

    def __init__(self, twin: Twin) -> None:
        super().__init__(SystemClock())
        self._twin = twin

    def ask(self, wish: Wish, partitions: Collection[int]) -> Sequence[PartitionAnswer]:
        return [answered(wish, self._twin, each) for each in partitions]


def answered(wish: Wish, twin: Twin, partition: int = 0) -> PartitionAnswer:
    before = dict(twin.state.entries)
    blank = PartitionAnswer(number=1, partition=partition, batch=BATCH, instant_ms=INSTANT)
    found = answer(wish, partition, twin.state, blank)
    assert twin.state.entries == before, "a read writes nothing"
    return found


def lived(world: World) -> tuple[Stage, Twin, list[TimerId], int]:
    """Return a world on both stores, the ids that it used, and its end."""
    stage, twin, now_ms = Stage(), Twin(), NOW
    ids: list[TimerId] = []
    first: World = [(0, [("send", 50_000, "A", None, False)])]
    for wait_ms, acts in first + world:
        now_ms += wait_ms
        items: Sequence[Item] = [_item(stage, now_ms, act, ids) for act in acts]
        for _ in range(200):
            ours = stage.plan(now_ms, *items)
            theirs, left = twin.commit(now_ms, items, TERMS)
            if ours.partition_plans:
                stage.commit(now_ms, *items)
            if theirs is None:
                break
            items = left
    return stage, twin, ids, now_ms


def entries_of(stage: Stage, twin: Twin) -> tuple[LocalEntries, QueryEntries]:
    local = LocalEntries(lambda: stage.store, Snapshots([OWN], 1), "me")
    return local, QueryEntries(DirectBoard(twin), Snapshots([OWN], 1), lambda: "http://driver:8080")


def pages(held: LocalEntries | QueryEntries, wanted: Wanted) -> list[MessageBody]:
    """Return the messages of all pages."""
    found: list[MessageBody] = []
    while True:
        page = held.page([0], wanted)
        assert len(page.messages) <= wanted.limit
        found += page.messages
        if page.reached is None:
            return found
        assert wanted.after is None or page.reached > wanted.after
        wanted = replace(wanted, after=page.reached)


bounds = st.integers(NOW - 10, NOW + 10**8)


@settings(max_examples=150)
@given(worlds, st.integers(1, 9), st.sampled_from([None, "A"]), bounds, st.sampled_from([1, 300, 10**9]))
def test_lists_are_the_same_on_both_engines(
    world: World, limit: int, origin: str | None, bound_ms: int, read_bytes: int
) -> None:
    local, query = entries_of(*lived(world)[:2])
    with patch.object(reader, "READ_BYTES_MAX", read_bytes):
        for wanted in (
            Wanted(limit=limit, origin=origin),
            Wanted(limit=limit, due_from_ms=bound_ms),
            Wanted(limit=limit, due_to_ms=bound_ms),
        ):
            assert pages(query, wanted) == pages(local, wanted)


@settings(max_examples=100)
@given(worlds)
def test_single_messages_are_the_same_on_both_engines(world: World) -> None:
    stage, twin, ids, _ = lived(world)
    local, query = entries_of(stage, twin)
    for timer in ids:
        found = query.find(timer, payload=True)
        assert _timeless(found) == _timeless(local.find(timer, payload=True))
        assert found is None or (found.as_of_ms, found.micro_batch) == (INSTANT, BATCH)
    for retry_id in (b"a", b"b", b"nobody"):
        named, ours = query.named(retry_id, [0], payload=False), local.named(retry_id, [0], payload=False)
        assert list(map(_timeless, named.messages)) == list(map(_timeless, ours.messages))
        assert named.truncated == ours.truncated


def _timeless(body: MessageDetailBody | None) -> dict[str, object] | None:
    return None if body is None else body.model_dump(exclude={"as_of_ms", "micro_batch"})


def day(count: int) -> tuple[Stage, Twin]:
    """Return messages that fall due one a second."""
    stage, twin = Stage(), Twin()
    items = [stage.send(NOW + 1_000 * n + 1) for n in range(1, count + 1)]
    stage.commit(NOW, *items)
    twin.commit(NOW, items, TERMS)
    return stage, twin


def test_a_page_reads_the_slots_that_it_shows_and_no_others() -> None:
    _, twin = day(8_000)
    wish = ListPending(Selection(), 0, 2**63 - 1, 10, None)
    page = answered(wish, twin)
    assert (len(page.entries), page.reached is not None) == (10, True)
    assert page.examined == 10, "the first ten slots of one second each"


def test_a_filter_looks_at_whole_slots_so_that_few_pages_find_a_rare_message() -> None:
    _, twin = day(8_000)
    held = QueryEntries(DirectBoard(twin), Snapshots([OWN], 1), lambda: "")
    assert held.page([0], Wanted(key="nobody")) == Page([], None, 8_000, AsOf(INSTANT, BATCH))


def test_a_list_that_takes_too_long_ends_before_what_it_has_not_read() -> None:
    _, twin = day(8_000)
    wish = ListPending(Selection(key="nobody"), 0, 2**63 - 1, 10, None)
    blank = PartitionAnswer(number=1, partition=0, batch=BATCH, instant_ms=INSTANT)
    calls = iter(range(10**6))
    page = answer(wish, 0, twin.state, blank, lambda: next(calls) >= 20)
    assert page.reached is not None
    assert (page.entries, page.examined) == ([], 20)
    following = answered(ListPending(Selection(key="nobody"), 0, 2**63 - 1, 10, page.reached), twin)
    assert following.examined == 8_000 - 20
    with pytest.raises(StoreFailed, match="take too long"):
        answer(wish, 0, twin.state, blank, lambda: True)


def test_pages_go_on_where_slots_of_several_levels_begin_at_once() -> None:
    stage, twin = Stage(), Twin()
    due_ms = (NOW // WIDTHS_MS[1] + 100) * WIDTHS_MS[1]
    for now_ms in (NOW, due_ms - 40_000):
        items = [stage.send(due_ms)]
        stage.commit(now_ms, *items)
        twin.commit(now_ms, items, TERMS)
    meta = decode_meta(twin.state.entries[META])
    assert len({each.level for each in meta.slots if each.least_due_ms == due_ms}) == 2
    local, query = entries_of(stage, twin)
    with patch.object(reader, "READ_BYTES_MAX", 1):
        assert pages(query, Wanted(limit=1)) == pages(local, Wanted(limit=1)) != []
        blank = PartitionAnswer(number=1, partition=0, batch=BATCH, instant_ms=INSTANT)
        calls = iter(range(10**6))
        wish = ListPending(Selection(), due_ms, 2**63 - 1, 10, None)
        with pytest.raises(StoreFailed, match="take too long"):
            answer(wish, 0, twin.state, blank, lambda: next(calls) >= 1)


def test_a_partition_without_a_state_has_no_messages_and_one_that_imports_cannot_say() -> None:
    twin = Twin()
    wish = ListPending(Selection(), 0, 2**63 - 1, 10, (NOW, 0, 0))
    meta = decode_meta(twin.state.entries.pop(META))
    assert answered(wish, twin).entries == []
    meta.settled = False
    twin.state.put(META, encode(meta))
    with pytest.raises(StoreFailed, match="importing"):
        answered(wish, twin)


def test_what_nobody_can_read_now_is_unread_and_not_missing() -> None:
    class Busy(Board):
        def ask(self, wish: Wish, partitions: Collection[int]) -> Sequence[PartitionAnswer]:
            raise StoreFailed("another read is under way")

    held = QueryEntries(Busy(SystemClock()), Snapshots([OWN], 1), lambda: "")
    with pytest.raises(Unread, match="another read"):
        held.page([0], Wanted(after=Position(1, 2, 3)))

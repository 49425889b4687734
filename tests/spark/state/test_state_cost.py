"""Neither the cost of a step nor the state grows with the number of steps: the tests count calls and bytes.

`python -m bench.spark_state --days 7` is the same over simulated weeks.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.spark_state import World
from sidecar.errors import FormatUnknown
from sidecar.model import StoredOffset
from sidecar.spark.state import blocks, pages, retry_ids, shard_store
from sidecar.spark.state.entries import FORMAT, META, Meta, decode_meta, encode
from sidecar.spark.state.pages import Pages
from sidecar.spark.state.retry_ids import Candidate, RetryIdIndex, row_of
from tests.spark.state.dict_state import DictState

FORMER_STATE = Path(__file__).with_name("former_state.json.gz")
"""168 timers on all levels, with retry ids, cancelled and moved ones, as the former layout kept them."""


def test_after_thousands_of_steps_one_costs_what_it_costs_on_a_fresh_state_with_as_much_pending() -> None:
    old = World(rate=2, longest_s=3600)
    old.run(4500)
    fresh = old.fresh()
    assert fresh.pending() == old.pending()
    was, would_be = sum(old.size().values()), sum(fresh.size().values())
    assert was < 1.15 * would_be
    after, begun = old.run(600), fresh.run(600)
    assert after.fired == begun.fired > 900
    assert after.calls < 1.15 * begun.calls
    assert after.bytes < 1.15 * begun.bytes
    assert sum(old.size().values()) < 1.15 * sum(fresh.size().values())


def test_a_step_costs_no_more_with_ten_times_as_much_pending() -> None:
    few, many = World(rate=20, longest_s=3600), World(rate=200, longest_s=3600)
    few.run(100)
    many.run(100)
    few.take_rate(20)
    many.take_rate(20)
    assert many.pending() > 9 * few.pending()
    little, much = few.run(100), many.run(100)
    # What fires is read; ten times as much fires.
    assert much.calls < 1.5 * little.calls


def test_a_step_makes_a_bounded_number_of_round_trips_to_the_state_however_many_entries_it_touches() -> None:
    world = World(rate=200, longest_s=86_400)
    world.run(400)
    cost = world.run(100)
    # What it begins with, the paths and groups, the first due slot and pages, the merged blocks, then the writes.
    assert cost.calls / cost.steps > 100
    assert cost.trips / cost.steps < 20


def test_a_slot_that_is_far_too_large_for_a_step_is_split_in_parts_before_it_is_due(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shard_store, "SPLIT_BYTES", 16 * 1024)
    monkeypatch.setattr(blocks, "FULL_BYTES", 16 * 1024)
    world = World(rate=0)
    due_ms = (world.now_ms // 4_096_000 + 3) * 4_096_000 + 500_000
    for first in range(0, 4000, 200):
        world.send(due_ms + 250 * at for at in range(first, first + 200))
    before = sum(world.size().values())
    world.now_ms = due_ms - 400_000
    cost = world.run(399)
    assert cost.fired == 0
    assert cost.most_bytes < before / 5
    assert {state_key[1] for state_key in world.state.entries if state_key[:1] == b"b"} <= {0, 1}
    fired = [world.run(100).fired for _ in range(11)]
    assert sum(fired) == 4000
    assert max(fired) == 400


def test_what_waits_under_retry_ids_leaves_nothing_behind() -> None:
    world = World(rate=20, longest_s=600)
    world.run(300)
    assert world.size()["n"] > 50_000
    world.take_rate(0)
    world.run(900)
    assert world.pending() == 0
    assert set(world.state.entries) == {META}


rows = st.tuples(st.integers(0, 5), st.integers(0, 40), st.integers(1, 60))
deeds = st.lists(
    st.tuples(st.just("add"), st.lists(rows, max_size=6))
    | st.tuples(st.sampled_from(["take", "wait"]), st.integers(0, 9)),
    max_size=40,
)


@settings(max_examples=150)
@given(deeds)
def test_the_index_of_retry_ids_finds_all_that_wait_and_lets_go_of_the_rest(
    acts: list[tuple[str, int | list[tuple[int, int, int]]]],
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retry_ids, "ROWS_MAX", 2)
        patch.setattr(retry_ids, "ROOT_ROWS_MAX", 1)
        state, meta = DictState(), Meta()
        waiting: dict[tuple[int, int, int], None] = {}
        seen: set[tuple[int, int, int]] = set()
        for act, what in acts:
            index = RetryIdIndex(state, meta)
            if isinstance(what, list):
                fresh = [each for each in dict.fromkeys(what) if each not in seen and each[2] > _watermark(meta)]
                seen.update(fresh)
                waiting.update(dict.fromkeys(fresh))
                index.add(_row(each) for each in fresh)
            elif act == "take" and waiting:
                taken = list(waiting)[what % len(waiting)]
                del waiting[taken]
                index.add([_row(taken)])
            else:
                checkpoint = msgspec.structs.replace(meta.checkpoint, watermark_ms=_watermark(meta) + what)
                meta.checkpoint = checkpoint
                waiting = {each: None for each in waiting if each[2] > checkpoint.watermark_ms}
            index.tidy()
            meta = decode_meta(encode(meta))
            for name in range(6):
                found = RetryIdIndex(state, meta).found(b"%d" % name)
                # What has fired may still be found: it is checked against the timer.
                assert [each for each in found if each.due_ms > _watermark(meta)] == sorted(
                    Candidate(StoredOffset(offset), 0, due_ms) for at, offset, due_ms in waiting if at == name
                )
        meta.checkpoint = msgspec.structs.replace(meta.checkpoint, watermark_ms=100)
        for _ in range(len(state.entries) + 60):
            RetryIdIndex(state, meta).tidy()
        assert state.entries == {}


def _watermark(meta: Meta) -> int:
    return meta.checkpoint.watermark_ms


def _row(each: tuple[int, int, int]) -> bytes:
    name, offset, due_ms = each
    return row_of(b"%d" % name, Candidate(StoredOffset(offset), 0, due_ms))


def test_the_timers_of_one_id_are_spread_by_their_offsets() -> None:
    state, meta = DictState(), Meta()
    index = RetryIdIndex(state, meta)
    for first in range(0, 20_000, 1000):
        index.add(row_of(b"all", Candidate(StoredOffset(offset), 5, 5)) for offset in range(first, first + 1000))
        index.tidy()
    index.spread()
    assert [each.offset for each in index.found(b"all")] == list(range(20_000))
    assert max(map(len, state.entries.values())) < 2 * retry_ids.ROWS_MAX * retry_ids.ROW.size


@settings(max_examples=100)
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 60) | st.none(), st.integers(0, 4)), max_size=60))
def test_rows_by_offset_stay_until_their_due_has_passed_and_no_longer(
    acts: list[tuple[int, int | None, int]],
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pages, "PAGE_SHIFT", 2)
        patch.setattr(pages, "GROUP_SHIFT", 1)
        state, meta = DictState(), Meta()
        model: dict[bytes, int] = {}
        for offset, due_ms, later in acts:
            kept = Pages(state, meta)
            row = b"r\0\0\0\0" + offset.to_bytes(8, "big")
            kept.put(row, None if due_ms is None else due_ms.to_bytes(8, "big"))
            model.pop(row, None)
            if due_ms is not None:
                model[row] = due_ms
            meta.checkpoint = msgspec.structs.replace(meta.checkpoint, watermark_ms=_watermark(meta) + later)
            kept.tidy()
            kept.save()
            meta = decode_meta(encode(meta))
            again = Pages(state, meta)
            for each, until_ms in model.items():
                if until_ms >= _watermark(meta):
                    assert again.get(each) == until_ms.to_bytes(8, "big")
        meta.checkpoint = msgspec.structs.replace(meta.checkpoint, watermark_ms=10_000)
        for _ in range(2 * len(state.entries) + 30):
            kept = Pages(state, meta)
            kept.tidy()
            kept.save()
        assert state.entries == {}
        assert meta.groups == {}


@pytest.mark.parametrize("number", [FORMAT - 1, FORMAT + 1])
def test_a_layout_of_another_version_is_refused(number: int) -> None:
    with pytest.raises(FormatUnknown, match=f"state of format {number}; this version reads {FORMAT}"):
        decode_meta(encode(Meta(format=number)))

"""PartitionView as JSON, and the answer of GET /pending."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.engine.group.view import COUNT_MAX, HORIZONS_MS, ORIGINS_MAX, PartitionView, summarise
from sidecar.wheel.geometry import level_of, slot_of

NOW_MS = 1_770_000_021_250
"""Inside a second and inside a slot of every level, at the start of none."""
EMPTY = PartitionView(
    partition=0,
    state="running",
    owner="sidecar-0",
    url="http://10.0.0.1:8080",
    pending=0,
    watermark_ms=NOW_MS - 50,
    restored=1.0,
    restore_remaining=0,
    by_origin={},
    deferred_by_origin={},
    slots={},
    next_due_ms=None,
    due_backlog=0,
    closed_origins={},
    sequence=7,
    lag=0,
    as_of_ms=NOW_MS - 100,
)


def view_of(
    dues_ms: list[int], *, partition: int = 0, origin: str = "orders", stored_ms: int = NOW_MS
) -> PartitionView:
    """Return a running partition that holds timers with these due times."""
    slots: dict[tuple[int, int], int] = {}
    for due_ms in dues_ms:
        level = level_of(due_ms, stored_ms)
        place = (level, slot_of(due_ms, level))
        slots[place] = slots.get(place, 0) + 1
    return replace(
        EMPTY,
        partition=partition,
        pending=len(dues_ms),
        by_origin={origin: len(dues_ms)} if dues_ms else {},
        slots=slots,
        next_due_ms=min(dues_ms, default=None),
        watermark_ms=min([NOW_MS - 50, *(due_ms - 1 for due_ms in dues_ms)]),
    )


def pending(*views: PartitionView, **narrowed: Any) -> dict[str, Any]:
    """Return what GET /pending answers for these partitions of as many."""
    return summarise(views, partitions_total=len(views), now_ms=NOW_MS, **narrowed)


counts = st.integers(0, COUNT_MAX)
names = st.dictionaries(st.text(max_size=8), counts, max_size=4)
views = st.builds(
    PartitionView,
    partition=st.integers(0, 2**31 - 1),
    state=st.text(max_size=9),
    owner=st.text(max_size=9),
    url=st.none() | st.text(max_size=9),
    pending=counts,
    watermark_ms=st.none() | counts,
    restored=st.floats(0, 1),
    restore_remaining=counts,
    by_origin=names,
    deferred_by_origin=names,
    slots=st.dictionaries(st.tuples(st.integers(0, 5), counts), counts, max_size=9),
    next_due_ms=st.none() | counts,
    due_backlog=counts,
    closed_origins=st.dictionaries(st.text(max_size=9), st.tuples(st.text(max_size=9), counts), max_size=3),
    sequence=counts,
    lag=st.none() | counts,
    as_of_ms=counts,
    restored_ms=counts,
)


@given(views)
def test_a_view_comes_back_from_its_json(view: PartitionView) -> None:
    assert PartitionView.from_json(view.to_json()) == view


@given(st.binary(max_size=200))
def test_any_bytes_are_a_view_or_nothing(value: bytes) -> None:
    assert PartitionView.from_json(value) is None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(view=views, field=st.sampled_from(PartitionView.__slots__), value=json_values)
def test_a_view_with_one_strange_field_can_be_summarised_or_is_nothing(
    view: PartitionView, field: str, value: object
) -> None:
    strange = PartitionView.from_json(json.dumps(json.loads(view.to_json()) | {field: value}).encode())
    if strange is not None:
        answer = summarise([strange], partitions_total=1, now_ms=NOW_MS)
        json.dumps(answer, ensure_ascii=False, allow_nan=False).encode()


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"null",
        b"[" * 100_000,
        b'{"x":' * 100_000,
        EMPTY.to_json().replace(b'"version":1', b'"version":2'),
        EMPTY.to_json().replace(b'"pending":0', b'"pending":-1'),
        EMPTY.to_json().replace(b'"pending":0', b'"pending":' + b"9" * 5_000),
        EMPTY.to_json().replace(b'"restored":1.0', b'"restored":1e999'),
        EMPTY.to_json().replace(b"sidecar-0", b"\xff"),
        EMPTY.to_json().replace(b"sidecar-0", rb"\ud800"),
        EMPTY.to_json().replace(b'"slots":[]', b'"slots":[[6,1,1]]'),
        replace(EMPTY, pending=2**63 - 1).to_json(),
        replace(EMPTY, by_origin={"orders": COUNT_MAX + 1}).to_json(),
    ],
)
def test_what_is_not_a_view_of_this_version_is_nothing(value: bytes) -> None:
    assert value != EMPTY.to_json()
    assert PartitionView.from_json(value) is None


def test_fields_of_a_later_release_are_ignored() -> None:
    extended = json.dumps(json.loads(EMPTY.to_json()) | {"colour": {"of": ["the", "future"]}}).encode()
    assert PartitionView.from_json(extended) == EMPTY


def test_a_record_names_the_origins_with_the_most_pending_and_fits_its_topic_whatever_their_number() -> None:
    counts = {f"{n:0249}": n for n in range(1, 20_001)}
    value = replace(EMPTY, pending=sum(counts.values()), by_origin=counts, deferred_by_origin=counts).to_json()
    assert len(value) < 700_000
    view = PartitionView.from_json(value)
    assert view is not None
    assert len(view.by_origin) == ORIGINS_MAX + 1
    assert view.by_origin[f"{20_000:0249}"] == 20_000
    assert sum(view.by_origin.values()) == sum(view.deferred_by_origin.values()) == view.pending


def test_the_answer_has_exactly_the_contracts_fields() -> None:
    answer = pending(view_of([NOW_MS + 3_000], partition=1), view_of([NOW_MS + 90_000, NOW_MS + 400]))
    assert answer == {
        "total": 3,
        "by_origin": {"orders": 3},
        "by_partition": {"0": 2, "1": 1},
        "due_within": {"5s": 2, "1m": 2, "5m": 3, "1h": 3, "1d": 3, "later": 0},
        "overdue": 0,
        "next_due_ms": NOW_MS + 400,
        "as_of_ms": NOW_MS - 100,
        "complete": True,
        "partitions": [
            {
                "partition": partition,
                "state": "running",
                "owner": "sidecar-0",
                "pending": count,
                "watermark_ms": NOW_MS - 50,
                "restored": 1.0,
            }
            for partition, count in ((0, 2), (1, 1))
        ],
    }


def test_nothing_pending_is_all_zeros() -> None:
    answer = pending(EMPTY)
    assert (answer["total"], answer["by_origin"], answer["overdue"], answer["next_due_ms"]) == (0, {}, 0, None)
    assert set(answer["due_within"].values()) == {0}


def test_nothing_known_is_not_complete() -> None:
    answer = summarise([], partitions_total=4, now_ms=NOW_MS)
    assert (answer["total"], answer["partitions"], answer["complete"]) == (0, [], False)


def test_an_origin_narrows_to_total_and_by_partition() -> None:
    other = view_of([NOW_MS + 1] * 5, partition=1, origin="payments")
    answer = pending(view_of([NOW_MS + 1] * 2), other, origin="payments")
    assert answer == {"total": 5, "by_partition": {"0": 0, "1": 5}}


def test_a_partition_narrows_every_figure_to_itself() -> None:
    young, old = view_of([NOW_MS + 1] * 2), replace(view_of([NOW_MS + 9_000], partition=1), as_of_ms=5, owner="")
    answer = pending(young, old, partition=1)
    assert (answer["total"], answer["by_partition"], answer["next_due_ms"]) == (1, {"1": 1}, NOW_MS + 9_000)
    assert (answer["as_of_ms"], answer["complete"]) == (5, False)
    assert pending(young, old, partition=0)["complete"] is True


@pytest.mark.parametrize(
    ("changed", "partitions_total", "complete"),
    [
        ({}, 2, True),
        ({"as_of_ms": NOW_MS - 9_999}, 2, True),
        ({"as_of_ms": NOW_MS - 10_000}, 2, False),
        ({"owner": ""}, 2, False),
        ({}, 3, False),
        ({}, None, False),
    ],
)
def test_complete_needs_every_partition_owned_and_young(
    changed: dict[str, Any], partitions_total: int | None, complete: bool
) -> None:
    both = [EMPTY, replace(EMPTY, partition=1, **changed)]
    assert summarise(both, partitions_total=partitions_total, now_ms=NOW_MS)["complete"] is complete


def test_a_partition_without_an_owner_shows_none() -> None:
    assert pending(replace(EMPTY, owner=""))["partitions"][0]["owner"] is None


def test_overdue_is_what_was_due_before_the_current_second() -> None:
    second_ms = NOW_MS // 1000 * 1000
    late = view_of([second_ms - 1, second_ms - 1_000, *[second_ms] * 10], stored_ms=NOW_MS - 20_000)
    assert pending(late)["overdue"] == 2


def test_deferred_timers_are_overdue_although_their_next_try_is_ahead() -> None:
    deferred = replace(view_of([NOW_MS + 30_000] * 3), deferred_by_origin={"orders": 3})
    answer = pending(deferred)
    assert answer["overdue"] == 3
    assert (answer["due_within"]["5s"], answer["due_within"]["1m"]) == (0, 3)


def test_overdue_never_exceeds_the_total() -> None:
    both_late_and_deferred = replace(view_of([NOW_MS - 5_000]), deferred_by_origin={"orders": 1})
    assert pending(both_late_and_deferred)["overdue"] == 1


def test_a_coarse_slot_that_holds_now_is_not_overdue_when_all_before_now_has_fired() -> None:
    """A timer stored long ago keeps its coarse slot until it fires."""
    dues_ms = [NOW_MS + 1_000 * k for k in range(1, 30)]
    assert pending(view_of(dues_ms, stored_ms=NOW_MS - 3_000_000))["overdue"] == 0


def test_a_straddling_slot_counts_by_the_part_inside() -> None:
    """64 timers, one a second, in one 64 s slot: a bound in its middle gets about half of them."""
    start_ms = (NOW_MS + 200_000) // 64_000 * 64_000
    dues_ms = [start_ms + 1_000 * k for k in range(64)]
    view = replace(view_of(dues_ms), watermark_ms=None)
    answer = summarise([view], partitions_total=1, now_ms=start_ms + 32_000 - 60_000)
    assert answer["due_within"] == {"5s": 0, "1m": 32, "5m": 64, "1h": 64, "1d": 64, "later": 0}


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3 * 86_400_000)), max_size=60))
def test_due_within_is_cumulative_and_off_by_no_more_than_straddling_slots_hold(timers: list[tuple[int, int]]) -> None:
    shown = [view_of([NOW_MS + delay for p, delay in timers if p == number], partition=number) for number in range(3)]
    answer = pending(*shown)
    within = list(answer["due_within"].values())[:-1]
    assert within == sorted(within)
    assert within[-1] + answer["due_within"]["later"] == answer["total"] == len(timers)
    for horizon_ms, estimate in zip(HORIZONS_MS.values(), within, strict=True):
        bound_ms = NOW_MS + horizon_ms
        exact = sum(delay < horizon_ms for _, delay in timers)
        straddling = sum(
            slot_of(NOW_MS + delay, level) == slot_of(bound_ms, level)
            for _, delay in timers
            for level in [level_of(NOW_MS + delay, NOW_MS)]
        )
        assert abs(estimate - exact) <= straddling

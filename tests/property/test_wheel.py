"""The wheel: where a timer stands, and that what comes due is what a sorted list says."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.model import DUE_MS_MAX
from sidecar.wheel.geometry import LEVELS, RADIX, WIDTHS_MS, level_of, slot_end_ms, slot_of, slot_start_ms
from tests.simulation.stage import NOW, TERMS, Stage, fired

instants = st.integers(0, DUE_MS_MAX)
delays = st.one_of(st.integers(1, 70_000), st.integers(1, 10**9), st.integers(1, 10**13))


@given(instants, instants)
def test_the_level_is_the_lowest_whose_wheel_has_not_come_round_once(due_ms: int, now_ms: int) -> None:
    fitting = [level for level, width_ms in enumerate(WIDTHS_MS) if due_ms // width_ms - now_ms // width_ms < RADIX]
    assert level_of(due_ms, now_ms) == (fitting or [LEVELS - 1])[0]


@given(instants, st.integers(0, LEVELS - 1))
def test_a_timer_is_due_within_its_slot(due_ms: int, level: int) -> None:
    slot = slot_of(due_ms, level)
    assert slot_start_ms(slot, level) <= due_ms < slot_end_ms(slot, level)
    assert slot_end_ms(slot, level) == slot_start_ms(slot + 1, level)


@given(st.integers(0, 10**13), delays)
def test_a_block_outlives_its_timers_by_no_more_than_about_their_delay(now_ms: int, delay_ms: int) -> None:
    due_ms = now_ms + delay_ms
    level = level_of(due_ms, now_ms)
    kept_ms = slot_end_ms(slot_of(due_ms, level), level) - due_ms
    assert kept_ms <= max(WIDTHS_MS[0], delay_ms * RADIX / (RADIX - 1))


@given(st.integers(0, 10**13), st.lists(delays, max_size=50))
def test_no_two_levels_have_a_slot_of_the_same_end_at_one_instant(now_ms: int, some: list[int]) -> None:
    levels: dict[int, set[int]] = {}
    for delay_ms in some:
        due_ms = now_ms + delay_ms
        level = level_of(due_ms, now_ms)
        levels.setdefault(slot_end_ms(slot_of(due_ms, level), level), set()).add(level)
    assert all(len(found) == 1 for found in levels.values())


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.integers(-5, 90) | st.integers(1, 10**8), max_size=12), min_size=1, max_size=4),
    st.lists(st.integers(0, 90) | st.integers(0, 10**7), max_size=4),
    st.integers(1, 5),
)
def test_what_fires_is_what_a_sorted_list_says(batches: list[list[int]], steps: list[int], at_once: int) -> None:
    stage, now_ms = Stage(), NOW
    bounded = replace(TERMS, deliveries_max=at_once)
    waiting: list[tuple[int, int]] = []
    for batch in batches:
        if batch:
            items = [stage.send(now_ms + delay_ms) for delay_ms in batch]
            waiting += [(item.due_ms, item.offset) for item in items if item.due_ms > now_ms]
            stage.commit(now_ms, *items)
    for step_ms in [*steps, 10**9]:
        now_ms += step_ms
        due = sorted(key for key in waiting if key[0] <= now_ms)
        waiting = [key for key in waiting if key[0] > now_ms]
        while due:
            assert fired(stage.commit(now_ms, terms=bounded)) == [offset for _, offset in due[:at_once]]
            due = due[at_once:]
    assert stage.partition.counts.pending == 0

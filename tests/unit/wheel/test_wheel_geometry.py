"""The levels and slots of the wheel, at their edges."""

from __future__ import annotations

import pytest

from sidecar.model import DUE_MS_MAX
from sidecar.wheel.geometry import LEVELS, WIDTHS_MS, level_of, slot_end_ms, slot_of, slot_start_ms

SECOND = 1000
START = 4096 * 64 * 64 * SECOND
"""The first instant of a slot on every level but the coarsest two."""


def test_each_slot_is_as_wide_as_the_whole_wheel_below_it() -> None:
    assert WIDTHS_MS == (1_000, 64_000, 4_096_000, 262_144_000, 16_777_216_000, 1_073_741_824_000)


@pytest.mark.parametrize(
    ("delay_ms", "level"),
    [
        (0, 0),
        (64 * SECOND - 1, 0),
        (64 * SECOND, 1),
        (64**2 * SECOND - 1, 1),
        (64**2 * SECOND, 2),
        (64**3 * SECOND, 3),
        (64**4 * SECOND, 4),
        (64**5 * SECOND, 5),
        (64**6 * SECOND, 5),
    ],
)
def test_a_level_reaches_sixty_four_of_its_slots(delay_ms: int, level: int) -> None:
    assert level_of(START + delay_ms, START) == level


def test_slots_are_counted_from_the_one_that_holds_now() -> None:
    now_ms = START + SECOND - 1
    assert level_of(START + 64 * SECOND - 1, now_ms) == 0
    assert level_of(START + 64 * SECOND, now_ms) == 1


def test_a_due_in_the_past_is_on_the_finest_level() -> None:
    assert level_of(START - 1, START) == 0


def test_a_slot_ends_where_the_next_one_starts() -> None:
    for due_ms, end_ms in ((START, START + SECOND), (START + SECOND - 1, START + SECOND), (START - 1, START)):
        slot = slot_of(due_ms, 0)
        assert slot_end_ms(slot, 0) == slot_start_ms(slot + 1, 0) == end_ms


def test_the_end_of_the_last_slot_of_all_fits_the_format() -> None:
    assert slot_end_ms(slot_of(DUE_MS_MAX + 1_000_000, LEVELS - 1), LEVELS - 1) < 2**64

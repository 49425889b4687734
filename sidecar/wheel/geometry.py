"""Slot widths, levels and slots of the wheel.

A timer's level is the lowest whose wheel has not come round once between now and its due time. It is chosen when
the timer is stored, kept in its entry and never recomputed. Its slot is due // width.

    level   width           64 slots reach
    0       1 s             64 s
    1       64 s            68 min
    2       68 min 16 s     3 d
    3       3 d             194 d
    4       194 d           34 y
    5       34 y            2,177 y and everything beyond
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

RADIX: Final = 64
LEVELS: Final = 6
WIDTHS_MS: Final[tuple[int, ...]] = tuple(1000 * RADIX**level for level in range(LEVELS))


def level_of(due_ms: int, now_ms: int) -> int:
    """Return the level at which a timer is stored at `now_ms`."""
    return bisect_right(level_ends_ms(now_ms), due_ms)


def level_ends_ms(now_ms: int) -> tuple[int, ...]:
    """Return the first due time beyond each level but the last, for what is stored at `now_ms`; they rise."""
    return tuple([(now_ms // width_ms + RADIX) * width_ms for width_ms in WIDTHS_MS[:-1]])


def slot_of(due_ms: int, level: int) -> int:
    """Return the number of the slot that holds `due_ms` on this level."""
    return due_ms // WIDTHS_MS[level]


def slot_start_ms(slot: int, level: int) -> int:
    """Return the first millisecond of a slot."""
    return slot * WIDTHS_MS[level]


def slot_end_ms(slot: int, level: int) -> int:
    """Return the end (exclusive) of a slot."""
    return (slot + 1) * WIDTHS_MS[level]

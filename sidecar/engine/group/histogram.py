"""Histograms of pending timers over the next minute, hour and day, from the counters of the wheel's slots.

A slot within one bar is exact. A slot across several bars counts as spread evenly over the part of it that can still
hold timers, so the bars are as precise as the slots.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple

from sidecar.engine.group.view import PartitionView
from sidecar.wheel.geometry import LEVELS, slot_end_ms, slot_of, slot_start_ms


class BarRange(NamedTuple):
    """A range of time from now on, divided into bars of one width."""

    name: str
    bar_ms: int
    bars: int


RANGES: Final = (BarRange("1m", 2_000, 30), BarRange("1h", 60_000, 60), BarRange("1d", 1_800_000, 48))


@dataclass(slots=True)
class Bars:
    """Bars of one width; counts are fractions until they are rounded."""

    from_ms: int
    bar_ms: int
    before: float = 0.0
    counts: list[float] = field(default_factory=list)
    after: float = 0.0

    def add(self, start_ms: int, end_ms: int, count: int) -> None:
        """Spread a count evenly over a non-empty interval."""
        start = (start_ms - self.from_ms) / self.bar_ms
        end = (end_ms - self.from_ms) / self.bar_ms
        bars = len(self.counts)
        if end <= 0:
            self.before += count
        elif start >= bars:
            self.after += count
        else:
            density = count / (end - start)
            self.before += density * max(0.0, -start)
            self.after += density * max(0.0, end - bars)
            for bar in range(max(0, math.floor(start)), min(bars, math.ceil(end))):
                self.counts[bar] += density * (min(end, bar + 1) - max(start, bar))

    def rounded(self) -> tuple[int, list[int], int]:
        """Return before, bars and after, rounded to integers with the same sum."""
        total = round(self.before + sum(self.counts) + self.after)
        bounds, reached = [round(self.before)], self.before
        for count in self.counts:
            reached += count
            bounds.append(min(total, round(reached)))
        return bounds[0], [high - low for low, high in pairwise(bounds)], total - bounds[-1]


def histograms(views: Sequence[PartitionView], now_ms: int) -> dict[str, Bars]:
    """Return the bars of each of RANGES by name; they begin with the second of `now_ms`."""
    from_ms = now_ms // 1000 * 1000
    made = {span.name: Bars(from_ms, span.bar_ms, counts=[0.0] * span.bars) for span in RANGES}
    for start_ms, end_ms, count in _stretches(views, from_ms):
        for bars in made.values():
            bars.add(start_ms, end_ms, count)
    return made


def _stretches(views: Sequence[PartitionView], from_ms: int) -> list[tuple[int, int, int]]:
    """Return (start, end, count) of pending timers; slots in the future are summed over all partitions."""
    ahead: Counter[tuple[int, int]] = Counter()
    stretches = []
    edges = [slot_of(from_ms, level) for level in range(LEVELS)]
    for view in views:
        # No timer is due before these. Without the floor, a coarse slot that has begun would look partly overdue.
        floor_ms = max(view.watermark_ms or 0, view.next_due_ms or 0)
        for (level, slot), count in view.slots.items():
            if slot > edges[level]:
                ahead[level, slot] += count
            else:
                end_ms = slot_end_ms(slot, level)
                stretches.append((min(max(slot_start_ms(slot, level), floor_ms), end_ms - 1), end_ms, count))
    first_ms = min((view.next_due_ms for view in views if view.next_due_ms is not None), default=0)
    for (level, slot), count in ahead.items():
        end_ms = slot_end_ms(slot, level)
        stretches.append((min(max(slot_start_ms(slot, level), first_ms), end_ms - 1), end_ms, count))
    return stretches

"""The cost of GET /pending for a large group."""

from __future__ import annotations

import timeit
from collections import Counter
from dataclasses import replace

from sidecar.engine.group.view import summarise
from tests.unit.engine.test_view import EMPTY, NOW_MS

SLOTS_PER_LEVEL = 64


def test_summarising_a_large_group_costs_a_few_times_what_adding_up_its_counters_costs() -> None:
    """Whatever the messages are: only counters are added. The best of many runs of both, on the same machine."""
    slots = {(level, NOW_MS // (1000 * 64**level) + k): 1_000_000 for level in range(4) for k in range(SLOTS_PER_LEVEL)}
    origins = {f"origin-{k}": 4_000_000 for k in range(64)}
    views = [
        replace(EMPTY, partition=p, slots=dict(slots), by_origin=dict(origins), pending=256_000_000) for p in range(64)
    ]

    def add_up() -> None:
        totals = Counter[object]()
        for view in views:
            for counters in (view.slots, view.by_origin):
                for name, count in counters.items():
                    totals[name] += count

    summarised = timeit.repeat(lambda: summarise(views, partitions_total=64, now_ms=NOW_MS), number=1, repeat=50)
    added = timeit.repeat(add_up, number=1, repeat=50)
    assert min(summarised) < 10 * min(added)

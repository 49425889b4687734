"""What a query holds while it runs, and whether any of it grows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

import psutil

MIB: Final = 1024 * 1024


class Allowed(NamedTuple):
    """How much more the median of the last third may be than that of the second."""

    share: float
    more: float


ALLOWED: Final = {
    "open_files": Allowed(0.05, 10),
    "threads": Allowed(0.05, 10),
    "memory_mib": Allowed(0.10, 64),
    # They are deleted once a minute, when enough micro-batches have come after them.
    "checkpoint_files": Allowed(0.25, 100),
}
"""By the last word of a figure's name, what grows and shrinks again: buffers, pools, files until they are deleted."""

Sample = Mapping[str, float]
"""The figures at one moment, by name."""


def sample(pid: int, checkpoint: Path) -> Sample:
    """Return the figures of a driver, its JVM and all Python workers together, and of its checkpoint."""
    found: dict[str, float] = {}
    driver = psutil.Process(pid)
    for process in (driver, *driver.children(recursive=True)):
        # Spark ends workers, and begins others.
        with suppress(psutil.Error):
            kind = "driver" if process.pid == pid else "jvm" if process.name() == "java" else "workers"
            with process.oneshot():
                figures = {
                    "open_files": process.num_fds(),
                    "threads": process.num_threads(),
                    "memory_mib": process.memory_info().rss / MIB,
                }
            for name, value in figures.items():
                found[f"{kind}.{name}"] = found.get(f"{kind}.{name}", 0) + value
    found["checkpoint_files"] = sum(1 for each in checkpoint.rglob("*") if not each.is_dir())
    return found


def growth(samples: Sequence[Sample]) -> dict[str, tuple[float, float]]:
    """Return the median of the second and of the last third of each figure; the first third warms up."""
    third = len(samples) // 3
    names = samples[-1].keys()
    parts = samples[third : 2 * third], samples[-third:]
    return {
        name: (
            round(median(each.get(name, 0) for each in parts[0]), 1),
            round(median(each.get(name, 0) for each in parts[1]), 1),
        )
        for name in sorted(names)
    }


def grown(medians: Mapping[str, tuple[float, float]]) -> list[str]:
    """Return the figures that have grown by more than is allowed."""
    return [
        name
        for name, (before, after) in medians.items()
        if after > before * (1 + ALLOWED[name.rpartition(".")[2]].share) + ALLOWED[name.rpartition(".")[2]].more
    ]

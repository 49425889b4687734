"""The processor time that the hypervisor takes away, by /proc/stat. Pure, but for `sample`."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

_STAT = Path("/proc/stat")
_COUNTED = 8
"""user, nice, system, idle, iowait, irq, softirq, steal; time of guests is part of user."""


class Ticks(NamedTuple):
    """Clock ticks of all processors since the machine started."""

    every: int
    stolen: int


def ticks(stat: str) -> Ticks:
    """Return the ticks in the text of /proc/stat.

    Raises:
        ValueError: Its first line is not that of all processors.
    """
    name, *fields = stat.partition("\n")[0].split() or [""]
    if name != "cpu" or len(fields) < _COUNTED:
        raise ValueError(f"not /proc/stat of Linux 2.6.11 or newer: {stat[:40]!r}")
    counted = [int(field) for field in fields[:_COUNTED]]
    return Ticks(sum(counted), counted[-1])


def stolen(before: Ticks, after: Ticks) -> float:
    """Return the share of the time between two samples that was stolen, 0 to 1; 0 when no tick passed."""
    every = after.every - before.every
    return max(0, after.stolen - before.stolen) / every if every > 0 else 0.0


def sample() -> Ticks:
    """Return the ticks until now; Linux only."""
    return ticks(_STAT.read_text(encoding="ascii"))

"""Time, read in one place only: wall time for due times, monotonic time for waits."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """The runtime's source of time; tests and the simulation pass their own."""

    def wall_ms(self) -> int:
        """Return epoch milliseconds, UTC. May step in either direction."""
        ...

    def monotonic_s(self) -> float:
        """Return seconds that never go back. The zero is arbitrary."""
        ...


class SystemClock:
    """The operating system's clocks."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        return time.monotonic()

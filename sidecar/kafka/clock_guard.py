"""Checks the wall clock against the broker's, to trust it with due times."""

from __future__ import annotations

from typing import NamedTuple

from sidecar.clock import Clock


class Skew(NamedTuple):
    """The offset of this machine's clock from the broker's."""

    ahead_ms: float
    """Negative: behind."""
    error_ms: float
    """Largest error of the measurement, in either direction."""

    @classmethod
    def of(cls, *, sent_ms: int, acknowledged_ms: int, broker_ms: int) -> Skew:
        """Measure with one record: the broker stamped it between sending and acknowledgement."""
        # Both clocks are truncated to milliseconds, which adds one to the error.
        return cls((sent_ms + acknowledged_ms) / 2 - broker_ms, (acknowledged_ms - sent_ms) / 2 + 1)


class ClockGuard:
    """Compares the wall clock with the broker's, and between measurements with the monotonic clock.

    Args:
        clock: The clock of this machine.
        max_skew_ms: Setting MAX_CLOCK_SKEW.
    """

    def __init__(self, clock: Clock, max_skew_ms: int) -> None:
        self._clock = clock
        self._max_skew_ms = max_skew_ms
        self._measured: tuple[int, float] | None = None
        self.skew_ms: float | None = None
        """The wall clock minus the broker's at the last measurement."""

    def measured(self, *, sent_ms: int, acknowledged_ms: int, broker_ms: int) -> None:
        """Note one measurement, see `Skew.of`."""
        self.skew_ms, _ = Skew.of(sent_ms=sent_ms, acknowledged_ms=acknowledged_ms, broker_ms=broker_ms)
        self._measured = (self._clock.wall_ms(), self._clock.monotonic_s())

    def blocker(self) -> str | None:
        """Return why nothing may fire now, None when the clock can be trusted."""
        if self._measured is None or self.skew_ms is None:
            return "the clock has not been measured against the broker's yet"
        wall_ms, monotonic_s = self._measured
        progress_ms = (self._clock.monotonic_s() - monotonic_s) * 1000
        off_ms = self.skew_ms + (self._clock.wall_ms() - wall_ms) - progress_ms
        if abs(off_ms) > self._max_skew_ms:
            allowed = f"MAX_CLOCK_SKEW allows {self._max_skew_ms} ms"
            return f"this machine's clock is {off_ms / 1000:+.1f} s off the broker's; {allowed}"
        return None

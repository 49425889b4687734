"""Whether the wall clock can be trusted with due times, measured against the broker's."""

from __future__ import annotations

from typing import NamedTuple

from sidecar.clock import Clock


class Skew(NamedTuple):
    """How far this machine's clock is from the broker's."""

    ahead_ms: float
    """Below zero: behind."""
    error_ms: float
    """The measurement is off by so much at most, in either direction."""

    @classmethod
    def of(cls, *, sent_ms: int, acknowledged_ms: int, broker_ms: int) -> Skew:
        """Measure it by one record: the broker stamped it somewhere between sending and acknowledgement."""
        # Both clocks cut to whole milliseconds: one more of doubt.
        return cls((sent_ms + acknowledged_ms) / 2 - broker_ms, (acknowledged_ms - sent_ms) / 2 + 1)


class ClockGuard:
    """Compares this machine's wall clock with the broker's, and its progress with the monotonic clock in between.

    Args:
        clock: This machine's.
        max_skew_ms: Setting MAX_CLOCK_SKEW.
    """

    def __init__(self, clock: Clock, max_skew_ms: int) -> None:
        self._clock = clock
        self._max_skew_ms = max_skew_ms
        self._measured: tuple[int, float] | None = None
        self.skew_ms: float | None = None
        """This clock minus the broker's, at the last measurement."""

    def measured(self, *, sent_ms: int, acknowledged_ms: int, broker_ms: int) -> None:
        """Take in one exchange with the broker, see `Skew.of`."""
        self.skew_ms, _ = Skew.of(sent_ms=sent_ms, acknowledged_ms=acknowledged_ms, broker_ms=broker_ms)
        self._measured = (self._clock.wall_ms(), self._clock.monotonic_s())

    def blocker(self) -> str | None:
        """Return why nothing may fire now, None when the clock is good."""
        if self._measured is None or self.skew_ms is None:
            return "the clock has not been measured against the broker's yet"
        wall_ms, monotonic_s = self._measured
        progress_ms = (self._clock.monotonic_s() - monotonic_s) * 1000
        off_ms = self.skew_ms + (self._clock.wall_ms() - wall_ms) - progress_ms
        if abs(off_ms) > self._max_skew_ms:
            allowed = f"MAX_CLOCK_SKEW allows {self._max_skew_ms} ms"
            return f"this machine's clock is {off_ms / 1000:+.1f} s off the broker's; {allowed}"
        return None

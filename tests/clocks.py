"""Clocks that tests move by hand."""

from __future__ import annotations

NOW_MS = 1_770_000_000_000


class HandClock:
    """Goes on only when told to; wall and monotonic time apart."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.stepped_ms = 0
        """How far the wall clock was set forward."""

    def wall_ms(self) -> int:
        return NOW_MS + self.stepped_ms + round(self.now_s * 1000)

    def monotonic_s(self) -> float:
        return self.now_s

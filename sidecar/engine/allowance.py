"""What one partition's part of a plan may still do before the rest waits for the next plan."""

from __future__ import annotations

from typing import Final

HEADERS_EACH: Final = 32
"""So many headers a timer may have on the average: as objects they take many times the bytes that they came in."""


class Allowance:
    """Goes down with what is done; a step that has begun is finished, so each plan gets somewhere.

    Args:
        timers: Rows that may be looked at.
        limit_bytes: Bytes of entries that may be acted on.
    """

    __slots__ = ("bytes", "headers", "timers")

    def __init__(self, timers: int, limit_bytes: int) -> None:
        self.timers = timers
        self.bytes = limit_bytes
        self.headers = timers * HEADERS_EACH
        """Of records that leave."""

    @property
    def spent(self) -> bool:
        """Whether nothing more may be begun."""
        return self.timers <= 0 or self.bytes <= 0 or self.headers <= 0

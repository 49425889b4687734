"""The budget of a plan: what exceeds it waits for the next plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

HEADERS_EACH: Final = 32
"""Average number of headers per timer that a plan allows: as objects they take many times their size in bytes."""


@dataclass(slots=True)
class Headers:
    """Remaining headers of a whole plan, for ingested or for due records."""

    left: int


class Allowance:
    """The remaining budget of one partition in a plan. A step that has begun is finished.

    Args:
        timers: Rows that may be read.
        limit_bytes: Bytes of entries that may be processed.
        headers: Those of the whole plan; the first partition always makes progress.
    """

    __slots__ = ("bytes", "headers", "timers")

    def __init__(self, timers: int, limit_bytes: int, headers: Headers) -> None:
        self.timers = timers
        self.bytes = limit_bytes
        self.headers = headers

    @property
    def exhausted(self) -> bool:
        """Whether no further step may begin."""
        return self.timers <= 0 or self.bytes <= 0 or self.headers.left <= 0

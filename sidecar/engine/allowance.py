"""What a plan may still do before the rest waits for the next one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

HEADERS_EACH: Final = 32
"""So many headers a timer may have on the average: as objects they take many times the bytes that they came in."""


@dataclass(slots=True)
class Headers:
    """Of all records that leave with a plan because they came in, or because they are due."""

    left: int


class Allowance:
    """One partition's part. It goes down with what is done; a step that has begun is finished.

    Args:
        timers: Rows that may be looked at.
        limit_bytes: Bytes of entries that may be acted on.
        headers: Those of the whole plan: the partition whose turn is first gets somewhere in any case.
    """

    __slots__ = ("bytes", "headers", "timers")

    def __init__(self, timers: int, limit_bytes: int, headers: Headers) -> None:
        self.timers = timers
        self.bytes = limit_bytes
        self.headers = headers

    @property
    def exhausted(self) -> bool:
        """Whether nothing more may be begun."""
        return self.timers <= 0 or self.bytes <= 0 or self.headers.left <= 0

"""Crossings: two timers of a lane whose dues are not in the order of their offsets. Only those make a timer wait.

A timer waits only for one with a lower offset and a later stored due. With equal delays there is none, and each timer
would look for it in vain. So a partition keeps, in buckets of lanes, until when there may be one:

    stored at the end of a lane, not below the latest due of its bucket     no crossing
    stored at the end of a lane, below it                                   a crossing, until that latest due
    stored again, at any place in its lane                                  a crossing, until its new due

It never misses one, and it may say that there is one where there is none: lanes share buckets, and a plan that is
discarded has left its timers here. Nothing is known after a restore: the index of lanes is then read once, in slices.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Final

from sidecar.engine.rows import LANE, decode_due

BUCKETS: Final = 1 << 14
"""Two times eight bytes each, for a partition with ordered timers."""
READ_ROWS: Final = 2_000
"""Rows of the index that one plan reads after a restore."""


class Crossings:
    """Of one partition."""

    __slots__ = ("_lane", "_lane_ms", "known", "latest_ms", "read_from", "until_ms")

    def __init__(self) -> None:
        self.latest_ms = array("q")
        """By bucket, the latest stored due of its timers so far; both are empty until `begin`."""
        self.until_ms = array("q")
        """By bucket, the due up to which a timer may have to wait."""
        self.known = False
        """Whether the index of lanes has been read to its end."""
        self.read_from = b""
        """Row of the index to go on from."""
        self._lane = b""
        self._lane_ms = 0

    def begin(self) -> None:
        """Make room for the first timer."""
        if not self.latest_ms:
            self.latest_ms = array("q", bytes(8 * BUCKETS))
            self.until_ms = array("q", bytes(8 * BUCKETS))

    def append(self, lane: bytes, due_ms: int) -> None:
        """Note a timer that is stored at the end of its lane: no timer of it has a greater offset."""
        self.begin()
        bucket = bucket_of(lane)
        latest_ms = self.latest_ms[bucket]
        self._note(bucket, max(due_ms, latest_ms), crosses=due_ms < latest_ms)

    def insert(self, lane: bytes, due_ms: int) -> None:
        """Note a timer that is stored at any place of its lane."""
        self.append(lane, due_ms)
        self._note(bucket_of(lane), due_ms, crosses=True)

    def may_wait(self, lane: bytes, due_ms: int) -> bool:
        """Return whether a due timer may have to wait for one that is stored at a later due."""
        return not self.known or due_ms < self.until_ms[bucket_of(lane)]

    def read(self, rows: Sequence[tuple[bytes, bytes]], limit: int) -> None:
        """Note the next rows of the index, which are in the order of lanes and offsets.

        Args:
            rows: From `read_from` on.
            limit: How many were asked for; fewer are the last ones.
        """
        for row, value in rows:
            lane, due_ms = row[LANE], decode_due(value)
            latest_ms = self._lane_ms if lane == self._lane else 0
            self._note(bucket_of(lane), max(due_ms, latest_ms), crosses=due_ms < latest_ms)
            self._lane, self._lane_ms = lane, max(due_ms, latest_ms)
        if len(rows) < limit:
            self.known = True
        else:
            self.read_from = rows[-1][0] + b"\0"

    def _note(self, bucket: int, due_ms: int, *, crosses: bool) -> None:
        self.begin()
        self.latest_ms[bucket] = max(self.latest_ms[bucket], due_ms)
        if crosses:
            self.until_ms[bucket] = max(self.until_ms[bucket], due_ms)


def bucket_of(lane: bytes) -> int:
    """Return the bucket of a lane."""
    return int.from_bytes(lane[:2], "big") % BUCKETS

"""What a partition did in the last hour, minute by minute: fired, dead-lettered, fired late.

Its owner counts each committed transaction and publishes the hour with its figures; the next owner goes on from there.
Nothing is ever decided by these counts, so the second around a hand-over may be missing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final, NamedTuple

MINUTE_MS: Final = 60_000
MINUTES: Final = 60
LATE_MS: Final = 1_000
"""Fired more than so long after its due is late."""


class Minute(NamedTuple):
    """Counts of one minute of wall time."""

    fired: int = 0
    dead_lettered: int = 0
    late: int = 0
    """Those of `fired` that were later than LATE_MS."""

    def plus(self, other: Minute) -> Minute:
        """Return both together."""
        return Minute(self.fired + other.fired, self.dead_lettered + other.dead_lettered, self.late + other.late)


_NOTHING: Final = Minute()


@dataclass(frozen=True, slots=True)
class Activity:
    """The last MINUTES minutes."""

    newest: int = 0
    """The minute of the first count: minutes since the epoch."""
    counts: tuple[Minute, ...] = ()
    """Newest first, at most MINUTES; what is not there is nothing."""

    def plus(self, at_ms: int, minute: Minute) -> Activity:
        """Return it with what was done at `at_ms`; what lies before the hour is not counted."""
        if not any(minute):
            return self
        number = at_ms // MINUTE_MS
        if self.counts and number == self.newest:  # nearly always, and once for each transaction
            return Activity(number, (self.counts[0].plus(minute), *self.counts[1:]))
        return self.joined(Activity(number, (minute,)))

    def joined(self, other: Activity) -> Activity:
        """Return the sum of two, minute by minute."""
        newest = max(self.newest, other.newest)
        pairs = zip_longest(self._until(newest), other._until(newest), fillvalue=_NOTHING)
        return Activity(newest, tuple([one.plus(two) if any(two) else one for one, two in pairs]))

    def last(self, now_ms: int) -> list[Minute]:
        """Return MINUTES minutes, oldest first; the last one is that of `now_ms`."""
        now = now_ms // MINUTE_MS
        # A clock that runs ahead must not hide what it stamped: its minutes end the list.
        counts = self._until(now) if now > self.newest else self.counts[self.newest - now :]
        return [*[_NOTHING] * (MINUTES - len(counts)), *reversed(counts)]

    def _until(self, minute: int) -> tuple[Minute, ...]:
        """Return the counts as seen from a minute that is not before the newest."""
        gap = minute - self.newest
        return ((_NOTHING,) * gap + self.counts)[:MINUTES] if 0 < gap < MINUTES else () if gap else self.counts


def together(activities: Iterable[Activity], now_ms: int) -> list[Minute]:
    """Return the sum of several over the last MINUTES minutes, oldest first."""
    hours = [Activity().last(now_ms), *(each.last(now_ms) for each in activities)]
    return [Minute(*map(sum, zip(*minutes, strict=True))) for minutes in zip(*hours, strict=True)]

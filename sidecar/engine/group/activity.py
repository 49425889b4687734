"""Activity of a partition in the last hour, minute by minute: fired, dead-lettered, fired late.

Its owner counts each committed transaction and publishes the hour with its view; the next owner continues from there.
Nothing is decided by these counts, so the second around a hand-over may be missing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final, NamedTuple

MINUTE_MS: Final = 60_000
MINUTES: Final = 60
LATE_MS: Final = 1_000
"""A timer that fires more than this after its due is late."""


class Minute(NamedTuple):
    """Counts of one minute of wall time."""

    fired: int = 0
    dead_lettered: int = 0
    late: int = 0
    """The part of `fired` that was more than LATE_MS late."""

    def plus(self, other: Minute) -> Minute:
        """Return the sum."""
        return Minute(self.fired + other.fired, self.dead_lettered + other.dead_lettered, self.late + other.late)


_NOTHING: Final = Minute()


@dataclass(frozen=True, slots=True)
class Activity:
    """Counts of the last MINUTES minutes."""

    newest: int = 0
    """The minute of the first count: minutes since the epoch."""
    counts: tuple[Minute, ...] = ()
    """Newest first, at most MINUTES; missing minutes count as zero."""

    def plus(self, at_ms: int, minute: Minute) -> Activity:
        """Return the activity plus counts at `at_ms`; counts older than the hour are dropped."""
        if not any(minute):
            return self
        number = at_ms // MINUTE_MS
        if self.counts and number == self.newest:  # nearly always, once per transaction
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
        # A clock that runs ahead must not hide its minutes: they end the list.
        counts = self._until(now) if now > self.newest else self.counts[self.newest - now :]
        return [*[_NOTHING] * (MINUTES - len(counts)), *reversed(counts)]

    def _until(self, minute: int) -> tuple[Minute, ...]:
        """Return the counts relative to a minute that is not before the newest."""
        gap = minute - self.newest
        return ((_NOTHING,) * gap + self.counts)[:MINUTES] if 0 < gap < MINUTES else () if gap else self.counts


def together(activities: Iterable[Activity], now_ms: int) -> list[Minute]:
    """Return the sum of several over the last MINUTES minutes, oldest first."""
    hours = [Activity().last(now_ms), *(each.last(now_ms) for each in activities)]
    return [Minute(*map(sum, zip(*minutes, strict=True))) for minutes in zip(*hours, strict=True)]

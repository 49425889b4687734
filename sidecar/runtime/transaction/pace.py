"""How much one transaction carries: less when it took too long, more while it is quick and more waits."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from sidecar.engine.partition import Partition

ITEMS_MAX: Final = 10_000
BYTES_MAX: Final = 16 * 1024 * 1024
BYTES_MIN: Final = 1_000
QUICK_S: Final = 2.0
"""A transaction of so many seconds at most may be followed by one of twice the size."""
SLOW_S: Final = 6.0
"""After one of more seconds, the next is half as large; after one that failed so late, a quarter."""


class Pace:
    """Most messages in, and most fires, in one transaction, and the bytes of each."""

    def __init__(self) -> None:
        self.items_max = ITEMS_MAX
        self.bytes_max = BYTES_MAX
        self.alone = False
        """A message by itself took too long: it is given all the time that a transaction has."""

    def committed(self, seconds: float, items: int, *, more: bool) -> None:
        """Learn from a transaction.

        Args:
            seconds: That it took.
            items: That it had.
            more: Others were left for the next one.
        """
        if seconds > SLOW_S:
            self._shrink(items, 2)
        elif seconds < QUICK_S and more:
            self.alone = False
            self.items_max = min(ITEMS_MAX, 2 * self.items_max)
            self.bytes_max = min(BYTES_MAX, 2 * self.bytes_max)

    def failed(self, seconds: float, items: int, *, unknown: bool) -> None:
        """Learn from a transaction that was not committed.

        Args:
            seconds: Until that was clear.
            items: That it had.
            unknown: It may have been committed all the same.
        """
        if seconds > SLOW_S or unknown:
            self.alone = items <= 1
            self._shrink(items, 4)

    def _shrink(self, items: int, times: int) -> None:
        self.items_max = max(1, min(items, self.items_max) // times)
        self.bytes_max = max(BYTES_MIN, self.bytes_max // times)


class Share(NamedTuple):
    """What a transaction for few messages is made of."""

    partitions: list[Partition]
    ingest: list[int]
    """Partitions of which messages are taken in."""
    fire_due: bool
    """Whether due timers are fired."""


def fewer(turns: Sequence[Partition], waiting: Collection[int], count: int, now_ms: int, *, fire_first: bool) -> Share:
    """Return a share of the work for a transaction of fewer messages than there are partitions.

    Args:
        turns: The partitions in the order of their turns.
        waiting: Those of which messages wait to be taken in.
        count: Of messages: with 1, the transaction takes one in or fires one.
        now_ms: Timers up to then are due.
        fire_first: With 1, and both to be done: what it does.
    """
    due = {each.number for each in turns if (wakes_ms := each.wakes_at_ms()) is not None and wakes_ms <= now_ms}
    partitions = [each for each in turns if each.number in due or each.number in waiting][:count]
    ingest = [each.number for each in partitions if each.number in waiting]
    if count > 1 or not ingest:
        return Share(partitions, ingest, fire_due=True)
    fire_due = fire_first and partitions[0].number in due
    return Share(partitions, [] if fire_due else ingest, fire_due=fire_due)

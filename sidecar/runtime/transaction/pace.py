"""Adapts the size of transactions: smaller after a slow one, larger while they are quick and more is waiting."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import chain
from typing import Final, NamedTuple

from sidecar.contract.sizes import content_bytes
from sidecar.engine.partition import Partition
from sidecar.engine.transaction import Plan

ITEMS_MAX: Final = 10_000
BYTES_MAX: Final = 16 * 1024 * 1024
BYTES_MIN: Final = 1_000
QUICK_S: Final = 2.0
"""A transaction of at most this duration may be followed by one of twice the size."""
SLOW_S: Final = 4.5
"""After a longer transaction the next is half as large; after one that failed this late, a quarter."""
LARGE_BYTES: Final = 16 * 1024
"""A larger message that is late by itself may need more time; of a smaller one, the link is not the cause."""
LONG_S: Final = 12.0
"""A message that failed this late had the longest time already."""


class Pace:
    """The limits of one transaction: ingested messages and deliveries, each by number and by bytes."""

    def __init__(self) -> None:
        self.items_max = ITEMS_MAX
        self.bytes_max = BYTES_MAX
        self.slow_bytes = 0
        """Bytes of a record that was late by itself: one as large needs the longest time. 0: none was."""

    def committed(self, seconds: float, items: int, size: int, *, more: bool) -> None:
        """Learn from a transaction.

        Args:
            seconds: Its duration.
            items: Its number of items.
            size: Bytes of its largest record; needed only while `slow_bytes` is set.
            more: Items were left for the next one.
        """
        if seconds <= SLOW_S and size >= self.slow_bytes:
            self.slow_bytes = 0
        if seconds > SLOW_S:
            self._shrink(items, 2)
        elif seconds < QUICK_S and more:
            self.items_max = min(ITEMS_MAX, 2 * self.items_max)
            self.bytes_max = min(BYTES_MAX, 2 * self.bytes_max)

    def failed(self, seconds: float, items: int, size: int, *, unknown: bool) -> None:
        """Learn from a transaction that was not committed.

        Args:
            seconds: Time until it failed.
            items: Its number of items.
            size: Bytes of its largest record.
            unknown: It may have been committed.
        """
        if seconds > SLOW_S or unknown:
            if items <= 1:
                self.slow_bytes = size if size > LARGE_BYTES and seconds < LONG_S else 0
            self._shrink(items, 4)

    def needs_time(self, plan: Plan) -> bool:
        """Return whether a plan needs the longest time: it has a record as large as one that was late by itself."""
        return 0 < self.slow_bytes <= largest_record(plan)

    def _shrink(self, items: int, times: int) -> None:
        self.items_max = max(1, min(items, self.items_max) // times)
        self.bytes_max = max(BYTES_MIN, self.bytes_max // times)


def largest_record(plan: Plan) -> int:
    """Return the bytes of a plan's largest record, uncompressed; records released after they were written are left
    out."""
    largest = 0
    for each in plan.partition_plans:
        outgoing = chain(each.deliveries, (dead_letter for _, dead_letter in each.dead_letters))
        sizes = (content_bytes(sent.key, sent.value, sent.headers) for sent in outgoing)
        blocks = (len(value or b"") for _, value in each.records)
        largest = max(largest, *sizes, *blocks)
    return largest


class Share(NamedTuple):
    """The contents of a small transaction."""

    partitions: list[Partition]
    ingest: list[int]
    """Partitions whose messages are ingested."""
    fire_due: bool
    """Whether due timers are fired."""


def fewer(turns: Sequence[Partition], waiting: Collection[int], count: int, now_ms: int, *, fire_first: bool) -> Share:
    """Return the share of the work for a transaction with fewer messages than there are partitions.

    Args:
        turns: The partitions in the order of their turns.
        waiting: Partitions with messages to ingest.
        count: Number of messages; with 1, the transaction ingests one or fires one.
        now_ms: Timers up to this time are due.
        fire_first: With 1, if both are possible: fire.
    """
    due = {each.number for each in turns if (wakes_ms := each.wakes_at_ms()) is not None and wakes_ms <= now_ms}
    partitions = [each for each in turns if each.number in due or each.number in waiting][:count]
    ingest = [each.number for each in partitions if each.number in waiting]
    if count > 1 or not ingest:
        return Share(partitions, ingest, fire_due=True)
    fire_due = fire_first and partitions[0].number in due
    return Share(partitions, [] if fire_due else ingest, fire_due=fire_due)

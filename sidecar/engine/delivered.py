"""What a partition must not deliver again: timers that are pending although their deliveries stand in their origins.

A broker can roll back the changelog's part of a transaction and no other one. Then its timers are pending again, and
the records that it ingested are read again. A search of the origins (runtime/partitions/search.py) finds the deliveries
that did reach them; plan() removes these timers without another delivery. Practically always there are none.

A wrong "delivered" would lose a message, so only what can come from such a transaction counts: a timer that the
changelog has as pending, or a record that no checkpoint in it has ingested. An id stays the same for the life of its
timer and is never used again, and in the transaction that delivers a timer its changelog's part removes it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from sidecar.changelog.codec import Checkpoint
from sidecar.changelog.entry import KEY, Head, head, origin_of
from sidecar.engine.ports import StoreReader
from sidecar.engine.selection import find_entry
from sidecar.model import StoredOffset, TimerId


class Delivery(NamedTuple):
    """A delivery that stands in its origin."""

    offset: StoredOffset
    first_ms: int
    """First due of the timer."""
    origin: str


@dataclass(frozen=True, slots=True)
class Delivered:
    """The deliveries of one partition that must not be made again."""

    pending: frozenset[Delivery] = frozenset()
    """Those whose timers are still to be removed."""
    removed: frozenset[Delivery] = frozenset()
    """Those whose timers were removed since the restore: a control record that is read again may name them."""
    again: frozenset[tuple[int, str]] = frozenset()
    """Stored offset and origin of messages that are still to be read again. An offset is that of one message only, and
    its due can be another one now."""
    until: int = 0
    """From this input offset on nothing is read again."""

    def __bool__(self) -> bool:
        return bool(self.pending or self.removed or self.again)

    def has(self, fixed: Head, origin: str) -> bool:
        """Return whether the delivery of a pending timer stands in its origin."""
        return (fixed.offset, fixed.first_ms, origin) in self.pending

    def after(self, removed: Collection[Delivery], next_input_offset: int) -> Delivered:
        """Return what is left after a transaction.

        Args:
            removed: What it met.
            next_input_offset: Of its checkpoint.
        """
        pending = self.pending.difference(removed)
        if not pending and next_input_offset >= self.until:
            return NOTHING
        return Delivered(pending, self.removed.union(removed), self.again, self.until)


NOTHING: Final = Delivered()


def sift(
    found: Iterable[Delivery], number: int, checkpoint: Checkpoint, store: StoreReader
) -> tuple[list[Delivery], list[Delivery]]:
    """Return which of the deliveries found are of pending timers, and which of messages that are still to be ingested.

    Args:
        found: Those of one partition, each in the origin that it names.
        number: The partition.
        checkpoint: The one that the partition continues from.
        store: Restored up to that checkpoint.
    """
    watermark = KEY.pack(checkpoint.watermark_ms, checkpoint.watermark_offset)
    unseen = checkpoint.stored_offset(checkpoint.highest_input_offset)
    pending, again = [], []
    for each in found:
        if each.offset >= unseen:
            again.append(each)
            continue
        timer = TimerId(number, each.offset, each.first_ms)
        entry = find_entry(store, timer, (each.offset,), lambda: watermark)
        if entry is not None and origin_of(entry, head(entry)) == each.origin:
            pending.append(each)
    return pending, again

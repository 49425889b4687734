"""Finds the record that a topic refuses as too large, and decides what becomes of it.

Brokers check compressed batches, so a refusal can mean any record of a batch. The next transaction is then a small one
in which each timer is a block and each record is a batch by itself: a refusal in it names one record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from typing import Final

from sidecar.changelog.codec import BlockKey, decode_block, decode_key
from sidecar.changelog.entry import offset_of
from sidecar.contract.sizes import content_bytes
from sidecar.kafka.producer import Refusal, Refused, Unwritten
from sidecar.model import StoredOffset
from sidecar.runtime.transaction.commit import Result

SINGLY_ITEMS_MAX: Final = 500
"""Most ingested messages, and most deliveries, in a transaction with one record per batch."""


class Oversize:
    """What was learnt about large records; owned by the loop. It holds until the partition's next commit; for a timer
    that cannot be stored and waits for the DLQ, until the DLQ is tried."""

    def __init__(self) -> None:
        self.singly = False
        """Write each record as a batch by itself."""
        self.cut_dead_letters: dict[tuple[int, bytes], int] = {}
        """See `Terms.cut_dead_letters`."""
        self.unstorable: dict[tuple[int, StoredOffset, int], str] = {}
        """See `Terms.unstorable`."""
        self.unanswerable: set[tuple[int, bytes]] = set()
        """Outcomes that the status topic refused, by partition and key."""
        self.stuck: dict[int, str] = {}
        """Partitions whose changelog refused, in the last transaction, a record that cannot be left out."""

    def learn(
        self, result: Result, dlq_topics: Collection[str], limit_of: Callable[[str], int]
    ) -> tuple[list[Refused], list[Refused]]:
        """Learn from a transaction; return deliveries that their origin refuses, and dead letters that cannot be cut
        any further."""
        self.stuck = {}
        large = [each for each in result.refused if each.why is Refusal.LARGE]
        if not large and not result.unwritten:
            return [], []
        places = Counter((each.outgoing.topic, each.target) for each in large)
        places.update((each.topic, each.partition) for each in result.unwritten)
        alone = [
            each
            for each in large
            if places[each.outgoing.topic, each.target] == 1
            or content_bytes(each.outgoing.key, each.outgoing.value, each.outgoing.headers) > result.batch_bytes
        ]
        learnt = len(alone)
        for unwritten in result.unwritten:
            single = places[unwritten.topic, unwritten.partition] == 1 or len(unwritten.value) > result.batch_bytes
            learnt += single and self._unwritten(unwritten, result.work.changelog_topic)
        if not learnt:
            self.singly = True
        dead_letters = [each for each in alone if each.outgoing.topic in dlq_topics]
        hopeless = [each for each in dead_letters if not self._cut(each, limit_of(each.outgoing.topic))]
        return [each for each in alone if each.outgoing.topic not in dlq_topics], hopeless

    def _cut(self, dead_letter: Refused, bytes_max: int) -> bool:
        """Set the size of a dead letter for the next attempt; return False if it was cut to the minimum before."""
        place = dead_letter.partition, dead_letter.outgoing.source
        before = self.cut_dead_letters.get(place)
        if before == 0:
            del self.cut_dead_letters[place]  # it waits; by the next attempt the DLQ may accept more
            return False
        self.cut_dead_letters[place] = bytes_max if before is None or bytes_max < before else 0
        return True

    def _unwritten(self, record: Unwritten, changelog_topic: str) -> bool:
        """Note a record that is too large; return False if it has several timers, each of which may fit."""
        if record.topic != changelog_topic:
            self.unanswerable.add((record.partition, record.key))
            return True
        entries = decode_block(record.value).entries if isinstance(decode_key(record.key), BlockKey) else ()
        if len(entries) > 1:
            return False
        text = f"{len(record.value)} bytes: more than {record.topic} accepts (max.message.bytes)"
        place = (record.partition, offset_of(entries[0]), len(entries[0])) if entries else None
        if place is not None and place not in self.unstorable:
            self.unstorable[place] = text
        else:  # a checkpoint, or a timer that can go nowhere else while the DLQ cannot be written
            self.stuck[record.partition] = text
        return True

    def clear(self, partitions: Collection[int], *, unstorable: bool = True) -> None:
        """Forget what was learnt about these partitions.

        Args:
            partitions: Input partitions.
            unstorable: Forget the timers that the changelog refused, too.
        """
        self.cut_dead_letters = {
            place: cut for place, cut in self.cut_dead_letters.items() if place[0] not in partitions
        }
        if unstorable:
            self.unstorable = {place: said for place, said in self.unstorable.items() if place[0] not in partitions}
        self.unanswerable = {place for place in self.unanswerable if place[0] not in partitions}

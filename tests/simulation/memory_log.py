"""One changelog partition in memory: committed records, commit markers, and any compaction that Kafka may do."""

from __future__ import annotations

import random
from collections.abc import Iterable

from sidecar.changelog.codec import CHECKPOINT_KEY
from sidecar.engine.restore import ChangelogRead, Restore


class MemoryLog:
    """A compacted topic as a read_committed consumer sees it."""

    def __init__(self) -> None:
        self.records: list[ChangelogRead] = []
        self.end = 0

    def commit(self, records: Iterable[tuple[bytes, bytes | None]]) -> int:
        """Append one transaction and return one more than the offset of its last record."""
        for key, value in records:
            self.records.append(ChangelogRead(self.end, key, value))
            self.end += 1
        written_to = self.end
        self.end += 1  # the commit marker
        return written_to

    def abort(self, records: int) -> None:
        """Append a transaction that is never seen."""
        self.end += records + 1

    def from_offset(self, offset: int) -> list[ChangelogRead]:
        return [record for record in self.records if record.offset >= offset]

    def left_for(self, restore: Restore) -> list[ChangelogRead]:
        """Begin a restore and return what it has still to take in."""
        left = self.from_offset(restore.begin(0, self.end))
        restore.apply(left[:1], "changelog")
        left = left[1:]
        if restore.unconfirmed and restore.partition.checkpoint.assignment:
            # The next checkpoint decides.
            decided = next((at for at, record in enumerate(left, 1) if record.key == CHECKPOINT_KEY), len(left))
            restore.apply(left[:decided], "changelog")
            left = left[decided:]
        if not restore.refuted and not restore.unconfirmed:
            return left
        restore.start_over()
        return self.from_offset(0)

    def compacted(self, rng: random.Random, *, everything: bool = False) -> list[ChangelogRead]:
        """Return what is left after a cleaner's run up to a random offset.

        It drops superseded records, each or not, and tombstones with nothing before them: any age of a tombstone may
        be above delete.retention.
        """
        clean_to = self.end if everything else rng.randint(0, self.end)
        last = {record.key: record.offset for record in self.records if record.offset < clean_to}
        kept_keys: set[bytes | None] = set()
        kept: list[ChangelogRead] = []
        for record in self.records:
            if record.offset < clean_to:
                superseded = record.offset < last[record.key]
                if superseded and (everything or rng.random() < 0.8):
                    continue
                bare = record.value is None and not superseded and record.key not in kept_keys
                if bare and (everything or rng.random() < 0.7):
                    continue
            kept_keys.add(record.key)
            kept.append(record)
        return kept

    def compact(self, rng: random.Random, *, everything: bool = False) -> None:
        self.records = self.compacted(rng, everything=everything)

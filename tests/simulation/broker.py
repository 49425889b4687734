"""A simulated Kafka broker, with all that exactly once rests on: generations, open transactions, LSO, time-outs.

One input partition, its changelog partition, and all that is fired, seen by whoever owns the partition now.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from enum import Enum

from sidecar.engine.restore import ChangelogRead


class Fate(Enum):
    """The result of a transaction."""

    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"


class FencedError(Exception):
    """The transaction or the generation is of the past."""


class Written:
    """A record in the changelog; a transaction's marker has no key."""

    __slots__ = ("key", "transaction", "value")

    def __init__(self, transaction: int, key: bytes | None, value: bytes | None) -> None:
        self.transaction = transaction
        self.key = key
        self.value = value


class Broker:
    """Group coordinator, transaction coordinator and log in one."""

    def __init__(self) -> None:
        self.committed = 0
        """The group's offset of the input partition."""
        self.generation = 0
        self.member = ""
        self.changelog: list[Written] = []
        self.fired: list[tuple[int, bytes]] = []
        """(transaction, value)."""
        self.fates: dict[int, Fate] = {}
        self._offsets: dict[int, int] = {}

    def rebalance(self, member: str) -> None:
        self.member = member
        self.generation += 1

    # Transactions

    def begin(self) -> int:
        transaction = len(self.fates) + 1
        self.fates[transaction] = Fate.OPEN
        return transaction

    def produce_changelog(self, transaction: int, key: bytes, value: bytes | None) -> int:
        self._check_open(transaction)
        self.changelog.append(Written(transaction, key, value))
        return len(self.changelog) - 1

    def produce_fire(self, transaction: int, value: bytes) -> None:
        self._check_open(transaction)
        self.fired.append((transaction, value))

    def send_offsets(self, transaction: int, generation: int, offsets: Sequence[int]) -> None:
        """Name the input partition with its next offset. An empty list never reaches the coordinator: no check."""
        self._check_open(transaction)
        if not offsets:
            return
        if generation != self.generation:
            raise FencedError("generation")
        self._offsets[transaction] = offsets[0]

    def end(self, transaction: int, fate: Fate) -> None:
        self._check_open(transaction)
        self.fates[transaction] = fate
        offset = self._offsets.pop(transaction, None)
        if fate is Fate.COMMITTED and offset is not None:
            self.committed = offset
        if any(written.transaction == transaction for written in self.changelog):
            self.changelog.append(Written(transaction, None, None))

    def time_out(self, rng: random.Random) -> None:
        """Abort some of the transactions that stay open."""
        for transaction, fate in list(self.fates.items()):
            if fate is Fate.OPEN and rng.random() < 0.3:
                self.end(transaction, Fate.ABORTED)

    def _check_open(self, transaction: int) -> None:
        if self.fates[transaction] is not Fate.OPEN:
            raise FencedError("transaction")

    # Reads

    def offsets_are_stable(self) -> bool:
        """Whether `committed()` answers: it waits for open transactions that carry offsets."""
        return not self._offsets

    def end_offset(self) -> int:
        """The end of the changelog, READ_UNCOMMITTED."""
        return len(self.changelog)

    def last_stable_offset(self) -> int:
        return next(
            (at for at, written in enumerate(self.changelog) if self.fates[written.transaction] is Fate.OPEN),
            len(self.changelog),
        )

    def read_committed(self, start: int, end: int) -> list[ChangelogRead]:
        return [
            ChangelogRead(at, written.key, written.value)
            for at, written in enumerate(self.changelog[:end])
            if at >= start and written.key is not None and self.fates[written.transaction] is Fate.COMMITTED
        ]

    def committed_fires(self) -> list[bytes]:
        return [value for transaction, value in self.fired if self.fates[transaction] is Fate.COMMITTED]

    def compact(self, rng: random.Random) -> None:
        """Below the LSO; what an aborted transaction wrote replaces nothing."""
        stable = self.changelog[: self.last_stable_offset()]
        alive = [written for written in stable if self.fates[written.transaction] is Fate.COMMITTED]
        last = {written.key: written for written in alive}
        for written in alive:
            if written is not last[written.key] and rng.random() < 0.7:
                written.key = written.value = None

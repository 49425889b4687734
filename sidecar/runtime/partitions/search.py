"""Before a partition runs whose changelog lacks a transaction: which of its messages reached their origins after all.

The partitions that wait when a search begins share it. None waits longer than WAIT_S: what is not found by then fires,
and may come twice. Nothing here blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import structlog

from sidecar.clock import Clock
from sidecar.engine.delivered import NOTHING, Delivered, Delivery, sift
from sidecar.engine.partition import Partition
from sidecar.engine.ports import Store
from sidecar.errors import RecordCorrupt, StoreCorrupt
from sidecar.kafka.admin.offsets import Bounds
from sidecar.kafka.origin_search import ORIGINS_MAX, SEARCH_S, Found, Wanted
from sidecar.runtime.ports import AskOrigins, SearchQuestion

log = structlog.get_logger(__name__)

WAIT_S: Final = 2 * SEARCH_S
"""Longest time that a partition waits: for a search that began without it, and for its own."""
SIFTED: Final = 1_000
"""Most deliveries of a partition that are looked up in the store at a time."""
REASON: Final = "its origins are searched for messages of a transaction that the changelog lacks"


@dataclass(slots=True)
class _Search:
    partition: Partition
    again: Bounds
    """Input offsets that are read again."""
    since_ms: int
    """Records with an older timestamp do not count."""
    began_s: float
    found: list[Delivery] | None = None
    """What is still to be looked up; None: no answer yet."""
    records: int = 0
    """How many were read."""
    is_asked: bool = False
    """The brokers were asked."""
    pending: set[Delivery] = field(default_factory=set)
    unseen: set[Delivery] = field(default_factory=set)
    """Those of records that are read again."""


class _Known(NamedTuple):
    """What a search found for a partition; it stays true for the next recovery."""

    deliveries: frozenset[Delivery]
    until: int
    """Input offset up to which records are read again."""
    sequence: int
    """Of the checkpoint that was searched for; -1: there is a later one."""


class Searches:
    """The searches of a recovery.

    Args:
        ask: Begins a search.
        clock: The clock of the waits.
        skew_ms: MAX_CLOCK_SKEW.
        permit: Returns the command that gives the permission to read a topic.
    """

    def __init__(self, ask: AskOrigins, clock: Clock, skew_ms: int, permit: Callable[[str], str]) -> None:
        self._ask = ask
        self._clock = clock
        self._skew_ms = skew_ms
        self._permit = permit
        self._waiting: dict[int, _Search] = {}
        self._asked: dict[int, _Search] = {}
        self._question: SearchQuestion | None = None
        self._known: dict[int, _Known] = {}

    def knows(self, number: int) -> bool:
        """Return whether an earlier search found something that a partition may still meet."""
        return number in self._known

    def want(self, partition: Partition, next_offset: int, lacks_to: int | None) -> None:
        """Begin a search for a restored partition: of its origins, once for each transaction that its changelog lacks.

        Args:
            partition: Its checkpoint is the last one before that transaction.
            next_offset: Where the input is read from.
            lacks_to: The input offset behind that transaction; None: the changelog lacks none.
        """
        since_ms, known = self._since_ms(partition), self._known.get(partition.number, _Known(frozenset(), 0, -1))
        again = Bounds(next_offset, max(next_offset, lacks_to or 0, known.until))
        search = _Search(partition, again, since_ms or 0, self._clock.monotonic_s())
        if lacks_to is None or since_ms is None or known.sequence == partition.checkpoint.sequence:
            search.found = list(known.deliveries)
        partition.reason = REASON
        self._waiting[partition.number] = search

    def drop(self, number: int) -> None:
        """Forget a partition that recovers again or is released."""
        self._waiting.pop(number, None)
        self._asked.pop(number, None)

    def on_committed(self, partitions: Mapping[int, Partition]) -> None:
        """Note the partitions of a committed transaction: should the changelog lack it, that is another one."""
        for number in self._known.keys() & partitions.keys():
            self._known[number] = self._known[number]._replace(sequence=-1)
            if not partitions[number].delivered:
                del self._known[number]

    def advance(self, store: Store) -> list[tuple[int, Delivered]]:
        """Do one slice; return the partitions that need not wait any more, and what was found for each."""
        if self._question is None and (asking := {k: v for k, v in self._waiting.items() if v.found is None}):
            self._asked |= asking
            for number, search in asking.items():
                search.is_asked = True
                del self._waiting[number]
            self._question = self._ask([self._wanted(each) for each in asking.values()])
        if self._question is not None and self._question.done():
            self._answered(self._question.result())
        over = []
        for searches in (self._asked, self._waiting):
            for number, search in list(searches.items()):
                if search.found is None and self._clock.monotonic_s() - search.began_s > WAIT_S:
                    log.warning(
                        "origins_not_searched", partitions=[number], reason=f"no answer within {WAIT_S:g} s", fix=""
                    )
                    search.found = self._with_known(number, ())
                if search.found is not None and self._sift(search, search.found, store):
                    del searches[number]
                    over.append((number, self._result(search)))
        if not self._asked:
            self._question = None  # nobody waits for its answer
        return over

    def _wanted(self, search: _Search) -> Wanted:
        counts = search.partition.counts.origins
        origins = sorted(counts, key=lambda origin: -counts[origin])[:ORIGINS_MAX]
        return Wanted(search.partition.number, origins, search.since_ms, search.again)

    def _since_ms(self, partition: Partition) -> int | None:
        """Return the least timestamp of a delivery that the changelog can lack; None: nothing tells.

        It was made after the last checkpoint, by another clock; a broker may have stamped it by a third one. Each may
        be off by MAX_CLOCK_SKEW. What an operator has delivered once more, by setting the group's offset back, has the
        ids of deliveries before that: they do not count.
        """
        if not partition.checkpoint.wall_ms:
            return None
        since_ms = partition.checkpoint.wall_ms - 2 * self._skew_ms
        return max(since_ms, partition.set_back_ms + 2 * self._skew_ms) if partition.set_back_ms else since_ms

    def _answered(self, found: Found) -> None:
        self._question = None
        for number, search in self._asked.items():
            if search.found is None:
                search.found, search.records = self._with_known(number, found.deliveries.get(number, ())), found.records
        if found.unread:
            fixes = [self._permit(topic) for topic in found.denied]
            log.warning(
                "origins_not_searched",
                partitions=sorted(self._asked),
                reason="; ".join(f"{topic}: {why}" for topic, why in found.unread.items()),
                fix="; ".join(fixes),
            )

    def _with_known(self, number: int, found: Collection[Delivery]) -> list[Delivery]:
        return [*found, *(self._known[number].deliveries if number in self._known else ())]

    def _sift(self, search: _Search, found: list[Delivery], store: Store) -> bool:
        """Look some deliveries up; return whether those were all."""
        now, search.found = found[:SIFTED], found[SIFTED:]
        partition = search.partition
        try:
            pending, unseen = sift(now, partition.number, partition.checkpoint, store)
        except RecordCorrupt as cause:
            raise StoreCorrupt(f"a row of the state folder cannot be read: {cause}") from cause
        search.pending.update(pending)
        search.unseen.update(unseen)
        return not search.found

    def _result(self, search: _Search) -> Delivered:
        number, found = search.partition.number, search.pending | search.unseen
        sequence = search.partition.checkpoint.sequence
        self._known[number] = _Known(frozenset(found), search.again.end, sequence)
        if search.is_asked:
            log.info(
                "origins_searched",
                partition=number,
                found=len(found),
                records=search.records,
                seconds=round(self._clock.monotonic_s() - search.began_s, 3),
            )
        if not found:
            return NOTHING
        again = frozenset((each.offset, each.origin) for each in search.unseen)
        return Delivered(frozenset(search.pending), again=again, until=search.again.end)

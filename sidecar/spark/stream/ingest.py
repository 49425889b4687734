"""Examines the records of the input on the executors and packs them into few rows, one for each chunk.

Parsing and policy run here, with the core's functions. What depends on the origin topic is left to the partition step,
which decides by the metadata in its state: so a micro-batch that runs again decides the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from sidecar.contract import dialects_of, parse
from sidecar.engine import hot
from sidecar.engine.ingest import arrival_of
from sidecar.engine.items import Arrival, Ordered
from sidecar.engine.ports import Origin
from sidecar.model import Record, Request, Schedule
from sidecar.policy import Policy
from sidecar.spark.stream.step import Rules
from sidecar.spark.stream.wire import Chunk, encode_chunk, record_bytes

CHUNK_SCHEMA: Final = "key int, payload binary"
PACKED_BYTES: Final = 1024 * 1024
"""About the size of a chunk."""
ORIGINS_MAX: Final = 4_096
_ANY_ORIGIN: Final = Origin(1, 0)
"""The compiled examiner handles known origins only, and measures nothing here."""


def pack(rules: Rules, slices: Iterable[Iterable[Record]], now_ms: int) -> Iterator[bytes]:
    """Yield the records of one partition in chunks, which depend on the records only, not on the slices.

    Args:
        rules: The rules of the partition steps.
        slices: The records in the order of offsets.
        now_ms: The instant by which they are judged.
    """
    examiner = Examiner(rules)
    arrivals: list[Arrival] = []
    records: list[Record] = []
    size = 0
    for taken in slices:
        for record in taken:
            found = examiner.examine(record, now_ms)
            if found is None:
                records.append(record)
                size += record_bytes(record)
            else:
                arrivals.append(found)
                size += len(found.lasting) + 64
            if size > PACKED_BYTES:
                yield encode_chunk(Chunk(arrivals, records))
                arrivals, records, size = [], [], 0
    if arrivals or records:
        yield encode_chunk(Chunk(arrivals, records))


class Examiner:
    """Makes the arrival of each record that becomes a timer if its origin accepts it.

    Args:
        rules: The rules of the partition steps.
    """

    def __init__(self, rules: Rules) -> None:
        self._policy = Policy(rules.policy)
        self._dialects = dialects_of(rules.profiles)
        self._origins: dict[str, Origin] = {}
        self._plain = hot.examiner(self._policy, self._dialects, self._origins, measures=False)

    def examine(self, record: Record, now_ms: int) -> Arrival | None:
        """Return the arrival, None for any other record."""
        if self._plain is not None and (found := self._plain.examine(record, now_ms)) is not None:
            # This engine keeps no order per key.
            return found.arrival if isinstance(found, Ordered) else found
        request = parse(record, self._dialects)
        if type(request) is not Request:
            return None
        verdict = self._policy.decide(request, record.timestamp_ms, now_ms, record.partition, record.offset)
        if type(verdict) is not Schedule:
            return None
        if len(self._origins) >= ORIGINS_MAX:
            self._origins.clear()
        self._origins[request.origin] = _ANY_ORIGIN
        return arrival_of(record, request, verdict)

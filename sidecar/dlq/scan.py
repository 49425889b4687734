"""Looks at the newest records of the DLQ, a bounded number at a time, with a position from which the next look goes on.

A look covers the newest offsets of each partition that are older than its position. What it could not read in time
stays in front of the next position, and the next look is smaller: every look that reads a record makes progress.
"""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from struct import Struct, error
from types import MappingProxyType
from typing import Final, NamedTuple

from sidecar.clock import Clock
from sidecar.contract import dialects_of
from sidecar.contract.sizes import record_bytes
from sidecar.dlq.discards import Discard, Place, discard_of
from sidecar.dlq.filter import DeadLetterFilter
from sidecar.dlq.reader import DlqRecord, KafkaDeadLetterReader, OffsetRange
from sidecar.errors import BrokerUnavailable
from sidecar.settings import Settings

RECORDS_MAX: Final = 5_000
"""The most offsets that one look covers, and at least one of each partition."""
BYTES_MAX: Final = 16 * 1024 * 1024
SECONDS_MAX: Final = 3.0
PROCESSOR_SHARE: Final = 0.25
"""The share of a core that a look uses: the thread that fires messages shares the interpreter with it."""
_GROWTH: Final = 4

_WINDOW: Final = Struct(">H")
_END: Final = Struct(">IQ")


class ScanPosition(NamedTuple):
    """The place from which the next look goes on, towards the beginning of the DLQ."""

    window: int
    """The number of offsets that the next look covers at most."""
    ends: Mapping[int, int]
    """By partition, the offset below which nothing was looked at; partitions without one are done."""

    def to_cursor(self) -> str:
        """Return it as opaque text."""
        packed = _WINDOW.pack(self.window) + b"".join(_END.pack(*each) for each in sorted(self.ends.items()))
        return base64.urlsafe_b64encode(packed).decode().rstrip("=")

    @classmethod
    def from_cursor(cls, text: str) -> ScanPosition:
        """Return the position of a cursor. Raises ValueError for any other text."""
        try:
            packed = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
            (window,) = _WINDOW.unpack_from(packed)
            found = cls(window, dict(_END.iter_unpack(packed[_WINDOW.size :])))
        except (ValueError, error) as cause:
            raise ValueError("cursor: it is not one that a page returned") from cause
        if found.to_cursor() != text or not (found.ends and 1 <= window <= RECORDS_MAX):
            raise ValueError("cursor: it is not one that a page returned")
        return found


@dataclass(frozen=True, slots=True)
class Scanned:
    """What a look has covered."""

    matching: Mapping[int, list[DlqRecord]]
    """The matching records without their contents, by partition, newest first; only of partitions read completely."""
    read: int
    """The number of records that were read in these partitions."""
    position: ScanPosition | None
    """Where the next look goes on; None: nothing is left."""
    firsts: Mapping[int, int]
    """By partition, the offset where the search ends."""

    def unread(self, position: ScanPosition | None) -> int:
        """Return the number of offsets that a look from a position on has yet to cover."""
        return 0 if position is None else sum(end - self.firsts[number] for number, end in position.ends.items())


class Look(NamedTuple):
    """What was read of a window within the bounds."""

    records: Mapping[int, list[DlqRecord]]
    """By partition, oldest first, without value and headers, and without key unless one is looked for."""
    covered: frozenset[int]
    """The partitions of which that is all."""


class Named(NamedTuple):
    """What single messages are looked for by, besides a filter; None: any."""

    key: str | None = None
    """The record key as UTF-8."""
    retry_id: str | None = None

    def matches(self, record: DlqRecord) -> bool:
        """Return whether a record is one of these."""
        if self.key is not None and record.key != self.key.encode():
            return False
        return self.retry_id is None or record.dead_letter.retry_id == self.retry_id


ANY: Final = Named()


def scan(
    whole: Mapping[int, OffsetRange],
    wanted: DeadLetterFilter,
    position: ScanPosition | None,
    look: Callable[[Mapping[int, OffsetRange]], Look],
    discards: Mapping[Place, Discard] = MappingProxyType({}),
    named: Named = ANY,
) -> Scanned:
    """Look at the newest records of a range that are older than a position.

    Args:
        whole: The range by partition.
        wanted: The filter for dead letters.
        position: Where the look before stopped; None: the end.
        look: Reads a window; see `KafkaLook`.
        discards: The dead letters to leave out.
        named: The messages that are looked for; by their keys only if the looks keep these.

    Raises:
        CommandFailed: The DLQ may not be read, or no record came in time.
    """
    firsts = {number: offsets.start for number, offsets in whole.items()}
    ends = _ends(whole, position)
    if not ends:
        return Scanned({}, 0, None, firsts)
    size = RECORDS_MAX if position is None else position.window
    share = max(1, size // len(ends))
    window = {
        number: whole[number]._replace(start=max(firsts[number], end - share), end=end) for number, end in ends.items()
    }
    records, covered = look(window)
    left = {number: window[number].start if number in covered else end for number, end in ends.items()}
    left = {number: end for number, end in left.items() if end > firsts[number]}
    complete = len(covered) == len(window)
    following = min(RECORDS_MAX, size * _GROWTH) if complete else max(1, size // _GROWTH)
    matches = wanted.matcher()
    seen = {number: found for number, found in records.items() if number in covered}
    matching = {
        number: [
            each
            for each in reversed(found)
            if matches(each.dead_letter) and named.matches(each) and discard_of(discards, each) is None
        ]
        for number, found in seen.items()
    }
    read = sum(map(len, seen.values()))
    return Scanned(matching, read, ScanPosition(following, left) if left else None, firsts)


def newest(scanned: Scanned, limit: int) -> tuple[list[DlqRecord], ScanPosition | None]:
    """Return the newest matching records of a look, and the position behind them.

    Within a partition the order is that of the log; of several partitions the record that died last comes first.
    """
    rest = {number: list(reversed(found)) for number, found in scanned.matching.items() if found}
    page: list[DlqRecord] = []
    while rest and len(page) < limit:
        number = max(rest, key=lambda each: (rest[each][-1].timestamp_ms, -each))
        page.append(rest[number].pop())
        if not rest[number]:
            del rest[number]
    if not rest:
        return page, scanned.position
    window, ends = (RECORDS_MAX, {}) if scanned.position is None else scanned.position
    return page, ScanPosition(window, {**ends, **{number: found[-1].offset + 1 for number, found in rest.items()}})


def _ends(whole: Mapping[int, OffsetRange], position: ScanPosition | None) -> dict[int, int]:
    if position is None:
        return {number: offsets.end for number, offsets in whole.items() if offsets.start < offsets.end}
    ends = {number: min(end, whole[number].end) for number, end in position.ends.items() if number in whole}
    return {number: end for number, end in ends.items() if end > whole[number].start}


class KafkaLook:
    """Reads windows of the DLQ, each within RECORDS_MAX, BYTES_MAX and SECONDS_MAX.

    Args:
        settings: The settings, which name the DLQ.
        clock: Measures the time.
        keep_keys: Whether the records keep their keys.
    """

    def __init__(self, settings: Settings, clock: Clock, *, keep_keys: bool = False) -> None:
        self._keep_keys = keep_keys
        self._settings = settings
        self._clock = clock
        self._pause = threading.Event()

    def __call__(self, window: Mapping[int, OffsetRange]) -> Look:
        """Read a window. Raises CommandFailed when the DLQ may not be read, or no record came in time."""
        records: dict[int, list[DlqRecord]] = {}
        until_s, size = self._clock.monotonic_s() + SECONDS_MAX, 0
        settings = self._settings
        group_id, dialects = f"{settings.group_id}-dlq-report", dialects_of(settings.dialects)
        with closing(KafkaDeadLetterReader(settings, window, group_id, dialects)) as reader:
            while not reader.done and size < BYTES_MAX and self._clock.monotonic_s() < until_s:
                began_s = time.thread_time()
                for record in reader.read():
                    size += record_bytes(record.key, record.value, record.headers or [])
                    bare = record._replace(key=record.key if self._keep_keys else None, value=None, headers=None)
                    records.setdefault(record.partition, []).append(bare)
                self._pause.wait((time.thread_time() - began_s) * (1 / PROCESSOR_SHARE - 1))
            ends = reader.next_offsets
            covered = frozenset(number for number, offsets in window.items() if ends[number] >= offsets.end)
        if not covered and not records:
            raise BrokerUnavailable(f"topic {settings.dlq_topic}: no record within {SECONDS_MAX:g} s; try again")
        return Look(records, covered)

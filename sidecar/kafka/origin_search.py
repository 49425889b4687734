"""Searches origins for deliveries, so that those of a rolled-back transaction are not made again.

What it finds is committed: a reader of committed records gets nothing of an aborted or an open transaction. What it
does not find may be there all the same: it has bounds, and some origins it may not read.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

from sidecar.clock import Clock, SystemClock
from sidecar.contract.dialects import native
from sidecar.engine.delivered import Delivery
from sidecar.errors import KafkaFailed
from sidecar.kafka.admin.offsets import Bounds
from sidecar.kafka.log_reader import End, LogReader
from sidecar.model import Record, StoredOffset, TimerId

SEARCH_S: Final = 10.0
"""Longest time for all origins of a search; each has an equal share of what is left when its turn comes."""
RECORDS_MAX: Final = 200_000
"""Most records that are read; likewise."""
BYTES_MAX: Final = 64 * 1024 * 1024
"""Most bytes of keys, values and headers that are read."""
ORIGINS_MAX: Final = 100
"""Most origins that are searched."""
SLICE_RECORDS: Final = 1_000
POLL_S: Final = 0.1
LATE: Final = "there was no time left"


class Wanted(NamedTuple):
    """What is looked for, for one input partition."""

    number: int
    origins: Sequence[str]
    """Of its pending timers, the most important first."""
    since_ms: int
    """Records with an older timestamp do not count."""
    again: Bounds
    """Input offsets that are read again: their records name origins too."""


@dataclass(slots=True)
class Found:
    """What was found, and what was not looked at."""

    deliveries: dict[int, list[Delivery]] = field(default_factory=dict)
    """By input partition."""
    records: int = 0
    """How many were read."""
    unread: dict[str, str] = field(default_factory=dict)
    """Why a topic, or a part of it, was not searched."""
    denied: list[str] = field(default_factory=list)
    """Those of them that lack the permission."""


class OriginSearch:
    """One search for some input partitions, in a thread of its own, because the library's calls block."""

    def __init__(
        self,
        config: Mapping[str, Any],
        input_topic: str,
        is_origin: Callable[[str], bool],
        wanted: Sequence[Wanted],
    ) -> None:
        """Args:
        config: From `kafka.config.origin_reader`.
        input_topic: Where records that are read again name their origins.
        is_origin: Whether the settings allow a topic as an origin.
        wanted: One for each input partition.
        """
        self._future: Future[Found] = Future()
        search = Search(partial(LogReader, config), input_topic, is_origin, wanted, SystemClock())
        threading.Thread(target=self._run, args=(search,), name="origin-search", daemon=True).start()

    def done(self) -> bool:
        """Return whether `result` can be called."""
        return self._future.done()

    def result(self) -> Found:
        """Return what was found."""
        return self._future.result()

    def _run(self, search: Search) -> None:
        try:
            found = search.run()
        except BaseException as failure:  # noqa: BLE001 - handed to whoever asks for the result
            self._future.set_exception(failure)
        else:
            self._future.set_result(found)


class Search:
    """What an `OriginSearch` does, step by step; it waits for the brokers.

    Args:
        open_reader: Opens a reader of the committed records of a topic, which tells where partitions end.
        input_topic: Where records that are read again name their origins.
        is_origin: Whether the settings allow a topic as an origin.
        wanted: One for each input partition.
        clock: The clock of the bounds.
    """

    def __init__(
        self,
        open_reader: Callable[[str], LogReader],
        input_topic: str,
        is_origin: Callable[[str], bool],
        wanted: Sequence[Wanted],
        clock: Clock,
    ) -> None:
        self._open_reader = open_reader
        self._input_topic = input_topic
        self._is_origin = is_origin
        self._wanted = {each.number: each for each in wanted}
        self._clock = clock
        self._since_ms = min((each.since_ms for each in wanted), default=0)
        self._until_s = clock.monotonic_s() + SEARCH_S
        self._bytes_left = BYTES_MAX
        self._found = Found({each: [] for each in self._wanted})

    def run(self) -> Found:
        """Search, as far as the bounds and the permissions allow."""
        again = {each.number: each.again for each in self._wanted.values() if each.again.start < each.again.end}
        names = dict.fromkeys(name for each in self._wanted.values() for name in each.origins)
        if again:
            self._guarded(self._input_topic, lambda reader: self._read_again(reader, again, names))
        origins = [each for each in names if self._is_origin(each)]
        for at, origin in enumerate(origins[:ORIGINS_MAX]):
            left = len(origins[:ORIGINS_MAX]) - at
            act = partial(self._search, origin, self._in_s(self._left_s / left), self._records_left // left)
            self._guarded(origin, act)
        for origin in origins[ORIGINS_MAX:]:
            self._found.unread[origin] = f"it is not among the first {ORIGINS_MAX}"
        return self._found

    def _guarded(self, topic: str, act: Callable[[LogReader], str]) -> None:
        """Do something with a reader of a topic; note why it, or a part of it, was not read."""
        try:
            with self._open_reader(topic) as reader:
                said = act(reader)
        except KafkaFailed as error:
            said = str(error)
            if error.denied:
                self._found.denied.append(topic)
        if said:
            self._found.unread[topic] = said

    def _read_again(self, reader: LogReader, again: Mapping[int, Bounds], names: dict[str, None]) -> str:
        """Add the origins that records of the input name which are read again."""

        def take(record: Record) -> None:
            for name, value in record.headers or ():
                if name == native.ORIGIN_TOPIC and value:
                    names.setdefault(value.decode("utf-8", "replace"))

        starts, ends = ({number: bounds[at] for number, bounds in again.items()} for at in (0, 1))
        return self._read(reader, starts, ends, self._in_s(self._left_s / 2), take)

    def _search(self, origin: str, until_s: float, records: int, reader: LogReader) -> str:
        """Note the deliveries in an origin; return why a part of them was not looked at."""
        numbers = range(reader.partition_count(self._timeout_s(until_s)))
        # Before the offsets by time: of what is written in between nothing may be left out.
        bounds = {each: reader.bounds(each, self._timeout_s(until_s)) for each in numbers}
        at = reader.offsets_at(numbers, self._since_ms, self._timeout_s(until_s))
        starts = {each: offset if (offset := at.get(each, -1)) >= 0 else bounds[each].end for each in numbers}
        within = _within(starts, bounds, records)
        said = self._read(reader, within, {}, until_s, partial(self._note, origin))
        return said or ("" if within == starts else f"only its last {records} records were looked at")

    def _in_s(self, seconds: float) -> float:
        return self._clock.monotonic_s() + seconds

    def _timeout_s(self, until_s: float) -> float:
        """Return how long a call may wait. Raises KafkaFailed when it may not."""
        if (left_s := until_s - self._clock.monotonic_s()) <= 0:
            raise KafkaFailed(LATE, away=True)
        return left_s

    @property
    def _left_s(self) -> float:
        return max(0.0, self._until_s - self._clock.monotonic_s())

    @property
    def _records_left(self) -> int:
        return max(0, RECORDS_MAX - self._found.records)

    def _read(
        self,
        reader: LogReader,
        starts: Mapping[int, int],
        ends: Mapping[int, int],
        until_s: float,
        take: Callable[[Record], None],
    ) -> str:
        """Read partitions up to their ends; return why some did not get there, empty when all did.

        Args:
            reader: Of the topic.
            starts: First offset, by partition.
            ends: Offset behind the last record, by partition; without one, the end of the log when it is first read.
            until_s: When to stop.
            take: Receives each record.
        """
        ends, left = dict(ends), set(starts)
        reader.start(starts)
        while left:
            if self._clock.monotonic_s() >= until_s:
                return reader.error or f"{LATE}, or an open transaction is in the way"
            if not self._records_left or self._bytes_left <= 0:
                return f"more than {RECORDS_MAX} records or {BYTES_MAX} bytes"
            for item in reader.read(SLICE_RECORDS, POLL_S):
                if isinstance(item, Record):
                    self._found.records += 1
                    self._bytes_left -= _bytes_of(item)
                    take(item)
                    reached = item.offset + 1
                elif isinstance(item, End):
                    reached = item.offset
                elif item.error.denied or item.error.fatal:
                    raise item.error
                else:
                    continue
                end = ends.get(item.partition)
                if end is None and (high := reader.high_watermark(item.partition)) is not None:
                    end = ends[item.partition] = high
                if end is not None and reached >= end:
                    left.discard(item.partition)
        return ""

    def _note(self, origin: str, record: Record) -> None:
        """Note a delivery."""
        if record.timestamp_ms < self._since_ms:
            return
        text = next((value for name, value in record.headers or () if name == native.TIMER_ID and value), b"")
        timer = TimerId.parse(text.decode("ascii", "replace"))
        if timer is None or (wanted := self._wanted.get(timer.partition)) is None:
            return
        if record.timestamp_ms >= wanted.since_ms:
            delivery = Delivery(StoredOffset(timer.offset), timer.first_ms, origin)
            self._found.deliveries[timer.partition].append(delivery)


def _within(starts: Mapping[int, int], bounds: Mapping[int, Bounds], records: int) -> dict[int, int]:
    """Return where to begin, so that at most so many records are read."""
    if sum(max(0, bounds[each].end - start) for each, start in starts.items()) <= records:
        return dict(starts)
    share = records // len(starts)
    return {each: max(start, bounds[each].end - share) for each, start in starts.items()}


def _bytes_of(record: Record) -> int:
    return len(record.key or b"") + len(record.value or b"") + sum(_header_bytes(record.headers or ()))


def _header_bytes(headers: Iterable[tuple[str, bytes | None]]) -> Iterable[int]:
    return (len(name) + len(value or b"") for name, value in headers)

"""Reads the messages of this instance's partitions from its store, for the API.

The API's threads read while the loop writes. Each row is read as some commit left it, so a message that moves meanwhile
is seen at its old due, at its new one, or at neither; then a lookup of one message is repeated.
"""

from __future__ import annotations

import base64
import heapq
import math
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

from sidecar.api.messages.listing import HeaderBody, MessageBody, MessageDetailBody, Named, Page, Position, Wanted
from sidecar.api.source import Source
from sidecar.changelog.entry import DEFERRED, KEY, KEY_BYTES, Head, head, origin_of, payload_of, retry_id_of
from sidecar.engine.partition import State
from sidecar.engine.ports import StoreReader
from sidecar.engine.rows import Rows, decode_meta
from sidecar.engine.selection import find_entry, named_entries
from sidecar.errors import StoreFailed
from sidecar.model import OFFSET_MAX, StoredOffset, TimerId

HEADERS_MAX: Final = 1_000
HEADER_BYTES_MAX: Final = 256 * 1024
"""Most headers that an answer shows, and bytes of their names and values."""
ROWS_MAX: Final = 2_000
BYTES_MAX: Final = 16 * 1024 * 1024
"""Most rows or bytes read for a page, which then ends with what it has found."""
SLICE_MAX: Final = 512
SLICE_BYTES: Final = 256 * 1024
"""A partition's rows are read at once until there are so many, or so many bytes."""


class LocalEntries:
    """Reads entries; see `sidecar.api.messages.listing.Entries`.

    Args:
        store: Returns the store, None while it cannot be used.
        source: Shows which partitions this instance owns.
        instance_id: Id of this instance; empty when it never owns a partition.
    """

    def __init__(self, store: Callable[[], StoreReader | None], source: Source, instance_id: str = "") -> None:
        self._store = store
        self._source = source
        self._instance_id = instance_id

    def owned(self) -> frozenset[int]:
        """Return the running partitions of this instance, as the whole group sees it: a former owner has none."""
        return frozenset(
            view.partition
            for view in self._source.views()
            if view.owner and view.owner == self._instance_id and view.state == State.RUNNING
        )

    def page(self, partitions: Collection[int], wanted: Wanted) -> Page:
        """Return the first messages of these partitions; reads at most ROWS_MAX rows."""
        with self._reading() as store:
            return _page(store, partitions, wanted)

    def find(self, timer: TimerId, *, payload: bool) -> MessageDetailBody | None:
        """Return a message by its id."""
        with self._reading() as store:
            return _find(store, timer, payload)

    def named(self, retry_id: bytes, partitions: Collection[int], *, payload: bool) -> Named:
        """Return the messages of a retry id in due order, at most NAMED_MAX."""
        with self._reading() as store:
            return _named(store, retry_id, partitions, payload)

    @contextmanager
    def _reading(self) -> Iterator[StoreReader]:
        store = self._store()
        if store is None:
            raise StoreFailed("the state folder cannot be used now")
        try:
            yield store
        except StoreFailed as cause:
            if self._store() is not store:
                # A closed store raises errors that look like corruption.
                raise StoreFailed("the store was closed meanwhile") from cause
            raise


def _page(store: StoreReader, partitions: Collection[int], wanted: Wanted) -> Page:
    first = _first_slice(wanted.limit / max(1, len(partitions)))
    entries = heapq.merge(*(_entries(store, number, wanted, first) for number in partitions))
    matches = wanted.selection.matcher()
    found: list[MessageBody] = []
    reached: Position | None = None
    rows = size = 0
    for at, entry in entries:
        if len(found) >= wanted.limit or rows >= ROWS_MAX or size >= BYTES_MAX:
            return Page(found, reached, rows)
        rows += 1
        reached = at
        size += len(entry)
        fixed = head(entry)
        if matches(entry, fixed):
            found.append(message_of(at.partition, entry, fixed))
    return Page(found, None, rows)


def _first_slice(share: float) -> int:
    """Return how many rows to read at once of a partition that has this share of a page, on average.

    Shares vary about as their square root. To read a few rows more than needed costs less than to seek once more.
    """
    return math.ceil(share + 1.5 * math.sqrt(share)) + 1


def _find(store: StoreReader, timer: TimerId, with_payload: bool) -> MessageDetailBody | None:
    rows = Rows(timer.partition)
    value = store.get(rows.meta)
    given = StoredOffset(timer.offset)
    offsets = (given,) if value is None else decode_meta(value).checkpoint.offsets_meant(given)
    entry = find_entry(store, timer, offsets, partial(_watermark, store, rows))
    return None if entry is None else detail_of(timer.partition, entry, with_payload)


def _named(store: StoreReader, retry_id: bytes, partitions: Collection[int], with_payload: bool) -> Named:
    found = named_entries(store, retry_id, partitions, partial(_watermark, store))
    room = HeaderRoom()
    return Named([detail_of(*each, with_payload, room) for each in found.entries], found.truncated)


def _watermark(store: StoreReader, rows: Rows) -> bytes:
    """Return the key at or below which no timer is pending."""
    value = store.get(rows.meta)
    meta = None if value is None else decode_meta(value)
    if meta is None or not meta.restored:
        raise StoreFailed("the partition is being restored")
    return KEY.pack(meta.checkpoint.watermark_ms, meta.checkpoint.watermark_offset)


def _entries(store: StoreReader, number: int, wanted: Wanted, first: int) -> Iterator[tuple[Position, bytes]]:
    """Yield a partition's entries within the bounds with their positions, in order; reads in growing slices.

    A slice is read at once: to look each row up by its key, the store would search each file that is not merged yet.
    """
    rows = Rows(number)
    begin = max(_watermark(store, rows) + b"\0", KEY.pack(wanted.due_from_ms, 0), _start(number, wanted.after))
    lower, upper = rows.timer + begin, rows.timer + KEY.pack(wanted.due_to_ms, 0)
    limit = first
    while lower < upper and (entries := store.values(lower, upper, limit=limit, limit_bytes=SLICE_BYTES)):
        for entry in entries:
            due_ms, offset = KEY.unpack_from(entry)
            yield Position(due_ms, number, offset), entry
        lower = rows.timer + entries[-1][:KEY_BYTES] + b"\0"
        limit = min(SLICE_MAX, 2 * limit)


def _start(number: int, after: Position | None) -> bytes:
    """Return the first key of a partition after a position in the order of all partitions."""
    if after is None:
        return b""
    if number == after.partition:
        return KEY.pack(after.due_ms, after.offset) + b"\0"
    return KEY.pack(after.due_ms, 0 if number > after.partition else OFFSET_MAX)


def _facts(partition: int, entry: bytes, fixed: Head) -> dict[str, object]:
    retry_id = retry_id_of(entry, fixed)
    return {
        "id": str(TimerId(partition, fixed.offset, fixed.first_ms)),
        "partition": partition,
        "offset": fixed.offset,
        "origin": origin_of(entry, fixed),
        "due_ms": fixed.requested_ms,
        "stored_due_ms": fixed.due_ms,
        "first_due_ms": fixed.first_ms,
        "attempt": fixed.attempt,
        "limit": fixed.limit,
        "retry_id": None if retry_id is None else retry_id.decode(errors="replace"),
        "deferred": bool(fixed.flags & DEFERRED),
    }


def message_of(partition: int, entry: bytes, fixed: Head) -> MessageBody:
    """Return an entry as a page shows it; its payload is not read."""
    return MessageBody.model_validate(_facts(partition, entry, fixed))


class HeaderRoom:
    """What an answer has left for headers: a message can have tens of thousands."""

    def __init__(self) -> None:
        self._count = HEADERS_MAX
        self._bytes = HEADER_BYTES_MAX

    def shown(self, headers: Iterable[tuple[str, bytes | None]]) -> dict[str, object]:
        """Return the fields of a message about its headers: the first ones, as far as there is room."""
        bodies: list[HeaderBody] = []
        for name, value in headers:
            self._count -= 1
            self._bytes -= len(name) + len(value or b"")
            if self._count < 0 or self._bytes < 0:
                self._count = 0  # a later header may be shorter, but the shown ones are the first
                return {"headers": bodies, "headers_truncated": True}
            bodies.append(header_body(name, value))
        return {"headers": bodies}


def detail_of(partition: int, entry: bytes, with_payload: bool, room: HeaderRoom | None = None) -> MessageDetailBody:
    """Return an entry as it is shown alone, or with others in one answer that has this room for headers."""
    fixed = head(entry)
    key, value, headers = payload_of(entry, fixed)
    facts = {**_facts(partition, entry, fixed), **(room or HeaderRoom()).shown(headers)}
    if with_payload:
        facts |= {"key": base64_of(key), "value": base64_of(value)}
    return MessageDetailBody.model_validate(facts)


def header_body(name: str, value: bytes | None) -> HeaderBody:
    """Return a header as JSON shows it."""
    try:
        return HeaderBody(name=name, value=None if value is None else value.decode())
    except UnicodeDecodeError:
        return HeaderBody(name=name, value=None, value_base64=base64_of(value))


def base64_of(value: bytes | None) -> str | None:
    """Return bytes as JSON shows them."""
    return None if value is None else base64.b64encode(value).decode()

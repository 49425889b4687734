"""Finds single timers in a store, and says which ones a request wants: the same on both engines."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, NamedTuple

from sidecar.changelog.entry import KEY, KEY_BYTES, Head, head, origin_of, payload_of
from sidecar.contract.dead_letter import exception_of, group_of
from sidecar.contract.filter import MessageFilter
from sidecar.engine.ports import StoreReader
from sidecar.engine.rows import Rows, after, decode_due
from sidecar.errors import StoreFailed
from sidecar.model import Scope, StoredOffset, TimerId
from sidecar.policy.globs import Globs

TRIES: Final = 3
NAMED_ROWS_MAX: Final = 1_000
NAMED_MAX: Final = 100
NAMED_BYTES_MAX: Final = 4 * 1024 * 1024


class Selection(NamedTuple):
    """The messages that a request wants; None and empty: all."""

    origin: str | None = None
    exception: str | None = None
    """A name or a glob."""
    group: str | None = None
    """A name or a glob."""
    key: str | None = None
    """The record key as UTF-8."""
    headers: tuple[tuple[str, str], ...] = ()
    """Names and values as UTF-8; a message has all of them."""

    def matcher(self) -> Callable[[bytes, Head], bool]:
        """Return what tells whether an entry is wanted; key and headers are read only when they matter."""
        exceptions, groups = (Globs([] if each is None else [each]) for each in (self.exception, self.group))
        key = None if self.key is None else self.key.encode()
        headers = {(name, value.encode()) for name, value in self.headers}
        reads_payload = bool(exceptions or groups or headers) or key is not None

        def matches(entry: bytes, fixed: Head) -> bool:
            if self.origin not in {None, origin_of(entry, fixed)}:
                return False
            if not reads_payload:
                return True
            own_key, _, came = payload_of(entry, fixed)
            return (
                key in {None, own_key}
                and (not exceptions or exceptions.matches(exception_of(came)))
                and (not groups or groups.matches(group_of(came)))
                and headers.issubset(came)
            )

        return matches


def selection_of(wanted: MessageFilter) -> Selection:
    """Return what a filter says besides partition and due time."""
    return Selection(wanted.origin, wanted.exception, wanted.group, wanted.key, tuple(wanted.headers))


def in_scope(entry: bytes, fixed: Head, scope: Scope) -> bool:
    """Return whether a timer is one that a request means; the payload is read only for a group."""
    return (
        scope.origin in {"", origin_of(entry, fixed)}
        and (not scope.dialects or fixed.dialect in scope.dialects)
        and (scope.group is None or group_of(payload_of(entry, fixed)[2]) == scope.group)
    )


def find_entry(
    store: StoreReader, timer: TimerId, offsets: Iterable[StoredOffset], watermark: Callable[[], bytes]
) -> bytes | None:
    """Return the entry of a timer id, None when it is not pending. Raises StoreFailed.

    Args:
        store: May change between two reads.
        timer: The id.
        offsets: The stored offsets that the id may speak of, the likelier one first.
        watermark: Reads the key at or below which no timer is pending.
    """
    rows = Rows(timer.partition)
    for offset in offsets:
        found = _find_at(store, rows, timer._replace(offset=offset), watermark)
        if found is not None or store.get(rows.removed + KEY.pack(timer.first_ms, offset)) is not None:
            return found
    return None


def _find_at(store: StoreReader, rows: Rows, timer: TimerId, watermark: Callable[[], bytes]) -> bytes | None:
    moved = rows.moved_row(StoredOffset(timer.offset), timer.first_ms)
    for _ in range(TRIES):
        value = store.get(moved)
        key = KEY.pack(timer.first_ms if value is None else decode_due(value), timer.offset)
        entry = store.get(rows.timer + key)
        # Another timer of the same offset may have this due under another id.
        if entry is not None and key > watermark() and head(entry).first_ms == timer.first_ms:
            return entry
        if store.get(moved) == value:
            return None
    raise StoreFailed(f"{timer} moves faster than it can be read")


class NamedEntries(NamedTuple):
    """Entries of one retry id."""

    entries: Sequence[tuple[int, bytes]]
    """Partition and entry, in due order."""
    truncated: bool


def named_entries(
    store: StoreReader, retry_id: bytes, partitions: Collection[int], watermark: Callable[[Rows], bytes]
) -> NamedEntries:
    """Return the entries of a retry id in due order, at most NAMED_MAX."""
    places: list[tuple[bytes, int]] = []
    truncated = False
    for number in partitions:
        rows = Rows(number)
        prefix, passed = rows.named_prefix(retry_id), watermark(rows)
        named = store.items(prefix, after(prefix), limit=NAMED_ROWS_MAX)
        truncated |= len(named) == NAMED_ROWS_MAX
        keys = (value + row[-KEY_BYTES:-8] for row, value in named)
        places.extend((key, number) for key in keys if key > passed)
    found: list[tuple[int, bytes]] = []
    size = 0
    for key, number in sorted(places):
        if len(found) >= NAMED_MAX or size >= NAMED_BYTES_MAX:
            return NamedEntries(found, True)
        if (entry := store.get(Rows(number).timer + key)) is not None:
            size += len(entry)
            found.append((number, entry))
    return NamedEntries(found, truncated)

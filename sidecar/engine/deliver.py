"""Renders the record that goes to the origin from a timer's entry."""

from __future__ import annotations

from sidecar.changelog.entry import HEAD, KEY, KEY_BYTES, ORDERED, Head, origin_of, payload
from sidecar.contract import DIALECTS_BY_CODE
from sidecar.engine import hot
from sidecar.engine.allowance import Headers
from sidecar.engine.partition import Partition
from sidecar.engine.ports import Outgoing, StoreReader
from sidecar.engine.rows import Rows, lane_of
from sidecar.wheel.counts import SlotKey
from sidecar.wheel.geometry import WIDTHS_MS

Due = tuple[bytes, bytes | None, int, SlotKey | None, Outgoing, bytes | None]
"""A due timer read from the store: its key; its entry, if kept, and the entry's size; the slot that counts it, if
nothing else counts it or points at it; the record to deliver; and the row in the index of lanes of an ordered timer
that has such a slot.

Plain tuples, since there are tens of thousands in a second: named ones take three times as long to create and
unpack."""


def read_due(
    partition: Partition,
    store: StoreReader,
    lower: bytes,
    now_ms: int,
    limit: int,
    limit_bytes: int,
    headers: Headers,
    *,
    keeps_entries: bool = True,
) -> list[Due]:
    """Return the first timers from the row `lower` on that are due at `now_ms`; subtracts from `headers`.

    Raises:
        RecordCorrupt: A row cannot be read.
    """
    upper = partition.rows.timer + KEY.pack(now_ms + 1, 0)
    if lower >= upper:
        return []
    entries = store.values(lower, upper, limit=limit, limit_bytes=limit_bytes)
    make = Rendering(partition.number, keeps_entries=keeps_entries)
    if hot.COMPILED:
        due, headers.left = hot.deliver.read_plain(
            make.number, entries, make.origins, make.due, headers.left, keeps_entries, make.rows.lane
        )
        return due
    due = []
    for entry in entries:
        due.append(each := make.due(entry))
        headers.left -= len(each[4].headers)
        if headers.left <= 0:
            break
    return due


class Rendering:
    """Makes a `Due` of each entry that is due: the specification of what is compiled for plain ones.

    Args:
        number: The input partition.
        keeps_entries: Whether the entry is kept beside the record.
    """

    def __init__(self, number: int, *, keeps_entries: bool) -> None:
        self.number = number
        self.rows = Rows(number)
        self.origins: dict[bytes, str] = {}
        """Names of origins by their bytes: one object for each."""
        self._keeps_entries = keeps_entries

    def due(self, entry: bytes) -> Due:
        """Return what a timer is when it is due. Raises RecordCorrupt."""
        fixed = HEAD.unpack_from(entry)
        due_ms, _, _, level, flags, first_ms, _, _, _, dialect, _, origin_length, named = fixed
        name = entry[HEAD.size : HEAD.size + origin_length]
        origin = self.origins.get(name)
        if origin is None:
            origin = self.origins[name] = origin_of(entry, Head._make(fixed))
        slot = (level, due_ms // WIDTHS_MS[level]) if due_ms == first_ms and not named else None
        outgoing = render_delivery(self.number, entry, fixed, origin)
        lane_row = None
        if flags & ORDERED and slot is not None:
            if DIALECTS_BY_CODE[dialect].reads_payload:
                slot = None
            else:
                lane_row = self.rows.lane_row(lane_of(origin, outgoing.key or b""), fixed[1], first_ms)
        return outgoing.source, entry if self._keeps_entries else None, len(entry), slot, outgoing, lane_row


def render_delivery(number: int, entry: bytes, fixed: tuple[int, ...], origin: str) -> Outgoing:
    """Return the record that goes to the origin. Raises RecordCorrupt.

    Args:
        number: The input partition.
        entry: Entry of the timer.
        fixed: The fields of its `Head`.
        origin: Its origin topic.
    """
    _, offset, requested_ms, _, _, first_ms, timestamp_ms, attempt, limit, dialect, target, origin_length, named = fixed
    key, value, headers = payload(entry, HEAD.size + origin_length + named)
    timer_id = (number, offset, first_ms)
    words = DIALECTS_BY_CODE[dialect]
    rendered = words.render(headers, attempt, limit, timer_id, requested_ms)
    if words.reads_payload:
        key, value, rendered = words.delivered((key, value, rendered), timestamp_ms)
    fields = (origin, target, key, value, rendered, requested_ms, entry[:KEY_BYTES])
    return tuple.__new__(Outgoing, fields)  # in the hot path: twice as fast as the constructor

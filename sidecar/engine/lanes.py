"""Order per key: the timers of one origin and key form a lane, and one does not fire before those ahead of it.

Ahead of a timer are the pending ones of its lane with a lower offset. A timer whose turn to fire has come is looked up
in the index of lanes, unless it cannot have one ahead: see engine/crossings.py. If another one is ahead of it, it is
stored again at the due of the nearest one ahead, behind which it sorts: for as long as that one stays in its place,
each timer moves once. Timers that go out of turn, because a control record or a replacement took them, let the next
one go: see `next_behind`.

    lane rows (local store)      key "k": 5 → 10:30, 7 → 10:00, 9 → 10:45
    at 10:00                     7 is due, and 5 is ahead: 7 is stored again at 10:30
    at 10:30                     5 fires, then 7, in one transaction
    at 10:45                     9 fires
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Mapping
from typing import Final

from sidecar.changelog.entry import KEY, Head, due_ms_of, origin_of, payload_of
from sidecar.engine.crossings import READ_ROWS
from sidecar.engine.partition import Partition
from sidecar.engine.ports import StoreReader
from sidecar.engine.rows import LANE, NAMED_OFFSET, after, decode_due, encode_due, lane_of, timer_of_named_row
from sidecar.model import OFFSET_MAX

Id = tuple[int, int]
"""Stored offset and first due of a timer."""
PAGE_ROWS: Final = 64
AHEAD_ROWS: Final = 8
KNOWN_MAX: Final = 1_000
"""Most lanes of a partition whose first timer is remembered from plan to plan."""


def lane_of_entry(entry: bytes, fixed: Head) -> bytes:
    """Return the lane of an ordered timer. Raises RecordCorrupt."""
    key, _, _ = payload_of(entry, fixed)
    return lane_of(origin_of(entry, fixed), key or b"")


class _Lane:
    """What a plan changed in one lane, and how far it has read it."""

    __slots__ = ("dues", "is_read", "read_from", "rows", "stored")

    def __init__(self, read_from: Id) -> None:
        self.dues: dict[Id, int | None] = {}
        """Stored dues, None for timers that are gone."""
        self.stored: list[Id] = []
        """Those of `dues` that are pending, in order."""
        self.rows: list[bytes] = []
        """Committed rows from `read_from` on, the first one at the end; as far as they were read."""
        self.is_read = False
        self.read_from = read_from
        """No timer that the plan left as it was is pending before this one."""


class Lanes:
    """The index of lanes of one partition, as a plan changes it.

    Args:
        partition: Its rows and its memory of lanes.
        store: Holds exactly what is committed.
        watermark: At or below it no timer is pending, whatever a row says that another version left behind.
    """

    def __init__(self, partition: Partition, store: StoreReader, watermark: bytes) -> None:
        self.crossings = partition.crossings
        self._own = partition.rows
        self._known = partition.lanes_from
        self._store = store
        self._rows: dict[bytes, bytes | None] = {}
        self._watermark = watermark
        self._reached = watermark
        """What the plan left as it was is pending only above it."""
        self._changed: dict[bytes, _Lane] = {}
        self._added: list[Mapping[bytes, bytes]] = []
        """Rows that the plan added and `_changed` does not have yet: mostly nobody asks."""
        self._seek: Callable[[bytes], bytes | None] | None = None
        self._lane_of: dict[int, bytes] = {}
        """By offset: a timer is looked up several times in a plan."""

    def begin(self) -> None:
        """Begin a plan, before it changes anything: after a restore, read some more of the index."""
        if not self.crossings.known:
            lower = self.crossings.read_from or self._own.lane
            self.crossings.read(self._store.items(lower, after(self._own.lane), limit=READ_ROWS), READ_ROWS)

    def finish(self, rows: dict[bytes, bytes | None]) -> None:
        """Add the changed rows, in key order: the store takes them in half the time."""
        changed = self._rows
        rows.update((row, changed[row]) for row in sorted(changed))

    def leave(self, row: bytes, key: bytes) -> bool:
        """Remove a due timer that was never moved, if none is ahead of it: most of them, without a look at the index.

        Args:
            row: Its own in the index.
            key: Its own; the plan has left alone or disposed of all timers up to it.
        """
        crossings = self.crossings
        if crossings.may_wait(row[LANE], due_ms_of(key)):
            return self._leave_first(row[LANE], row, timer_of_named_row(row))
        self._rows[row] = None
        self._reached = key
        return True

    def _leave_first(self, lane: bytes, row: bytes, timer: Id) -> bool:
        """Remove a due timer if it is the first one of its lane that is easily found."""
        changed = self._changes(lane)
        if changed.stored and changed.stored[0][0] < timer[0]:
            return False
        if self._first(lane, changed) != row:
            return False
        if changed.rows:
            changed.rows.pop()
        changed.read_from = timer
        self._learn(lane, changed, not (changed.dues or changed.is_read))
        changed.read_from = (timer[0], timer[1] + 1)
        changed.dues[timer] = None
        self._rows[row] = None
        return True

    def _first(self, lane: bytes, changed: _Lane) -> bytes | None:
        """Return the first committed row of a lane from `read_from` on; read some more if it is not the first one."""
        lower = self._own.lane_row(lane, *changed.read_from)
        if not changed.dues:
            if self._seek is None:
                self._seek = self._store.seeker()
            return self._seek(lower)
        if not changed.rows:
            changed.rows = list(self._store.keys(lower, self._own.lane_end(lane), limit=AHEAD_ROWS))
            changed.rows.reverse()
        return changed.rows[-1] if changed.rows else None

    def append(self, lane: bytes, timer: Id, due_ms: int) -> None:
        """Add a timer, by its stored due, behind all others of its lane."""
        self.crossings.append(lane, due_ms)
        self.add({self._own.lane_row(lane, *timer): encode_due(due_ms)})

    def insert(self, entry: bytes, fixed: Head) -> None:
        """Add a timer that the plan stores again."""
        lane = self._of(entry, fixed)
        self.crossings.insert(lane, fixed.due_ms)
        if self._known.get(lane, 0) > fixed.offset:
            del self._known[lane]  # replayed
        self.add({self._own.lane_row(lane, fixed.offset, fixed.first_ms): encode_due(fixed.due_ms)})

    def add(self, rows: Mapping[bytes, bytes]) -> None:
        """Add rows of timers of which the crossings know."""
        self._rows.update(rows)
        self._added.append(rows)

    def remove(self, entry: bytes, fixed: Head) -> None:
        """Remove a timer that fires, moves, or goes in another way."""
        lane = self._of(entry, fixed)
        timer = (fixed.offset, fixed.first_ms)
        self._rows[self._own.lane_row(lane, *timer)] = None
        changed = self._changes(lane)
        if changed.dues.get(timer) is not None:
            changed.stored.remove(timer)
        changed.dues[timer] = None

    def ahead(self, entry: bytes, fixed: Head) -> bytes | None:
        """Return the key of the nearest timer ahead, None when there is none."""
        lane, offset = self._of(entry, fixed), fixed.offset
        changed = self._changes(lane)
        at = bisect_left(changed.stored, (offset, 0))
        nearest = changed.stored[at - 1] if at else None
        key = None if nearest is None else KEY.pack(changed.dues[nearest], nearest[0])
        if self._advance(lane, changed, offset):
            upper = self._own.lane_row(lane, offset)
            lower = self._own.lane_row(lane, *max(nearest or (0, 0), changed.read_from))
            while lower < upper and (found := self._store.last(lower, upper)) is not None:
                row, value = found
                if (left := self._key(changed, row, value)) is not None:
                    return left
                upper = row
        return key

    def _advance(self, lane: bytes, changed: _Lane, offset: int) -> bool:
        """Return whether a timer that the plan left as it was is ahead; `read_from` moves up to it."""
        learns = not changed.is_read and self._reached == self._watermark
        learns = learns and not any(at < offset for at, _ in changed.dues)
        changed.is_read = True
        while changed.read_from < (offset, 0):
            lower, upper = self._own.lane_row(lane, *changed.read_from), self._own.lane_row(lane, offset)
            found = self._store.items(lower, upper, limit=PAGE_ROWS)
            for row, value in found:
                if self._key(changed, row, value) is not None:
                    changed.read_from = timer_of_named_row(row)
                    self._learn(lane, changed, learns)
                    return True
            changed.read_from = (offset, 0)
            if len(found) == PAGE_ROWS:
                last, first_ms = timer_of_named_row(found[-1][0])
                changed.read_from = (last, first_ms + 1)
        self._learn(lane, changed, learns)
        return False

    def _learn(self, lane: bytes, changed: _Lane, learns: bool) -> None:
        """Remember what is committed, so that the next plan does not read over the rows that are deleted by then."""
        if learns:
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            self._known[lane] = changed.read_from[0]

    def next_behind(self, entry: bytes, fixed: Head) -> bytes | None:
        """Return the key of the next timer of the lane, if it may wait behind this one and is not due soon.

        A timer that the plan has taken as well lets its own next one go.
        """
        lane = self._of(entry, fixed)
        changed = self._changes(lane)
        at = bisect_right(changed.stored, (fixed.offset, OFFSET_MAX))
        behind = changed.stored[at] if at < len(changed.stored) else None
        lower, upper = self._own.lane_row(lane, fixed.offset + 1), self._own.lane_end(lane)
        for row, value in self._store.items(lower, upper, limit=1):
            if behind is None or timer_of_named_row(row) < behind:
                return self._key(changed, row, value)
        return None if behind is None else KEY.pack(changed.dues[behind], behind[0])

    def _key(self, changed: _Lane, row: bytes, value: bytes) -> bytes | None:
        """Return the key of the timer of a row, None when the plan has changed it or it is gone."""
        key = value + row[NAMED_OFFSET]
        return None if timer_of_named_row(row) in changed.dues or key <= self._reached else key

    def _of(self, entry: bytes, fixed: Head) -> bytes:
        lane = self._lane_of.get(fixed.offset)
        if lane is None:
            lane = self._lane_of[fixed.offset] = lane_of_entry(entry, fixed)
        return lane

    def _changes(self, lane: bytes) -> _Lane:
        added, self._added = self._added, []
        for rows in added:
            for row, value in rows.items():
                changed, timer = self._lane(row[LANE]), timer_of_named_row(row)
                changed.dues[timer] = decode_due(value)
                insort(changed.stored, timer)
        return self._lane(lane)

    def _lane(self, lane: bytes) -> _Lane:
        changed = self._changed.get(lane)
        if changed is None:
            changed = self._changed[lane] = _Lane((self._known.get(lane, 0), 0))
        return changed

"""From an entry to the record that fires it, and doing so before its turn.

Rendering depends on nothing but the entry, and a key is never used twice: what was rendered for a key stays right. So
while one transaction is being committed, the fires of the next are rendered ahead; plan() alone decides which of them
leave.
"""

from __future__ import annotations

from sidecar.changelog.entry import HEAD, KEY, KEY_BYTES, Head, origin_of, payload
from sidecar.contract import DIALECTS_BY_CODE
from sidecar.engine.partition import Partition
from sidecar.engine.ports import Outgoing, Reader
from sidecar.model import TimerId

SLICE_BYTES = 4 * 1024 * 1024


def render_fire(number: int, entry: bytes, fixed: Head, origin: str) -> Outgoing:
    """Return the record that goes to the origin. Raises RecordCorrupt.

    Args:
        number: The input partition.
        entry: Of the timer.
        fixed: Its fixed part.
        origin: Its origin topic.
    """
    key, value, headers = payload(entry, HEAD.size + fixed.origin_length + fixed.retry_id_length)
    rendered = DIALECTS_BY_CODE[fixed.dialect].render(
        headers,
        attempt=fixed.attempt,
        limit=fixed.limit,
        timer_id=TimerId(number, fixed.offset, fixed.first_ms),
        due_ms=fixed.requested_ms,
    )
    return Outgoing(origin, fixed.origin_partition, key, value, rendered, fixed.requested_ms, entry[:KEY_BYTES])


class Ahead:
    """Fires rendered before their turn, by partition and key; bounded, and forgotten whenever in doubt."""

    def __init__(self, limit: int) -> None:
        """Args:
        limit: Most fires held.
        """
        self.fires: dict[int, dict[bytes, Outgoing]] = {}
        self._limit = limit
        self._todo: dict[int, tuple[Partition, bytes]] = {}
        self._now_ms = 0

    @property
    def held(self) -> int:
        """How many are held."""
        return sum(len(each) for each in self.fires.values())

    def begin(self, scanned: list[tuple[Partition, bytes]], now_ms: int) -> None:
        """Forget what is held and go on behind what a plan scanned: (partition, watermark it will have)."""
        self.fires = {partition.number: {} for partition, _ in scanned}
        self._todo = {partition.number: (partition, watermark) for partition, watermark in scanned}
        self._now_ms = now_ms

    def forget(self) -> None:
        """Hold nothing."""
        self.fires, self._todo = {}, {}

    @property
    def busy(self) -> bool:
        """Whether there is more to render."""
        return bool(self._todo) and self.held < self._limit

    def advance(self, store: Reader, slice_rows: int) -> None:
        """Render a slice of what is due next, the partitions in turn."""
        number = min(self._todo, key=lambda each: len(self.fires[each]))
        partition, watermark = self._todo[number]
        prefix = partition.rows.timer
        lower = prefix + watermark + b"\0"
        upper = prefix + KEY.pack(self._now_ms + 1, 0)
        entries = store.values(lower, upper, limit=slice_rows, limit_bytes=SLICE_BYTES) if lower < upper else ()
        fires = self.fires[number]
        origins: dict[bytes, str] = {}
        for entry in entries:
            fixed = Head._make(HEAD.unpack_from(entry))
            name = entry[HEAD.size : HEAD.size + fixed.origin_length]
            origin = origins.get(name)
            if origin is None:
                origin = origins[name] = origin_of(entry, fixed)
            fires[entry[:KEY_BYTES]] = render_fire(number, entry, fixed, origin)
        if entries:
            self._todo[number] = (partition, entries[-1][:KEY_BYTES])
        else:
            del self._todo[number]

"""Reads and renders due timers ahead of the plan.

While a transaction is being committed, the timers that were due when it was planned and did not fit into it are read
and rendered for the next one. Nothing can come before them: the current plan stores only timers due after its `now`,
and the timers that it removes are known. Only plan() decides what becomes of them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, takewhile
from operator import itemgetter
from typing import Final

from sidecar.engine.allowance import HEADERS_EACH, Headers
from sidecar.engine.deliver import Due, read_due
from sidecar.engine.partition import Partition
from sidecar.engine.ports import StoreReader

AHEAD_BYTES_MAX: Final = 12 * 1024 * 1024
AHEAD_HEADERS_MAX: Final = 10_000 * HEADERS_EACH
SLICE_ROWS: Final = 1_000
SLICE_BYTES: Final = 4 * 1024 * 1024
_KEY_OF: Final = itemgetter(0)


def due_in_turn(
    partition: Partition,
    store: StoreReader,
    ahead: ReadAhead | None,
    now_ms: int,
    limit: int,
    limit_bytes: int,
    headers: Headers,
) -> Iterator[tuple[Sequence[Due], bool]]:
    """Yield the timers due since the watermark in key order, and whether a limit was reached.

    Args:
        partition: Partition of the timers.
        store: Holds exactly what is committed.
        ahead: Timers read ahead; they come first.
        now_ms: Time of the plan.
        limit: Most timers.
        limit_bytes: Most bytes of entries, for those read ahead and for the others.
        headers: Remaining headers of the plan; decreases.
    """
    watermark = partition.watermark
    # After the clock stepped back, timers read ahead may not be due any more.
    if ahead is not None and ahead.watermark == watermark and ahead.now_ms <= now_ms:
        due = ahead.first(limit, limit_bytes)
        if ahead.headers > headers.left:
            due = _within(due, headers.left)
        watermark = due[-1][0] if len(due) < len(ahead.rows) else ahead.reached
        limit -= len(due)
        headers.left -= ahead.headers if len(due) == len(ahead.rows) else _header_count(due)
        yield due, limit <= 0 or headers.left <= 0
    lower = partition.rows.timer + watermark + b"\0"
    due = read_due(partition, store, lower, now_ms, limit, limit_bytes, headers)
    yield due, len(due) >= limit or _entry_bytes(due) >= limit_bytes or headers.left <= 0


def _within(rows: list[Due], limit_headers: int) -> list[Due]:
    """Return the first rows, up to the one that reaches a number of headers."""
    for at, (_, _, _, _, outgoing, _) in enumerate(rows, 1):
        limit_headers -= len(outgoing.headers)
        if limit_headers <= 0:
            return rows[:at]
    return rows


class ReadAhead:
    """Timers of one partition that were read ahead, after the watermark that it will have."""

    def __init__(self, partition: Partition, watermark: bytes, taken: frozenset[bytes], now_ms: int) -> None:
        """Args:
        partition: Partition of the timers.
        watermark: The watermark after the current plan.
        taken: Keys of the timers that the current plan removes.
        now_ms: Time of that plan.
        """
        self.partition = partition
        self.watermark = watermark
        self.now_ms = now_ms
        """All rows were due at this time."""
        self.rows: list[Due] = []
        """In key order."""
        self.reached = watermark
        self.finished = False
        self.bytes = 0
        self.headers = 0
        self._taken = taken

    def carry_over(self, before: ReadAhead) -> None:
        """Take over the rows that the previous plan did not use, without those that it removed."""
        rest = before.rows[bisect_right(before.rows, self.watermark, key=_KEY_OF) :]
        self._hold(rest)
        self.reached = max(self.reached, before.reached)

    def first(self, limit: int, limit_bytes: int) -> list[Due]:
        """Return the first rows, until one of the limits is reached."""
        if self.bytes > limit_bytes:
            sizes = accumulate(size for _, _, size, _, _, _ in self.rows[:limit])
            limit = 1 + sum(1 for _ in takewhile(limit_bytes.__gt__, sizes))
        return self.rows[:limit]

    def advance(self, store: StoreReader, limit: int) -> None:
        """Read a slice."""
        lower = self.partition.rows.timer + self.reached + b"\0"
        # Rows are kept without their entries, which are half of the memory; plan() seldom needs one.
        headers = Headers(limit * HEADERS_EACH)
        read = read_due(self.partition, store, lower, self.now_ms, limit, SLICE_BYTES, headers, keeps_entries=False)
        if not read:
            self.finished = True
            return
        self.reached = read[-1][0]
        self._hold(read)

    def _hold(self, rows: list[Due]) -> None:
        # Whether the current plan is applied by now or not, the timers that it removed are left out.
        kept = [each for each in rows if each[0] not in self._taken] if self._taken else rows
        self.rows += kept
        self.bytes += _entry_bytes(kept)
        self.headers += _header_count(kept)


class Ahead:
    """Timers of all partitions that were read ahead; bounded, and cleared whenever in doubt."""

    def __init__(self, limit_bytes: int = AHEAD_BYTES_MAX) -> None:
        """Args:
        limit_bytes: Most bytes of entries read; the rendered records take about twice as much memory.
        """
        self.partitions: dict[int, ReadAhead] = {}
        self._limit_bytes = limit_bytes

    def begin(self, begun: Iterable[ReadAhead]) -> None:
        """Start to read after the timers of a plan, up to those due at its `now_ms`; call before it is applied.

        Args:
            begun: `Plan.read_aheads`.
        """
        before, self.partitions = self.partitions, {each.partition.number: each for each in begun}
        for number, ahead in self.partitions.items():
            known = before.get(number)
            # If the clock stepped back, the plan may have stored timers that were due at the later time.
            if known is not None and known.watermark == ahead.partition.watermark and known.now_ms <= ahead.now_ms:
                ahead.carry_over(known)

    def clear(self) -> None:
        """Drop everything that was read ahead."""
        self.partitions = {}

    def drop(self, number: int) -> None:
        """Drop what was read ahead of a partition: another owner may process its timers."""
        self.partitions.pop(number, None)

    @property
    def busy(self) -> bool:
        """Whether there is more to read."""
        held = self.partitions.values()
        return (
            sum(each.bytes for each in held) < self._limit_bytes
            and sum(each.headers for each in held) < AHEAD_HEADERS_MAX
            and not all(each.finished for each in held)
        )

    def advance(self, store: StoreReader, limit: int = SLICE_ROWS) -> None:
        """Read a slice of the partition with the fewest rows."""
        open_ones = (each for each in self.partitions.values() if not each.finished)
        min(open_ones, key=lambda each: len(each.rows)).advance(store, limit)


def _entry_bytes(rows: Iterable[Due]) -> int:
    return sum([size for _, _, size, _, _, _ in rows])


def _header_count(rows: Iterable[Due]) -> int:
    return sum([len(outgoing.headers) for _, _, _, _, outgoing, _ in rows])

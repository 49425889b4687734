"""Rates of origins: a due timer that exceeds its origin's rate is held until its turn.

The turns of an origin in a partition are at least `every_ns` apart: the partition has an equal share of the rate. A
turn is taken once, by a timer that fires or by one that is held until then, so the checkpoint needs only the next one:

    turn = max(next turn, due of the timer, now - BURST_MS)

What came due within the rate fires at once, however seldom plans are made. A held timer that is scanned much later than
its turn, such as after a restart, takes a new one: what was missed must not come in a burst. So in any time w an origin
gets at most rate x (w + late) messages, and one more from each partition.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from sidecar.changelog.codec import NextTurn

BURST_MS: Final = 100
"""Unused turns of this time are kept."""
LATE_MS: Final = 400
"""A held timer whose turn is longer ago takes a new one. With BURST_MS below it: 4 % of ten seconds."""
TURNS_BYTES_MAX: Final = 64 * 1024
"""Most bytes of turns in a checkpoint."""
ORIGIN_BYTES: Final = 32
"""Upper bound of the bytes of an origin's turn besides its name."""
_MS_NS: Final = 1_000_000
_SECOND_NS: Final = 1_000_000_000

RateOf = Callable[[str], float | None]
"""Returns the most messages a second for an origin, None when it has no limit."""


def every_ns(rate: float, partitions: int) -> int:
    """Return the time between two turns of one partition."""
    return max(1, round(_SECOND_NS * partitions / rate))


class Turns:
    """The turns that one plan takes for one partition.

    Args:
        former: Those of its checkpoint.
        rate_of: The rates.
        partitions: Number of input partitions, each of which has an equal share.
        now_ms: Time of the plan.
        watermark_ms: Of the partition. After the clock stepped back no timer can be stored below it.
        late_ms: Longest time that a held timer may fire after its turn.
    """

    def __init__(
        self,
        former: Mapping[str, NextTurn],
        rate_of: RateOf,
        partitions: int,
        now_ms: int,
        watermark_ms: int,
        late_ms: int = LATE_MS,
    ) -> None:
        self._former = former
        self._rate_of = rate_of
        self._partitions = partitions
        self._now_ms = now_ms
        self._earliest_ns = (now_ms - BURST_MS) * _MS_NS
        self._stored_from_ns = (watermark_ms + 1) * _MS_NS
        self._late_ms = late_ms
        self._every: dict[str, int] = {}
        """0: the origin has no rate."""
        self._next: dict[str, int] = {}

    def missed(self, due_ms: int) -> bool:
        """Return whether the turn of a held timer is too long ago."""
        return self._now_ms - due_ms > self._late_ms

    def take(self, origin: str, due_ms: int) -> int | None:
        """Take a turn for a due timer; return when it is, epoch ms, or None when it is now.

        Args:
            origin: Where the timer goes.
            due_ms: When it came due.
        """
        turn = self._turn(origin, due_ms)
        if turn is None:
            return None
        self._next[origin] = turn + self._every[origin]
        return self._when_ms(turn)

    def next_ms(self, origin: str, due_ms: int) -> int | None:
        """Return what `take` would return, without taking it."""
        turn = self._turn(origin, due_ms)
        return None if turn is None else self._when_ms(turn)

    def _turn(self, origin: str, due_ms: int) -> int | None:
        """Return the next turn of an origin, None when it has no rate."""
        every = self._every.get(origin)
        if every is None:
            every = self._begin(origin)
        if not every:
            return None
        turn = max(self._next[origin], due_ms * _MS_NS, self._earliest_ns)
        return turn if turn <= self._now_ms * _MS_NS else max(turn, self._stored_from_ns)

    def _when_ms(self, turn: int) -> int | None:
        return None if turn <= self._now_ms * _MS_NS else -(-turn // _MS_NS)

    def _begin(self, origin: str) -> int:
        rate = self._rate_of(origin)
        every = self._every[origin] = every_ns(rate, self._partitions) if rate else 0
        if every:
            former = self._former.get(origin)
            self._next[origin] = 0 if former is None else former.next_ns
        return every

    def kept(self) -> Mapping[str, NextTurn]:
        """Return the turns for the checkpoint: those that limit anything, as far as they fit, the farthest first.

        An origin whose turn does not fit begins at once, as one that was idle does.
        """
        taken = {origin: NextTurn(at, self._every[origin]) for origin, at in self._next.items()}
        turns = {origin: turn for origin, turn in {**self._former, **taken}.items() if turn.next_ns > self._earliest_ns}
        if sum(map(_size, turns)) <= TURNS_BYTES_MAX:
            return turns
        fitting: dict[str, NextTurn] = {}
        left = TURNS_BYTES_MAX
        for origin, turn in sorted(turns.items(), key=lambda each: (-each[1].next_ns, each[0])):
            left -= _size(origin)
            if left < 0:
                break
            fitting[origin] = turn
        return fitting


def _size(origin: str) -> int:
    return ORIGIN_BYTES + len(origin)

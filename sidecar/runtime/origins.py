"""Origins that cannot be fired to now: why, since when, and when to look again.

A closure is remembered until the origin was seen open: it took a record; or the broker says that what was missing, the
topic or the right to write, is there; or it stood open for longer than anything that is deferred waits, and refused
nothing. Until then a closure that the broker's word has ended is on trial: refused again, it is the same closure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import structlog

from sidecar.changelog.codec import Closed, Closure
from sidecar.engine.partition import Partition
from sidecar.engine.plan import DEFERRAL_MAX_MS
from sidecar.kafka.producer import Refusal, Refused
from sidecar.runtime.ports import Catalogue

log = structlog.get_logger(__name__)

PROBE_FIRST_S: Final = 10.0
PROBE_MAX_S: Final = 300.0
ANSWER_S: Final = 1.0
"""Time for the brokers to say what a topic is like now."""
TRIAL_S: Final = DEFERRAL_MAX_MS / 1000 + PROBE_MAX_S
"""An origin that has stood open for so long is open: whatever was deferred for it has come due again meanwhile."""
UNUSED_S: Final = 2 * PROBE_MAX_S
"""A closure of which no timer waits any more is forgotten after so long."""
SEEN_MAX: Final = 10_000
"""Most origins of which it is kept when they were last seen open."""

_CLOSURES: Final = {
    Refusal.DENIED: Closure.UNAUTHORISED,
    Refusal.GONE: Closure.VANISHED,
    Refusal.SILENT: Closure.UNREACHABLE,
}


@dataclass(slots=True)
class _Closure:
    why: Closure
    since_ms: int | None
    """None: it was seen open since; only how often it is probed is kept."""
    every_s: float
    next_s: float
    used_s: float
    """When timers waited for it last."""
    trial_s: float | None = None
    """Since when it is open on trial; None while it is closed."""
    asked: bool = False
    """What the topic is like now was asked for at the last look."""


class ClosedOrigins:
    """Closes origins on what transactions and metadata say, and opens them again."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._closed: Mapping[str, Closed] | None = {}
        """Made anew when it is asked for next, once something changed."""
        self._closures: dict[str, _Closure] = {}
        self._open_ms: dict[str, int] = {}
        """When origins were last seen open, the longest ago first."""
        self._rechecked: set[str] = set()

    @property
    def closed(self) -> Mapping[str, Closed]:
        """Origins that are not open, other than paused ones. Replaced, never changed."""
        if self._closed is None:
            self._closed = {
                name: Closed(each.why, each.since_ms or 0)
                for name, each in self._closures.items()
                if each.trial_s is None
            }
        return self._closed

    def close(self, name: str, why: Closure, now_ms: int, now_s: float) -> bool:
        """Close an origin; return whether it was open."""
        closure = self._closures.get(name)
        if closure is not None and closure.trial_s is None and closure.why is why:
            return False
        if closure is None:
            closure = self._closures[name] = _Closure(why, now_ms, PROBE_FIRST_S, 0, now_s)
        else:
            closure.every_s = min(2 * closure.every_s, PROBE_MAX_S)
        if closure.since_ms is None:
            closure.since_ms = now_ms
        closure.why = why
        closure.used_s = now_s
        closure.trial_s = None
        closure.next_s = now_s + closure.every_s
        self._closed = None
        return True

    def restored(self, closed: Mapping[str, Closed], now_s: float) -> None:
        """Take over what a checkpoint says of closures: a restart must not put ORIGIN_TIMEOUT off.

        Each is on trial, since it is not known whether it holds. What was seen open since is not taken over: the
        checkpoint of a partition in which nothing happened is as old as its last transaction.
        """
        for name, told in closed.items():
            if told.why is Closure.PAUSED or told.since_ms <= self._open_ms.get(name, -1):
                continue
            # Half the first wait: closing it doubles that.
            fresh = _Closure(told.why, told.since_ms, PROBE_FIRST_S / 2, 0, now_s, now_s)
            closure = self._closures.setdefault(name, fresh)
            closure.since_ms = min(closure.since_ms or told.since_ms, told.since_ms)
            self._closed = None

    def refused(self, refused: Iterable[Refused], everything: bool, now_ms: int, now_s: float) -> list[Refused]:
        """Close the origins that refused records; return the records whose own fault it may be.

        Args:
            everything: No record at all was written: then silence says nothing about any one topic.
        """
        own_fault = []
        for record in refused:
            name = record.outgoing.topic
            closure = _CLOSURES.get(record.why)
            if closure is None:
                self._catalogue.invalidate(name)
                own_fault.append(record)
            elif closure is not Closure.UNREACHABLE or not everything:
                if closure is Closure.VANISHED:
                    self._catalogue.invalidate(name)
                elif closure is Closure.UNAUTHORISED:
                    self._catalogue.invalidate_permission(name)
                self.close(name, closure, now_ms, now_s)
        return own_fault

    def maintain(self, running: Collection[Partition], now_ms: int, now_s: float) -> None:
        """Advance, and find the partitions whose checkpoints name closures that are over."""
        pending = {origin for each in running for origin in each.counts.origins}
        for name in self.advance(pending, now_ms, now_s):
            log.info("origin_probed", origin=name)
        for partition in running:
            partition.closures_over = any(
                told.why is not Closure.PAUSED and self._is_over(name)
                for name, told in partition.checkpoint.closed.items()
            )

    def advance(self, pending: Iterable[str], now_ms: int, now_s: float) -> list[str]:
        """Take in what the catalogue knows; return the origins that were opened again.

        Args:
            pending: Origins of the timers that wait.
        """
        catalogue = self._catalogue
        used = {*pending, *catalogue.denied}
        catalogue.expected = used | self._rechecked
        for name in used:
            if self._is_closed(name):
                continue
            if name in catalogue.denied:
                self.close(name, Closure.UNAUTHORISED, now_ms, now_s)
            elif name in catalogue.unknown:
                self.close(name, Closure.VANISHED, now_ms, now_s)
            elif name not in catalogue.origins:
                catalogue.want((name,))
        opened = []
        for name, closure in list(self._closures.items()):
            if name in used:
                closure.used_s = now_s
            elif now_s - closure.used_s > UNUSED_S:
                self._remove(name)
                continue
            if closure.trial_s is not None:
                self._try(name, closure, closure.trial_s, now_ms, now_s)
            elif now_s >= closure.next_s and self._probe(name, closure, now_s):
                opened.append(name)
                self._try(name, closure, now_s, now_ms, now_s)
        return opened

    def _probe(self, name: str, closure: _Closure, now_s: float) -> bool:
        """Open an origin that is there, on trial; ask for any other. Return whether it was opened."""
        if self._is_there(name):
            # The next timer that is due for it is the probe. Refused, it closes for twice as long.
            closure.trial_s = now_s
            closure.asked = False
            self._closed = None
            return True
        if not closure.asked:
            self._catalogue.want((name,))
            closure.asked = True
            closure.next_s = now_s + ANSWER_S
        else:
            closure.asked = False
            closure.every_s = min(2 * closure.every_s, PROBE_MAX_S)
            closure.next_s = now_s + closure.every_s
        return False

    def _try(self, name: str, closure: _Closure, since_s: float, now_ms: int, now_s: float) -> None:
        """End a closure that is on trial when the broker's word or time is enough."""
        if not self._is_there(name):
            return
        by_word = closure.why is Closure.VANISHED or (
            closure.why is Closure.UNAUTHORISED and name in self._catalogue.allowed
        )
        if closure.since_ms is not None and (by_word or now_s - since_s > TRIAL_S):
            closure.since_ms = None
            self._saw_open(name, now_ms)
        if now_s - since_s > TRIAL_S:
            self._remove(name)

    def _is_there(self, name: str) -> bool:
        catalogue = self._catalogue
        return name in catalogue.origins and name not in catalogue.leaderless and name not in catalogue.denied

    def _is_over(self, name: str) -> bool:
        closure = self._closures.get(name)
        return closure is None or closure.since_ms is None

    def _is_closed(self, name: str) -> bool:
        closure = self._closures.get(name)
        return closure is not None and closure.trial_s is None

    def _remove(self, name: str) -> None:
        del self._closures[name]
        self._closed = None

    def _saw_open(self, name: str, now_ms: int) -> None:
        self._open_ms.pop(name, None)
        self._open_ms[name] = now_ms
        if len(self._open_ms) > SEEN_MAX:
            del self._open_ms[next(iter(self._open_ms))]

    def recheck(self, names: Iterable[str]) -> None:
        """A transaction that wrote to these failed, and nobody said why: ask what they are like now."""
        names = set(names)
        self._rechecked |= names
        self._catalogue.expected = {*self._catalogue.expected, *names}
        self._catalogue.want(names)

    def denied(self, name: str) -> bool:
        """Return whether the topic may not be written to, as far as is known."""
        return name in self._catalogue.denied

    def fired(self, names: Iterable[str], now_ms: int) -> None:
        """These took records: what is remembered of their closures is over."""
        for name in names:
            self._saw_open(name, now_ms)
            if name in self._closures and not self._is_closed(name):
                self._remove(name)

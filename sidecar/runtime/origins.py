"""Tracks closed origins: why each is closed, since when, and when to probe it again.

A closure ends when the origin is seen open: it accepted a record; or the broker reports the missing topic or permission
as present; or the origin was open, without a refusal, for longer than the longest deferral. Until then a closure that
the broker's metadata has ended is on trial: if the origin refuses again, it is still the same closure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import structlog

from sidecar.changelog.codec import Closed, Closure
from sidecar.engine.closures import DEFERRAL_MAX_MS
from sidecar.engine.partition import Partition
from sidecar.kafka.producer import Refusal, Refused
from sidecar.runtime.ports import Catalogue

log = structlog.get_logger(__name__)

PROBE_FIRST_S: Final = 10.0
PROBE_MAX_S: Final = 300.0
ANSWER_S: Final = 1.0
"""How long a probe waits for the brokers to describe a topic."""
TRIAL_S: Final = DEFERRAL_MAX_MS / 1000 + PROBE_MAX_S
"""An origin on trial for this long is open: everything deferred for it has come due again."""
UNUSED_S: Final = 2 * PROBE_MAX_S
"""How long a closure is kept when no timer waits for the origin."""
SEEN_MAX: Final = 10_000
"""Most origins whose last time open is kept."""

_CLOSURES: Final = {
    Refusal.DENIED: Closure.UNAUTHORISED,
    Refusal.GONE: Closure.VANISHED,
    Refusal.SILENT: Closure.UNREACHABLE,
}


@dataclass(slots=True)
class _Closure:
    why: Closure
    since_ms: int | None
    """None: the origin was seen open since; only its probe interval is kept."""
    every_s: float
    next_s: float
    used_s: float
    """When a timer last waited for it (monotonic)."""
    trial_s: float | None = None
    """Start of the trial (monotonic); None while the origin is closed."""
    asked: bool = False
    """The last probe asked for the topic's metadata."""


class ClosedOrigins:
    """Closes and reopens origins according to transactions and metadata."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._closed: Mapping[str, Closed] | None = {}
        """None: computed again at the next access."""
        self._closures: dict[str, _Closure] = {}
        self._open_ms: dict[str, int] = {}
        """When each origin was last seen open, oldest first."""
        self._rechecked: set[str] = set()

    @property
    def closed(self) -> Mapping[str, Closed]:
        """Closed origins, without paused ones. Replaced, never changed."""
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
        """Take over the closures of a checkpoint, so that a restart does not extend ORIGIN_TIMEOUT.

        Each starts on trial, since it may be over. Origins seen open since are skipped: the checkpoint of an idle
        partition is as old as its last transaction.
        """
        for name, former in closed.items():
            if former.why is Closure.PAUSED or former.since_ms <= self._open_ms.get(name, -1):
                continue
            # Half the first interval: closing the origin doubles it.
            fresh = _Closure(former.why, former.since_ms, PROBE_FIRST_S / 2, 0, now_s, now_s)
            closure = self._closures.setdefault(name, fresh)
            closure.since_ms = min(closure.since_ms or former.since_ms, former.since_ms)
            self._closed = None

    def refused(self, refused: Iterable[Refused], now_ms: int, now_s: float) -> list[Refused]:
        """Close the origins that refused records; return the records that may be at fault themselves."""
        own_fault = []
        for record in refused:
            name = record.outgoing.topic
            closure = _CLOSURES.get(record.why)
            if closure is None:
                self._catalogue.invalidate(name)
                own_fault.append(record)
                continue
            if closure is Closure.VANISHED:
                self._catalogue.invalidate(name)
            elif closure is Closure.UNAUTHORISED:
                self._catalogue.invalidate_permission(name)
            self.close(name, closure, now_ms, now_s)
        return own_fault

    def maintain(self, running: Collection[Partition], now_ms: int, now_s: float) -> None:
        """Advance, and mark the partitions whose checkpoints name closures that have ended."""
        pending = {origin for each in running for origin in each.counts.origins}
        for name in self.advance(pending, now_ms, now_s):
            log.info("origin_probed", origin=name)
        for partition in running:
            partition.closures_over = any(
                each.why is not Closure.PAUSED and self._is_over(name)
                for name, each in partition.checkpoint.closed.items()
            )

    def advance(self, pending: Iterable[str], now_ms: int, now_s: float) -> list[str]:
        """Apply what the catalogue knows; return the origins that were reopened.

        Args:
            pending: Origins of pending timers.
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
        """Reopen an existing origin on trial, or look up a missing one; return whether it was reopened."""
        if self._is_there(name):
            # The next timer due for it is the probe. A refusal closes the origin for twice as long.
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
        """End a closure on trial when metadata or elapsed time allow it."""
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
        """Look up topics again after a transaction that wrote to them failed without a reason."""
        names = set(names)
        self._rechecked |= names
        self._catalogue.expected = {*self._catalogue.expected, *names}
        self._catalogue.want(names)

    def denied(self, name: str) -> bool:
        """Return whether this client is known to lack permission to write to the topic."""
        return name in self._catalogue.denied

    def fired(self, names: Iterable[str], now_ms: int) -> None:
        """Note that these origins accepted records, which ends their closures."""
        for name in names:
            self._saw_open(name, now_ms)
            if name in self._closures and not self._is_closed(name):
                self._remove(name)

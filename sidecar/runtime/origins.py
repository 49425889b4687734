"""Origins that can not be fired to now: why, since when, and when to look again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from sidecar.changelog.codec import Closed, Closure
from sidecar.kafka.catalogue import Catalogue
from sidecar.kafka.producer import Refusal, Refused

PROBE_FIRST_S: Final = 10.0
PROBE_MAX_S: Final = 300.0
ANSWER_S: Final = 1.0
"""Time for the brokers to say what a topic is like now."""

_CLOSURES: Final = {
    Refusal.DENIED: Closure.UNAUTHORISED,
    Refusal.GONE: Closure.VANISHED,
    Refusal.SILENT: Closure.UNREACHABLE,
}


@dataclass(slots=True)
class _Probe:
    since_ms: int
    every_s: float
    next_s: float
    asked: bool = False
    """What the topic is like now was asked for at the last look."""


class ClosedOrigins:
    """Closes origins on what transactions and metadata say, and opens them again."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._closed: dict[str, Closed] = {}
        self._probes: dict[str, _Probe] = {}
        self._restored_since_ms: dict[str, int] = {}

    @property
    def closed(self) -> Mapping[str, Closed]:
        """Origins that are not open, other than paused ones. Replaced, never changed."""
        return self._closed

    def close(self, name: str, why: Closure, now_ms: int, now_s: float) -> bool:
        """Close an origin; return whether it was open."""
        if (known := self._closed.get(name)) is not None and known.why == why:
            return False
        probe = self._probes.get(name)
        if probe is None:
            since_ms = self._restored_since_ms.get(name, now_ms)
            probe = self._probes[name] = _Probe(since_ms, PROBE_FIRST_S, 0)
        else:
            probe.every_s = min(2 * probe.every_s, PROBE_MAX_S)
        probe.next_s = now_s + probe.every_s
        self._closed = {**self._closed, name: Closed(why, probe.since_ms)}
        return True

    def restored(self, closed: Mapping[str, Closed]) -> None:
        """Take over since when origins were closed for a former owner: a restart must not put ORIGIN_TIMEOUT off."""
        for name, closure in closed.items():
            if closure.why is not Closure.PAUSED:
                since_ms = self._restored_since_ms.get(name, closure.since_ms)
                self._restored_since_ms[name] = min(since_ms, closure.since_ms)

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
                self._catalogue.forget(name)
                own_fault.append(record)
            elif closure is not Closure.UNREACHABLE or not everything:
                if closure is Closure.VANISHED:
                    self._catalogue.forget(name)
                self.close(name, closure, now_ms, now_s)
        return own_fault

    def advance(self, pending: Iterable[str], now_ms: int, now_s: float) -> list[str]:
        """Take in what the catalogue knows; return the origins that were opened again.

        Args:
            pending: Origins of the timers that wait.
        """
        catalogue = self._catalogue
        for name in {*pending, *catalogue.denied}:
            if name in self._closed:
                continue
            if name in catalogue.denied:
                self.close(name, Closure.UNAUTHORISED, now_ms, now_s)
            elif name in catalogue.unknown:
                self.close(name, Closure.VANISHED, now_ms, now_s)
            elif name not in catalogue.origins:
                catalogue.want((name,))
        opened = []
        for name, probe in list(self._probes.items()):
            if now_s < probe.next_s:
                continue
            if name in catalogue.origins and name not in catalogue.leaderless and name not in catalogue.denied:
                # It is there: the next timer that is due for it is the probe. Refused, it closes for twice as long.
                probe.next_s = float("inf")
                probe.asked = False
                self._closed = {other: closed for other, closed in self._closed.items() if other != name}
                opened.append(name)
            elif not probe.asked:
                catalogue.want((name,))
                probe.asked = True
                probe.next_s = now_s + ANSWER_S
            else:
                probe.asked = False
                probe.every_s = min(2 * probe.every_s, PROBE_MAX_S)
                probe.next_s = now_s + probe.every_s
        return opened

    def doubt(self, names: Iterable[str]) -> None:
        """A transaction that wrote to these failed, and nobody said why: ask what they are like now."""
        self._catalogue.want(names)

    def denied(self, name: str) -> bool:
        """Return whether the topic may not be written to, as far as is known."""
        return name in self._catalogue.denied

    def fired(self, names: Iterable[str]) -> None:
        """These took records: their next closure starts probing from the beginning."""
        for name in names:
            self._restored_since_ms.pop(name, None)
            if name in self._probes and name not in self._closed:
                del self._probes[name]

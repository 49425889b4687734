"""Deliveries that stand in their origins already: a plan removes their messages and delivers nothing."""

from __future__ import annotations

from collections.abc import Callable

from sidecar.changelog.entry import Head, head
from sidecar.engine.delivered import Delivered, Delivery
from sidecar.engine.overlay import Overlay
from sidecar.model import StoredOffset, TimerId


class Standing:
    """Of one partition in one plan; see delivered.py.

    Args:
        overlay: The partition as the plan changes it.
    """

    def __init__(self, overlay: Overlay) -> None:
        self.known = overlay.partition.delivered
        self.counts: dict[str, int] = {}
        """Messages that are not delivered again, by origin."""
        self._overlay = overlay
        self.met: set[Delivery] = set()
        """What the plan has come across."""

    def meets_arrival(self, offset: StoredOffset, first_ms: int, origin: str) -> bool:
        """Return whether a message that is read again must not be delivered again, and count it if so."""
        return (offset, origin) in self.known.again and self._meet(Delivery(offset, first_ms, origin))

    def meets(self, fixed: Head, origin: str) -> bool:
        """Return whether a timer that a control record makes due must not be delivered again, and count it if so."""
        return self.has(fixed, origin) and self._meet(Delivery(StoredOffset(fixed.offset), fixed.first_ms, origin))

    def has(self, fixed: Head, origin: str) -> bool:
        """Return whether a pending timer must not be delivered again."""
        return self.known.has(fixed, origin)

    def has_met(self, target: TimerId) -> bool:
        """Return whether a timer was removed because its delivery stands in its origin, here or by an earlier plan."""
        met = (*self.known.removed, *self.met)
        return any((each.offset, each.first_ms) == (target.offset, target.first_ms) for each in met)

    def remove(self, limit: int, limit_bytes: int, let_next_go: Callable[[bytes, Head], None]) -> bool:
        """Remove pending timers that must not be delivered again, up to a limit; return whether those were all.

        Otherwise what is due waits for the next plan: it may be one of them.

        Args:
            limit: Most timers.
            limit_bytes: Most bytes of their entries.
            let_next_go: Has the next plan look at the timer behind one.
        """
        taken: list[bytes] = []
        for each in sorted(self.known.pending - self.met):
            if len(taken) >= limit or limit_bytes <= 0:
                break
            entry = self._overlay.find(each.offset, each.first_ms)
            if entry is None:  # a message that is read again has replaced it
                self.met.add(each)
                continue
            self._meet(each)
            limit_bytes -= len(entry)
            self._overlay.take(entry)
            taken.append(entry)
        for entry in taken:
            let_next_go(entry, head(entry))
        return self.known.pending <= self.met

    def after(self, next_input_offset: int) -> Delivered:
        """Return what the partition must not deliver again after this plan."""
        return self.known.after(self.met, next_input_offset) if self.known else self.known

    def _meet(self, delivery: Delivery) -> bool:
        self.met.add(delivery)
        self.counts[delivery.origin] = self.counts.get(delivery.origin, 0) + 1
        return True

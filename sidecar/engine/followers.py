"""Followers: the timers that waited behind one of a scan go in the same plan, as far as its limits allow.

Thousands may wait behind one timer that was cancelled. Each lets only the next one go, so without this each would cost
a plan.
"""

from __future__ import annotations

from collections.abc import Callable

from sidecar.changelog.entry import Head, head, origin_of
from sidecar.engine.allowance import Allowance
from sidecar.engine.controls import Dispose
from sidecar.engine.lanes import lane_of_entry
from sidecar.engine.overlay import Overlay


class Followers:
    """Of one partition in one plan.

    Args:
        overlay: The partition as the plan changes it.
        allowance: The remaining budget of the partition.
    """

    def __init__(self, overlay: Overlay, allowance: Allowance) -> None:
        self._overlay = overlay
        self._allowance = allowance
        self._leaders: dict[bytes, tuple[bytes, Head]] = {}
        """By lane, the first of the timers that waited behind another one and came due now."""

    def note(self, entry: bytes, fixed: Head) -> None:
        """Note a timer of the scan that waited behind another one."""
        lane = lane_of_entry(entry, fixed)
        leader = self._leaders.get(lane)
        if leader is None or fixed.offset < leader[1].offset:
            self._leaders[lane] = (entry, fixed)

    def go(self, limit: int, dispose: Dispose, let_next_go: Callable[[bytes, Head], None]) -> None:
        """Dispose of the timers behind the noted ones, in the order of their lanes.

        Args:
            limit: Most of them.
            dispose: Fires a timer, or makes it wait again.
            let_next_go: Has the next plan look at the timer behind one, with which it goes on.
        """
        overlay, allowance = self._overlay, self._allowance
        for entry, fixed in self._leaders.values():
            while limit > 0 and not allowance.exhausted and (behind := overlay.next_behind(entry, fixed)) is not None:
                entry, fixed = behind, head(behind)  # noqa: PLW2901 - the next one is looked for behind it
                limit -= 1
                allowance.timers -= 1
                allowance.bytes -= len(entry)
                overlay.take(entry)
                # Stored at the due of what is gone now.
                dispose(entry, fixed._replace(due_ms=overlay.now_ms), origin_of(entry, fixed))
            let_next_go(entry, fixed)

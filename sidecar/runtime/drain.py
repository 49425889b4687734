"""`run --drain`: decides when nothing is left to fire, and reports what keeps the process from ending."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

import structlog

from sidecar.api.source import Source
from sidecar.changelog.codec import Closure
from sidecar.clock import Clock
from sidecar.contract.control import EVERY_ORIGIN
from sidecar.engine.group.view import FIGURE_AGE_MAX_MS, STOPPED, PartitionView
from sidecar.engine.partition import State

log = structlog.get_logger(__name__)

LOOK_EVERY_S: Final = 0.2
SAY_EVERY_S: Final = 10.0
OTHERS_S: Final = 1.5 * FIGURE_AGE_MAX_MS / 1000
"""How long other instances must own the remaining partitions: a killed one counts as owner until its figures expire."""
NOTHING_S: Final = 60.0
"""Longest wait for a first partition."""

DONE: Final = 0
FAILED: Final = 1


class Drain:
    """Decides when a drain is over; called on the loop's thread after each round.

    Args:
        source: The partitions of this instance and of the group.
        instance_id: Id of this process.
        clock: Measures the waits.
        timeout_ms: When to give up; None: never.
    """

    def __init__(self, source: Source, instance_id: str, clock: Clock, timeout_ms: int | None) -> None:
        self._source = source
        self._instance_id = instance_id
        self._clock = clock
        now_s = clock.monotonic_s()
        self._until_s = float("inf") if timeout_ms is None else now_s + timeout_ms / 1000
        self._nothing_until_s = now_s + NOTHING_S
        self._looked_s = self._said_s = float("-inf")
        self._empty_since_s: float | None = None

    def look(self) -> int | None:
        """Return the exit status when the drain is over, None before."""
        now_s = self._clock.monotonic_s()
        if now_s - self._looked_s < LOOK_EVERY_S:
            return None
        self._looked_s = now_s
        views = self._source.views()
        own = [view for view in views if view.owner == self._instance_id]
        known = self._source.unread() is None and self._source.partitions_total() is not None
        settled = known and bool(own) and all(view.owner for view in views) and _settled(own)
        if settled and (status := self._over(own, len(views), now_s)) is not None:
            return status
        if not settled or any(view.pending for view in own):
            self._empty_since_s = None
        if not own and now_s >= self._nothing_until_s:
            log.error(
                "drain_failed", reason="no partition was assigned: other instances own them all; stop those first"
            )
            return FAILED
        if now_s >= self._until_s:
            log.error("drain_failed", reason="--drain-timeout is over", **_facts(own))
            return FAILED
        if now_s - self._said_s >= SAY_EVERY_S:
            self._said_s = now_s
            log.info("drain_progress", **_facts(own), waits_for=list(self._source.health().reasons))
        return None

    def _over(self, own: Sequence[PartitionView], total: int, now_s: float) -> int | None:
        stopped = [view.partition for view in own if view.state == State.STOPPED]
        left = _left(view for view in own if view.state == State.RUNNING)
        if left and not all(paused for _, paused in left):
            return None
        if left:
            log.error(
                "drain_failed",
                reason="only messages of paused origins are left, and control records are not read while draining: "
                "start `retry-sidecar run`, resume or cancel, and drain again",
                paused_origins={name: count for (name, _), count in sorted(left.items())},
            )
            return FAILED
        if self._empty_since_s is None:
            self._empty_since_s = now_s
        if len(own) < total and now_s - self._empty_since_s < OTHERS_S:
            return None
        if stopped:
            log.error("drain_failed", reason="partitions are stopped; the log says why", partitions=stopped)
            return FAILED
        log.info("drain_done", partitions=[view.partition for view in own])
        return DONE


def _settled(own: Iterable[PartitionView]) -> bool:
    return all(view.state in (State.RUNNING, State.STOPPED) for view in own)


def _left(views: Iterable[PartitionView]) -> Counter[tuple[str, bool]]:
    """Return the number of pending messages by origin and whether the origin is paused there."""
    left: Counter[tuple[str, bool]] = Counter()
    for view in views:
        paused = {name for name, (why, _) in view.closed_origins.items() if why in {Closure.PAUSED, STOPPED}}
        all_paused = EVERY_ORIGIN in paused
        left.update({(name, all_paused or name in paused): count for name, count in view.by_origin.items() if count})
    return left


def _facts(own: Sequence[PartitionView]) -> dict[str, object]:
    # A partition that is being restored has incomplete counts.
    known = _settled(own)
    return {
        "pending": sum(view.pending for view in own) if known else None,
        "next_due_ms": min((view.next_due_ms for view in own if view.next_due_ms is not None and known), default=None),
        "partitions": len(own),
    }

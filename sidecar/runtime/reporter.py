"""Publishes the state of the loop to the API, the metrics and the status topic."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from sidecar.engine.group.view import PartitionView
from sidecar.runtime.assignment import Assignment
from sidecar.runtime.components import Components
from sidecar.runtime.fetching import Fetching
from sidecar.runtime.readiness import Readiness
from sidecar.runtime.reporting.snapshot import views_of

SHOW_EVERY_S: Final = 0.2


class Reporter:
    """Publishes periodically; owned by the loop."""

    def __init__(
        self, components: Components, assignment: Assignment, fetching: Fetching, readiness: Readiness
    ) -> None:
        self._components = components
        self._clock = components.clock
        self._assignment = assignment
        self._fetching = fetching
        self._readiness = readiness
        self._shown_s = float("-inf")

    def hasten(self) -> None:
        """Publish at the next `advance`."""
        self._shown_s = float("-inf")

    def advance(self) -> None:
        """Publish everything when the interval has passed."""
        now_s = self._clock.monotonic_s()
        if now_s - self._shown_s < SHOW_EVERY_S:
            if self._components.guard.skew_ms is None:
                self._components.status.advance(())  # nothing fires before the first record is delivered
            return
        self._shown_s = now_s
        components = self._components
        components.inheritance.join(self._assignment.running())
        views = self.views(self._assignment.partitions)
        components.snapshots.show(views, self._readiness.reasons(), self._details())
        components.metrics.publish(views)
        components.status.advance(views)

    def views(self, numbers: Iterable[int]) -> list[PartitionView]:
        """Return the views of the owned partitions among `numbers`, in order."""
        components = self._components
        owned = self._assignment.owned(sorted(numbers))
        progress, lag, now_ms = components.recovery.progress, self._fetching.lag, self._clock.wall_ms()
        return views_of(owned, components.instance_id, components.url, progress, lag, now_ms)

    def _details(self) -> dict[str, Any]:
        components = self._components
        notify = {} if components.notifier is None else {"notify": components.notifier.details()}
        return {
            **notify,
            "instance_id": components.instance_id,
            "partitions": sorted(self._assignment.partitions),
            "quarantines": components.state.quarantines,
            "skipped_input_records": components.recovery.skipped_input,
        }

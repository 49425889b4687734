"""Immutable snapshots of the loop for the API, replaced as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import structlog

from sidecar import __version__
from sidecar.api.source import Health
from sidecar.clock import Clock
from sidecar.engine.group.view import PartitionView
from sidecar.engine.partition import Partition, State
from sidecar.wheel.geometry import WIDTHS_MS, slot_end_ms

if TYPE_CHECKING:
    from pydantic import JsonValue

log = structlog.get_logger(__name__)

STUCK_S = 120.0
"""A loop without a heartbeat for this long is not live."""


class Snapshots:
    """The latest snapshot: written by the loop, read by the API's thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._views: tuple[PartitionView, ...] = ()
        self._partitions_total: int | None = None
        self._cluster_id: str | None = None
        self._reasons: tuple[str, ...] = ("it is starting",)
        self._details: Mapping[str, JsonValue] = {}
        self._was_ready = False
        self._heartbeat_s = clock.monotonic_s()

    def heartbeat(self) -> None:
        """Note that the loop has started another round."""
        self._heartbeat_s = self._clock.monotonic_s()

    def wait_for(self, reasons: Iterable[str]) -> None:
        """Set what the start waits for, if anything; the process is alive."""
        self.heartbeat()
        self._reasons = tuple(reasons) or ("it is starting",)

    def set_cluster(self, cluster_id: str, partitions_total: int) -> None:
        """Set the cluster id and the number of input partitions."""
        self._cluster_id = cluster_id
        self._partitions_total = partitions_total

    def show(self, views: Sequence[PartitionView], reasons: Iterable[str], details: Mapping[str, JsonValue]) -> None:
        """Replace the views, the reasons why the instance is not ready (none: it is), and the details for /health."""
        self._views = tuple(views)
        was_ready, self._reasons = not self._reasons, tuple(reasons)
        if self._reasons and was_ready:
            log.warning("readiness_lost", reasons=self._reasons)
        elif not (self._reasons or was_ready):
            log.info("readiness_gained")
        self._details = details
        self._was_ready = self._was_ready or not self._reasons

    def views(self) -> Sequence[PartitionView]:
        return self._views

    def partitions_total(self) -> int | None:
        return self._partitions_total

    def unread(self) -> str | None:
        return None

    def cluster_id(self) -> str | None:
        return self._cluster_id

    def now_ms(self) -> int:
        return self._clock.wall_ms()

    def health(self) -> Health:
        stuck_s = self._clock.monotonic_s() - self._heartbeat_s
        reasons = self._reasons
        live = stuck_s < STUCK_S
        if not live:
            reasons = (f"the loop has not come round for {stuck_s:.0f} s", *reasons)
        return Health(
            live=live,
            ready=not reasons,
            reasons=reasons,
            details=self._details,
            starting=not self._was_ready,
        )


def views_of(
    partitions: Iterable[Partition],
    owner: str,
    url: str | None,
    progress: Callable[[int], tuple[float, int]],
    lag: Mapping[int, int],
    now_ms: int,
) -> list[PartitionView]:
    """Return the public views of partitions.

    Args:
        partitions: The owned ones.
        owner: Instance id of the owner.
        url: URL of the owner's HTTP API.
        progress: Returns, for a partition, the completed fraction of its restore and the changelog records left.
        lag: Input records not ingested yet, by partition, where known.
        now_ms: Wall time.
    """
    return [
        _view_of(each, owner=owner, url=url, progress=progress(each.number), lag=lag.get(each.number), now_ms=now_ms)
        for each in partitions
    ]


def _view_of(
    partition: Partition,
    *,
    owner: str,
    url: str | None,
    progress: tuple[float, int],
    lag: int | None,
    now_ms: int,
) -> PartitionView:
    """Return one view. It shares the counters, which are replaced and never changed."""
    running = partition.state is State.RUNNING
    restored, remaining = (1.0, 0) if running else progress
    view = PartitionView(
        partition=partition.number,
        state=partition.state,
        owner=owner,
        url=url,
        restored=restored,
        restore_remaining=remaining,
        next_due_ms=partition.next_due_ms,
        due_backlog=_backlog(partition, now_ms) if running else 0,
        lag=lag,
        activity=partition.activity if partition.activity_whole else None,
        next_input_offset=partition.checkpoint.next_input_offset if running else None,
        reason=partition.reason,
        release=__version__,
        restored_ms=partition.restored_ms,
    )
    return view.counted(partition.counts, partition.checkpoint, now_ms)


def _backlog(partition: Partition, now_ms: int) -> int:
    """Count the timers in slots that have ended: what the last scan left, to the second."""
    if partition.next_due_ms is None or partition.next_due_ms > now_ms - WIDTHS_MS[0]:
        return 0
    slots = partition.counts.slots
    return sum(count for (level, slot), count in slots.items() if slot_end_ms(slot, level) <= now_ms)

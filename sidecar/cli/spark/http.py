"""The HTTP API of a Spark driver: the answers of `retry-sidecar api`, with the driver's health and metrics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import structlog

from sidecar import __version__
from sidecar.api.source import Health
from sidecar.clock import Clock, SystemClock
from sidecar.engine import hot
from sidecar.engine.group.activity import Activity
from sidecar.engine.group.view import PartitionView
from sidecar.metrics import Metrics
from sidecar.notify.notifier import Notifier, open_notifier
from sidecar.runtime.api_only import STOP_S, Observer
from sidecar.serving.address import advertised_url
from sidecar.serving.group_view import ClusterView, GroupSource, follow
from sidecar.serving.http import start_server
from sidecar.settings import Settings
from sidecar.spark.open_files import of_driver
from sidecar.spark.reads.board import Board
from sidecar.spark.stream import observation

if TYPE_CHECKING:
    from sidecar.api.messages.listing import Entries

logger = structlog.get_logger(__name__)

SILENCE_S: Final = 60.0
"""The time without a micro-batch after which the query is not ready."""


class DriverSource(GroupSource):
    """The source of the API of a driver."""

    def __init__(self, driver: Driver, cluster: ClusterView) -> None:
        super().__init__(driver, cluster)
        self._driver = driver

    def views(self) -> Sequence[PartitionView]:
        return self._driver.with_hour(super().views())


class Driver(Observer):
    """The health of a driver: ready while micro-batches complete."""

    def __init__(self, cluster: ClusterView, clock: Clock, metrics: Metrics, notifier: Notifier | None = None) -> None:
        super().__init__(cluster, clock)
        self._notifier = notifier
        self._monotonic_s = clock.monotonic_s
        self._metrics = metrics
        self._seen_s: float | None = None
        self._batch = -1
        self._began_s = clock.monotonic_s()
        self._hour = Activity()
        self._stopped: dict[int, tuple[str, float]] = {}
        self.board = Board(clock)
        """Asks the query for single messages."""
        self._jvm: int | None = None
        self.url = ""
        """The URL under which others reach it; known once it listens."""

    def progressed(self, progress: Mapping[str, Any]) -> None:
        """Count a completed micro-batch."""
        if self._seen_s is None:
            self._metrics.restore_seconds.observe(self._monotonic_s() - self._began_s)
        self._seen_s = self._monotonic_s()
        self._batch = int(progress["batchId"])
        self.board.completed(self._batch)
        counted = observation.count(self._metrics, progress)
        self._hour = self._hour.plus(self.now_ms(), observation.minute_of(counted))
        logger.debug(
            "micro_batch_done",
            batch=self._batch,
            records=observation.records_read(progress),
            took_ms=int(progress["durationMs"].get("triggerExecution", 0)),
            steps_ms=progress["durationMs"],
            partition_steps_ms=observation.spent_ms(counted),
            round_trips=sum(tally.round_trips for tally in counted),
        )
        for tally in counted:
            if self._notifier is not None and tally.dead:
                self._notifier.add_reasons(tally.dead)
            for partition, reason in tally.stopped.items():
                if self._stopped.get(partition, ("",))[0] != reason:
                    logger.error("partition_stopped", partition=partition, reason=reason)
                self._stopped[partition] = reason, self._seen_s
        if self._jvm is not None:
            for name, files in of_driver(self._jvm).items():
                self._metrics.show_open_files(name, *files)
        lags = observation.lags(progress)
        self._metrics.publish([replace(view, lag=lags.get(view.partition)) for view in self._cluster.views()])

    def opened(self, jvm: int) -> None:
        """Note the process id of the JVM."""
        self._jvm = jvm

    def failed(self, reason: str) -> None:
        """Count a micro-batch that failed."""
        observation.count_failure(self._metrics, reason)

    def skewed(self, skew_s: float) -> None:
        """Show the driver's clock minus the broker's."""
        self._metrics.clock_skew_seconds.set(skew_s)

    def with_hour(self, views: Sequence[PartitionView]) -> list[PartitionView]:
        """Return the views with the last hour: partitions do not count it, this driver does for all of them."""
        own = next((at for at, view in enumerate(views) if view.owner and view.url == self.url), None)
        return [replace(view, activity=self._hour) if at == own else view for at, view in enumerate(views)]

    def health(self) -> Health:
        health = super().health()
        reason = ""
        if self._seen_s is None:
            reason = "the query has not completed its first micro-batch yet"
        elif self._monotonic_s() - self._seen_s > SILENCE_S:
            reason = f"no micro-batch has completed for {SILENCE_S:g} s"
        stopped = [
            f"partition {partition} has stopped: {said}"
            for partition, (said, seen_s) in sorted(self._stopped.items())
            if self._monotonic_s() - seen_s <= SILENCE_S
        ]
        if not reason and stopped:
            return replace(health, ready=False, reasons=(*health.reasons, *stopped))
        if not reason:
            notify = {} if self._notifier is None else {"notify": self._notifier.details()}
            details = {**health.details, **notify, "engine": "spark", "micro_batch": self._batch}
            return replace(health, details=details)
        return replace(health, ready=False, reasons=(*health.reasons, reason), starting=self._seen_s is None)


@contextmanager
def serving(settings: Settings) -> Iterator[Driver]:
    """Serve HTTP while the block runs. Raises CommandFailed: the address is in use or not allowed."""
    clock = SystemClock()
    cluster = follow(settings, clock)
    metrics = Metrics(version=__version__, now_ms=clock.wall_ms, hot_path=hot.KIND)
    observation.start_at_zero(metrics)
    notifier = open_notifier(settings, settings.instance_id or "spark", clock, metrics)
    driver = Driver(cluster, clock, metrics, notifier)
    source = DriverSource(driver, cluster)
    server, commands = start_server(settings, clock, source, metrics, entries=lambda: _entries(driver, source))
    driver.url = advertised_url(settings, server.url)
    try:
        cluster.start()
        server.await_open()
        yield driver
    finally:
        if notifier is not None:
            notifier.stop()
        server.stop(STOP_S)
        cluster.stop(STOP_S)
        commands.close()


def _entries(driver: Driver, source: GroupSource) -> Entries:
    # Imported here: the libraries of the API take long to load.
    from sidecar.spark.reads.entries import QueryEntries  # noqa: PLC0415

    return QueryEntries(driver.board, source, lambda: driver.url)

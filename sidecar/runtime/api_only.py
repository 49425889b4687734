"""`retry-sidecar api`: serves the HTTP API for the whole group without a partition or a state folder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import structlog

from sidecar import __version__
from sidecar.api.source import Health
from sidecar.clock import Clock, SystemClock
from sidecar.engine import hot
from sidecar.engine.group.view import PartitionView
from sidecar.kafka import config
from sidecar.metrics import Metrics
from sidecar.runtime.stop import Stop
from sidecar.serving.group_view import ClusterView, GroupSource, follow
from sidecar.serving.http import start_server
from sidecar.settings import Settings

logger = structlog.get_logger(__name__)

STOP_S: Final = 2.0


class Observer:
    """The source of a process that owns no partition."""

    def __init__(self, cluster: ClusterView, clock: Clock) -> None:
        self._cluster = cluster
        self._clock = clock
        self._was_ready = False

    def views(self) -> Sequence[PartitionView]:
        return ()

    def partitions_total(self) -> int | None:
        return self._cluster.partitions_total

    def unread(self) -> str | None:
        return self._cluster.unread()

    def health(self) -> Health:
        error = self._cluster.error
        self._was_ready = self._was_ready or not (error or self._cluster.unread())
        reasons = (f"the status topic cannot be read: {error}",) if error else ()
        return Health(
            live=True,
            ready=not reasons,
            reasons=reasons,
            details={"partitions": [], "refused_status_records": self._cluster.refused},
            starting=not self._was_ready,
        )

    def now_ms(self) -> int:
        return self._clock.wall_ms()

    def cluster_id(self) -> str | None:
        return self._cluster.cluster_id


def serve(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT; return the exit status.

    Raises:
        SidecarError: The process cannot start; the text says what to do.
    """
    clock = SystemClock()
    stop = Stop()
    stop.listen()
    config.validate_client_properties(settings)
    cluster = follow(settings, clock)
    source = GroupSource(Observer(cluster, clock), cluster)
    metrics = Metrics(version=__version__, now_ms=clock.wall_ms, hot_path=hot.KIND)
    server, commands = start_server(settings, clock, source, metrics, lambda: None)
    try:
        cluster.start()
        server.await_open()
        stop.wait()
        logger.info("api_stopped")
    finally:
        server.stop(STOP_S)
        cluster.stop(STOP_S)
        commands.close()
    return 0

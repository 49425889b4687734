"""Builds the HTTP server, for an instance and for `retry-sidecar api`."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from sidecar import __version__
from sidecar.api.app import Operations, create_app
from sidecar.api.auth import Gate
from sidecar.api.connect import Worker
from sidecar.api.connect.plugins import connector_config
from sidecar.api.policies import Reloaded
from sidecar.clock import Clock
from sidecar.engine.ports import Store
from sidecar.metrics import Metrics
from sidecar.serving.control_calls import LazyCommands
from sidecar.serving.group_view import GroupSource
from sidecar.serving.local_messages import LocalEntries
from sidecar.serving.peers import HttpPeers
from sidecar.serving.server import Server
from sidecar.settings import Settings

logger = structlog.get_logger(__name__)


def start_server(
    settings: Settings,
    clock: Clock,
    source: GroupSource,
    metrics: Metrics,
    store: Callable[[], Store | None],
    instance_id: str = "",
    restart: Callable[[bool], None] = lambda _: None,
    reload: Callable[[], Reloaded] | None = None,
) -> tuple[Server, LazyCommands]:
    """Return the running server and the client of its control calls, which must be closed after the server.

    Args:
        store: Returns the local store, None while there is none.
        instance_id: Id of this instance; empty for a process that owns no partition.
        restart: Restores the partitions of this process again.
        reload: Reads the policies again; None for a process that has none.

    Raises:
        CommandFailed: The server cannot listen on the address.
    """
    metrics.ready.set_function(lambda: source.health().ready)
    metrics.partitions_without_owner.set_function(source.partitions_without_owner)
    commands = LazyCommands(settings, clock, source)
    peers = HttpPeers(clock, settings.api_token)
    worker = Worker(
        name=settings.streams_app_id,
        instance_id=instance_id,
        topic=settings.input_topic,
        config=connector_config(settings),
        version=__version__,
        others=peers,
        restart=restart,
    )
    gate = Gate(settings.api_token, loopback=settings.http_is_loopback)
    operations = Operations(LocalEntries(store, source, instance_id), peers, commands, gate, worker, reload)
    app = create_app(
        source, metrics=metrics, version=__version__, actuator=settings.enable_health, operations=operations
    )
    server = Server(app, host=settings.http_host, port=settings.http_port)
    server.start()
    logger.info("http_listening", url=server.url)
    return server, commands

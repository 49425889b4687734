"""Builds the HTTP application, for an instance and for `retry-sidecar api`. Its libraries take long to import."""

from __future__ import annotations

import socket
from collections.abc import Callable
from urllib.parse import urlsplit

from sidecar import __version__
from sidecar.api.app import Operations, create_app
from sidecar.api.auth import Gate
from sidecar.api.connect import Worker
from sidecar.api.connect.plugins import connector_config
from sidecar.api.messages.listing import Entries
from sidecar.api.source import Reloaded
from sidecar.clock import Clock
from sidecar.contract.signature import tokens_of
from sidecar.engine.ports import Store
from sidecar.metrics import Metrics
from sidecar.serving.control_calls import LazyCommands
from sidecar.serving.dead_letters import KafkaDeadLetters
from sidecar.serving.group_view import GroupSource
from sidecar.serving.local_messages import LocalEntries
from sidecar.serving.peers import HttpPeers
from sidecar.serving.server import Server
from sidecar.serving.tls import client_context
from sidecar.settings import Settings


def make_server(
    listener: socket.socket,
    settings: Settings,
    clock: Clock,
    source: GroupSource,
    metrics: Metrics,
    commands: LazyCommands,
    *,
    store: Callable[[], Store | None],
    instance_id: str,
    restart: Callable[[bool], None],
    reload: Callable[[], Reloaded] | None,
    entries: Entries | None = None,
) -> Server:
    """Return the server of the application, not started yet; see `sidecar.serving.http.start_server`."""
    tls = client_context(settings.http_tls_ca)
    peers = HttpPeers(clock, settings.api_token, tls, tls_only=settings.http_tls_cert is not None)
    worker = Worker(
        name=settings.streams_app_id,
        instance_id=instance_id,
        topic=settings.input_topic,
        config=connector_config(settings),
        version=__version__,
        others=peers,
        restart=restart,
    )
    advertised = urlsplit(settings.http_advertised_url or "").hostname
    gate = Gate(
        tokens_of(settings.api_token),
        tokens_of(settings.api_read_token),
        loopback=settings.http_is_loopback,
        open_reads=settings.api_read == "open",
        own_hosts=[] if advertised is None else [advertised],
    )
    dead_letters = KafkaDeadLetters(settings, clock)
    own = entries or LocalEntries(store, source, instance_id)
    operations = Operations(own, peers, commands, gate, worker, dead_letters, reload)
    app = create_app(
        source, metrics=metrics, version=__version__, actuator=settings.enable_health, operations=operations
    )
    return Server(
        app,
        host=settings.http_host,
        port=settings.http_port,
        listener=listener,
        close=dead_letters.close,
        certificate=settings.http_tls_cert,
        key=settings.http_tls_key,
    )

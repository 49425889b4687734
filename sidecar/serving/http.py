"""HTTP of a process: its port is open from the start, its application is loaded when there is time for it.

The libraries of the application take as long to import as everything else takes until the first message fires. A
connection that comes before waits in the queue of the socket.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import structlog

from sidecar.api.source import Reloaded
from sidecar.clock import Clock
from sidecar.engine.ports import Store
from sidecar.errors import CommandFailed
from sidecar.metrics import Metrics
from sidecar.serving.control_calls import LazyCommands
from sidecar.serving.group_view import GroupSource
from sidecar.serving.listener import listen, url_of
from sidecar.serving.tls import check_certificate
from sidecar.settings import Settings

if TYPE_CHECKING:
    from sidecar.api.messages.listing import Entries
    from sidecar.serving.server import Server

logger = structlog.get_logger(__name__)

WITHIN_S: Final = 2.0
"""Longest time from the start to the loading of the application: less than probes wait for an answer."""
LOADED_S: Final = 30.0
"""Longest time for loading the application of a process that does nothing else."""


class Http:
    """The HTTP server of a process, loaded by a separate thread.

    Args:
        settings: The effective ones.
        make: Returns the server on a listening socket.

    Raises:
        CommandFailed: The server cannot listen on the address, or cannot speak TLS with its files.
    """

    def __init__(self, settings: Settings, make: Callable[[socket.socket], Server]) -> None:
        check_certificate(settings)
        self._listener = listen(settings.http_host, settings.http_port)
        self.url = url_of(settings.http_host, self._listener, settings.http_scheme)
        """The URL of the server, with its actual port."""
        self._make = make
        self._server: Server | None = None
        self._failure: Exception | None = None
        self._wanted = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="http-start", daemon=True)
        self._thread.start()

    def open(self) -> None:
        """Load the application now; returns at once. Raises what loading it has raised."""
        self._wanted.set()
        if self._failure is not None:
            raise self._failure

    def await_open(self) -> None:
        """Return when requests are answered. Raises CommandFailed, and what loading the application has raised."""
        self._wanted.set()
        self._thread.join(LOADED_S)
        self.open()
        if self._thread.is_alive():
            raise CommandFailed(f"The HTTP server at {self.url} did not start within {LOADED_S:g} s.")

    def stop(self, deadline_s: float) -> None:
        """Finish current responses and close the port; after the deadline the threads die with the process."""
        self._stopping = True
        self._wanted.set()
        self._thread.join(deadline_s)
        if self._server is not None:
            self._server.stop(deadline_s)
        self._listener.close()

    def _run(self) -> None:
        self._wanted.wait(WITHIN_S)
        if self._stopping:
            return
        try:
            self._server = self._make(self._listener)
            self._server.start()
        except Exception as error:  # noqa: BLE001 - raised by open()
            self._failure = error
        else:
            logger.info("http_listening", url=self.url)


def start_server(
    settings: Settings,
    clock: Clock,
    source: GroupSource,
    metrics: Metrics,
    store: Callable[[], Store | None] = lambda: None,
    instance_id: str = "",
    restart: Callable[[bool], None] = lambda _: None,
    reload: Callable[[], Reloaded] | None = None,
    *,
    entries: Callable[[], Entries] | None = None,
) -> tuple[Http, LazyCommands]:
    """Return the HTTP server, which loads soon, and the client of its control calls, to be closed after the server.

    Args:
        settings: The effective ones.
        clock: The clock of this machine.
        source: Snapshots of the group.
        metrics: Shown at /metrics.
        store: Returns the local store, None while there is none.
        instance_id: Id of this instance; empty for a process that owns no partition.
        restart: Restores the partitions of this process again.
        reload: Reads the policies again; None for a process that has none.
        entries: Makes what reads this process's pending messages; None: the local store.

    Raises:
        CommandFailed: The server cannot listen on the address.
    """
    metrics.ready.set_function(lambda: source.health().ready)
    metrics.partitions_without_owner.set_function(source.partitions_without_owner)
    commands = LazyCommands(settings, clock, source)

    def make(listener: socket.socket) -> Server:
        from sidecar.serving.application import make_server  # noqa: PLC0415 - see above

        given = (listener, settings, clock, source, metrics, commands)
        own = None if entries is None else entries()
        return make_server(*given, store=store, instance_id=instance_id, restart=restart, reload=reload, entries=own)

    return Http(settings, make), commands

"""One broker for all workers of a run: the process that began the run starts it when the first worker asks for it.

Isolation is by names (`tests.broker.unique`), so workers need no brokers of their own. The broker ends with the run,
and with the process that keeps it, however that ends.
"""

from __future__ import annotations

import tempfile
import threading
from contextlib import ExitStack
from multiprocessing.connection import Client, Listener
from pathlib import Path

from sidecar.errors import CommandFailed
from tests.broker import any_broker


class SharedBroker:
    """Tells workers the address of the run's broker, or why there is none."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="broker-")
        self._listener = Listener(str(Path(self._folder.name) / "ask"))
        self._running = ExitStack()
        threading.Thread(target=self._answer, name="shared-broker", daemon=True).start()

    @property
    def address(self) -> str:
        """Where workers ask."""
        return str(self._listener.address)

    def stop(self) -> None:
        """End the broker, if one was asked for."""
        self._listener.close()
        self._running.close()
        self._folder.cleanup()

    def _answer(self) -> None:
        bootstrap, why_not = "", ""
        while True:
            try:
                connection = self._listener.accept()
            except OSError:
                return  # stopped
            with connection:
                if not bootstrap and not why_not:
                    try:
                        bootstrap = self._running.enter_context(any_broker())
                    except CommandFailed as error:
                        why_not = str(error)
                connection.send((bootstrap, why_not))


def ask(address: str) -> str:
    """Return the address of the run's broker; waits until it runs. Raises CommandFailed when there is none."""
    with Client(address) as connection:
        bootstrap, why_not = connection.recv()
    if why_not:
        raise CommandFailed(why_not)
    return str(bootstrap)

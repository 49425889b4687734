"""Ctrl-C and SIGTERM of commands that end in order."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sidecar.errors import CommandFailed
from sidecar.runtime.stop import Stop


class Interrupted(CommandFailed):
    """Ctrl-C or SIGTERM stopped the run."""


@contextmanager
def interruptible() -> Iterator[Stop]:
    """Yield what SIGINT and SIGTERM ask to stop; they mean what they meant before afterwards."""
    before: dict[signal.Signals, Any] = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    stop = Stop()
    stop.listen()
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

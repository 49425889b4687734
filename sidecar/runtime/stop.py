"""Handles the signals that stop a process, and the one that makes it read its policies again."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Final

from sidecar.clock import SystemClock

LOOK_S: Final = 0.1


class Stop:
    """Turns the first SIGTERM or SIGINT into a stop request; the second one kills the process."""

    def __init__(self) -> None:
        self.asked = False
        self.reload_asked = False
        self._pause = threading.Event()
        self._clock = SystemClock()

    def listen(self) -> None:
        """Install the signal handlers."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def listen_for_reloads(self) -> None:
        """Install the handler of SIGHUP, which otherwise ends the process."""
        signal.signal(signal.SIGHUP, self._on_hangup)

    def take_reload(self) -> bool:
        """Return whether a reload was asked for since the last call."""
        asked, self.reload_asked = self.reload_asked, False
        return asked

    def wait(self) -> None:
        """Return soon after a stop was requested."""
        while not self.within(LOOK_S):
            pass

    def within(self, seconds: float) -> bool:
        """Wait at most `seconds`; return whether a stop was requested."""
        until_s = self._clock.monotonic_s() + seconds
        # The event is never set: a signal handler that sets what its own thread waits for can deadlock that thread.
        while not self.asked and (left_s := until_s - self._clock.monotonic_s()) > 0:
            self._pause.wait(min(LOOK_S, left_s))
        return self.asked

    def _on_hangup(self, _number: int, _frame: FrameType | None) -> None:
        self.reload_asked = True

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self.asked:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        self.asked = True

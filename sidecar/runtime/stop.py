"""How a process is asked to end."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Final

LOOK_S: Final = 0.2


class Stop:
    """The first SIGTERM or SIGINT asks for the end; the second one is the end."""

    def __init__(self) -> None:
        self.asked = False
        self._pause = threading.Event()

    def listen(self) -> None:
        """Take the signals."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def wait(self) -> None:
        """Return soon after the end was asked for."""
        # The event is never set: a handler that sets what its own thread waits for can lock that thread for ever.
        while not self.asked:
            self._pause.wait(LOOK_S)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self.asked:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        self.asked = True

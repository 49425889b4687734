"""Waiting for a condition with a deadline: the tests' only way to let time pass."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from sidecar.clock import SystemClock

T = TypeVar("T")

_STEP_S = 0.05
_COUNTED_S = 1.0


class Patience:
    """A deadline that the machine's pace does not use up: between two looks at most a second counts.

    Where the machine stands still, or has no time for this process, whatever the test awaits had none either.
    """

    def __init__(self, deadline_s: float) -> None:
        self._clock = SystemClock()
        self._left_s = deadline_s
        self._looked_s = self._clock.monotonic_s()

    def is_over(self) -> bool:
        """Look at the clock, and tell whether the deadline has passed."""
        now_s = self._clock.monotonic_s()
        self._left_s -= min(now_s - self._looked_s, _COUNTED_S)
        self._looked_s = now_s
        return self._left_s <= 0


def eventually(condition: Callable[[], T], deadline_s: float, what: str) -> T:
    """Ask until the answer is true and return it; after `deadline_s` seconds fail, saying `what` did not happen."""
    patience = Patience(deadline_s)
    pause = threading.Event()
    while not (answer := condition()):
        if patience.is_over():
            raise AssertionError(f"not within {deadline_s:g} s: {what} (last answer: {answer!r})")
        pause.wait(_STEP_S)
    return answer

"""Waiting for a condition with a deadline."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

from sidecar.clock import SystemClock


class LateError(Exception):
    """Something did not happen in its time."""


def until(condition: Callable[[], bool], deadline_s: float, what: str, step_s: float = 0.02) -> None:
    """Ask until the answer is true.

    Raises:
        LateError: it was not within `deadline_s` seconds.
    """
    clock, pause = SystemClock(), threading.Event()
    end_s = clock.monotonic_s() + deadline_s
    while not condition():
        if clock.monotonic_s() > end_s:
            raise LateError(f"not within {deadline_s:g} s: {what}")
        pause.wait(step_s)


def say(text: str) -> None:
    """Print progress."""
    print(text, file=sys.stderr, flush=True)

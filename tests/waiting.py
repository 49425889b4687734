"""Waiting for a condition with a deadline: the tests' only way to let time pass."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from sidecar.clock import SystemClock

T = TypeVar("T")

_STEP_S = 0.05


def eventually(condition: Callable[[], T], deadline_s: float, what: str) -> T:
    """Ask until the answer is true and return it; after `deadline_s` seconds fail, saying `what` did not happen."""
    clock = SystemClock()
    until_s = clock.monotonic_s() + deadline_s
    pause = threading.Event()
    while not (answer := condition()):
        if clock.monotonic_s() >= until_s:
            raise AssertionError(f"not within {deadline_s:g} s: {what} (last answer: {answer!r})")
        pause.wait(_STEP_S)
    return answer

"""When freed memory is given back."""

from __future__ import annotations

from sidecar.runtime.memory import IDLE_S, Memory
from tests.clocks import HandClock


def test_memory_is_given_back_once_after_each_burst() -> None:
    clock = HandClock()
    memory = Memory(clock)
    trims: list[int] = []
    memory._trim = trims.append  # what the C library would be asked
    for busy, passes_s, expected in [
        (True, 0.0, 0),
        (False, IDLE_S / 2, 0),
        (False, IDLE_S, 1),
        (False, 60.0, 1),
        (True, 0.0, 1),
        (False, IDLE_S / 2, 1),
        (True, IDLE_S, 1),
        (False, IDLE_S, 2),
    ]:
        clock.now_s += passes_s
        memory.maintain(busy)
        assert len(trims) == expected

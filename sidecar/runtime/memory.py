"""Returns freed memory to the operating system. Does nothing where the C library is not glibc."""

from __future__ import annotations

import ctypes
from typing import Final

from sidecar.clock import Clock

IDLE_S: Final = 1.0
ARENAS: Final = 2
_M_ARENA_MAX: Final = -8


class Memory:
    """Trims the allocator when a burst is over."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._busy_s = clock.monotonic_s()
        self._given_back = False
        libc = ctypes.CDLL(None)
        self._trim = getattr(libc, "malloc_trim", None)
        if (mallopt := getattr(libc, "mallopt", None)) is not None:
            # By default each thread gets its own arena, and memory freed in one is not reused in another.
            mallopt(_M_ARENA_MAX, ARENAS)

    def maintain(self, busy: bool) -> None:
        """Trim once the process has been idle for a while; call periodically."""
        now_s = self._clock.monotonic_s()
        if busy:
            self._busy_s, self._given_back = now_s, False
        elif not self._given_back and now_s - self._busy_s >= IDLE_S:
            self._given_back = True
            if self._trim is not None:
                self._trim(0)

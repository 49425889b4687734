"""How long a timer due for a closed origin waits, and which closed origins a checkpoint names.

Every transaction writes a checkpoint, so what it names is bounded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sidecar.changelog.codec import Closed

DEFERRAL_MIN_MS: Final = 5_000
DEFERRAL_MAX_MS: Final = 15 * 60_000
DEFERRED_PER_S: Final = 2_000
CLOSED_BYTES_MAX: Final = 64 * 1024
"""Most bytes of closed origins in a checkpoint, without paused ones."""
ORIGIN_BYTES: Final = 32
"""Upper bound of the bytes of a closed origin besides its name."""


def deferral_ms(waited_ms: int, deferred: int) -> int:
    """Return how long a timer is deferred.

    Args:
        waited_ms: Since it was due, or since its origin closed if that was later.
        deferred: How many timers of its origin are deferred.
    """
    return min(max(waited_ms, deferred * 1000 // DEFERRED_PER_S, DEFERRAL_MIN_MS), DEFERRAL_MAX_MS)


def noted(closed: Mapping[str, Closed], paused: Mapping[str, Closed], pending: Mapping[str, int]) -> dict[str, Closed]:
    """Return the closed origins with pending timers, as far as they fit, and all paused ones."""
    waited_for = {name: why for name, why in closed.items() if name in pending}
    return {**within(waited_for, CLOSED_BYTES_MAX), **paused}


def within(closed: Mapping[str, Closed], bytes_max: int) -> Mapping[str, Closed]:
    """Return the closed origins that fit, those closed for longest first.

    The others stay closed, but the next owner of the partition does not learn since when, and counts ORIGIN_TIMEOUT
    from the start: messages due for them go to the DLQ later, never earlier.
    """
    if sum(map(_size, closed)) <= bytes_max:
        return closed
    kept: dict[str, Closed] = {}
    left = bytes_max
    for name, why in sorted(closed.items(), key=lambda each: (each[1].since_ms, each[0])):
        left -= _size(name)
        if left < 0:
            break
        kept[name] = why
    return kept


def _size(name: str) -> int:
    return ORIGIN_BYTES + len(name)

"""Bounds the closed origins that a checkpoint names, since every transaction writes a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sidecar.changelog.codec import Closed

CLOSED_BYTES_MAX: Final = 64 * 1024
"""Most bytes of closed origins in a checkpoint, without paused ones."""
ORIGIN_BYTES: Final = 32
"""Upper bound of the bytes of a closed origin besides its name."""


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

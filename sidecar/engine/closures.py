"""Which closed origins a checkpoint names: each transaction writes one, so their bytes are bounded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sidecar.changelog.codec import Closed

CLOSED_BYTES_MAX: Final = 64 * 1024
"""Most bytes of closed origins in a checkpoint, paused ones aside."""
ORIGIN_BYTES: Final = 32
"""Upper bound of what a closed origin takes besides its name."""


def within(closed: Mapping[str, Closed], bytes_max: int) -> Mapping[str, Closed]:
    """Return those that fit, the longest closed ones first.

    The others are closed all the same. Only the moment since when is not kept for the next owner of the partition, who
    counts ORIGIN_TIMEOUT anew: what is due for them goes to the DLQ later, never earlier.
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

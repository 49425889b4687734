"""The due time of a message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple
from zlib import crc32

from sidecar.model import Request

_DRAWS: Final = 2**32


class Backoff(NamedTuple):
    """Delays as an expression: each one is `factor` times the one before, none above `max_ms`."""

    first_ms: int
    factor: float
    max_ms: int
    attempts: int

    @property
    def delays_ms(self) -> tuple[int, ...]:
        """The delays by attempt."""
        delays, delay_ms = [], float(self.first_ms)
        for _ in range(self.attempts):
            delays.append(round(min(delay_ms, self.max_ms)))
            delay_ms = min(delay_ms * self.factor, self.max_ms)
        return tuple(delays)


def delay_of(delays_ms: Sequence[int], attempt: int) -> int:
    """Return the delay before the retry that follows `attempt` retries; the last one repeats."""
    return delays_ms[attempt] if attempt < len(delays_ms) else delays_ms[-1]


def drawn(partition: int, offset: int) -> float:
    """Return the draw of a record, 0 to below 1: the same whenever it is read, unlike that of its neighbours."""
    return crc32(b"%d-%d" % (partition, offset)) / _DRAWS


def due_of(
    request: Request,
    delays_ms: Sequence[int],
    *,
    timestamp_ms: int,
    arrived_ms: int,
    jitter: float = 0.0,
) -> int:
    """Return the due time, epoch ms. It may be in the past, or beyond any limit.

    Args:
        request: Its own due time or delay wins over the policy's delays.
        delays_ms: The policy's delays by attempt.
        timestamp_ms: The record's; negative when it has none.
        arrived_ms: When the record was ingested.
        jitter: Share of the policy's delay that is added to it.
    """
    if request.due_ms is not None:
        return request.due_ms
    if request.delay_ms is not None:
        return (timestamp_ms if timestamp_ms >= 0 else arrived_ms) + request.delay_ms
    delay_ms = delay_of(delays_ms, request.attempt)
    if jitter:
        delay_ms += int(delay_ms * jitter)
    if request.base_ms is not None:
        return request.base_ms + delay_ms
    # The policy's own delays must not grow by the error of a sender's clock.
    base_ms = timestamp_ms if 0 <= timestamp_ms <= arrived_ms else arrived_ms
    return base_ms + delay_ms

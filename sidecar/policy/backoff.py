"""The due time of a message."""

from __future__ import annotations

from collections.abc import Sequence

from sidecar.model import Request


def delay_of(delays_ms: Sequence[int], attempt: int) -> int:
    """Return the delay before the retry that follows `attempt` retries; the last one repeats."""
    return delays_ms[attempt] if attempt < len(delays_ms) else delays_ms[-1]


def due_of(request: Request, delays_ms: Sequence[int], *, timestamp_ms: int, arrived_ms: int) -> int:
    """Return the due time, epoch ms. It may be in the past, or beyond any limit.

    Args:
        request: Its own due time or delay wins over the policy's delays.
        delays_ms: The policy's delays by attempt.
        timestamp_ms: The record's; negative when it has none.
        arrived_ms: When the record was ingested.
    """
    if request.due_ms is not None:
        return request.due_ms
    if request.delay_ms is not None:
        return (timestamp_ms if timestamp_ms >= 0 else arrived_ms) + request.delay_ms
    if request.base_ms is not None:
        return request.base_ms + delay_of(delays_ms, request.attempt)
    # The policy's own delays must not grow by the error of a sender's clock.
    base_ms = timestamp_ms if 0 <= timestamp_ms <= arrived_ms else arrived_ms
    return base_ms + delay_of(delays_ms, request.attempt)

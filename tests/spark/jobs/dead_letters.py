"""Dead letters for the tests of the batch jobs."""

from __future__ import annotations

from sidecar.model import Reason
from tests.dead_letters import dead as dead_letter
from tests.integration.messages import Pairs


def dead(headers: Pairs, reason: Reason, *, topic: str = "retry", partition: int = 0, truncated: bool = False) -> Pairs:
    """Return the headers that a message has on the DLQ."""
    return dead_letter(headers, reason, truncated=truncated, topic=topic, partition=partition, offset=0, timestamp_ms=1)

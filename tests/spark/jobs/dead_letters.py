"""Dead letters for the tests of the batch jobs."""

from __future__ import annotations

from sidecar.contract import render_dead_letter
from sidecar.model import Reason
from tests.integration.messages import Pairs


def dead(headers: Pairs, reason: Reason, *, topic: str = "retry", partition: int = 0, truncated: bool = False) -> Pairs:
    """Return the headers that a message has on the DLQ."""
    rendered = render_dead_letter(
        headers,
        reason=reason,
        detail="because",
        topic=topic,
        partition=partition,
        offset=0,
        timestamp_ms=1,
        connector_name="app",
        stage="intake",
    )
    return [*rendered, ("retry-dlq-truncated", b"value")] if truncated else rendered

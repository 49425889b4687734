"""Headers of dead letters, as the sidecar writes them, for tests that read them."""

from __future__ import annotations

from typing import Any

from sidecar.contract import render_dead_letter
from sidecar.model import Headers, Reason


def dead(came: Headers | None, reason: Reason = Reason.FATAL, *, truncated: bool = False, **facts: Any) -> Headers:
    """Return the headers that a message has on the DLQ; `facts` replace where it came from and why it died."""
    known = {"detail": "because", "topic": "retry", "partition": 3, "offset": 99, "timestamp_ms": 1_700}
    rendered = render_dead_letter(came, reason=reason, **{"connector_name": "app", "stage": "intake", **known, **facts})
    return [*rendered, ("retry-dlq-truncated", b"value")] if truncated else rendered

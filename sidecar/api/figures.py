"""The group's figures for a route: known, and for which partitions, or refused while they are not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from starlette.exceptions import HTTPException

from sidecar.api.bodies import ErrorBody
from sidecar.api.problems import NotNow
from sidecar.api.source import Source
from sidecar.engine.group.view import PartitionView, as_of_ms, is_complete

NOT_KNOWN: Final[dict[str, object]] = {
    "model": ErrorBody,
    "description": "The instance has just started and does not know the group's figures yet.",
}
"""The OpenAPI documentation of a 503 by `require_known`."""


def require_known(source: Source, partition: int | None = None) -> None:
    """Raise HTTPException while the group is not known, and for a partition that does not exist."""
    if (unread := source.unread()) is not None:
        raise NotNow(f"{unread}; try again in a second")
    total = source.partitions_total()
    if partition is not None and total is not None and partition >= total:
        raise HTTPException(
            400, f"partition: {partition} is not a partition of the input topic; allowed are 0 to {total - 1}"
        )


def trust(source: Source, views: Sequence[PartitionView]) -> dict[str, object]:
    """Return how far the group's figures can be trusted: how old they are, and whether any are missing."""
    now_ms = source.now_ms()
    return {
        "as_of_ms": as_of_ms(views, now_ms),
        "complete": is_complete(views, wanted=source.partitions_total(), now_ms=now_ms),
    }

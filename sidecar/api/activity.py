"""Figures for charts: pending messages by due time, the last hour, and the state of each partition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fastapi import APIRouter, Depends
from pydantic import Field
from starlette.responses import JSONResponse

from sidecar.api.bodies import Body, ErrorBody
from sidecar.api.figures import NOT_KNOWN, require_known, trust
from sidecar.api.messages.changes import refuse_parameters
from sidecar.api.source import Source
from sidecar.engine.group.activity import LATE_MS, MINUTE_MS, MINUTES, together
from sidecar.engine.group.histogram import RANGES, histograms
from sidecar.engine.group.view import PartitionView

_NOW_MS: Final = 1_770_000_000_000


class GroupBody(Body):
    """Age and completeness of the figures."""

    as_of_ms: int = Field(description="Time of the oldest partition's figures.")
    complete: bool = Field(description="True if every input partition has an owner and a figure younger than 10 s.")


class BarsBody(Body):
    """One span, in bars of equal width."""

    span: str = Field(description="`1m`, `1h` or `1d`.")
    bar_ms: int = Field(description="Width of a bar.")
    counts: list[int] = Field(
        description="Messages due in each bar, by stored due time; the first bar begins at from_ms."
    )
    after: int = Field(description="Messages due after the last bar.")


class HistogramBody(GroupBody):
    """Pending messages by due time. A bar that ends inside a slot of the wheel is an estimate; the sums are exact."""

    from_ms: int = Field(description="Start of the first bar of every span: the current second.")
    before: int = Field(description="Messages due before from_ms and not fired.")
    spans: list[BarsBody]


class ActivityBody(GroupBody):
    """The last hour of the whole group, oldest minute first. The last minute is still running."""

    from_ms: int = Field(description="Start of the first minute.")
    minute_ms: int = MINUTE_MS
    late_after_ms: int = Field(description="A message that fires later than this after its due time counts as late.")
    fired: list[int]
    dead_lettered: list[int]
    late: list[int] = Field(description="Number of `fired` that were late.")


class PartitionBody(Body):
    """One input partition."""

    partition: int
    state: str = Field(description="`running`, `assigned`, `restoring`, `stopped`, `closed` or `unknown`.")
    reason: str = Field(description="Why the partition is not running, as text; empty if it is.")
    owner: str | None = Field(description="Instance that owns the partition; null if none does.")
    pending: int
    overdue: int = Field(description="Due and not fired as of the last scan.")
    lag: int | None = Field(description="Input records not yet ingested; null if unknown.")
    watermark_ms: int | None = Field(
        description="Everything due up to this time has fired; null before the first delivery."
    )
    next_due_ms: int | None = Field(description="Earliest stored due time; null if nothing is pending.")
    restored: float = Field(description="Progress of the restore, 0 to 1.", ge=0, le=1)
    restore_remaining: int = Field(description="Changelog records left to read.")
    as_of_ms: int | None = Field(description="Time of the partition's counts; null if there are none.")


class PartitionsBody(GroupBody):
    """All input partitions."""

    partitions: list[PartitionBody]


_GROUP: Final = {"as_of_ms": _NOW_MS, "complete": True}
_HISTOGRAM: Final[dict[str, object]] = {
    **_GROUP,
    "from_ms": _NOW_MS,
    "before": 0,
    "spans": [
        {"span": span.name, "bar_ms": span.bar_ms, "counts": [0] * (span.bars - 1) + [2], "after": 1} for span in RANGES
    ],
}
_ACTIVITY: Final[dict[str, object]] = {
    **_GROUP,
    "from_ms": _NOW_MS // MINUTE_MS * MINUTE_MS - (MINUTES - 1) * MINUTE_MS,
    "minute_ms": MINUTE_MS,
    "late_after_ms": LATE_MS,
    "fired": [0] * (MINUTES - 2) + [120, 40],
    "dead_lettered": [0] * (MINUTES - 2) + [1, 0],
    "late": [0] * MINUTES,
}
_PARTITIONS: Final[dict[str, object]] = {
    **_GROUP,
    "partitions": [
        {
            "partition": 0,
            "state": "running",
            "reason": "",
            "owner": "sidecar-0",
            "pending": 3,
            "overdue": 0,
            "lag": 0,
            "watermark_ms": _NOW_MS - 100,
            "next_due_ms": _NOW_MS + 1_200,
            "restored": 1.0,
            "restore_remaining": 0,
            "as_of_ms": _NOW_MS,
        }
    ],
}


def activity_routes(source: Source) -> APIRouter:
    """Return the routes over these snapshots."""
    router = APIRouter(tags=["pending"], dependencies=[Depends(refuse_parameters)])

    @router.get(
        "/pending/histogram",
        summary="Show when messages fall due",
        description="The next minute, hour and day in bars. Computed from counters; reads no timer.",
        response_model=HistogramBody,
        responses=_answers(_HISTOGRAM),
    )
    async def histogram() -> JSONResponse:
        views = _views(source)
        made = histograms(views, source.now_ms())
        rounded = {name: bars.rounded() for name, bars in made.items()}
        return JSONResponse(
            {
                **trust(source, views),
                "from_ms": made["1m"].from_ms,
                "before": rounded["1m"][0],
                "spans": [
                    {"span": name, "bar_ms": made[name].bar_ms, "counts": counts, "after": after}
                    for name, (_, counts, after) in rounded.items()
                ],
            }
        )

    @router.get(
        "/activity",
        summary="Show the last hour, minute by minute",
        description="Each owner counts for its partitions and hands the counts over to the next owner.",
        response_model=ActivityBody,
        responses=_answers(_ACTIVITY),
    )
    async def activity() -> JSONResponse:
        views, now_ms = _views(source), source.now_ms()
        minutes = together((view.activity for view in views if view.activity is not None), now_ms)
        return JSONResponse(
            {
                **trust(source, views),
                "from_ms": (now_ms // MINUTE_MS - MINUTES + 1) * MINUTE_MS,
                "minute_ms": MINUTE_MS,
                "late_after_ms": LATE_MS,
                "fired": [each.fired for each in minutes],
                "dead_lettered": [each.dead_lettered for each in minutes],
                "late": [each.late for each in minutes],
            }
        )

    @router.get(
        "/partitions",
        summary="Show each input partition",
        description="State, owner, counts and restore progress, for the whole group.",
        response_model=PartitionsBody,
        responses=_answers(_PARTITIONS),
    )
    async def partitions() -> JSONResponse:
        views = _views(source)
        return JSONResponse({**trust(source, views), "partitions": [_partition(view) for view in views]})

    return router


def _answers(example: dict[str, object]) -> dict[int | str, dict[str, object]]:
    return {
        200: {"content": {"application/json": {"example": example}}},
        "4XX": {"model": ErrorBody, "description": "The request has an error."},
        503: NOT_KNOWN,
    }


def _views(source: Source) -> Sequence[PartitionView]:
    require_known(source)
    return sorted(source.views(), key=lambda view: view.partition)


def _partition(view: PartitionView) -> dict[str, object]:
    return {
        "partition": view.partition,
        "state": view.state,
        "reason": view.reason,
        "owner": view.owner or None,
        "pending": view.pending,
        "overdue": view.due_backlog,
        "lag": view.lag,
        "watermark_ms": view.watermark_ms,
        "next_due_ms": view.next_due_ms,
        "restored": view.restored,
        "restore_remaining": view.restore_remaining,
        "as_of_ms": view.as_of_ms or None,
    }

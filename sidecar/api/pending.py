"""`GET /pending`: counts of pending messages."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from sidecar.api.bodies import (
    PENDING_EXAMPLE,
    PENDING_OF_ORIGIN_EXAMPLE,
    TOPIC_PATTERN,
    ErrorBody,
    PendingBody,
    PendingOfOriginBody,
)
from sidecar.api.figures import NOT_KNOWN, require_known
from sidecar.api.source import Source
from sidecar.engine.group.view import summarise

_EXAMPLES = {
    "all": {"summary": "Everything", "value": PENDING_EXAMPLE},
    "origin": {"summary": "With ?origin=orders", "value": PENDING_OF_ORIGIN_EXAMPLE},
}


class PendingQuery(BaseModel):
    """Selects what to count. Unknown parameters are refused: a misspelt one would silently count everything."""

    model_config = ConfigDict(extra="forbid")

    origin: str | None = Field(
        default=None,
        description="Count messages for this origin topic only. The response then has only `total` and `by_partition`.",
        pattern=TOPIC_PATTERN,
        examples=["orders"],
    )
    partition: int | None = Field(
        default=None, description="Count messages of this input partition only.", ge=0, le=2**31 - 1, examples=[0]
    )


def pending_routes(source: Source) -> APIRouter:
    """Return the route over these snapshots."""
    router = APIRouter(tags=["pending"])

    @router.get(
        "/pending",
        summary="Count pending messages",
        description="Counts for the whole group. Reads counters, so it costs the same at any number of messages.",
        response_model=PendingBody | PendingOfOriginBody,
        responses={
            200: {"content": {"application/json": {"examples": _EXAMPLES}}},
            400: {"model": ErrorBody, "description": "A parameter is invalid."},
            "4XX": {"model": ErrorBody, "description": "Any other error in the request."},
            503: NOT_KNOWN,
        },
    )
    async def pending(query: Annotated[PendingQuery, Query()]) -> JSONResponse:
        require_known(source, query.partition)
        return _counted(source, query.origin, query.partition)

    return router


class PendingShortcut:
    """Answers `GET /pending` without parameters, as the route does.

    It is asked all the time, and the way to a route and through its parameters costs more than the answer.
    """

    def __init__(self, app: ASGIApp, source: Source) -> None:
        self._app = app
        self._source = source

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        if (
            scope["type"] == "http"
            and (scope["method"], scope["path"], scope["query_string"]) == ("GET", "/pending", b"")
            and self._source.unread() is None
        ):
            app = _counted(self._source)
        await app(scope, receive, send)


def _counted(source: Source, origin: str | None = None, partition: int | None = None) -> JSONResponse:
    counts = summarise(
        source.views(),
        partitions_total=source.partitions_total(),
        now_ms=source.now_ms(),
        origin=origin,
        partition=partition,
    )
    return JSONResponse(counts)

"""`/origins`: the topics that messages go to, paused and resumed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Annotated, Final

from fastapi import APIRouter, Depends, Path, Request
from pydantic import Field
from starlette.responses import JSONResponse

from sidecar.api.auth import Gate
from sidecar.api.bodies import Body, ErrorBody
from sidecar.api.figures import NOT_KNOWN, require_known, trust
from sidecar.api.messages.changes import ANSWERS, ControlBody, ControlDesk, answered, refuse_parameters
from sidecar.api.source import Source
from sidecar.changelog.codec import Closure
from sidecar.contract.control import ControlKind, Outcome
from sidecar.engine.group.view import PartitionView

OPEN: Final = "open"
TopicText = Annotated[str, Path(description="The origin topic, or `*` for all of them.", examples=["orders"])]
_ORDER: Final = tuple(each.value for each in Closure)


class OriginBody(Body):
    """One topic."""

    origin: str = Field(description="`*` stands for all of them: the whole group is paused, whatever their own states.")
    pending: int = Field(description="Messages that wait for it, deferred ones included.")
    deferred: int = Field(description="Those that were put off because it is not open.")
    state: str = Field(description="open, paused, unauthorised, vanished or unreachable.")
    since_ms: int | None = Field(description="Since when it is not open; null when it is.")
    partitions: list[int] = Field(description="Input partitions in which it is not open.")


class OriginsBody(Body):
    """All topics that messages wait for, and all that are not open."""

    origins: list[OriginBody]
    complete: bool = Field(description="Every input partition has an owner and a figure younger than 10 s.")
    as_of_ms: int


_EXAMPLE: Final[dict[str, object]] = {
    "origins": [
        {"origin": "mail", "pending": 7, "deferred": 0, "state": "open", "since_ms": None, "partitions": []},
        {
            "origin": "orders",
            "pending": 12,
            "deferred": 3,
            "state": "paused",
            "since_ms": 1_770_000_000_000,
            "partitions": [0, 1],
        },
    ],
    "complete": True,
    "as_of_ms": 1_770_000_000_000,
}


def origins_of(views: Iterable[PartitionView]) -> list[OriginBody]:
    """Return the origins of these partitions by name."""
    pending: Counter[str] = Counter()
    deferred: Counter[str] = Counter()
    closed: dict[str, list[tuple[int, int, str]]] = {}
    for view in views:
        pending.update(view.by_origin)
        deferred.update(view.deferred_by_origin)
        for name, (why, since_ms) in view.closed_origins.items():
            closed.setdefault(name, []).append((view.partition, since_ms, why))
    names = {name for name, count in pending.items() if count} | closed.keys()
    return [_origin(name, pending[name], deferred[name], closed.get(name, [])) for name in sorted(names)]


def _origin(name: str, pending: int, deferred: int, closed: list[tuple[int, int, str]]) -> OriginBody:
    states = {why for _, _, why in closed}
    return OriginBody(
        origin=name,
        pending=pending,
        deferred=deferred,
        state=next((each for each in _ORDER if each in states), min(states, default=OPEN)),
        since_ms=min((since_ms for _, since_ms, _ in closed), default=None),
        partitions=sorted(partition for partition, _, _ in closed),
    )


def origin_routes(source: Source, desk: ControlDesk, gate: Gate) -> APIRouter:
    """Return the routes about origins."""
    router = APIRouter(tags=["origins"])
    guards = [Depends(gate.change), Depends(refuse_parameters)]

    @router.get(
        "/origins",
        summary="Where messages go to",
        description="Every topic that messages wait for or that is not open, with its state and why.",
        response_model=OriginsBody,
        responses={
            200: {"content": {"application/json": {"example": _EXAMPLE}}},
            "4XX": {"model": ErrorBody, "description": "A mistake in the request."},
            503: NOT_KNOWN,
        },
        dependencies=[Depends(refuse_parameters)],
    )
    async def origins() -> JSONResponse:
        require_known(source)
        views = source.views()
        return JSONResponse({"origins": [each.model_dump() for each in origins_of(views)], **trust(source, views)})

    @router.put(
        "/origins/{topic}/pause",
        summary="Pause: nothing fires to it",
        description="What comes due for it is put off until it is resumed. The pause is kept over restarts.",
        response_model=ControlBody,
        responses={**ANSWERS, 200: answered(Outcome.PAUSED, "Nothing fires to it now.", "orders")},
        dependencies=guards,
    )
    async def pause(request: Request, topic: TopicText) -> JSONResponse:
        return await desk.act(request, ControlKind.PAUSE, topic, topic)

    @router.put(
        "/origins/{topic}/resume",
        summary="Resume",
        description="Ends a pause; what was put off fires soon.",
        response_model=ControlBody,
        responses={**ANSWERS, 200: answered(Outcome.RESUMED, "It is fired to again.", "orders")},
        dependencies=guards,
    )
    async def resume(request: Request, topic: TopicText) -> JSONResponse:
        return await desk.act(request, ControlKind.RESUME, topic, topic)

    return router

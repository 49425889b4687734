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
TopicText = Annotated[str, Path(description="The origin topic, or `*` for all origins.", examples=["orders"])]
_ORDER: Final = tuple(each.value for each in Closure)


class OriginBody(Body):
    """One origin topic."""

    origin: str = Field(
        description="Topic name. `*` means that the whole group is paused, whatever the state of each origin."
    )
    pending: int = Field(description="Pending messages for this origin, including deferred ones.")
    deferred: int = Field(description="Messages deferred because the origin is closed.")
    state: str = Field(description="`open`, `paused`, `unauthorised`, `vanished` or `unreachable`.")
    since_ms: int | None = Field(description="When the origin was closed; null if it is open.")
    partitions: list[int] = Field(description="Input partitions that see the origin as closed.")


class OriginsBody(Body):
    """All origins with pending messages, and all closed ones."""

    origins: list[OriginBody]
    complete: bool = Field(description="True if every input partition has an owner and a figure younger than 10 s.")
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
        summary="List origins",
        description="Every origin that has pending messages or is closed, with its state.",
        response_model=OriginsBody,
        responses={
            200: {"content": {"application/json": {"example": _EXAMPLE}}},
            "4XX": {"model": ErrorBody, "description": "The request has an error."},
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
        summary="Pause an origin",
        description="Nothing fires to the origin; messages that fall due are deferred. The pause survives restarts.",
        response_model=ControlBody,
        responses={**ANSWERS, 200: answered(Outcome.PAUSED, "The origin is paused.", "orders")},
        dependencies=guards,
    )
    async def pause(request: Request, topic: TopicText) -> JSONResponse:
        return await desk.act(request, ControlKind.PAUSE, topic, topic)

    @router.put(
        "/origins/{topic}/resume",
        summary="Resume an origin",
        description="Ends a pause. Deferred messages fire soon.",
        response_model=ControlBody,
        responses={**ANSWERS, 200: answered(Outcome.RESUMED, "The pause has ended.", "orders")},
        dependencies=guards,
    )
    async def resume(request: Request, topic: TopicText) -> JSONResponse:
        return await desk.act(request, ControlKind.RESUME, topic, topic)

    return router

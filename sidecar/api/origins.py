"""`/origins`: the topics that messages go to, paused and resumed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Annotated, Final

from fastapi import APIRouter, Depends, Path, Request
from pydantic import Field
from starlette.responses import JSONResponse

from sidecar.api.bodies import Body, ErrorBody
from sidecar.api.figures import NOT_KNOWN, require_known, trust
from sidecar.api.messages.changes import (
    ANSWERS,
    ChangeParameters,
    ControlBody,
    ControlDesk,
    answered,
    refuse_parameters,
)
from sidecar.api.source import Source
from sidecar.changelog.codec import Closure, NextTurn
from sidecar.contract.control import EVERY_ORIGIN, ControlKind, Outcome
from sidecar.engine.group.view import OTHERS, PartitionView

OPEN: Final = "open"
TopicText = Annotated[str, Path(description="The origin topic, or `*` for all origins.", examples=["orders"])]
_ORDER: Final = tuple(each.value for each in Closure)


class OriginBody(Body):
    """One origin topic."""

    origin: str = Field(
        description="Topic name. `*`: the whole group is paused or stopped, whatever the state of each origin."
    )
    pending: int = Field(description="Pending messages for this origin, including deferred ones.")
    deferred: int = Field(description="Messages deferred because the origin is closed, and those that are held.")
    held: int = Field(description="Messages held until their turn, because more came due than the rate allows.")
    max_per_second: float | None = Field(description="The rate that messages are held to; null if none are.")
    held_until_ms: int | None = Field(description="The last turn that is taken so far; null if no messages are held.")
    state: str = Field(
        description="`open`, `paused`, `unauthorised`, `vanished` or `unreachable`; `*` can be `stopped`."
    )
    since_ms: int | None = Field(description="When the origin was closed; null if it is open.")
    partitions: list[int] = Field(description="Input partitions that see the origin as closed.")


class OriginsBody(Body):
    """All origins with pending messages, and all closed ones."""

    origins: list[OriginBody]
    complete: bool = Field(description="True if every input partition has an owner and a figure younger than 10 s.")
    as_of_ms: int


_EXAMPLE: Final[dict[str, object]] = {
    "origins": [
        {
            "origin": "mail",
            "pending": 7,
            "deferred": 0,
            "held": 0,
            "max_per_second": None,
            "held_until_ms": None,
            "state": "open",
            "since_ms": None,
            "partitions": [],
        },
        {
            "origin": "orders",
            "pending": 12,
            "deferred": 3,
            "held": 0,
            "max_per_second": None,
            "held_until_ms": None,
            "state": "paused",
            "since_ms": 1_770_000_000_000,
            "partitions": [0, 1],
        },
    ],
    "complete": True,
    "as_of_ms": 1_770_000_000_000,
}


def origins_of(views: Iterable[PartitionView], partitions_total: int = 0) -> list[OriginBody]:
    """Return the origins of these partitions by name.

    Args:
        views: The partitions that are known.
        partitions_total: Number of input partitions, where that is known.
    """
    views = list(views)
    shares = max(partitions_total, len(views))
    pending: Counter[str] = Counter()
    deferred: Counter[str] = Counter()
    held: Counter[str] = Counter()
    turns: dict[str, list[NextTurn]] = {}
    closed: dict[str, list[tuple[int, int, str]]] = {}
    for view in views:
        pending.update(view.by_origin)
        deferred.update(view.deferred_by_origin)
        held.update(view.held_by_origin)
        for name in view.held_by_origin:
            turns.setdefault(name, []).append(view.turns[name])
        for name, (why, since_ms) in view.closed_origins.items():
            closed.setdefault(name, []).append((view.partition, since_ms, why))
    names = {name for name, count in pending.items() if count} | closed.keys()
    return [
        _origin(name, pending[name], deferred[name], closed.get(name, [])).model_copy(
            update=_held(held[name], turns.get(name, []), shares)
        )
        for name in sorted(names)
    ]


def _held(held: int, turns: Sequence[NextTurn], shares: int) -> dict[str, object]:
    """Return what is said of an origin whose messages are held: its rate is that of a partition times the shares."""
    if not turns:
        return {}
    rate = shares * 1_000_000_000 / max(turn.every_ns for turn in turns)
    last_ns = max(turn.next_ns - turn.every_ns for turn in turns)
    return {"held": held, "max_per_second": round(rate, 3), "held_until_ms": last_ns // 1_000_000}


def _origin(name: str, pending: int, deferred: int, closed: list[tuple[int, int, str]]) -> OriginBody:
    states = {why for _, _, why in closed}
    return OriginBody(
        origin=name,
        pending=pending,
        deferred=deferred,
        held=0,
        max_per_second=None,
        held_until_ms=None,
        state=next((each for each in _ORDER if each in states), min(states, default=OPEN)),
        since_ms=min((since_ms for _, since_ms, _ in closed), default=None),
        partitions=sorted(partition for partition, _, _ in closed),
    )


def _known(source: Source, topic: str) -> dict[str, object]:
    """Return whether the group's figures name the origin: a misspelt one can be paused too."""
    views = source.views()
    if topic == EVERY_ORIGIN or any(view.by_origin.get(topic) or topic in view.closed_origins for view in views):
        return {"known": True}
    return {"known": None if source.unread() or any(OTHERS in view.by_origin for view in views) else False}


def origin_routes(source: Source, desk: ControlDesk) -> APIRouter:
    """Return the routes about origins."""
    router = APIRouter(tags=["origins"])

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
        found = origins_of(views, source.partitions_total() or 0)
        return JSONResponse({"origins": [each.model_dump() for each in found], **trust(source, views)})

    @router.put(
        "/origins/{topic}/pause",
        summary="Pause an origin",
        description="Nothing fires to the origin; messages that fall due are deferred. The pause survives restarts.",
        response_model=ControlBody,
        responses={**ANSWERS, 200: answered(Outcome.PAUSED, "The origin is paused.", "orders")},
    )
    async def pause(request: Request, topic: TopicText, given: ChangeParameters) -> JSONResponse:
        return await desk.act(request, ControlKind.PAUSE, topic, topic, given=given, facts=_known(source, topic))

    @router.put(
        "/origins/{topic}/resume",
        summary="Resume an origin",
        description="Ends a pause. Deferred messages fire soon.",
        response_model=ControlBody,
        responses={**ANSWERS, 200: answered(Outcome.RESUMED, "The pause has ended.", "orders")},
    )
    async def resume(request: Request, topic: TopicText, given: ChangeParameters) -> JSONResponse:
        return await desk.act(request, ControlKind.RESUME, topic, topic, given=given, facts=_known(source, topic))

    return router

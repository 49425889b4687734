"""Cancel, reschedule and fire by HTTP all messages that match a filter: one control record for each partition."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, Self

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from starlette.responses import JSONResponse

from sidecar.api.bodies import TOPIC_PATTERN
from sidecar.api.messages.changes import (
    ANSWERS,
    ChangeParameters,
    ControlBody,
    ControlDesk,
    ScheduleBody,
    answered,
    require_json,
    whole,
)
from sidecar.api.messages.routes import HeaderFilter, TextFilter
from sidecar.contract.control import ControlKind, Outcome
from sidecar.contract.filter import HEADERS_MAX, MessageFilter
from sidecar.contract.values import INT32_MAX
from sidecar.model import DUE_MS_MAX

PATH: Final = "/pending/messages"
_EXAMPLE: Final = str(MessageFilter(origin="orders", due_to=1_770_003_600_000))
_Due = Annotated[int | None, BeforeValidator(whole)]


def _say_what_types_cannot(schema: dict[str, Any]) -> None:
    """Say that nothing is null, and that an empty filter is none."""
    schema["minProperties"] = 1
    for content in schema["properties"].values():
        if "anyOf" in content:
            content.update(content.pop("anyOf")[0])
        content.pop("default", None)


class FilterBody(BaseModel):
    """The messages to change, with the parameters of the list; all that are given must match."""

    model_config = ConfigDict(extra="forbid", strict=True, json_schema_extra=_say_what_types_cannot)

    origin: str | None = Field(
        default=None,
        description="Messages for this origin topic.",
        pattern=TOPIC_PATTERN,
        examples=["orders"],
    )
    partition: Annotated[int | None, BeforeValidator(whole)] = Field(
        default=None, description="Messages of this input partition.", ge=0, le=INT32_MAX, examples=[0]
    )
    due_from: _Due = Field(
        default=None,
        description="Messages with a stored due time at or after this, epoch ms. 0 alone means all messages.",
        ge=0,
        le=DUE_MS_MAX,
        examples=[0],
    )
    due_to: _Due = Field(
        default=None,
        description="Messages with a stored due time before this, epoch ms.",
        ge=0,
        le=DUE_MS_MAX,
        examples=[1_770_003_600_000],
    )
    exception: TextFilter | None = Field(
        default=None, description="Messages with this class of exception, a name or a glob.", examples=["com.acme.*"]
    )
    group: TextFilter | None = Field(
        default=None, description="Messages of this consumer group, a name or a glob.", examples=["billing"]
    )
    key: TextFilter | None = Field(
        default=None, description="Messages with this record key, as UTF-8.", examples=["order-4711"]
    )
    header: list[HeaderFilter] | None = Field(
        default=None,
        description="Messages with all of these headers, each `name:value`.",
        max_length=HEADERS_MAX,
        examples=[["tenant:acme"]],
    )

    @model_validator(mode="after")
    def _means_something(self) -> Self:
        given = self.model_dump(exclude_unset=True)
        if not given or None in given.values():
            raise ValueError("name what to change, without null; all messages are due from 0 on")
        return self

    @property
    def target(self) -> MessageFilter:
        """The target of the control record."""
        given: Mapping[str, Any] = self.model_dump(exclude_none=True)
        return MessageFilter(**{**given, "header": tuple(given.get("header", ()))})


class FilteredBody(BaseModel):
    """The messages to change."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"filter": {"origin": "orders", "exception": "com.acme.*"}}]}
    )

    filter: FilterBody


class FilteredScheduleBody(ScheduleBody):
    """The messages to change, and their new due time: `filter` and exactly one of the other two fields."""

    filter: FilterBody


_CHECKED: Final[dict[int | str, dict[str, object]]] = {
    **ANSWERS,
    202: answered(
        None,
        "A partition has not answered within 5 s: it has no owner, or is still going through its messages. `count` is "
        "that of the others; look the outcome up.",
        _EXAMPLE,
    ),
}


def filter_routes(desk: ControlDesk, now_ms: Callable[[], int]) -> APIRouter:
    """Return the routes that change all messages that match a filter."""
    router = APIRouter(tags=["control"], dependencies=[Depends(require_json)])

    @router.post(
        f"{PATH}/cancel",
        summary="Cancel all messages that match",
        description="Removes the messages that match when each partition reaches the change, in order with what comes "
        "in. `result` is `not-pending`, with status 200, if none does.",
        response_model=ControlBody,
        responses={**_CHECKED, 200: answered(Outcome.CANCELLED, "Done, for `count` messages.", _EXAMPLE)},
    )
    async def cancel_matching(request: Request, given: ChangeParameters, body: FilteredBody) -> JSONResponse:
        return await _act(request, ControlKind.CANCEL, body.filter, None, given)

    @router.post(
        f"{PATH}/reschedule",
        summary="Reschedule all messages that match",
        description="Gives the messages that match the same new due time. One that has it already is not counted.",
        response_model=ControlBody,
        responses={**_CHECKED, 200: answered(Outcome.RESCHEDULED, "Done, for `count` messages.", _EXAMPLE)},
    )
    async def reschedule_matching(
        request: Request, given: ChangeParameters, body: FilteredScheduleBody
    ) -> JSONResponse:
        return await _act(request, ControlKind.RESCHEDULE, body.filter, body.at_ms(now_ms()), given)

    @router.post(
        f"{PATH}/fire",
        summary="Fire all messages that match",
        description="Fires the messages that match as if they were due; a rate of their origin does not hold them. "
        "Messages of an origin that is not open stay as they are, and `detail` says so.",
        response_model=ControlBody,
        responses={
            **_CHECKED,
            200: answered(Outcome.FIRED, "Done, for `count` messages.", _EXAMPLE),
            409: answered(
                Outcome.ORIGIN_PAUSED, "No origin of a matching message is open; all stay pending.", _EXAMPLE
            ),
        },
    )
    async def fire_matching(request: Request, given: ChangeParameters, body: FilteredBody) -> JSONResponse:
        return await _act(request, ControlKind.FIRE, body.filter, None, given)

    async def _act(
        request: Request, kind: ControlKind, chosen: FilterBody, due_ms: int | None, given: ChangeParameters
    ) -> JSONResponse:
        target = chosen.target
        return await desk.act(request, kind, target, str(target), due_ms, given=given)

    return router

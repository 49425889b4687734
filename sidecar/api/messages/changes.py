"""Cancel, reschedule and fire by HTTP: control records and their outcomes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Annotated, Any, Final, Protocol, Self, TypeVar

import structlog
from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, Depends, Path, Query, Request
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from sidecar.api.auth import user_of
from sidecar.api.bodies import Body, ErrorBody
from sidecar.api.guard import PaidThread
from sidecar.api.messages.routes import FIRE, TARGET, TargetRoute, TargetText, target_of
from sidecar.api.problems import NotNow, too_many
from sidecar.contract.control import ControlKind, Outcome, Target
from sidecar.contract.filter import FILTER_PREFIX
from sidecar.errors import CommandFailed, OutcomeUnknown
from sidecar.model import ANY_SCOPE, DUE_MS_MAX, Scope

log = structlog.get_logger(__name__)
R = TypeVar("R")

ACTIONS_AT_A_TIME: Final = 32
LOOKUPS_AT_A_TIME: Final = 2
WAITING_MAX: Final = 32
"""More than so many calls that wait for their turn are refused: their clients would be gone when it comes."""

CONTROL_ID_EXAMPLE: Final = "1770000000000-9f86d081884c7d65"
TIMER_ID_EXAMPLE: Final = "2-1841-1770000060000"
_STATUS: Final = {Outcome.NOT_PENDING: 404, Outcome.ORIGIN_PAUSED: 409, None: 202}


class Result(Protocol):
    """The outcome of a control record, over all partitions."""

    @property
    def control_id(self) -> str: ...

    @property
    def target(self) -> str: ...

    @property
    def outcome(self) -> Outcome | None:
        """None while partitions are missing."""
        ...

    @property
    def count(self) -> int: ...

    @property
    def detail(self) -> str: ...

    @property
    def missing(self) -> Sequence[int]: ...


class Commands(Protocol):
    """Sends control records and finds their outcomes; called from worker threads. Both may take seconds."""

    def act(
        self, kind: ControlKind, target: Target, due_ms: int | None, scope: Scope, control_id: str | None
    ) -> Result:
        """Send a control record and wait for its outcome. Raises ValueError (it would be refused), CommandFailed."""
        ...

    def lookup(self, control_id: str) -> Result | None:
        """Return the outcome of a control record, None while it is unknown. Raises CommandFailed."""
        ...


class ControlBody(Body):
    """The outcome of a control record."""

    result: Outcome | None = Field(
        description="The outcome; null while an owner has not answered.", examples=["cancelled"]
    )
    count: int = Field(description="Number of messages affected; for an origin, its pending messages.", examples=[1])
    control_id: str = Field(description="Id for GET /control/{control_id}.", examples=[CONTROL_ID_EXAMPLE])
    target: str = Field(examples=[TIMER_ID_EXAMPLE])
    detail: str = Field(default="", examples=[""])
    missing: list[int] = Field(description="Partitions whose owner has not answered.", examples=[[]])
    known: bool | None = Field(
        default=None,
        description="Of a pause or resume: false if nothing is pending for the origin and it was not closed, so check "
        "its name; null if the group has too many origins to tell.",
        examples=[True],
    )
    error_code: int | None = Field(default=None, description="The HTTP status, of an error.", examples=[404])
    message: str | None = Field(default=None, description="What is wrong, of an error.")


_TIMES: Final = {"due_ms": None, "delay_ms": None}
"""The fields of a new due time, in order."""


def whole(number: object) -> object:
    """Accept 5.0 as 5, as JSON does."""
    return int(number) if isinstance(number, float) and number.is_integer() else number


def _say_one_of_two(schema: dict[str, Any]) -> None:
    """Say what the types cannot: exactly one of the two, and never null."""
    properties = schema["properties"]
    more = {"filter": {"origin": "orders"}} if "filter" in properties else {}
    schema["examples"] = [{**more, "delay_ms": 60_000}, {**more, "due_ms": 1_770_000_000_000}]
    schema["oneOf"] = [{"required": [name]} for name in _TIMES]
    for name in _TIMES:
        properties[name].update(properties[name].pop("anyOf")[0])


class ScheduleBody(BaseModel):
    """The new due time: exactly one of the two fields."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra=_say_one_of_two,
    )

    due_ms: Annotated[int | None, BeforeValidator(whole)] = Field(
        default=None, description="New due time, epoch ms. A time in the past means now.", ge=0, le=DUE_MS_MAX
    )
    delay_ms: Annotated[int | None, BeforeValidator(whole)] = Field(
        default=None, description="Delay from now, ms.", ge=0, le=DUE_MS_MAX
    )

    @model_validator(mode="after")
    def _one(self) -> Self:
        if len(self.model_fields_set & _TIMES.keys()) != 1 or (self.due_ms is None and self.delay_ms is None):
            raise ValueError("give either due_ms or delay_ms")
        return self

    def at_ms(self, now_ms: int) -> int:
        """Return the new due time."""
        return self.due_ms if self.due_ms is not None else now_ms + (self.delay_ms or 0)


def error_of(outcome: Outcome | None, target: str) -> dict[str, object]:
    """Return what makes the answer with this outcome an error like all others; empty when the outcome is none."""
    if outcome is Outcome.NOT_PENDING:
        return {
            "error_code": 404,
            "message": f"{target} is not pending: it has fired, was cancelled, or never existed.",
        }
    if outcome is Outcome.ORIGIN_PAUSED:
        return {"error_code": 409, "message": f"The origin of {target} is closed; the message stays pending."}
    return {}


def answered(outcome: Outcome | None, description: str, target: str = TIMER_ID_EXAMPLE) -> dict[str, object]:
    """Return the OpenAPI documentation of an answer with this outcome."""
    done = outcome not in {None, Outcome.NOT_PENDING, Outcome.ORIGIN_PAUSED}
    example = {
        "result": outcome,
        "count": int(done),
        "control_id": CONTROL_ID_EXAMPLE,
        "target": target,
        "detail": "",
        "missing": [2] if outcome is None else [],
        **error_of(outcome, target),
    }
    return {
        "model": ControlBody,
        "description": description,
        "content": {"application/json": {"example": example}},
    }


CHECK_APPLIED: Final = "`applied` says whether the change may act all the same."
ANSWERS: Final[dict[int | str, dict[str, object]]] = {
    202: answered(
        None,
        "An owner has not answered within 5 s. The record stays on the topic until one reads it. If API_TOKEN is set, "
        "the record expires after 10 minutes: it then has no effect and its outcome is `bad-request`.",
    ),
    400: {"model": ErrorBody, "description": "The target or the body is invalid; nothing was changed."},
    "4XX": {"model": ErrorBody, "description": "Any other error in the request."},
    503: {"model": ErrorBody, "description": f"No broker answers, or the instance stops. {CHECK_APPLIED}"},
}
TIMER_ANSWERS: Final[dict[int | str, dict[str, object]]] = {
    **ANSWERS,
    404: answered(Outcome.NOT_PENDING, "No pending message has this id."),
}


def caller(request: Request) -> str:
    """Return the address that a request comes from, after the user name if it gives one: `alice@10.0.0.7`."""
    address = "unknown" if request.client is None else request.client.host
    user = user_of(request.headers.get("authorization", ""))
    return f"{user}@{address}" if user else address


async def refuse_parameters(request: Request) -> None:
    """Refuse a query string on a route that takes none."""
    if request.query_params:
        raise HTTPException(400, f"{next(iter(request.query_params))[:100]}: unknown parameter")


async def require_json(request: Request) -> None:
    """Refuse a body that is not declared as JSON: a form on another site's page could send it as text."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise HTTPException(415, "Send the body as JSON, with the header Content-Type: application/json.")


class ChangeQuery(BaseModel):
    """The id of a change."""

    model_config = ConfigDict(extra="forbid")

    control_id: str | None = Field(
        default=None,
        description="An id of your own, used for this change only. If the response is lost, send the change again with "
        "the same id: it acts once. Or look the outcome up with it. By default the response names an id. At most 256 "
        "bytes.",
        min_length=1,
        max_length=256,
        examples=[CONTROL_ID_EXAMPLE],
    )


class MessageChangeQuery(ChangeQuery):
    """Narrows a change of messages, for an id that several applications use."""

    origin: str = Field(
        default="", description="Only messages for this origin topic; default: any.", examples=["orders"]
    )
    group: str | None = Field(
        default=None,
        description="Only messages of this consumer group (`retry-group`), by its name; default: any.",
        examples=["billing"],
    )

    @property
    def scope(self) -> Scope:
        return Scope(self.origin, self.group)


ChangeParameters = Annotated[ChangeQuery, Query()]
MessageChangeParameters = Annotated[MessageChangeQuery, Query()]
ControlIdText = Annotated[
    str, Path(description="`control_id` of a response or a control record.", examples=[CONTROL_ID_EXAMPLE])
]


class ControlDesk:
    """Passes changes on, a bounded number at a time, and writes each to the log."""

    def __init__(self, commands: Commands) -> None:
        self._commands = commands
        self._acting = CapacityLimiter(ACTIONS_AT_A_TIME)
        self._lookups = PaidThread(LOOKUPS_AT_A_TIME, WAITING_MAX)

    async def act(
        self,
        request: Request,
        kind: ControlKind,
        target: Target,
        shown: str,
        due_ms: int | None = None,
        *,
        given: ChangeQuery | None = None,
        facts: Mapping[str, object] = MappingProxyType({}),
    ) -> JSONResponse:
        """Carry out a change and answer with its outcome.

        Args:
            request: The HTTP request.
            kind: The action.
            target: To what.
            shown: The target as it came.
            due_ms: The new due time, for a reschedule.
            given: The parameters of the request.
            facts: Further fields of the answer.
        """
        who = caller(request)
        scope = given.scope if isinstance(given, MessageChangeQuery) else ANY_SCOPE
        control_id = None if given is None else given.control_id

        def act() -> Result:
            # Logged in the thread: it is done also when the client goes away meanwhile.
            outcome = "failed"
            noted: dict[str, object] = {}
            try:
                result = self._commands.act(kind, target, due_ms, scope, control_id)
                outcome = "unanswered" if result.outcome is None else result.outcome.value
                noted = {"count": result.count, "control_id": result.control_id}
            except ValueError:
                outcome = Outcome.BAD_REQUEST.value
                raise
            except OutcomeUnknown as cause:
                outcome, noted = "unanswered", {"control_id": cause.control_id}
                raise
            finally:
                log.info("api_change", who=who, what=kind.value, target=shown, outcome=outcome, **noted)
            return result

        if self._acting.statistics().tasks_waiting >= WAITING_MAX:
            raise too_many()
        return answer(await self._told(partial(to_thread.run_sync, act, limiter=self._acting)), facts)

    async def lookup(self, control_id: str) -> JSONResponse:
        """Answer with the outcome of a control record."""
        look = partial(self._commands.lookup, control_id)
        result = await self._told(partial(self._lookups.run, look))
        if result is None:
            raise HTTPException(404, f"There is no outcome for control id {control_id[:300]} yet.")
        return JSONResponse(_body(result))

    @staticmethod
    async def _told(run: Callable[[], Awaitable[R]]) -> R:
        try:
            return await run()
        except ValueError as cause:
            raise HTTPException(400, str(cause)) from cause
        except OutcomeUnknown as cause:
            raise NotNow(str(cause), applied="unknown", control_id=cause.control_id) from cause
        except CommandFailed as cause:
            raise NotNow(str(cause)) from cause


def answer(result: Result, facts: Mapping[str, object] = MappingProxyType({})) -> JSONResponse:
    """Return the answer to a change."""
    if result.outcome is Outcome.BAD_REQUEST:
        raise HTTPException(400, result.detail or "The request was refused.")
    if result.outcome is Outcome.NOT_PENDING and result.target.startswith(FILTER_PREFIX):
        return JSONResponse({**_body(result), **facts})
    return JSONResponse(
        {**_body(result), **facts, **error_of(result.outcome, result.target)}, _STATUS.get(result.outcome, 200)
    )


def _body(result: Result) -> dict[str, object]:
    return ControlBody(
        result=result.outcome,
        count=result.count,
        control_id=result.control_id,
        target=result.target,
        detail=result.detail,
        missing=list(result.missing),
    ).model_dump(mode="json", exclude_unset=True)


def control_routes(desk: ControlDesk, now_ms: Callable[[], int]) -> APIRouter:
    """Return the routes that change messages and look up outcomes."""
    router = APIRouter(tags=["control"], route_class=TargetRoute)

    @router.delete(
        TARGET,
        summary="Cancel a message",
        description="Removes the message before it fires. For a retry id, removes all messages with that id.",
        response_model=ControlBody,
        responses={**TIMER_ANSWERS, 200: answered(Outcome.CANCELLED, "The message is removed and will not fire.")},
    )
    async def cancel(request: Request, target: TargetText, given: MessageChangeParameters) -> JSONResponse:
        return await desk.act(request, ControlKind.CANCEL, target_of(target), target, given=given)

    @router.patch(
        TARGET,
        summary="Reschedule a message",
        description="Gives the message a new due time. Its timer id does not change.",
        response_model=ControlBody,
        responses={**TIMER_ANSWERS, 200: answered(Outcome.RESCHEDULED, "The message will fire at the new time.")},
        dependencies=[Depends(require_json)],
    )
    async def reschedule(
        request: Request, target: TargetText, given: MessageChangeParameters, schedule: ScheduleBody
    ) -> JSONResponse:
        at_ms = schedule.at_ms(now_ms())
        return await desk.act(request, ControlKind.RESCHEDULE, target_of(target), target, at_ms, given=given)

    @router.post(
        f"{TARGET}{FIRE}",
        summary="Fire a message now",
        description="Fires the message as if it were due.",
        response_model=ControlBody,
        responses={
            **TIMER_ANSWERS,
            200: answered(Outcome.FIRED, "The message is being delivered to its origin, exactly once."),
            409: answered(Outcome.ORIGIN_PAUSED, "Its origin is paused or unreachable; the message stays pending."),
        },
    )
    async def fire(request: Request, target: TargetText, given: MessageChangeParameters) -> JSONResponse:
        return await desk.act(request, ControlKind.FIRE, target_of(target), target, given=given)

    @router.get(
        "/control/{control_id:any}",
        summary="Show the outcome of a change",
        description="For a change that answered 202, and for control records from any other sender.",
        response_model=ControlBody,
        responses={
            200: answered(Outcome.CANCELLED, "The outcome; `result` is null while partitions are missing."),
            404: {"model": ErrorBody, "description": "There is no outcome yet, or it is older than one day."},
            "4XX": {"model": ErrorBody, "description": "Any other error in the request."},
            503: {"model": ErrorBody, "description": "No broker answers."},
        },
        dependencies=[Depends(refuse_parameters)],
    )
    async def outcome(control_id: ControlIdText) -> JSONResponse:
        return await desk.lookup(control_id)

    return router

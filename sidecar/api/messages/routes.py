"""`GET /pending/messages`: the single pending messages of the whole group."""

from __future__ import annotations

from typing import Annotated, Final, Self

from fastapi import APIRouter, Path, Query, Request
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field, model_validator
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.routing import Match
from starlette.types import Scope

from sidecar.api.auth import Gate
from sidecar.api.bodies import TOPIC_PATTERN, ErrorBody
from sidecar.api.instances import FORWARDED
from sidecar.api.messages.listing import (
    CURSOR_EXAMPLE,
    DETAIL_EXAMPLE,
    LIMIT,
    LIMIT_MAX,
    MESSAGES_EXAMPLE,
    NOT_LISTED,
    Cursor,
    Listing,
    MessageDetailBody,
    MessagesBody,
    NamedMessagesBody,
    Position,
    Wanted,
)
from sidecar.contract.control import parse_target
from sidecar.contract.filter import HEADERS_MAX, TEXT_CHARS_MAX
from sidecar.model import DUE_MS_MAX, TimerId


class _AnyText(PathConvertor):
    """The rest of a path, line feeds too, which `path` does not match: a retry id can be any text."""

    regex = "(?s:.*)"


register_url_convertor("any", _AnyText())
FIRE: Final = "/fire"
TARGET: Final = "/pending/messages/{target:any}"


class TargetRoute(APIRoute):
    """A route of a message, or of `/fire` behind one; a slash that belongs to a retry id is written %2F."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        raw: bytes = scope.get("raw_path") or scope["path"].encode()
        is_fire = raw.partition(b"?")[0].rstrip(b"/").endswith(FIRE.encode())
        if self.path.startswith(TARGET) and self.path.endswith(FIRE) is not is_fire:
            return Match.NONE, {}
        return super().matches(scope)


TargetText = Annotated[
    str,
    Path(
        description="A timer id, `<partition>-<offset>-<first due ms>`, or `id:` followed by a retry id.",
        examples=["2-1841-1770000060000"],
        json_schema_extra={"pattern": "^((0|[1-9][0-9]{0,8})-(0|[1-9][0-9]{0,17})-(0|[1-9][0-9]{0,13})|id:.{1,64})$"},
    ),
]
_UNKNOWN: Final = "The group's figures are not known yet, or the store cannot be read now."


TextFilter = Annotated[str, Field(max_length=TEXT_CHARS_MAX)]
HeaderFilter = Annotated[str, Field(pattern=r"^[^:]{1,200}:", max_length=1_000)]


class MessagesQuery(BaseModel):
    """Selects messages. Unknown parameters are refused: a misspelt one would silently list everything."""

    model_config = ConfigDict(extra="forbid")

    origin: str | None = Field(
        default=None,
        description="Only messages for this origin topic.",
        pattern=TOPIC_PATTERN,
        examples=["orders"],
    )
    partition: int | None = Field(
        default=None, description="Only messages of this input partition.", ge=0, le=2**31 - 1, examples=[0]
    )
    exception: TextFilter | None = Field(
        default=None,
        description="Only messages with this class of exception, a name or a glob.",
        examples=["com.acme.*"],
    )
    group: TextFilter | None = Field(
        default=None,
        description="Only messages of this consumer group (`retry-group`), a name or a glob.",
        examples=["billing"],
    )
    key: TextFilter | None = Field(
        default=None, description="Only messages with this record key, as UTF-8.", examples=["order-4711"]
    )
    header: list[HeaderFilter] = Field(
        default=[],
        description="Only messages with this header: the name up to the first colon, then the value, as UTF-8. Repeat "
        "it for messages that have all of them.",
        max_length=HEADERS_MAX,
        examples=[["tenant:acme"]],
    )
    due_from: int = Field(
        default=0,
        description="Only messages with a stored due time at or after this, epoch ms.",
        ge=0,
        le=DUE_MS_MAX,
        examples=[1_770_000_000_000],
    )
    due_to: int = Field(
        default=DUE_MS_MAX,
        description="Only messages with a stored due time before this, epoch ms. Must not be before `due_from`.",
        ge=0,
        le=DUE_MS_MAX,
        examples=[1_770_003_600_000],
    )
    limit: int = Field(
        default=LIMIT,
        description="Maximum number of messages on a page. A page can have fewer, even none, and still a cursor: one "
        "request reads a bounded number of rows.",
        ge=1,
        le=LIMIT_MAX,
        examples=[20],
    )
    cursor: Cursor | None = Field(default=None, description="Cursor of the previous page.", examples=[CURSOR_EXAMPLE])

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.due_from > self.due_to:
            raise ValueError("due_from must not be after due_to")
        return self

    def wanted(self) -> Wanted:
        """Return the selection of the page."""
        after = None if self.cursor is None else Position.from_cursor(self.cursor)
        headers = tuple((name, value) for name, _, value in (each.partition(":") for each in self.header))
        return Wanted(
            *(self.origin, self.due_from, self.due_to, self.limit, after),
            *(self.exception, self.group, self.key, headers),
        )


class MessageQuery(BaseModel):
    """The parts of a message to show."""

    model_config = ConfigDict(extra="forbid")

    payload: bool = Field(
        default=False, description="Include key and value; needs the token if one is set.", examples=[False]
    )


def target_of(text: str) -> TimerId | bytes:
    """Return the timer id or retry id of a path. Raises HTTPException 400."""
    try:
        return parse_target(text)
    except ValueError as cause:
        raise HTTPException(400, str(cause)) from cause


def message_routes(listing: Listing, gate: Gate) -> APIRouter:
    """Return the routes that read messages."""
    router = APIRouter(tags=["messages"], route_class=TargetRoute)

    @router.get(
        "/pending/messages",
        summary="List pending messages",
        description="Single messages of the whole group, without key and value, in due order. Each page has the cursor "
        "of the next one. An instance looks at no more than 2,000 messages for a page, so a rare match can be some "
        "pages away: `examined` says how many were looked at, and only a page without a cursor is the last one.",
        response_model=MessagesBody,
        responses={
            200: {"content": {"application/json": {"example": MESSAGES_EXAMPLE}}},
            400: {"model": ErrorBody, "description": "A parameter is invalid."},
            "4XX": {"model": ErrorBody, "description": "Any other error in the request."},
            501: {"model": ErrorBody, "description": NOT_LISTED},
            503: {"model": ErrorBody, "description": _UNKNOWN},
        },
    )
    async def list_messages(request: Request, query: Annotated[MessagesQuery, Query()]) -> JSONResponse:
        listing.require_known(query.partition)
        page = await listing.page(query.wanted(), query.partition, forwarded=FORWARDED in request.headers)
        return JSONResponse(page.model_dump())

    @router.get(
        TARGET,
        summary="Show a message, or all messages of a retry id",
        description="Shows headers and due time; with `?payload=true` also key and value.",
        response_model=MessageDetailBody | NamedMessagesBody,
        responses={
            200: {"content": {"application/json": {"example": DETAIL_EXAMPLE}}},
            400: {"model": ErrorBody, "description": "The target or a parameter is invalid."},
            404: {
                "model": ErrorBody,
                "description": "No pending message has this id, or it is one of those that are not read yet: the "
                "message says which, and how many are not read.",
            },
            "4XX": {"model": ErrorBody, "description": "Any other error in the request."},
            501: {"model": ErrorBody, "description": NOT_LISTED},
            503: {"model": ErrorBody, "description": "The owner of the partition does not answer."},
        },
    )
    async def show_message(request: Request, target: TargetText, query: Annotated[MessageQuery, Query()]) -> Response:
        if query.payload:
            gate.admit_payload()
        named = target_of(target)
        listing.require_known()
        forwarded = FORWARDED in request.headers
        if isinstance(named, TimerId):
            return await listing.encoded(await listing.find(named, payload=query.payload, forwarded=forwarded))
        gone = listing.not_pending(named)
        found = await listing.named(named, payload=query.payload, forwarded=forwarded)
        if not found.messages and found.complete and not forwarded:
            raise gone
        return await listing.encoded(found)

    return router

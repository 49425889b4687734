"""Lists single messages of the whole group: this instance's from its store, the others' from their owners.

A list is in the order (stored due, partition, offset). Its cursor is the last place of that order which a page has
covered, so it stays good whatever fires, comes or moves between two pages.
"""

from __future__ import annotations

import asyncio
import base64
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from struct import Struct, error
from typing import Annotated, Final, NamedTuple, Protocol, TypeVar
from urllib.parse import quote, urlencode

import structlog
from pydantic import AfterValidator, Field
from starlette.exceptions import HTTPException
from starlette.responses import Response

from sidecar.api.bodies import Body, ErrorBody
from sidecar.api.figures import require_known
from sidecar.api.guard import PaidThread
from sidecar.api.instances import OtherInstances
from sidecar.api.problems import NotNow
from sidecar.api.source import Source
from sidecar.engine.group.view import PartitionView
from sidecar.engine.items import target_text
from sidecar.engine.selection import Selection
from sidecar.errors import PartitionStopped, StoreFailed
from sidecar.model import DUE_MS_MAX, TimerId

log = structlog.get_logger(__name__)

NOT_LISTED: Final = (
    "Single messages cannot be listed or shown: this Spark driver shows no address, or its version is older. "
    "The message may be pending. Counts work, and so do cancel, reschedule and fire."
)
_AS_OF: Final = "On Apache Spark, the instant of the micro-batch that is shown; null: the present is shown."
_MICRO_BATCH: Final = "On Apache Spark, the number of this micro-batch; null on the embedded engine."
T = TypeVar("T")
B = TypeVar("B", bound=Body)

LIMIT_MAX: Final = 1_000
LIMIT: Final = 100
READS_AT_A_TIME: Final = 2
RUNNING: Final = "running"

_CURSOR: Final = Struct(">QIQ")
_NOW_MS = 1_770_000_000_000


class Position(NamedTuple):
    """A position in the order of a list."""

    due_ms: int
    """The stored due."""
    partition: int
    offset: int

    def to_cursor(self) -> str:
        """Return it as opaque text."""
        return base64.urlsafe_b64encode(_CURSOR.pack(*self)).decode().rstrip("=")

    @classmethod
    def from_cursor(cls, text: str) -> Position:
        """Return the position of a cursor. Raises ValueError for any other text."""
        try:
            found = cls(*_CURSOR.unpack(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))))
        except (ValueError, error) as cause:
            raise ValueError("it is not a cursor that a page returned") from cause
        if found.to_cursor() != text:  # the decoder steps over what is not base64
            raise ValueError("it is not a cursor that a page returned")
        return found


def _checked(cursor: str) -> str:
    Position.from_cursor(cursor)
    return cursor


Cursor = Annotated[str, AfterValidator(_checked)]


class MessageBody(Body):
    """One pending message."""

    id: str = Field(description="Timer id.", examples=["2-1841-1770000060000"])
    partition: int = Field(ge=0, le=2**31 - 1)
    offset: int = Field(description="Stored offset, as in the timer id.", ge=0, le=2**64 - 1)
    origin: str = Field(description="Origin topic, which the message is delivered to.")
    due_ms: int = Field(description="Requested due time.")
    stored_due_ms: int = Field(
        description="Time of the next attempt to fire: later than due_ms if the message is deferred or held.", ge=0
    )
    first_due_ms: int = Field(description="First due time, as in the timer id.")
    attempt: int = Field(description="Retries already made.")
    limit: int = Field(description="Total number of attempts allowed.")
    retry_id: str | None = Field(description="The sender's id (`retry-id`).")
    deferred: bool = Field(description="True if the message came due while its origin was closed or at its rate.")

    @property
    def position(self) -> Position:
        return Position(self.stored_due_ms, self.partition, self.offset)


class HeaderBody(Body):
    """One header of a message."""

    name: str
    value: str | None = Field(description="The value; null as it came, or if it is not UTF-8 (see value_base64).")
    value_base64: str | None = Field(default=None, description="The value in base64 if it is not UTF-8.")


class MessageDetailBody(MessageBody):
    """One pending message with its headers and, on request, its payload."""

    headers: list[HeaderBody]
    headers_truncated: bool = Field(default=False, description="True if there are more headers than shown.")
    key: str | None = Field(default=None, description="Base64, or null; only with ?payload=true.")
    value: str | None = Field(default=None, description="Base64, or null; only with ?payload=true.")
    as_of_ms: int | None = Field(default=None, description=_AS_OF, ge=0)
    micro_batch: int | None = Field(default=None, description=_MICRO_BATCH, ge=0)


class MessagesBody(Body):
    """A page of messages, in due order."""

    messages: list[MessageBody] = Field(max_length=LIMIT_MAX)
    examined: int = Field(
        default=0, description="Number of pending messages that were looked at for this page, matching or not.", ge=0
    )
    cursor: Cursor | None = Field(description="Cursor of the next page; null on the last page.")
    complete: bool = Field(description="False if messages of the partitions in `missing` are not on this page.")
    missing: list[int] = Field(description="Partitions without an owner, or whose owner did not answer.")
    partitions: list[int] = Field(description="Partitions that this page covers.")
    as_of_ms: int | None = Field(default=None, description=_AS_OF, ge=0)
    micro_batch: int | None = Field(default=None, description=_MICRO_BATCH, ge=0)


class NamedMessagesBody(Body):
    """All pending messages of one retry id."""

    messages: list[MessageDetailBody]
    complete: bool = Field(description="False if messages of the partitions in `missing` are not shown.")
    missing: list[int]
    partitions: list[int] = Field(description="Partitions that this response covers.")
    truncated: bool = Field(description="True if there are more messages than shown.")


MESSAGE_EXAMPLE: Final[dict[str, object]] = {
    "id": f"2-1841-{_NOW_MS + 60_000}",
    "partition": 2,
    "offset": 1841,
    "origin": "orders",
    "due_ms": _NOW_MS + 60_000,
    "stored_due_ms": _NOW_MS + 60_000,
    "first_due_ms": _NOW_MS + 60_000,
    "attempt": 1,
    "limit": 6,
    "retry_id": "order-4711",
    "deferred": False,
}
CURSOR_EXAMPLE: Final = Position(_NOW_MS + 60_000, 2, 1841).to_cursor()
MESSAGES_EXAMPLE: Final[dict[str, object]] = {
    "messages": [MESSAGE_EXAMPLE],
    "examined": 1,
    "cursor": CURSOR_EXAMPLE,
    "complete": True,
    "missing": [],
    "partitions": [0, 1, 2, 3],
    "as_of_ms": None,
    "micro_batch": None,
}
DETAIL_EXAMPLE: Final[dict[str, object]] = {
    **MESSAGE_EXAMPLE,
    "headers": [{"name": "retry-origin-topic", "value": "orders"}],
}


@dataclass(frozen=True, slots=True)
class Wanted:
    """The selection of a page."""

    origin: str | None = None
    due_from_ms: int = 0
    due_to_ms: int = DUE_MS_MAX
    """Exclusive; both bounds are of the stored due."""
    limit: int = LIMIT
    after: Position | None = None
    exception: str | None = None
    """A name or a glob."""
    group: str | None = None
    """A name or a glob."""
    key: str | None = None
    """The record key as UTF-8."""
    headers: tuple[tuple[str, str], ...] = ()
    """Names and values as UTF-8; a message has all of them."""

    def query(self) -> list[tuple[str, str]]:
        """Return the parameters that ask another instance for the same."""
        given = {
            "origin": self.origin,
            "exception": self.exception,
            "group": self.group,
            "key": self.key,
            "due_from": self.due_from_ms or None,
            "due_to": None if self.due_to_ms == DUE_MS_MAX else self.due_to_ms,
            "limit": self.limit,
            "cursor": None if self.after is None else self.after.to_cursor(),
        }
        headers = [("header", f"{name}:{value}") for name, value in self.headers]
        return [(name, str(value)) for name, value in given.items() if value is not None] + headers

    @property
    def selection(self) -> Selection:
        """What makes a message a wanted one, besides its due time."""
        return Selection(self.origin, self.exception, self.group, self.key, self.headers)


class AsOf(NamedTuple):
    """The micro-batch whose state is shown."""

    instant_ms: int
    micro_batch: int


class Page(NamedTuple):
    """Messages in order, and the position that they reach."""

    messages: Sequence[MessageBody]
    reached: Position | None
    """Everything up to here is covered; None: there is nothing behind."""
    examined: int = 0
    """Messages that were looked at."""
    as_of: AsOf | None = None
    """None: the present."""


class Named(NamedTuple):
    """Messages of one retry id."""

    messages: Sequence[MessageDetailBody]
    truncated: bool


class Unread(StoreFailed):
    """No partition can be read now: an answer without any of them is of no use to anybody."""


class Entries(Protocol):
    """Reads the messages of the partitions that this instance owns.

    Called from worker threads; every call looks at a bounded number of rows. All raise StoreFailed or PartitionStopped
    when they cannot be read now.
    """

    def owned(self) -> frozenset[int]:
        """Return the partitions that can be read here. Returns at once, and never raises."""
        ...

    def page(self, partitions: Collection[int], wanted: Wanted) -> Page: ...

    def find(self, timer: TimerId, *, payload: bool) -> MessageDetailBody | None: ...

    def named(self, retry_id: bytes, partitions: Collection[int], *, payload: bool) -> Named: ...


class _Owners(NamedTuple):
    own: frozenset[int]
    others: Mapping[str, frozenset[int]]
    """By URL."""
    missing: frozenset[int]


def merged(pages: Iterable[Page], limit: int) -> Page:
    """Return the pages as one: only so far as each of them goes."""
    pages = list(pages)
    horizon = min((each.reached for each in pages if each.reached is not None), default=None)
    found = [message for each in pages for message in each.messages if horizon is None or message.position <= horizon]
    found.sort(key=lambda message: message.position)
    examined = sum(each.examined for each in pages)
    as_of = min((each.as_of for each in pages if each.as_of is not None), default=None)
    if len(found) > limit:
        return Page(found[:limit], found[limit - 1].position, examined, as_of)
    return Page(found, horizon, examined, as_of)


class Listing:
    """Answers for the group.

    Args:
        source: Says who owns which partition.
        entries: The own partitions'.
        others: The other instances.
    """

    def __init__(self, source: Source, entries: Entries, others: OtherInstances) -> None:
        self._source = source
        self._entries = entries
        self._others = others
        self._reading = PaidThread(READS_AT_A_TIME)

    def require_known(self, partition: int | None = None) -> None:
        """Raise HTTPException while the group is not known or cannot be listed, and for a strange partition."""
        require_known(self._source, partition)
        if any(view.owner and not view.listable for view in self._source.views()):
            raise HTTPException(501, NOT_LISTED)

    async def encoded(self, body: Body) -> Response:
        """Return an answer, encoded in a thread: it may have megabytes."""
        made = await self._reading.run(lambda: body.model_dump_json(exclude_unset=True).encode())
        return Response(made, media_type="application/json")

    async def page(self, wanted: Wanted, partition: int | None, *, forwarded: bool) -> MessagesBody:
        """Return a page over all partitions, or one; `forwarded` of the own ones alone."""
        owners = self._owners(partition, forwarded=forwarded)
        query = wanted.query() + ([] if partition is None else [("partition", str(partition))])
        path = f"/pending/messages?{urlencode(query)}"
        own, others = await asyncio.gather(
            self._read(partial(self._entries.page, owners.own, wanted), owners.own),
            self._ask_all(owners.others, path, MessagesBody),
        )
        pages: list[Page] = []
        covered: set[int] = set()
        if own is not None:
            pages.append(own)
            covered |= owners.own
        for asked, body in others:
            answered = asked & set(body.partitions)
            reached = None if body.cursor is None else Position.from_cursor(body.cursor)
            messages = [each for each in body.messages if each.partition in answered]
            as_of = None if body.as_of_ms is None else AsOf(body.as_of_ms, body.micro_batch or 0)
            pages.append(Page(messages, reached, body.examined, as_of))
            covered |= answered
        whole = merged(pages, wanted.limit)
        missing = self._wanted_of(owners) - covered
        return MessagesBody(
            messages=list(whole.messages),
            examined=whole.examined,
            cursor=None if whole.reached is None else whole.reached.to_cursor(),
            complete=not missing and self._source.partitions_total() is not None,
            missing=sorted(missing),
            partitions=sorted(covered),
            as_of_ms=None if whole.as_of is None else whole.as_of.instant_ms,
            micro_batch=None if whole.as_of is None else whole.as_of.micro_batch,
        )

    async def named(self, retry_id: bytes, *, payload: bool, forwarded: bool) -> NamedMessagesBody:
        """Return all messages of a retry id."""
        owners = self._owners(None, forwarded=forwarded)
        path = f"/pending/messages/id:{quote(retry_id, safe='')}" + ("?payload=true" if payload else "")
        own, others = await asyncio.gather(
            self._read(partial(self._entries.named, retry_id, owners.own, payload=payload), owners.own),
            self._ask_all(owners.others, path, NamedMessagesBody),
        )
        messages = [] if own is None else list(own.messages)
        truncated = own is not None and own.truncated
        covered = set() if own is None else set(owners.own)
        for asked, body in others:
            answered = asked & set(body.partitions)
            messages.extend(each for each in body.messages if each.partition in answered)
            truncated |= body.truncated
            covered |= answered
        missing = self._wanted_of(owners) - covered
        return NamedMessagesBody(
            messages=sorted(messages, key=lambda each: each.position),
            complete=not missing and self._source.partitions_total() is not None,
            missing=sorted(missing),
            partitions=sorted(covered),
            truncated=truncated,
        )

    async def find(self, timer: TimerId, *, payload: bool, forwarded: bool) -> MessageDetailBody:
        """Return one message. Raises HTTPException: 404 when it is not pending, 503 when that is unknown."""
        total = self._source.partitions_total()
        # Before the store is asked: what is read in between is found.
        gone = self.not_pending(timer)
        if total is not None and timer.partition >= total:
            raise gone
        away = NotNow(f"The owner of partition {timer.partition} does not answer; try again in a moment.")
        owners = self._owners(timer.partition, forwarded=forwarded)
        if owners.own:
            read = partial(self._entries.find, timer, payload=payload)
            try:
                message = await self._reading.run(read)
            except Unread as cause:
                raise NotNow(str(cause)) from cause
            except (StoreFailed, PartitionStopped) as cause:
                raise away from cause
            if message is None:
                raise gone
            return message
        path = f"/pending/messages/{timer}" + ("?payload=true" if payload else "")
        for url in owners.others:
            answer = await self._others.ask("", url, "GET", path)
            if (refused := answer.read(ErrorBody, {404})) is not None:
                raise HTTPException(404, refused.message)
            if (found := answer.read(MessageDetailBody, {200})) is not None and found.id == str(timer):
                return found
        raise away

    def not_pending(self, target: TimerId | bytes) -> HTTPException:
        """Return the error for a message that no store has: it may be one of those that are not read yet."""
        behind = {
            view.partition: view.lag
            for view in self._source.views()
            if view.lag and not (isinstance(target, TimerId) and _has_passed(view, target))
        }
        name = target_text(target)
        if not behind:
            return HTTPException(404, f"{name} is not pending: it has fired, was cancelled, or never existed.")
        count = sum(behind.values())
        where = ", ".join(map(str, sorted(behind)))
        return HTTPException(
            404,
            f"{name} is not among the messages that are read: reading is behind by {count:,} of the retry topic's "
            f"partition {where}. Ask again when they are read.",
        )

    def _owners(self, partition: int | None, *, forwarded: bool) -> _Owners:
        views = [view for view in self._source.views() if partition in {None, view.partition}]
        own = self._entries.owned() & {view.partition for view in views}
        if forwarded:
            return _Owners(own, {}, frozenset())
        others: dict[str, set[int]] = defaultdict(set)
        missing = set() if partition is None or views else {partition}
        for view in views:
            if view.partition not in own:
                url = _url(view)
                (missing if url is None else others[url]).add(view.partition)
        return _Owners(own, {url: frozenset(each) for url, each in others.items()}, frozenset(missing))

    @staticmethod
    def _wanted_of(owners: _Owners) -> frozenset[int]:
        return owners.own.union(owners.missing, *owners.others.values())

    async def _read(self, read: Callable[[], T], partitions: Collection[int]) -> T | None:
        """Return the result from the own store, None when it cannot be read or nothing is owned."""
        if not partitions:
            return None
        try:
            return await self._reading.run(read)
        except Unread as cause:
            raise NotNow(str(cause)) from cause
        except (StoreFailed, PartitionStopped) as cause:
            log.warning("entries_not_read", reason=str(cause))
            return None

    async def _ask_all(
        self, others: Mapping[str, frozenset[int]], path: str, model: type[B]
    ) -> list[tuple[frozenset[int], B]]:
        """Return the good answers of other instances, each with the partitions that it was asked for."""
        answers = await asyncio.gather(*(self._others.ask("", url, "GET", path) for url in others))
        bodies = [answer.read(model, {200}) for answer in answers]
        return [(asked, body) for asked, body in zip(others.values(), bodies, strict=True) if body is not None]


def _has_passed(view: PartitionView, timer: TimerId) -> bool:
    """Return whether what the owner has read of a partition tells all about a message."""
    read = view.next_input_offset is not None and timer.offset < view.next_input_offset
    return view.partition != timer.partition or read


def _url(view: PartitionView) -> str | None:
    return view.url if view.owner and view.state == RUNNING else None

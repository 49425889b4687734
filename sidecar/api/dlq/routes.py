"""`/dlq`: reads dead letters a bounded number at a time, and redrives them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Final, Protocol, TypeVar

import structlog
from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, Depends, Path, Query, Request, params
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from sidecar.api.auth import Gate
from sidecar.api.bodies import ErrorBody
from sidecar.api.dlq.bodies import (
    COUNTS_EXAMPLE,
    DEAD_LETTER_DETAIL_EXAMPLE,
    DEAD_LETTERS_EXAMPLE,
    DISCARD_EXAMPLE,
    ID_PATTERN,
    POSITION_PATTERN,
    REDRIVE_EXAMPLE,
    CountsBody,
    DeadLetterDetailBody,
    DeadLettersBody,
    DiscardBody,
    DiscardQuery,
    DiscardRequest,
    DiscardsBody,
    ListQuery,
    RedriveBody,
    RedriveRequest,
    RedrivesBody,
    ScanQuery,
    ShowQuery,
    TakenBackBody,
    read_position,
)
from sidecar.api.guard import PaidThread
from sidecar.api.messages.changes import caller, refuse_parameters, require_json
from sidecar.api.messages.listing import FORWARDED, Peers
from sidecar.api.problems import NotNow
from sidecar.api.source import Source
from sidecar.errors import AlreadyRunning, CommandFailed

log = structlog.get_logger(__name__)
R = TypeVar("R")

SCANS_AT_A_TIME: Final = 1
ASKED_AT_A_TIME: Final = 8

_UNREAD: Final = {
    "model": ErrorBody,
    "description": "The DLQ cannot be read now. Retry after `Retry-After`.",
}
_BAD: Final = {"model": ErrorBody, "description": "A parameter is invalid, or the topic is not a DLQ."}
_OTHER: Final = {"model": ErrorBody, "description": "Any other error in the request."}
_NO_RECORD: Final = {"model": ErrorBody, "description": "The DLQ has no such record."}
_CHANGE: Final[dict[int | str, dict[str, object]]] = {
    "4XX": _OTHER,
}
PositionText = Annotated[
    str,
    Path(alias="id", description="`<partition>-<offset>` on the DLQ.", examples=["0-17"], pattern=POSITION_PATTERN),
]
RedriveText = Annotated[str, Path(description="Name of the run.", examples=["13b95c1f4d"], pattern=ID_PATTERN)]


class DeadLetters(Protocol):
    """Reads and redrives dead letters.

    The first three are called from a worker thread and may take seconds. They raise ValueError for a request that
    cannot be meant, and CommandFailed when the brokers do not let them. The others return at once.
    """

    def counts(self, query: ScanQuery) -> CountsBody: ...

    def page(self, query: ListQuery) -> DeadLettersBody: ...

    def find(self, topic: str | None, partition: int, offset: int, *, payload: bool) -> DeadLetterDetailBody | None:
        """Return one dead letter, None when the DLQ has no such record."""
        ...

    def discard(self, request: DiscardRequest, who: str) -> DiscardBody | None:
        """Discard a dead letter; None when the DLQ has no such record. Called as the first three."""
        ...

    def take_back(self, topic: str | None, partition: int, offset: int) -> bool:
        """End a discard; return whether there was one. Called as the first three."""
        ...

    def discards(self, topic: str | None) -> DiscardsBody:
        """Return the discarded dead letters. Called as the first three."""
        ...

    def start(self, request: RedriveRequest) -> tuple[RedriveBody, bool]:
        """Start a redrive; return its status, and False when the same one was running already.

        Raises:
            ValueError: The request cannot be meant.
            AlreadyRunning: Another one is running.
        """
        ...

    def redrive(self, run: str) -> RedriveBody | None:
        """Return the status of a redrive of this instance, None when it has none of that name."""
        ...

    def redrives(self) -> Sequence[RedriveBody]:
        """Return the redrives of this instance, newest first."""
        ...

    def stop(self, run: str) -> RedriveBody | None:
        """Ask a redrive to stop after the transaction at hand; None: this instance has none of that name."""
        ...


class DlqDesk:
    """Reads one look at a time in a thread of its own, and asks other instances for redrives of theirs."""

    def __init__(self, dead_letters: DeadLetters, source: Source, peers: Peers) -> None:
        self._dead_letters = dead_letters
        self._source = source
        self._peers = peers
        self._scanning = PaidThread(SCANS_AT_A_TIME)
        self._asking = CapacityLimiter(ASKED_AT_A_TIME)

    async def read(self, work: Callable[[], R]) -> R:
        """Return what a look returns."""
        try:
            return await self._scanning.run(work)
        except ValueError as cause:
            raise HTTPException(400, str(cause)) from cause
        except CommandFailed as cause:
            raise NotNow(str(cause)) from cause

    def start(self, request: Request, wanted: RedriveRequest) -> tuple[RedriveBody, bool]:
        """Start a redrive and write it to the log."""
        facts: dict[str, object] = {"outcome": "failed"}
        try:
            status, started = self._dead_letters.start(wanted)
            facts = {"outcome": "started" if started else "running", "run": status.run, "dry_run": status.dry_run}
        except ValueError as cause:
            raise HTTPException(400, str(cause)) from cause
        except AlreadyRunning as cause:
            raise HTTPException(409, str(cause)) from cause
        finally:
            log.info("api_change", who=caller(request), what="redrive", target=wanted.id or "filter", **facts)
        return status, started

    def stop(self, request: Request, run: str) -> RedriveBody:
        """Ask a redrive of this instance to stop."""
        status = self._dead_letters.stop(run)
        if status is None:
            raise HTTPException(404, f"This instance has no redrive {run}; stop it on the instance that runs it.")
        log.info("api_change", who=caller(request), what="redrive-stop", target=run, outcome=status.state)
        return status

    async def discard(self, request: Request, wanted: DiscardRequest) -> DiscardBody:
        """Discard a dead letter and write it to the log."""
        made: DiscardBody | None = None
        who, outcome = caller(request), "failed"
        try:
            made = await self.read(partial(self._dead_letters.discard, wanted, who))
            outcome = "not-found" if made is None else "discarded"
        finally:
            log.info("api_change", who=who, what="discard", target=wanted.id, outcome=outcome)
        if made is None:
            raise HTTPException(404, f"The DLQ has no record {wanted.id}: it was deleted, or never existed.")
        return made

    async def take_back(self, request: Request, topic: str | None, position: str) -> None:
        """End a discard and write it to the log."""
        outcome = "failed"
        try:
            there = await self.read(partial(self._dead_letters.take_back, topic, *read_position(position)))
            outcome = "taken-back" if there else "not-found"
        finally:
            log.info("api_change", who=caller(request), what="discard-undo", target=position, outcome=outcome)
        if not there:
            raise HTTPException(404, f"Dead letter {position} is not discarded.")

    async def status(self, run: str, *, forwarded: bool) -> RedriveBody:
        """Return the status of a redrive of any instance."""
        if (own := self._dead_letters.redrive(run)) is not None:
            return own
        urls = set() if forwarded else {view.url for view in self._source.views() if view.url and view.owner}
        answers = await asyncio.gather(*(self._ask(url, f"/dlq/redrives/{run}") for url in sorted(urls)))
        if (found := next((each for each in answers if each is not None), None)) is not None:
            return found
        raise HTTPException(404, f"No instance that answers has a redrive {run}. The progress of a run is kept.")

    async def _ask(self, url: str, path: str) -> RedriveBody | None:
        get = partial(self._peers.get, url, path)
        try:
            status, body = await to_thread.run_sync(get, limiter=self._asking)
            return RedriveBody.model_validate_json(body) if status == 200 else None
        except (CommandFailed, ValidationError) as cause:
            log.info("owner_not_reached", url=url, reason=str(cause))
            return None


def dlq_routes(dead_letters: DeadLetters, source: Source, peers: Peers, gate: Gate) -> APIRouter:
    """Return the routes about dead letters."""
    router = APIRouter(tags=["dlq"])
    desk = DlqDesk(dead_letters, source, peers)

    @router.get(
        "/dlq",
        summary="Count dead letters",
        description="Counts the newest dead letters by reason, origin, exception, attempt, group and hour. One request "
        "looks at up to 5,000 records, 16 MiB and 3 s; follow the cursor and add the counts up.",
        response_model=CountsBody,
        responses={
            200: {"content": {"application/json": {"example": COUNTS_EXAMPLE}}},
            400: _BAD,
            "4XX": _OTHER,
            503: _UNREAD,
        },
    )
    async def count_dead_letters(query: Annotated[ScanQuery, Query()]) -> JSONResponse:
        return JSONResponse((await desk.read(partial(dead_letters.counts, query))).model_dump())

    @router.get(
        "/dlq/messages",
        summary="List dead letters",
        description="Single dead letters, newest first, without headers, key and value. Bounded as the counts are.",
        response_model=DeadLettersBody,
        responses={
            200: {"content": {"application/json": {"example": DEAD_LETTERS_EXAMPLE}}},
            400: _BAD,
            "4XX": _OTHER,
            503: _UNREAD,
        },
    )
    async def list_dead_letters(query: Annotated[ListQuery, Query()]) -> JSONResponse:
        return JSONResponse((await desk.read(partial(dead_letters.page, query))).model_dump())

    @router.get(
        "/dlq/messages/{id}",
        summary="Show a dead letter",
        description="Shows its headers; with `?payload=true` also key and value.",
        response_model=DeadLetterDetailBody,
        responses={
            200: {"content": {"application/json": {"example": DEAD_LETTER_DETAIL_EXAMPLE}}},
            400: _BAD,
            404: _NO_RECORD,
            "4XX": _OTHER,
            503: _UNREAD,
        },
    )
    async def show_dead_letter(position: PositionText, query: Annotated[ShowQuery, Query()]) -> Response:
        if query.payload:
            gate.admit_payload()
        partition, offset = read_position(position)
        found = await desk.read(partial(dead_letters.find, query.topic, partition, offset, payload=query.payload))
        if found is None:
            raise HTTPException(404, f"The DLQ has no record {position}: it was deleted, or never existed.")
        shown = found
        made = await desk.read(lambda: shown.model_dump_json(exclude_unset=True).encode())
        return Response(made, media_type="application/json")

    _add_discards(router, dead_letters, desk)
    _add_redrives(router, dead_letters, desk)
    return router


def _add_discards(router: APIRouter, dead_letters: DeadLetters, desk: DlqDesk) -> None:
    errors: dict[int | str, dict[str, object]] = {400: _BAD, "4XX": _OTHER, 503: _UNREAD}
    shown = {"application/json": {"example": DISCARD_EXAMPLE}}
    all_shown = {"application/json": {"example": {"topic": "dlq", "total": 1, "discards": [DISCARD_EXAMPLE]}}}

    @router.get(
        "/dlq/discards",
        summary="List discarded dead letters",
        description="Those that lists and counts leave out and redrives skip, latest first, at most 1,000.",
        response_model=DiscardsBody,
        responses={**errors, 200: {"content": all_shown}},
    )
    async def list_discards(query: Annotated[DiscardQuery, Query()]) -> JSONResponse:
        return JSONResponse((await desk.read(partial(dead_letters.discards, query.topic))).model_dump())

    @router.post(
        "/dlq/discards",
        summary="Discard a dead letter",
        description="Lists and counts leave it out and redrives skip it, on every instance, until it is taken back. "
        "The record stays on the DLQ. A redrive that is running may still send it.",
        response_model=DiscardBody,
        responses={**errors, 200: {"content": shown}, 404: _NO_RECORD},
        dependencies=[Depends(refuse_parameters), Depends(require_json)],
    )
    async def discard_dead_letter(request: Request, wanted: DiscardRequest) -> JSONResponse:
        return JSONResponse((await desk.discard(request, wanted)).model_dump())

    @router.delete(
        "/dlq/discards/{id}",
        summary="Take a discard back",
        description="The dead letter is listed, counted and redriven again.",
        response_model=TakenBackBody,
        responses={
            **errors,
            200: {"content": {"application/json": {"example": {"id": "0-17", "taken_back": True}}}},
            404: {"model": ErrorBody, "description": "It is not discarded."},
        },
    )
    async def take_discard_back(
        request: Request, position: PositionText, query: Annotated[DiscardQuery, Query()]
    ) -> JSONResponse:
        await desk.take_back(request, query.topic, position)
        return JSONResponse(TakenBackBody(id=position).model_dump())


def _add_redrives(router: APIRouter, dead_letters: DeadLetters, desk: DlqDesk) -> None:
    guards = [Depends(refuse_parameters)]
    shown = {"application/json": {"example": REDRIVE_EXAMPLE}}

    @router.post(
        "/dlq/redrives",
        summary="Redrive dead letters",
        description="Sends dead letters to the retry topic again, in the background, each once in a run: see "
        "[Redrive dead letters](../how-to/dlq.md). Poll `GET /dlq/redrives/{run}`. An instance runs one redrive "
        "at a time.",
        status_code=202,
        response_model=RedriveBody,
        responses={
            **_CHANGE,
            200: {"model": RedriveBody, "description": "The same redrive is running already.", "content": shown},
            202: {"description": "The redrive has started.", "content": shown},
            400: _BAD,
            409: {"model": ErrorBody, "description": "Another redrive is running on this instance."},
        },
        dependencies=[*guards, Depends(require_json)],
    )
    async def redrive_dead_letters(request: Request, wanted: RedriveRequest) -> JSONResponse:
        status, started = desk.start(request, wanted)
        place = {"location": f"/dlq/redrives/{status.run}"}
        return JSONResponse(status.model_dump(), 202 if started else 200, place)

    @router.get(
        "/dlq/redrives",
        summary="List redrives",
        description="The last 100 redrives that this instance has run since it started, newest first.",
        response_model=RedrivesBody,
        responses={
            200: {"content": {"application/json": {"example": {"redrives": [REDRIVE_EXAMPLE]}}}},
            "4XX": _OTHER,
        },
        dependencies=[Depends(refuse_parameters)],
    )
    async def list_redrives() -> JSONResponse:
        return JSONResponse(RedrivesBody(redrives=list(dead_letters.redrives())).model_dump())

    _add_redrive(router, desk, guards, shown)


def _add_redrive(router: APIRouter, desk: DlqDesk, guards: list[params.Depends], shown: Mapping[str, object]) -> None:
    none: dict[str, object] = {"model": ErrorBody, "description": "No instance that answers has this redrive."}

    @router.get(
        "/dlq/redrives/{run}",
        summary="Show a redrive",
        description="The status of a redrive, of whichever instance runs it. An instance forgets its redrives when it "
        "ends; the progress of the runs stays.",
        response_model=RedriveBody,
        responses={
            200: {"content": shown},
            404: none,
            "4XX": _OTHER,
        },
        dependencies=[Depends(refuse_parameters)],
    )
    async def show_redrive(request: Request, run: RedriveText) -> JSONResponse:
        return JSONResponse((await desk.status(run, forwarded=FORWARDED in request.headers)).model_dump())

    @router.delete(
        "/dlq/redrives/{run}",
        summary="Stop a redrive",
        description="Stops after the transaction at hand. The same request to `POST /dlq/redrives` continues the run.",
        response_model=RedriveBody,
        responses={
            **_CHANGE,
            200: {"description": "The status. It is `running` until the redrive has stopped.", "content": shown},
            404: {"model": ErrorBody, "description": "This instance has no such redrive."},
        },
        dependencies=guards,
    )
    async def stop_redrive(request: Request, run: RedriveText) -> JSONResponse:
        return JSONResponse(desk.stop(request, run).model_dump())

"""`/dlq`: reads dead letters a bounded number at a time, and redrives them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Final, NamedTuple, Protocol, TypeVar

import structlog
from fastapi import APIRouter, Depends, Path, Query, Request, params
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from sidecar.api.auth import Gate
from sidecar.api.bodies import Applied, ErrorBody
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
from sidecar.api.instances import FORWARDED, OtherInstances, PeerResponse
from sidecar.api.messages.changes import caller, refuse_parameters, require_json
from sidecar.api.problems import NotNow
from sidecar.errors import AlreadyRunning, CommandFailed

log = structlog.get_logger(__name__)
R = TypeVar("R")

SCANS_AT_A_TIME: Final = 1

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

    def run_of(self, request: RedriveRequest) -> str:
        """Return the name of the run that a request starts. Raises ValueError as `start` does."""
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
    """Reads one look at a time in a thread of its own, and asks other instances about redrives of theirs."""

    def __init__(self, dead_letters: DeadLetters, others: OtherInstances, instance_id: str) -> None:
        self._dead_letters = dead_letters
        self._others = others
        self._instance_id = instance_id
        self._scanning = PaidThread(SCANS_AT_A_TIME)

    async def read(self, work: Callable[[], R], applied: Applied = "no") -> R:
        """Return what a look returns."""
        try:
            return await self._scanning.run(work)
        except ValueError as cause:
            raise HTTPException(400, str(cause)) from cause
        except CommandFailed as cause:
            raise NotNow(str(cause), applied=applied) from cause

    async def start(self, request: Request, wanted: RedriveRequest) -> tuple[RedriveBody, bool]:
        """Start a redrive and write it to the log; one that another instance runs is found there."""
        facts: dict[str, object] = {"outcome": "failed"}
        try:
            if (place := await self._running_elsewhere(request, wanted)) is not None:
                status, started = await self._pass_on(place, wanted)
            else:
                made, started = self._dead_letters.start(wanted)
                status = self._named(made)
            outcome = "started" if started else "running"
            facts = {"outcome": outcome, "run": status.run, "dry_run": status.dry_run, "instance": status.instance}
        except ValueError as cause:
            raise HTTPException(400, str(cause)) from cause
        except AlreadyRunning as cause:
            raise HTTPException(409, str(cause)) from cause
        finally:
            log.info("api_change", who=caller(request), what="redrive", target=wanted.id or "filter", **facts)
        return status, started

    async def stop(self, request: Request, run: str) -> RedriveBody:
        """Ask a redrive to stop, on the instance that runs it."""
        found, silent = await self._found(run, forwarded=FORWARDED in request.headers)
        if silent and (found is None or found.status.state != "running"):
            raise NotNow(f"{', '.join(silent)} does not answer, and may run redrive {run}.")
        if found is None:
            raise HTTPException(404, f"No instance has a redrive {run}. The progress of a run is kept.")
        if (place := found.place) is None:
            status = self._named(self._dead_letters.stop(run) or found.status)
        else:
            answer = await self._others.ask(place.instance, place.url, "DELETE", f"/dlq/redrives/{run}")
            if (asked := answer.read(RedriveBody)) is None:
                raise NotNow(f"{place.instance}, which runs redrive {run}, does not answer.", applied="unknown")
            status = _of(asked, answer)
        facts = {"outcome": status.state, "instance": status.instance}
        log.info("api_change", who=caller(request), what="redrive-stop", target=run, **facts)
        return status

    async def discard(self, request: Request, wanted: DiscardRequest) -> DiscardBody:
        """Discard a dead letter and write it to the log."""
        made: DiscardBody | None = None
        who, outcome = caller(request), "failed"
        try:
            made = await self.read(partial(self._dead_letters.discard, wanted, who), "unknown")
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
            there = await self.read(partial(self._dead_letters.take_back, topic, *read_position(position)), "unknown")
            outcome = "taken-back" if there else "not-found"
        finally:
            log.info("api_change", who=caller(request), what="discard-undo", target=position, outcome=outcome)
        if not there:
            raise HTTPException(404, f"Dead letter {position} is not discarded.")

    async def status(self, run: str, *, forwarded: bool) -> RedriveBody:
        """Return the status of a redrive of any instance."""
        found, _ = await self._found(run, forwarded=forwarded)
        if found is None:
            raise HTTPException(404, f"No instance that answers has a redrive {run}. The progress of a run is kept.")
        return found.status

    async def all(self, *, forwarded: bool) -> RedrivesBody:
        """Return the redrives of all instances, newest first."""
        found = [self._named(each) for each in self._dead_letters.redrives()]
        missing = list[str]()
        for answer in [] if forwarded else await self._others.ask_all("GET", "/dlq/redrives"):
            listed = answer.read(RedrivesBody)
            if listed is None:
                missing.append(answer.instance)
            else:
                found += [_of(each, answer) for each in listed.redrives]
        found.sort(key=lambda each: each.began_ms, reverse=True)
        return RedrivesBody(redrives=found, missing=missing)

    async def _found(self, run: str, *, forwarded: bool) -> tuple[_Found | None, list[str]]:
        """Return where a redrive of this name runs, or ran last, and which instances do not answer."""
        own = self._dead_letters.redrive(run)
        found = [] if own is None else [_Found(self._named(own), None)]
        if forwarded or (own is not None and own.state == "running"):
            return (found[0] if found else None), []
        answers = await self._others.ask_all("GET", f"/dlq/redrives/{run}")
        read = [(answer, answer.read(RedriveBody)) for answer in answers]
        found += [_Found(_of(status, answer), answer) for answer, status in read if status is not None]
        best = max(found, key=lambda each: (each.status.state == "running", each.status.began_ms), default=None)
        return best, [answer.instance for answer in answers if answer.status not in {200, 404}]

    async def _running_elsewhere(self, request: Request, wanted: RedriveRequest) -> PeerResponse | None:
        """Return the instance that runs this redrive, None if none does or it is this one."""
        if FORWARDED in request.headers:
            return None
        # One that does not answer is ended by the fence of the run, if it is alive: see ADR 41.
        found, _ = await self._found(self._dead_letters.run_of(wanted), forwarded=False)
        return None if found is None or found.status.state != "running" else found.place

    async def _pass_on(self, place: PeerResponse, wanted: RedriveRequest) -> tuple[RedriveBody, bool]:
        """Send a start to the instance that runs the redrive: it knows whether this is the same one."""
        body = wanted.model_dump_json(exclude_unset=True).encode()
        answer = await self._others.ask(place.instance, place.url, "POST", "/dlq/redrives", body)
        if (status := answer.read(RedriveBody)) is not None:
            return _of(status, answer), answer.status == 202
        run = self._dead_letters.run_of(wanted)
        if answer.status == 409:
            raise AlreadyRunning(
                f"{place.instance} runs redrive {run} with other terms: wait until GET /dlq/redrives/{run} says that "
                "it has ended, or stop it with DELETE"
            )
        raise NotNow(f"{place.instance}, which runs redrive {run}, does not answer.", applied="unknown")

    def _named(self, status: RedriveBody) -> RedriveBody:
        return status.model_copy(update={"instance": self._instance_id})


class _Found(NamedTuple):
    status: RedriveBody
    place: PeerResponse | None
    """None: this instance."""


def _of(status: RedriveBody, answer: PeerResponse) -> RedriveBody:
    return status.model_copy(update={"instance": answer.instance})


def dlq_routes(dead_letters: DeadLetters, others: OtherInstances, instance_id: str, gate: Gate) -> APIRouter:
    """Return the routes about dead letters."""
    router = APIRouter(tags=["dlq"])
    desk = DlqDesk(dead_letters, others, instance_id)

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
    _add_redrives(router, desk)
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


def _add_redrives(router: APIRouter, desk: DlqDesk) -> None:
    guards = [Depends(refuse_parameters)]
    shown = {"application/json": {"example": REDRIVE_EXAMPLE}}

    @router.post(
        "/dlq/redrives",
        summary="Redrive dead letters",
        description="Sends dead letters to the retry topic again, in the background, each once in a run: see "
        "[Redrive dead letters](../how-to/dlq.md). Poll `GET /dlq/redrives/{run}`. An instance runs one redrive "
        "at a time. A run that another instance runs is found there and not started again.",
        status_code=202,
        response_model=RedriveBody,
        responses={
            **_CHANGE,
            200: {"model": RedriveBody, "description": "The same redrive is running already.", "content": shown},
            503: {"model": ErrorBody, "description": "The instance that runs this redrive does not answer any more."},
            202: {"description": "The redrive has started.", "content": shown},
            400: _BAD,
            409: {
                "model": ErrorBody,
                "description": "Another redrive is running on this instance, or this run with other terms.",
            },
        },
        dependencies=[*guards, Depends(require_json)],
    )
    async def redrive_dead_letters(request: Request, wanted: RedriveRequest) -> JSONResponse:
        status, started = await desk.start(request, wanted)
        place = {"location": f"/dlq/redrives/{status.run}"}
        return JSONResponse(status.model_dump(), 202 if started else 200, place)

    @router.get(
        "/dlq/redrives",
        summary="List redrives",
        description="The last 100 redrives that each instance has run since it started, newest first. `missing` "
        "names instances that do not answer.",
        response_model=RedrivesBody,
        responses={
            200: {"content": {"application/json": {"example": {"redrives": [REDRIVE_EXAMPLE], "missing": []}}}},
            "4XX": _OTHER,
        },
        dependencies=[Depends(refuse_parameters)],
    )
    async def list_redrives(request: Request) -> JSONResponse:
        return JSONResponse((await desk.all(forwarded=FORWARDED in request.headers)).model_dump())

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
        description="Stops it after the transaction at hand, on whichever instance runs it. The same request "
        "to `POST /dlq/redrives` continues the run.",
        response_model=RedriveBody,
        responses={
            **_CHANGE,
            200: {"description": "The status. It is `running` until the redrive has stopped.", "content": shown},
            404: none,
            503: {"model": ErrorBody, "description": "An instance that runs it, or may run it, does not answer."},
        },
        dependencies=guards,
    )
    async def stop_redrive(request: Request, run: RedriveText) -> JSONResponse:
        return JSONResponse((await desk.stop(request, run)).model_dump())

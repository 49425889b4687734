"""`/admin/loggers`: levels of the log, of this process or of the whole group."""

from __future__ import annotations

import json
from typing import Annotated, Final
from urllib.parse import quote

import structlog
from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, Depends, Path, Query, Request
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from sidecar.api.bodies import ErrorBody
from sidecar.api.connect.bodies import LEVEL_EXAMPLE, LevelWanted, LoggerLevel
from sidecar.api.connect.connector import Worker, tasks_of
from sidecar.api.connect.group import example
from sidecar.api.connect.levels import LEVELS, Level, Levels
from sidecar.api.messages.changes import caller, require_json
from sidecar.api.problems import NotNow
from sidecar.api.source import Source
from sidecar.errors import CommandFailed

log = structlog.get_logger(__name__)

CHANGES_AT_A_TIME: Final = 2
LoggerName = Annotated[str, Path(description="`root`, or a logger as the log names it.", examples=["sidecar.runtime"])]
Scope = Annotated[
    str,
    Query(description="`worker`: this process; `cluster`: every instance that owns partitions.", examples=["worker"]),
]
_REFUSED: Final[dict[int | str, dict[str, object]]] = {
    400: {"model": ErrorBody, "description": "The body has no level."},
    404: {"model": ErrorBody, "description": "There is no such level."},
    "4XX": {"model": ErrorBody, "description": "Any other error in the request."},
    503: {"model": ErrorBody, "description": "An instance does not answer; the others have the new level."},
}


def logger_routes(source: Source, worker: Worker) -> APIRouter:
    """Return the routes about levels of the log."""
    router = APIRouter(tags=["connect"])
    levels = Levels(source.now_ms)
    limiter = CapacityLimiter(CHANGES_AT_A_TIME)

    @router.get(
        "/admin/loggers",
        summary="List log levels",
        description="Every logger of the answering process, with its effective level.",
        response_model=dict[str, LoggerLevel],
        response_description="Level by logger.",
        responses=example({"root": LEVEL_EXAMPLE}),
    )
    async def loggers() -> JSONResponse:
        return JSONResponse({name: _body(level) for name, level in levels.all().items()})

    @router.get(
        "/admin/loggers/{name}",
        summary="Show the level of a logger",
        description="The level in the answering process.",
        response_model=LoggerLevel,
        response_description="The effective level.",
        responses={
            404: {"model": ErrorBody, "description": "There is no such logger."},
            "4XX": {"model": ErrorBody, "description": "Any other error in the request."},
        },
    )
    async def logger(name: LoggerName) -> JSONResponse:
        level = levels.one(name)
        if level is None:
            raise HTTPException(404, f"Logger {name[:300]} not found.")
        return JSONResponse(_body(level))

    @router.put(
        "/admin/loggers/{name}",
        summary="Set the level of a logger",
        description="Lasts until the process ends. `scope=cluster` sets it on every instance that owns partitions.",
        response_model=list[str],
        response_description="The loggers that now have the level.",
        responses={
            **_REFUSED,
            **example(["sidecar.runtime", "sidecar.runtime.loop"]),
            204: {"description": "Set on every instance."},
        },
        dependencies=[Depends(require_json)],
    )
    async def set_level(request: Request, name: LoggerName, wanted: LevelWanted, scope: Scope = "worker") -> Response:
        level = _checked(wanted)
        affected = levels.set(name, level)
        failed: list[str] = []
        if scope.lower() == "cluster":
            failed = await to_thread.run_sync(lambda: _tell_others(source, worker, name, level), limiter=limiter)
        log.info(
            "api_change",
            who=caller(request),
            what="log-level",
            target=name,
            new_level=level,
            scope=scope,
            outcome="failed" if failed else "done",
        )
        if failed:
            raise NotNow("; ".join(failed), applied="unknown")
        return JSONResponse(affected) if scope.lower() != "cluster" else Response(status_code=204)

    return router


def _body(level: Level) -> dict[str, object]:
    return LoggerLevel(**level._asdict()).model_dump()


def _checked(wanted: LevelWanted) -> str:
    """Return the requested level. Raises HTTPException with Connect's statuses."""
    if wanted.level is None:
        raise HTTPException(400, "Desired 'level' parameter was not specified in request.")
    level = wanted.level.upper()
    if level not in LEVELS:
        raise HTTPException(404, f"invalid log level '{wanted.level[:100]}'.")
    return level


def _tell_others(source: Source, worker: Worker, name: str, level: str) -> list[str]:
    """Set the level at the other instances; return what went wrong."""
    failed = []
    path = f"/admin/loggers/{quote(name, safe='')}?scope=worker"
    for task in tasks_of(source.views()):
        if task.url is None or task.owner == worker.instance_id:
            continue
        try:
            status, _ = worker.others.send("PUT", task.url, path, json.dumps({"level": level}).encode())
        except CommandFailed as cause:
            failed.append(str(cause))
        else:
            if status != 200:
                failed.append(f"{task.url} answers {status}")
    return failed

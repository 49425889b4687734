"""`/` and `/connectors`: the routes that the tools of Kafka Connect read.

Answers, statuses and error messages are Connect's. Like Connect, these routes ignore unknown parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

from fastapi import APIRouter, Query, Request
from starlette.responses import JSONResponse, RedirectResponse, Response

from sidecar.api.bodies import ErrorBody
from sidecar.api.connect.bodies import (
    CONFIG_EXAMPLE,
    INFO_EXAMPLE,
    STATUS_EXAMPLE,
    TASK_EXAMPLE,
    ConnectorInfo,
    ConnectorStateInfo,
    Expanded,
    Offsets,
    ServerInfo,
    TaskInfo,
    TaskStatus,
    TopicsOf,
)
from sidecar.api.connect.connector import CONNECT_VERSION, config_of, offsets_of, task_info
from sidecar.api.connect.group import CONNECTOR, TASK, ConnectGroup, ConnectorName, TaskNumber, example
from sidecar.api.source import Source

Expand = Annotated[
    Sequence[str], Query(description="`info`, `status`, or both by repeating the parameter.", examples=[["info"]])
]
_READS: Final[dict[int | str, dict[str, object]]] = {
    404: {"model": ErrorBody, "description": "There is no such connector or task."},
    "4XX": {"model": ErrorBody, "description": "Any other error in the request."},
    503: {"model": ErrorBody, "description": "The instance has just started and does not know the group yet."},
}


def info_route(source: Source, version: str) -> APIRouter:
    """Return the route that names the server."""
    router = APIRouter(tags=["connect"])

    @router.get(
        "/",
        summary="Show version and cluster",
        description="`version` is Kafka Connect's, by which tools choose their requests; `commit` has the version of "
        "retry-sidecar. A browser (`Accept: text/html`) is redirected to the dashboard.",
        response_model=ServerInfo,
        response_description="Version, commit and cluster.",
        responses={302: {"description": "For clients that accept text/html: the dashboard is at /ui/."}},
    )
    async def server_info(request: Request) -> Response:
        if "text/html" in request.headers.get("accept", ""):
            return RedirectResponse("ui/", 302, {"vary": "accept"})
        info = ServerInfo(
            version=CONNECT_VERSION, commit=f"retry-sidecar-{version}", kafka_cluster_id=source.cluster_id()
        )
        return JSONResponse(info.model_dump(), headers={"vary": "accept"})

    return router


def connector_routes(group: ConnectGroup) -> APIRouter:
    """Return the routes that show the connector and its tasks."""
    router = APIRouter(tags=["connect"], responses=_READS)
    _add_list(router, group)
    _add_connector(router, group)
    _add_reading(router, group)
    _add_tasks(router, group)
    return router


def _add_list(router: APIRouter, group: ConnectGroup) -> None:
    expanded = {"kafka-retry": {"info": INFO_EXAMPLE, "status": STATUS_EXAMPLE}}

    @router.get(
        "/connectors",
        summary="List connectors",
        description="There is one; its name is the app id.",
        response_model=list[str] | dict[str, Expanded],
        response_description="The name, or the parts that `expand` selects, by name.",
        responses=example(expanded),
    )
    async def connectors(expand: Expand = ()) -> JSONResponse:
        if not expand:
            return JSONResponse([group.worker.name])
        parts = Expanded(
            info=group.info() if "info" in expand else None, status=group.status() if "status" in expand else None
        )
        return JSONResponse({group.worker.name: parts.model_dump(exclude_none=True)})


def _add_connector(router: APIRouter, group: ConnectGroup) -> None:
    @router.get(
        CONNECTOR,
        summary="Show settings and tasks",
        description="The settings of the answering process, without secrets.",
        response_model=ConnectorInfo,
        response_description="Name, settings and tasks.",
    )
    async def connector_info(connector: ConnectorName) -> JSONResponse:
        group.check(connector)
        return JSONResponse(group.info().model_dump())

    @router.get(
        f"{CONNECTOR}/config",
        summary="Show settings",
        description="The settings of the answering process, without secrets. `MAX_DELAY` is called `max.delay` here.",
        response_model=dict[str, str],
        response_description="Values by name, all as text.",
        responses=example(CONFIG_EXAMPLE),
    )
    async def connector_config(connector: ConnectorName) -> JSONResponse:
        group.check(connector)
        return JSONResponse(config_of(group.worker, group.tasks(), group.source.partitions_total()))

    @router.get(
        f"{CONNECTOR}/status",
        summary="Show the connector's state",
        description="A task is an instance that owns partitions. Partitions without an owner form the last task.",
        response_model=ConnectorStateInfo,
        response_description="State of the connector and of each task.",
    )
    async def connector_status(connector: ConnectorName) -> JSONResponse:
        group.check(connector, "No status found for connector {}")
        return JSONResponse(group.status().model_dump(exclude_none=True))


def _add_reading(router: APIRouter, group: ConnectGroup) -> None:
    @router.get(
        f"{CONNECTOR}/topics",
        summary="List topics",
        description="The shared retry topic.",
        response_model=dict[str, TopicsOf],
        response_description="Topics by connector.",
        responses=example({"kafka-retry": {"topics": ["retry"]}}),
    )
    async def connector_topics(connector: ConnectorName) -> JSONResponse:
        group.check(connector)
        return JSONResponse({connector: TopicsOf(topics=[group.worker.topic]).model_dump()})

    @router.get(
        f"{CONNECTOR}/offsets",
        summary="Show offsets",
        description="For each partition the offset of the next record to ingest, if known.",
        response_model=Offsets,
        response_description="Offsets by partition of the retry topic.",
    )
    async def connector_offsets(connector: ConnectorName) -> JSONResponse:
        group.check(connector)
        return JSONResponse(Offsets(offsets=offsets_of(group.worker, group.views())).model_dump())


def _add_tasks(router: APIRouter, group: ConnectGroup) -> None:
    @router.get(
        f"{CONNECTOR}/tasks",
        summary="List tasks",
        description="One task for each instance that owns partitions, and one for partitions without an owner, if any.",
        response_model=list[TaskInfo],
        response_description="The tasks with their partitions.",
        responses=example([TASK_EXAMPLE]),
    )
    async def tasks(connector: ConnectorName) -> JSONResponse:
        group.check(connector)
        return JSONResponse([task_info(group.worker, task).model_dump() for task in group.tasks()])

    @router.get(
        f"{CONNECTOR}/tasks-config",
        summary="Show task configurations",
        description="The same as `/tasks`, in an older format.",
        response_model=dict[str, dict[str, str]],
        response_description="Settings by task.",
        responses=example({"kafka-retry-0": TASK_EXAMPLE["config"]}),
    )
    async def tasks_config(connector: ConnectorName) -> JSONResponse:
        group.check(connector)
        found = group.tasks()
        return JSONResponse({f"{connector}-{task.number}": task_info(group.worker, task).config for task in found})

    @router.get(
        f"{TASK}/status",
        summary="Show a task's state",
        description="The worst state of the task's partitions; `trace` has the reason of a failure.",
        response_model=TaskStatus,
        response_description="State and worker.",
    )
    async def task_status(connector: ConnectorName, task: TaskNumber) -> JSONResponse:
        group.check(connector, f"No status found for task {{}}-{task}")
        found = group.task(task, "No status found for task {}")
        return JSONResponse(found.status().model_dump(exclude_none=True))

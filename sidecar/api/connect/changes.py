"""`/connectors`: the routes by which the tools of Kafka Connect make changes."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Query, Request
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from sidecar.api.bodies import ErrorBody
from sidecar.api.connect.bodies import ConnectorStateInfo
from sidecar.api.connect.group import CONNECTOR, TASK, ConnectGroup, ConnectorName, TaskNumber
from sidecar.api.connect.restart import Restarter, is_passed_on
from sidecar.api.messages.changes import ControlDesk
from sidecar.api.problems import Refusing
from sidecar.contract.control import EVERY_ORIGIN, ControlKind

_UNCHANGEABLE: Final = (
    ("/connectors", ["POST"]),
    (CONNECTOR, ["DELETE"]),
    (f"{CONNECTOR}/config", ["PUT", "PATCH"]),
    (f"{CONNECTOR}/offsets", ["PATCH", "DELETE"]),
)
"""The routes that create, change and delete connectors in Kafka Connect."""
_CHANGES: Final[dict[int | str, dict[str, object]]] = {
    404: {"model": ErrorBody, "description": "There is no such connector or task."},
    "4XX": {"model": ErrorBody, "description": "Any other error in the request."},
    503: {
        "model": ErrorBody,
        "description": "No broker answers, or an instance does not. `applied` is `unknown` if it may act all the same.",
    },
}

IncludeTasks = Annotated[bool, Query(alias="includeTasks", description="Restart the tasks.", examples=[True])]
OnlyFailed = Annotated[
    bool,
    Query(alias="onlyFailed", description="Restart only the stopped partitions of failed tasks.", examples=[False]),
]


def change_routes(group: ConnectGroup, desk: ControlDesk) -> APIRouter:
    """Return the routes that pause, resume and restart, and those that refuse the rest."""
    changes = APIRouter(responses=_CHANGES, default_response_class=Response)
    _add_switches(changes, group, desk)
    _add_topics(changes, group)
    _add_restarts(changes, group)
    router = APIRouter(tags=["connect"])
    router.include_router(changes)
    _add_refusals(router, group)
    return router


def _add_switches(router: APIRouter, group: ConnectGroup, desk: ControlDesk) -> None:
    async def switch(request: Request, connector: ConnectorName, kind: ControlKind) -> None:
        group.check(connector, "Unknown connector {}")
        await desk.act(request, kind, EVERY_ORIGIN, EVERY_ORIGIN)

    @router.put(
        f"{CONNECTOR}/pause",
        summary="Pause the whole group",
        description="Nothing fires to any origin. Messages are still ingested; what falls due is deferred.",
        status_code=202,
        response_description="Accepted; the state shows it in a second or two.",
    )
    async def pause_connector(request: Request, connector: ConnectorName) -> Response:
        await switch(request, connector, ControlKind.PAUSE)
        return Response(status_code=202)

    @router.put(
        f"{CONNECTOR}/resume",
        summary="Resume the whole group",
        description="Origins that were paused by name stay paused.",
        status_code=202,
        response_description="Accepted; the state shows it in a second or two.",
    )
    async def resume_connector(request: Request, connector: ConnectorName) -> Response:
        await switch(request, connector, ControlKind.RESUME)
        return Response(status_code=202)

    @router.put(
        f"{CONNECTOR}/stop",
        summary="Stop the whole group",
        description="Pauses the whole group until it is resumed: the state is STOPPED and no tasks are listed. The "
        "processes still ingest, because commands arrive on the topic that they read.",
        status_code=204,
        response_description="Accepted; the state shows it in a second or two.",
    )
    async def stop_connector(request: Request, connector: ConnectorName) -> Response:
        await switch(request, connector, ControlKind.STOP)
        return Response(status_code=204)


def _add_topics(router: APIRouter, group: ConnectGroup) -> None:
    @router.put(
        f"{CONNECTOR}/topics/reset",
        summary="No effect",
        description="The topics come from the settings, so there is nothing to reset.",
        status_code=202,
        response_description="Accepted.",
    )
    async def reset_topics(connector: ConnectorName) -> Response:
        group.check(connector)
        return Response(status_code=202)


def _add_restarts(router: APIRouter, group: ConnectGroup) -> None:
    restarter = Restarter(group.worker)

    @router.post(
        f"{CONNECTOR}/restart",
        summary="Restart tasks",
        description="Without includeTasks it restarts nothing: the connector itself is not a process.",
        status_code=202,
        response_model=ConnectorStateInfo,
        response_description="Accepted; the state of the tasks.",
        response_class=JSONResponse,
        responses={204: {"description": "Neither parameter is true: nothing to do."}},
    )
    async def restart_connector(
        request: Request,
        connector: ConnectorName,
        include_tasks: IncludeTasks = False,
        only_failed: OnlyFailed = False,
    ) -> Response:
        group.check(connector, "Unknown connector: {}")
        if not (include_tasks or only_failed):
            return Response(status_code=204)
        tasks = group.tasks()
        chosen = [
            task for task in tasks if include_tasks and task.owner and (not only_failed or task.state == "FAILED")
        ]
        await restarter.restart(request, chosen, only_failed=only_failed)
        status = group.status([task.number for task in chosen])
        return JSONResponse(status.model_dump(exclude_none=True), 202)

    @router.post(
        f"{TASK}/restart",
        summary="Restart a task",
        description="The partitions of the task's instance recover and restore.",
        status_code=204,
        response_description="Requested; the state is RESTARTING until the partitions are restored.",
    )
    async def restart_task(
        request: Request,
        connector: ConnectorName,
        task: TaskNumber,
        only_failed: Annotated[bool, Query(alias="onlyFailed", include_in_schema=False)] = False,
        instance: Annotated[str, Query(include_in_schema=False)] = "",
    ) -> Response:
        group.check(connector, "Unknown connector: {}")
        if is_passed_on(request):
            restarter.restart_own(request, instance, only_failed=only_failed)
        else:
            found = group.task(task, "Unknown task: {}")
            await restarter.restart(request, [found], only_failed=False)
        return Response(status_code=204)


def _add_refusals(router: APIRouter, group: ConnectGroup) -> None:
    async def refuse(request: Request) -> None:
        if request.method == "DELETE" or request.url.path.endswith("/offsets"):
            group.check(request.path_params["connector"])
        raise HTTPException(
            405,
            "The only connector is retry-sidecar itself: it exists while its processes run, takes their settings, and "
            "commits its offsets in the transactions that fire. Change the settings and restart the processes.",
        )

    for path, methods in _UNCHANGEABLE:
        router.add_api_route(path, refuse, methods=methods, route_class_override=Refusing, include_in_schema=False)

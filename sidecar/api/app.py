"""The FastAPI application: routes, error shapes and the guards in front of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi_offline import FastAPIOffline
from starlette.responses import Response

from sidecar.api import document, problems
from sidecar.api.activity import activity_routes
from sidecar.api.auth import Gate
from sidecar.api.connect import Worker
from sidecar.api.connect.changes import change_routes
from sidecar.api.connect.group import ConnectGroup
from sidecar.api.connect.loggers import logger_routes
from sidecar.api.connect.plugins import plugin_routes
from sidecar.api.connect.routes import connector_routes, info_route
from sidecar.api.dlq.routes import DeadLetters, dlq_routes
from sidecar.api.guard import AnswerHeaders, RateLimiter, RequestShape, ShutdownResponder
from sidecar.api.health import health_routes
from sidecar.api.instances import OtherInstances, Peers
from sidecar.api.messages.changes import Commands, ControlDesk, control_routes
from sidecar.api.messages.filtered import filter_routes
from sidecar.api.messages.listing import Entries, Listing
from sidecar.api.messages.routes import message_routes
from sidecar.api.origins import origin_routes
from sidecar.api.pending import PendingShortcut, pending_routes
from sidecar.api.policies import ReloadDesk, policy_routes
from sidecar.api.source import Reloaded, Source
from sidecar.api.ui import ui_routes
from sidecar.metrics import Metrics

_METRICS_EXAMPLE = """\
# HELP retry_sidecar_pending Pending messages.
# TYPE retry_sidecar_pending gauge
retry_sidecar_pending{origin="orders",partition="0"} 2.0
"""


@dataclass(frozen=True, slots=True)
class Operations:
    """The collaborators that show and change single messages and dead letters."""

    entries: Entries
    peers: Peers
    commands: Commands
    gate: Gate
    worker: Worker
    dead_letters: DeadLetters
    reload: Callable[[], Reloaded] | None = None
    """Reads the policies again; None: this process has none."""


def create_app(
    source: Source, *, metrics: Metrics, version: str, actuator: bool = True, operations: Operations | None = None
) -> FastAPI:
    """Return the application over these snapshots.

    Args:
        source: snapshots; read from the thread that serves the application.
        metrics: what `GET /metrics` shows.
        version: of the distribution, as `GET /` tells it.
        actuator: whether /actuator/health exists (setting ENABLE_HEALTH).
        operations: reads and changes messages; None: figures and health only.
    """
    # FastAPI's own page at /docs gets its scripts from the network of somebody else.
    app = FastAPIOffline(
        title="Retry Sidecar",
        version=version,
        description="Sends each message of a shared Kafka retry topic back to its origin topic when it is due. "
        'Every error has the format `{"error_code": 404, "message": "…"}`.',
        dependencies=[Depends(problems.refuse_repeated)],
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
        redirect_slashes=False,
        redoc_url=None,
        docs_url=None,
        static_url=document.ASSETS,
        generate_unique_id_function=lambda route: route.name,
    )
    problems.install(app)
    document.install(app)
    app.add_middleware(PendingShortcut, source=source)
    gate = Gate(loopback=True) if operations is None else operations.gate
    app.add_middleware(RateLimiter, gate=gate)
    app.add_middleware(RequestShape)
    app.add_middleware(ShutdownResponder)
    app.add_middleware(AnswerHeaders)
    app.include_router(pending_routes(source))
    app.include_router(activity_routes(source))
    app.include_router(health_routes(source, actuator=actuator))
    if operations is not None:
        desk = ControlDesk(operations.commands)
        instance_id = operations.worker.instance_id
        # Apart from each other: lists that wait for an instance hold up no command.
        listed, others = (OtherInstances(source, operations.peers, instance_id) for _ in range(2))
        # The longer paths come first: a target may contain slashes.
        app.include_router(control_routes(desk, source.now_ms))
        app.include_router(filter_routes(desk, source.now_ms))
        app.include_router(message_routes(Listing(source, operations.entries, listed), operations.gate))
        app.include_router(origin_routes(source, desk))
        app.include_router(dlq_routes(operations.dead_letters, others, instance_id, operations.gate))
        app.include_router(policy_routes(ReloadDesk(operations.reload, others, instance_id)))
        group = ConnectGroup(source, operations.worker)
        app.include_router(connector_routes(group))
        app.include_router(change_routes(group, desk))
        app.include_router(plugin_routes(operations.worker))
        app.include_router(logger_routes(source, operations.worker))
    app.include_router(_metrics_route(metrics))
    app.include_router(info_route(source, version))
    app.include_router(document.page_route(app.title))
    app.include_router(ui_routes())
    return app


def _metrics_route(metrics: Metrics) -> APIRouter:
    router = APIRouter(tags=["metrics"])

    @router.get(
        "/metrics",
        summary="Prometheus metrics",
        description="Also in OpenMetrics, if the client accepts it. docs/reference/metrics.md explains each metric.",
        response_class=Response,
        responses={200: {"content": {"text/plain": {"example": _METRICS_EXAMPLE}}}},
    )
    async def metrics_page(request: Request) -> Response:
        page, content_type = metrics.render(request.headers.get("accept", ""))
        # Set as a header: `media_type` would append a second charset.
        return Response(page, headers={"content-type": content_type})

    return router

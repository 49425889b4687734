"""`POST /policies/reload`: the policies of this instance are read again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog
from anyio import to_thread
from fastapi import APIRouter, Depends, Request
from pydantic import Field
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from sidecar.api.bodies import Body, ErrorBody
from sidecar.api.messages.changes import caller, refuse_parameters
from sidecar.api.source import Reloaded
from sidecar.errors import SettingsInvalid

log = structlog.get_logger(__name__)

NOT_HERE: Final = (
    "This process takes no policies over while it runs: the Spark engine reads them when its query starts, and "
    "`retry-sidecar api` has none. Restart the query, or call an instance that owns partitions."
)


class ReloadedBody(Body):
    """The result of a reload."""

    changed: list[str] = Field(description="Settings that the instance takes over.")
    needs_restart: list[str] = Field(description="Other settings that changed: they keep their values until a restart.")


def policy_routes(reload: Callable[[], Reloaded] | None) -> APIRouter:
    """Return the route.

    Args:
        reload: Reads the settings again; raises SettingsInvalid. None: this process has no policies.
    """
    router = APIRouter(tags=["policies"])

    @router.post(
        "/policies/reload",
        summary="Reload the policies",
        description="Reads the settings of this instance again and takes the policies over, as SIGHUP does. A mistake "
        "changes nothing. Pending messages keep their due times. Call each instance.",
        response_model=ReloadedBody,
        responses={
            200: {"content": {"application/json": {"example": {"changed": ["POLICIES"], "needs_restart": []}}}},
            400: {"model": ErrorBody, "description": "The settings have mistakes; nothing has changed."},
            "4XX": {"model": ErrorBody, "description": "The request has an error."},
            501: {"model": ErrorBody, "description": "This process takes over no policies, such as a Spark driver."},
        },
        dependencies=[Depends(refuse_parameters)],
    )
    async def reload_policies(request: Request) -> JSONResponse:
        if reload is None:
            raise HTTPException(501, NOT_HERE)
        try:
            done = await to_thread.run_sync(reload)
        except SettingsInvalid as mistakes:
            log.info("api_change", who=caller(request), what="reload", target="policies", outcome="failed")
            raise HTTPException(400, "; ".join(mistakes.problems)) from None
        log.info("api_change", who=caller(request), what="reload", target="policies", outcome="reloaded")
        return JSONResponse({"changed": list(done.changed), "needs_restart": list(done.needs_restart)})

    return router

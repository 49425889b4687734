"""`POST /policies/reload`: the policies of all instances are read again."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final, Literal

import structlog
from anyio import to_thread
from fastapi import APIRouter, Depends, Request
from pydantic import Field, ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from sidecar.api.bodies import APPLIED, Applied, Body, ErrorBody
from sidecar.api.instances import FORWARDED, OtherInstances, PeerResponse
from sidecar.api.messages.changes import caller, refuse_parameters
from sidecar.api.source import Reloaded
from sidecar.errors import SettingsInvalid

log = structlog.get_logger(__name__)

PATH: Final = "/policies/reload"

NOT_HERE: Final = (
    "This process takes no policies over while it runs: the Spark engine reads them when its query starts, and "
    "`retry-sidecar api` has none. Restart the query, or call an instance that owns partitions."
)


class ReloadBody(Body):
    """The result of a reload on one instance."""

    instance: str = Field(examples=["sidecar-0"])
    outcome: Literal["reloaded", "refused", "unreachable"] = Field(
        description="`refused`: its settings have mistakes or it takes over none, nothing has changed there; "
        "`unreachable`: it may have reloaded all the same."
    )
    changed: list[str] = Field(description="Settings that it takes over.")
    needs_restart: list[str] = Field(description="Other settings that changed: they keep their values until a restart.")
    message: str = Field(description="Why it is not reloaded; empty otherwise.")


class ReloadedBody(Body):
    """The result of a reload."""

    changed: list[str] = Field(description="Settings that instances take over.")
    needs_restart: list[str] = Field(description="Other settings that changed: they keep their values until a restart.")
    instances: list[ReloadBody] = Field(description="What happened on each instance.")
    error_code: int | None = Field(default=None, description="The HTTP status, of an error.", examples=[503])
    message: str | None = Field(default=None, description="What is wrong, of an error.")
    applied: Applied | None = Field(default=None, description=APPLIED)


_ONE: Final = {
    "instance": "sidecar-0",
    "outcome": "reloaded",
    "changed": ["POLICIES"],
    "needs_restart": [],
    "message": "",
}
_AWAY: Final = {
    "instance": "sidecar-1",
    "outcome": "unreachable",
    "changed": [],
    "needs_restart": [],
    "message": "http://10.0.0.2:8080 does not answer",
}
_DONE: Final[dict[str, object]] = {"changed": ["POLICIES"], "needs_restart": [], "instances": [_ONE]}
_PARTLY: Final[dict[str, object]] = {
    **_DONE,
    "instances": [_ONE, _AWAY],
    "error_code": 503,
    "message": "sidecar-1: http://10.0.0.2:8080 does not answer",
    "applied": "unknown",
}


class ReloadDesk:
    """Reloads here, then on the other instances.

    Args:
        reload: Reads the settings again; raises SettingsInvalid. None: this process has no policies.
        others: The other instances.
        instance_id: Of this process.
    """

    def __init__(self, reload: Callable[[], Reloaded] | None, others: OtherInstances, instance_id: str) -> None:
        self._reload = reload
        self._others = others
        self._instance_id = instance_id

    async def carry_out(self, request: Request) -> JSONResponse:
        """Reload and answer what happened where. Raises HTTPException when it was refused here: nothing changed."""
        forwarded = FORWARDED in request.headers
        results = [] if self._reload is None else [await self._here(request, self._reload)]
        if not forwarded:
            results += [_result(each) for each in await self._others.ask_all("POST", PATH)]
        if not results:
            raise HTTPException(501, NOT_HERE)
        if all(each.outcome == "refused" for each in results):
            raise HTTPException(400, "; ".join(f"{each.instance}: {each.message}" for each in results))
        failed = [each for each in results if each.outcome != "reloaded"]
        body = ReloadedBody(
            changed=sorted({name for each in results for name in each.changed}),
            needs_restart=sorted({name for each in results for name in each.needs_restart}),
            instances=results,
        ).model_dump(exclude_unset=True)
        if not forwarded:
            for each in results[0 if self._reload is None else 1 :]:
                _noted(request, each.outcome, each.instance)
        if not failed:
            return JSONResponse(body)
        text = "; ".join(f"{each.instance}: {each.message}" for each in failed)
        error = {"error_code": 503, "message": text, "applied": "unknown"}
        return JSONResponse({**body, **error}, 503, {"retry-after": "1"})

    async def _here(self, request: Request, reload: Callable[[], Reloaded]) -> ReloadBody:
        try:
            done = await to_thread.run_sync(reload)
        except SettingsInvalid as mistakes:
            _noted(request, "failed", self._instance_id)
            raise HTTPException(400, "; ".join(mistakes.problems)) from None
        _noted(request, "reloaded", self._instance_id)
        changed, needs_restart = list(done.changed), list(done.needs_restart)
        return ReloadBody(
            instance=self._instance_id, outcome="reloaded", changed=changed, needs_restart=needs_restart, message=""
        )


def _noted(request: Request, outcome: str, instance: str) -> None:
    log.info("api_change", who=caller(request), what="reload", target="policies", outcome=outcome, instance=instance)


def _result(answer: PeerResponse) -> ReloadBody:
    """Return what happened on another instance."""
    said = answer.read(ReloadedBody)
    if said is not None and said.instances:
        return said.instances[0].model_copy(update={"instance": answer.instance})
    refused = answer.status in {400, 501}
    message = answer.problem or f"{answer.url} answers {answer.status}"
    if refused:
        with suppress(ValidationError):
            message = ErrorBody.model_validate_json(answer.body).message
    outcome: Literal["refused", "unreachable"] = "refused" if refused else "unreachable"
    return ReloadBody(instance=answer.instance, outcome=outcome, changed=[], needs_restart=[], message=message)


def policy_routes(desk: ReloadDesk) -> APIRouter:
    """Return the route."""
    router = APIRouter(tags=["policies"])

    @router.post(
        PATH,
        summary="Reload the policies",
        description="Each instance reads its settings again and takes the policies over, as SIGHUP does. A mistake in "
        "those of the instance that you call changes nothing anywhere. Pending messages keep their due times.",
        response_model=ReloadedBody,
        responses={
            200: {"content": {"application/json": {"example": _DONE}}},
            400: {"model": ErrorBody, "description": "The settings have mistakes; nothing has changed."},
            "4XX": {"model": ErrorBody, "description": "The request has an error."},
            501: {"model": ErrorBody, "description": "This process takes over no policies, such as a Spark driver."},
            503: {
                "model": ReloadedBody,
                "description": "Instances did not reload: `instances` names each. The others did.",
                "content": {"application/json": {"example": _PARTLY}},
            },
        },
        dependencies=[Depends(refuse_parameters)],
    )
    async def reload_policies(request: Request) -> JSONResponse:
        return await desk.carry_out(request)

    return router

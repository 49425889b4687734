"""Health in the shapes of Kafka Connect, Kubernetes' probes and Spring Boot."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import APIRouter
from pydantic import JsonValue
from starlette.responses import JSONResponse

from sidecar.api.bodies import HEALTHY_EXAMPLE, UNHEALTHY_EXAMPLE, ActuatorBody, HealthBody, ProbeBody
from sidecar.api.source import Health, Source

_READY_MESSAGE = "Worker has completed startup and is ready to handle requests."


def _status_code(good: bool) -> int:
    return 200 if good else 503


def _connect_body(health: Health) -> dict[str, JsonValue]:
    if health.live and health.ready:
        status, message = "healthy", _READY_MESSAGE
    else:
        status = "starting" if health.live and health.starting else "unhealthy"
        message = " ".join(health.reasons) or f"The sidecar is {status}."
    return {"status": status, "message": message, "details": dict(health.details)}


def _probe(good: bool, reasons: Sequence[str]) -> JSONResponse:
    body = {"status": "ok" if good else "failed", "reasons": list(reasons)}
    return JSONResponse(body, _status_code(good))


def _actuator_body(health: Health) -> dict[str, JsonValue]:
    def component(good: bool, details: dict[str, JsonValue]) -> JsonValue:
        return {"status": "UP" if good else "DOWN", "details": details}

    reasons: list[JsonValue] = [*health.reasons]
    return {
        "status": "UP" if health.live and health.ready else "DOWN",
        "components": {
            "livenessState": component(health.live, {}),
            "readinessState": component(health.ready, {"reasons": reasons}),
            "retrySidecar": component(health.live and health.ready, dict(health.details)),
        },
    }


def health_routes(source: Source, *, actuator: bool) -> APIRouter:
    """Return the health routes over these snapshots.

    Args:
        source: where the health is read.
        actuator: whether /actuator/health exists (setting ENABLE_HEALTH).
    """
    router = APIRouter(tags=["health"])

    @router.get(
        "/health",
        summary="Health in Kafka Connect's format",
        description="Answers 503 while the instance starts or cannot work, with reasons and details.",
        response_model=HealthBody,
        responses={
            200: {"content": {"application/json": {"example": HEALTHY_EXAMPLE}}},
            503: {
                "model": HealthBody,
                "description": "The instance is starting or cannot work.",
                "content": {"application/json": {"example": UNHEALTHY_EXAMPLE}},
            },
        },
    )
    async def health() -> JSONResponse:
        now = source.health()
        return JSONResponse(_connect_body(now), _status_code(now.live and now.ready))

    @router.get(
        "/livez",
        summary="Liveness probe: 503 means that only a restart helps",
        description="For Kubernetes' livenessProbe. Broker errors do not make it fail.",
        response_model=ProbeBody,
        responses=_probe_responses("The loop has stopped."),
    )
    async def livez() -> JSONResponse:
        now = source.health()
        return _probe(now.live, () if now.live else now.reasons)

    @router.get(
        "/readyz",
        summary="Readiness probe: 200 means that the instance ingests and fires",
        description="For Kubernetes' readinessProbe. docs/how-to/runbook.md has a section for each reason.",
        response_model=ProbeBody,
        responses=_probe_responses("No broker answers at localhost:9092."),
    )
    async def readyz() -> JSONResponse:
        now = source.health()
        return _probe(now.live and now.ready, now.reasons)

    if actuator:
        _add_actuator(router, source)
    return router


def _probe_responses(reason: str) -> dict[int | str, dict[str, object]]:
    return {
        200: {"content": {"application/json": {"example": {"status": "ok", "reasons": []}}}},
        503: {
            "model": ProbeBody,
            "description": "The probe fails, with the reasons.",
            "content": {"application/json": {"example": {"status": "failed", "reasons": [reason]}}},
        },
    }


def _add_actuator(router: APIRouter, source: Source) -> None:
    example = _actuator_body(Health(live=True, ready=True))

    @router.get(
        "/actuator/health",
        summary="Health in Spring Boot's format",
        description="For tools that read Spring Boot's actuator.",
        response_model=ActuatorBody,
        responses={
            200: {"content": {"application/json": {"example": example}}},
            503: {
                "model": ActuatorBody,
                "description": "The instance is down, with the reasons.",
                "content": {
                    "application/json": {
                        "example": _actuator_body(Health(live=True, ready=False, reasons=("No broker answers.",)))
                    }
                },
            },
        },
    )
    async def actuator_health() -> JSONResponse:
        now = source.health()
        return JSONResponse(_actuator_body(now), _status_code(now.live and now.ready))

"""The JSON bodies of the API, as the OpenAPI document shows them."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

TOPIC_PATTERN: Final = r"^[A-Za-z0-9._-]{1,249}$"
_NOW_MS = 1_770_000_000_000


class Body(BaseModel):
    """An answer whose fields are all named here."""

    model_config = ConfigDict(extra="forbid")


Applied = Literal["no", "unknown"]
"""Whether a command that got no outcome was applied."""
APPLIED: Final = (
    "Of a change that was not refused and has no outcome. `no`: nothing was changed, so repeat it. `unknown`: it may "
    "act all the same; look it up, or repeat it with the same `control_id`, which acts once."
)


class ErrorBody(Body):
    """An error, in Kafka Connect's format."""

    error_code: int = Field(description="The HTTP status.", examples=[404])
    message: str = Field(description="What is wrong, and what is allowed.", examples=["There is nothing at /pendign."])
    applied: Applied | None = Field(default=None, description=APPLIED, examples=["no"])
    control_id: str | None = Field(
        default=None, description="The id of the command, if `applied` is `unknown` and it has one."
    )


class DueWithin(Body):
    """Number of messages due within each span from now. The spans are cumulative; `later` is beyond one day.

    The figures are estimates: a slot of the wheel that straddles the end of a span counts by its share.
    """

    s5: int = Field(alias="5s")
    m1: int = Field(alias="1m")
    m5: int = Field(alias="5m")
    h1: int = Field(alias="1h")
    d1: int = Field(alias="1d")
    later: int


class PartitionBody(Body):
    """One input partition."""

    partition: int
    state: str
    owner: str | None = Field(description="Instance that owns the partition; null if none does.")
    pending: int
    watermark_ms: int | None = Field(
        description="Everything due up to this time has fired; null before the first delivery."
    )
    restored: float = Field(description="Progress of the restore, 0 to 1; the partition fires only at 1.", ge=0, le=1)


class PendingBody(Body):
    """Pending messages of the group."""

    total: int = Field(description="Number of pending messages. Exact.")
    by_origin: dict[str, int]
    by_partition: dict[str, int]
    due_within: DueWithin
    overdue: int = Field(description="Due before the current second and not fired, including deferred messages.")
    next_due_ms: int | None = Field(description="Earliest stored due time. Exact; null if nothing is pending.")
    as_of_ms: int = Field(description="Time of the oldest partition's figures.")
    complete: bool = Field(description="True if every input partition has an owner and a figure younger than 10 s.")
    partitions: list[PartitionBody]


class PendingOfOriginBody(Body):
    """Pending messages of one origin topic."""

    total: int
    by_partition: dict[str, int]


class HealthBody(Body):
    """Health in Kafka Connect's format, with details of this instance."""

    status: Literal["healthy", "starting", "unhealthy"]
    message: str
    details: dict[str, JsonValue] = Field(default_factory=dict)


class ProbeBody(Body):
    """Result of a probe."""

    status: Literal["ok", "failed"]
    reasons: list[str]


class ActuatorComponent(Body):
    """One component of Spring's health."""

    status: Literal["UP", "DOWN"]
    details: dict[str, JsonValue] = Field(default_factory=dict)


class ActuatorBody(Body):
    """Health in Spring Boot's format."""

    status: Literal["UP", "DOWN"]
    components: dict[str, ActuatorComponent]


PENDING_EXAMPLE: dict[str, object] = {
    "total": 3,
    "by_origin": {"orders": 2, "payments": 1},
    "by_partition": {"0": 3},
    "due_within": {"5s": 1, "1m": 2, "5m": 2, "1h": 3, "1d": 3, "later": 0},
    "overdue": 0,
    "next_due_ms": _NOW_MS + 1_200,
    "as_of_ms": _NOW_MS,
    "complete": True,
    "partitions": [
        {
            "partition": 0,
            "state": "running",
            "owner": "sidecar-0",
            "pending": 3,
            "watermark_ms": _NOW_MS - 100,
            "restored": 1.0,
        }
    ],
}
PENDING_OF_ORIGIN_EXAMPLE: dict[str, object] = {"total": 2, "by_partition": {"0": 2}}
HEALTHY_EXAMPLE: dict[str, object] = {
    "status": "healthy",
    "message": "Worker has completed startup and is ready to handle requests.",
    "details": {},
}
UNHEALTHY_EXAMPLE: dict[str, object] = {
    "status": "unhealthy",
    "message": "No broker answers at localhost:9092.",
    "details": {},
}

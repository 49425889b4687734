"""The JSON bodies about dead letters, and the filter that selects them."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from sidecar.api.bodies import TOPIC_PATTERN, Body
from sidecar.api.messages.listing import HeaderBody
from sidecar.contract.filter import TEXT_CHARS_MAX
from sidecar.contract.redrive import REASON_CHARS_MAX
from sidecar.model import DUE_MS_MAX, RETRY_ID_BYTES_MAX, Reason
from sidecar.policy.globs import Globs

LIMIT: Final = 50
LIMIT_MAX: Final = 500
NAMES_MAX: Final = 100
"""The most names or globs of one kind in a filter, and the most names of one kind in an answer."""
DISCARDS_SHOWN_MAX: Final = 1_000
PER_SECOND: Final = 1_000.0
PER_SECOND_MAX: Final = 10_000.0
CURSOR_CHARS_MAX: Final = 12_000
ID_PATTERN: Final = r"^[a-zA-Z0-9._-]{1,100}$"
POSITION_PATTERN: Final = r"^(0|[1-9][0-9]{0,8})-(0|[1-9][0-9]{0,17})$"

_NOW_MS = 1_770_000_000_000
_HOUR: Final = "2026-02-02T02:00Z"


def read_position(text: str) -> tuple[int, int]:
    """Return partition and offset of a text that POSITION_PATTERN matches."""
    partition, offset = text.split("-")
    return int(partition), int(offset)


def _known_reason(text: str) -> str:
    globs = Globs([text])
    if not any(globs.matches(reason) for reason in Reason):
        raise ValueError(f"matches no reason: allowed are {', '.join(Reason)} and globs of these")
    return text


Name = Annotated[str, Field(min_length=1, max_length=500)]
ReasonName = Annotated[Name, AfterValidator(_known_reason)]
TopicName = Annotated[
    str | None,
    Field(
        description="The DLQ, if there are several. The default is `DLQ_TOPIC`.",
        pattern=TOPIC_PATTERN,
        examples=["dlq"],
    ),
]
Instant = Annotated[int, Field(ge=0, le=DUE_MS_MAX)]


class FilterFields(BaseModel):
    """Selects dead letters. Unknown parameters are refused: a misspelt one would silently select everything."""

    model_config = ConfigDict(extra="forbid")

    topic: TopicName = None
    reason: list[ReasonName] = Field(
        default=[], description="Only these reasons, names or globs.", max_length=NAMES_MAX, examples=[["fatal"]]
    )
    origin: list[Name] = Field(
        default=[], description="Only these origins, names or globs.", max_length=NAMES_MAX, examples=[["orders"]]
    )
    exception: list[Name] = Field(
        default=[],
        description="Only these exception classes, names or globs.",
        max_length=NAMES_MAX,
        examples=[["com.acme.*"]],
    )
    group: list[Name] = Field(
        default=[], description="Only these consumer groups, names or globs.", max_length=NAMES_MAX, examples=[["shop"]]
    )
    died_from: Instant | None = Field(
        default=None, description="Start at the first that died at or after this, epoch ms.", examples=[_NOW_MS]
    )
    died_to: Instant | None = Field(
        default=None,
        description="Stop before the first that died at or after this, epoch ms.",
        examples=[_NOW_MS + 3_600_000],
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.died_from is not None and self.died_to is not None and self.died_from > self.died_to:
            raise ValueError("died_from must not be after died_to")
        return self


class ScanQuery(FilterFields):
    """Selects dead letters, and the place from which to look."""

    key: str | None = Field(
        default=None,
        description="Only messages with this record key, as UTF-8.",
        max_length=TEXT_CHARS_MAX,
        examples=["order-17"],
    )
    retry_id: str | None = Field(
        default=None,
        description="Only messages with this `retry-id`.",
        min_length=1,
        max_length=RETRY_ID_BYTES_MAX,
        examples=["order-17"],
    )

    cursor: str | None = Field(
        default=None,
        description="Cursor of the previous response. It looks at what is older.",
        pattern=r"^[A-Za-z0-9_-]+$",
        max_length=CURSOR_CHARS_MAX,
        examples=["E4gAAAAAAAAAAAAAAAU"],
    )


class ListQuery(ScanQuery):
    """Selects the dead letters of a page."""

    limit: int = Field(
        default=LIMIT,
        description="Maximum number of dead letters on a page. A page can have fewer, even none, and still a cursor: "
        "one request looks at a bounded number of records.",
        ge=1,
        le=LIMIT_MAX,
        examples=[20],
    )


class ShowQuery(BaseModel):
    """The DLQ of a dead letter, and the parts of it to show."""

    model_config = ConfigDict(extra="forbid")

    topic: TopicName = None
    payload: bool = Field(
        default=False, description="Include key and value; needs the token if one is set.", examples=[False]
    )


class RedriveRequest(FilterFields):
    """The dead letters to send to the retry topic again, and the terms."""

    model_config = ConfigDict(extra="forbid", strict=True, json_schema_extra={"examples": [{"reason": ["fatal"]}]})

    run: str | None = Field(
        default=None,
        description="Name of the run. The same name again continues the run, and sends nothing twice. The default is "
        "made from the filter.",
        pattern=ID_PATTERN,
    )
    id: str | None = Field(
        default=None, description="Only this dead letter, `<partition>-<offset>`.", pattern=POSITION_PATTERN
    )
    dry_run: bool = Field(default=False, description="Count what would be sent, and change nothing.")
    to_origin: str | None = Field(
        default=None, description="Send them to this origin instead of their own.", pattern=TOPIC_PATTERN
    )
    delay_ms: int = Field(default=0, description="Due this long from now, ms.", ge=0, le=DUE_MS_MAX)
    spread_ms: int = Field(
        default=0, description="Spread the due times evenly over this time, ms.", ge=0, le=DUE_MS_MAX
    )
    keep_attempts: bool = Field(default=False, description="Continue counting attempts, instead of from 0.")
    max_redrives: int = Field(
        default=3,
        description="Skip messages that were redriven this many times: the guard against loops.",
        ge=1,
        le=1_000,
    )
    limit: int | None = Field(
        default=None,
        description="Maximum number of messages. The same request again sends the next ones.",
        ge=1,
        le=2**53,
    )
    per_second: float = Field(
        default=PER_SECOND, description="Maximum number of messages in a second.", gt=0, le=PER_SECOND_MAX
    )


class DiscardRequest(BaseModel):
    """The dead letter to discard, and why."""

    model_config = ConfigDict(
        extra="forbid", strict=True, json_schema_extra={"examples": [{"id": "0-17", "why": "a test order"}]}
    )

    topic: TopicName = None
    id: str = Field(description="The dead letter, `<partition>-<offset>`.", pattern=POSITION_PATTERN)
    why: str = Field(description="The reason, for people.", min_length=1, max_length=REASON_CHARS_MAX)


class DiscardQuery(BaseModel):
    """The DLQ of a discarded dead letter."""

    model_config = ConfigDict(extra="forbid")

    topic: TopicName = None


class DiscardBody(Body):
    """Who has discarded a dead letter, and why."""

    id: str = Field(description="`<partition>-<offset>` on the DLQ.", examples=["0-17"])
    who: str = Field(description="Address of the caller, after the user name of HTTP Basic or of the command's system.")
    why: str
    at_ms: int


class TakenBackBody(Body):
    """The dead letter whose discard has ended."""

    id: str = Field(description="`<partition>-<offset>` on the DLQ.", examples=["0-17"])
    taken_back: bool = True


class DiscardsBody(Body):
    """The discarded dead letters of a DLQ, latest first."""

    topic: str
    total: int = Field(
        description="Number of discarded dead letters; those that retention deletes are taken away later."
    )
    discards: list[DiscardBody] = Field(max_length=DISCARDS_SHOWN_MAX)


class PlaceBody(Body):
    """A record of the retry topic, which retention may have deleted since."""

    topic: str
    partition: int
    offset: int


class DeadLetterBody(Body):
    """One dead letter."""

    id: str = Field(description="`<partition>-<offset>` on the DLQ.", examples=["3-17"])
    partition: int
    offset: int
    died_ms: int = Field(description="Time at which it was written to the DLQ.")
    reason: str = Field(description="`retry-dlq-reason`; empty if no sidecar wrote the record.")
    detail: str
    origin: str = Field(description="Origin that the message names; empty if none can be read.")
    exception: str
    attempt: int | None
    group: str
    redrives: int | None = Field(description="How often it was redriven; null if the header cannot be read.")
    truncated: bool = Field(description="True if a part of the message did not fit: it cannot be redriven.")
    timestamp_ms: int | None = Field(description="Timestamp of the record that failed.")
    came_from: PlaceBody | None


class DeadLetterDetailBody(DeadLetterBody):
    """One dead letter with its headers and, on request, its payload."""

    discarded: DiscardBody | None = Field(
        default=None, description="Who has discarded it, and why; null if nobody has."
    )
    headers: list[HeaderBody]
    headers_truncated: bool = Field(default=False, description="True if there are more headers than shown.")
    key: str | None = Field(default=None, description="Base64, or null; only with ?payload=true.")
    value: str | None = Field(default=None, description="Base64, or null; only with ?payload=true.")


class ScanBody(Body):
    """What one request has looked at."""

    topic: str
    topics: list[str] = Field(description="Every DLQ of this sidecar, `DLQ_TOPIC` first.")
    read: int = Field(description="Number of dead letters that this request has looked at.")
    unread: int = Field(description="Number of older offsets that no request has looked at yet; an upper bound.")
    cursor: str | None = Field(description="Cursor that looks at those; null if nothing is left.")


class CountsBody(ScanBody):
    """Counts of dead letters. At most 100 names of one kind have their own count; the others count as `(others)`."""

    total: int = Field(description="Number of those that match the filter.")
    by_reason: dict[str, int]
    by_origin: dict[str, int]
    by_exception: dict[str, int]
    by_attempt: dict[str, int]
    by_group: dict[str, int]
    by_hour: dict[str, int]


class DeadLettersBody(ScanBody):
    """A page of dead letters, newest first."""

    messages: list[DeadLetterBody] = Field(max_length=LIMIT_MAX)


class SkippedBody(DeadLetterBody):
    """A dead letter that stays on the DLQ."""

    why: str
    because: str


RedriveState = Literal["running", "done", "stopped", "failed"]


class RedriveBody(Body):
    """The status of a redrive."""

    run: str = Field(description="Name of the run.")
    topic: str
    state: RedriveState
    dry_run: bool
    began_ms: int
    ended_ms: int | None
    read: int = Field(description="Number of dead letters that were read.")
    redriven: int = Field(description="Number of messages that were sent, or with `dry_run` would be.")
    filtered: int = Field(description="Number of those that do not match the filter.")
    left: dict[str, dict[str, int]] = Field(description="Those that stay: why, and by reason.")
    first: list[DeadLetterBody] = Field(description="The first that were sent.")
    first_left: list[SkippedBody] = Field(description="The first that stay.")
    handled_before: int = Field(
        description="Number of offsets that earlier starts of this run have passed, and that this one skips."
    )
    remaining: int | None = Field(description="Number of offsets that are not read yet; null if not known.")
    message: str = Field(description="Why it failed; empty otherwise.")
    instance: str = Field(default="", description="The instance that runs it.", examples=["sidecar-0"])


class RedrivesBody(Body):
    """The redrives of all instances, newest first."""

    redrives: list[RedriveBody]
    missing: list[str] = Field(description="Instances that do not answer; their redrives are not listed.")


DEAD_LETTER_EXAMPLE: Final[dict[str, Any]] = {
    "id": "0-17",
    "partition": 0,
    "offset": 17,
    "died_ms": _NOW_MS,
    "reason": "fatal",
    "detail": "exception 'CardRejected' is on the list FATAL_EXCEPTION",
    "origin": "orders",
    "exception": "CardRejected",
    "attempt": 0,
    "group": "shop",
    "redrives": 0,
    "truncated": False,
    "timestamp_ms": _NOW_MS - 1_000,
    "came_from": {"topic": "retry", "partition": 3, "offset": 16},
}
_SCAN_EXAMPLE: Final[dict[str, Any]] = {"topic": "dlq", "topics": ["dlq"], "read": 300, "unread": 0, "cursor": None}
COUNTS_EXAMPLE: Final[dict[str, Any]] = {
    **_SCAN_EXAMPLE,
    "total": 300,
    "by_reason": {"fatal": 260, "attempts-exhausted": 40},
    "by_origin": {"orders": 300},
    "by_exception": {"CardRejected": 260, "SupplierDown": 40},
    "by_attempt": {"0": 260, "3": 40},
    "by_group": {"shop": 300},
    "by_hour": {_HOUR: 300},
}
DEAD_LETTERS_EXAMPLE: Final[dict[str, Any]] = {**_SCAN_EXAMPLE, "messages": [DEAD_LETTER_EXAMPLE]}
DEAD_LETTER_DETAIL_EXAMPLE: Final[dict[str, Any]] = {
    **DEAD_LETTER_EXAMPLE,
    "headers": [{"name": "retry-dlq-reason", "value": "fatal"}],
}
DISCARD_EXAMPLE: Final[dict[str, Any]] = {
    "id": "0-17",
    "who": "alice@10.0.0.7",
    "why": "a test order",
    "at_ms": _NOW_MS,
}
REDRIVE_EXAMPLE: Final[dict[str, Any]] = {
    "run": "13b95c1f4d",
    "topic": "dlq",
    "state": "running",
    "dry_run": False,
    "began_ms": _NOW_MS,
    "ended_ms": None,
    "read": 120,
    "redriven": 100,
    "filtered": 20,
    "left": {},
    "first": [DEAD_LETTER_EXAMPLE],
    "first_left": [],
    "handled_before": 0,
    "remaining": 180,
    "message": "",
    "instance": "sidecar-0",
}

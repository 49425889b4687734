"""The headers of a retry request, and what those of a delivery say. Pure: any Kafka client library can send them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

Header = tuple[str, bytes | None]
Headers = list[Header]

ORIGIN_TOPIC: Final = "retry-origin-topic"
DUE_MS: Final = "retry-due-ms"
DELAY_MS: Final = "retry-delay-ms"
ATTEMPT: Final = "retry-attempt"
MAX_ATTEMPTS: Final = "retry-max-attempts"
REMAINING: Final = "retry-remaining"
EXCEPTION: Final = "retry-exception"
GROUP: Final = "retry-group"
ORIGIN_PARTITION: Final = "retry-origin-partition"
RETRY_ID: Final = "retry-id"
REPLACE: Final = "retry-replace"
POLICY: Final = "retry-policy"
FIRST_MS: Final = "retry-first-ms"
TIMER_ID: Final = "retry-timer-id"
WAS_DUE_MS: Final = "retry-was-due-ms"
REDRIVES: Final = "retry-redrives"

HISTORY: Final = frozenset(
    {
        ORIGIN_TOPIC,
        DUE_MS,
        DELAY_MS,
        ATTEMPT,
        MAX_ATTEMPTS,
        REMAINING,
        EXCEPTION,
        GROUP,
        ORIGIN_PARTITION,
        RETRY_ID,
        REPLACE,
        POLICY,
        FIRST_MS,
        TIMER_ID,
        WAS_DUE_MS,
        REDRIVES,
    }
)
"""The headers for the retries of one message on one topic."""


class ForeignDialect(NamedTuple):
    """The headers of another dialect that a sidecar accepts (its setting PROFILES)."""

    origin_header: str
    attempt_header: str
    names: frozenset[str]


IBM: Final = ForeignDialect(
    "x-ibm-retry-origin-topic",
    "x-ibm-retry-attempts",
    frozenset(
        {
            "x-ibm-retry-origin-topic",
            "x-ibm-retry-exception-type",
            "x-ibm-retry-timestamp-ms",
            "x-ibm-retry-attempts",
        }
    ),
)

REPLACED: Final = frozenset({ORIGIN_TOPIC, DUE_MS, DELAY_MS, EXCEPTION, REPLACE}) | IBM.names
"""The headers that a retry request writes or leaves out: it uses one dialect, and a sidecar refuses duplicates."""

_DIGITS_MAX: Final = 9
"""The digits of an attempt that are read: far beyond every limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """The retry request for one message. Only the origin is required."""

    origin: str
    """The topic that receives the message when it is due."""
    due_ms: int | None = None
    """The due time, in epoch milliseconds UTC."""
    delay_ms: int | None = None
    """The delay from the record's timestamp. Without both, the policy's delay for the attempt applies."""
    attempt: int | None = None
    """The retries already made."""
    max_attempts: int | None = None
    exception: str | None = None
    """The class name of the error, for the rules and the report."""
    group: str | None = None
    """The consumer group that failed."""
    origin_partition: int | None = None
    retry_id: str | None = None
    """The caller's id for the message, at most 256 bytes."""
    replace: bool = False
    """Whether the message replaces all pending ones with this `retry_id`."""
    policy: str | None = None
    """The name of the policy that applies; without it the origin's."""

    def __post_init__(self) -> None:
        if self.due_ms is not None and self.delay_ms is not None:
            raise ValueError(f"due_ms={self.due_ms} and delay_ms={self.delay_ms}: allowed is one of them, or none")
        if self.replace and self.retry_id is None:
            raise ValueError("replace=True needs a retry_id, which says what to replace")

    def headers(self) -> Headers:
        """Return the headers of this request."""
        values: tuple[tuple[str, str | int | None], ...] = (
            (ORIGIN_TOPIC, self.origin),
            (DUE_MS, self.due_ms),
            (DELAY_MS, self.delay_ms),
            (ATTEMPT, self.attempt),
            (MAX_ATTEMPTS, self.max_attempts),
            (EXCEPTION, self.exception),
            (GROUP, self.group),
            (ORIGIN_PARTITION, self.origin_partition),
            (RETRY_ID, self.retry_id),
            (REPLACE, "true" if self.replace else None),
            (POLICY, self.policy),
        )
        return [(name, str(value).encode()) for name, value in values if value is not None]


def exception_name(error: BaseException, *, qualified: bool = True) -> str:
    """Return the class name of an error as tracebacks show it: `acme.orders.SupplierDown`, or `TimeoutError`.

    Args:
        error: The error.
        qualified: Whether the module stands before the name of a class that is neither built in nor of `__main__`.
    """
    kind = type(error)
    if not qualified:
        return kind.__name__
    return (
        kind.__qualname__ if kind.__module__ in {"builtins", "__main__"} else f"{kind.__module__}.{kind.__qualname__}"
    )


def names_topic(headers: Headers, topic: str) -> bool:
    """Return whether the retry headers are for this topic: they name no other origin."""
    return all(value == topic.encode() for name, value in headers if name == ORIGIN_TOPIC)


def foreign_attempts(headers: Headers, topic: str) -> int | None:
    """Return the attempts in the headers of another dialect; None unless they are for this topic."""
    came = dict(headers)
    if _bare(came.get(IBM.origin_header)) != topic.encode():
        return None
    return number(_bare(came.get(IBM.attempt_header)))


def number(value: bytes | None) -> int | None:
    """Return the number in a header; None when it is missing or has another form."""
    return int(value[:_DIGITS_MAX]) if value is not None and value.isdigit() else None


def text(value: bytes | None) -> str | None:
    """Return the text of a header; None when it is missing or not UTF-8."""
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None


def _bare(value: bytes | None) -> bytes | None:
    """Return a value without the double quotes that JSON header mappers put around it."""
    return None if value is None else value.strip(b'"')

"""Headers of the records on the DLQ: this project's own, and Kafka Connect's, which its tools read."""

from __future__ import annotations

from typing import Final

from sidecar.contract import ibm, native
from sidecar.contract.values import is_text
from sidecar.model import NO_TIMESTAMP, Headers, Reason

TIMESTAMP_MS: Final = "retry-timestamp-ms"
REASON: Final = "retry-dlq-reason"
DETAIL: Final = "retry-dlq-detail"
TRUNCATED: Final = "retry-dlq-truncated"
CONNECT_TOPIC: Final = "__connect.errors.topic"
CONNECT_PARTITION: Final = "__connect.errors.partition"
CONNECT_OFFSET: Final = "__connect.errors.offset"
CONNECT_NAME: Final = "__connect.errors.connector.name"
CONNECT_STAGE: Final = "__connect.errors.stage"
CONNECT_CLASS: Final = "__connect.errors.exception.class.name"
CONNECT_MESSAGE: Final = "__connect.errors.exception.message"

# Those of an earlier death speak of another record: a record that was sent again and failed again has only the new.
_REPLACED: Final = frozenset(
    {
        TIMESTAMP_MS,
        REASON,
        DETAIL,
        TRUNCATED,
        CONNECT_TOPIC,
        CONNECT_PARTITION,
        CONNECT_OFFSET,
        CONNECT_NAME,
        CONNECT_STAGE,
        CONNECT_CLASS,
        CONNECT_MESSAGE,
    }
)
_CLASS_NAMES: Final = {
    reason: ("sidecar." + "".join(word.capitalize() for word in reason.split("-"))).encode() for reason in Reason
}


def render_dead_letter(
    headers: Headers | None,
    *,
    reason: Reason,
    detail: str,
    topic: str,
    partition: int,
    offset: int,
    timestamp_ms: int,
    connector_name: str,
    stage: str,
    truncated: bool = False,
) -> Headers:
    """Return the headers of a DLQ record: those that came, byte for byte, then why and where from.

    Args:
        headers: As they came; None when they can not be read.
        reason: One of the contract's reasons.
        detail: For a person.
        topic: The input topic; with partition and offset, the coordinates of the record that failed.
        partition: See topic.
        offset: See topic.
        timestamp_ms: The record's own; NO_TIMESTAMP when it has none.
        connector_name: The app id.
        stage: Where it failed, in Connect's words.
        truncated: The record goes without its value, being too large for the DLQ.
    """
    came = headers or []
    dead = [header for header in came if header[0] not in _REPLACED]
    if timestamp_ms > NO_TIMESTAMP:
        dead.append((TIMESTAMP_MS, b"%d" % timestamp_ms))
    explanation = _encoded(detail)
    dead.append((REASON, reason.encode()))
    dead.append((DETAIL, explanation))
    if truncated:
        dead.append((TRUNCATED, b"true"))
    dead += [
        (CONNECT_TOPIC, _encoded(topic)),
        (CONNECT_PARTITION, b"%d" % partition),
        (CONNECT_OFFSET, b"%d" % offset),
        (CONNECT_NAME, _encoded(connector_name)),
        (CONNECT_STAGE, _encoded(stage)),
        (CONNECT_CLASS, _class_name(came) or _CLASS_NAMES[reason]),
        (CONNECT_MESSAGE, explanation),
    ]
    return dead


def _class_name(headers: Headers) -> bytes | None:
    """Return the class that the sender named, which says more than the reason does."""
    for name, value in headers:
        if name in {native.EXCEPTION, ibm.EXCEPTION_TYPE}:
            text = ibm.unquoted(value) if name == ibm.EXCEPTION_TYPE else value
            if text and is_text(text):
                return text
    return None


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")

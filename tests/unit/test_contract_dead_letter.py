"""Headers of dead letters."""

from __future__ import annotations

import pytest

from sidecar.contract import render_dead_letter
from sidecar.model import NO_TIMESTAMP, Headers, Reason


def dead(
    headers: Headers | None, reason: Reason = Reason.FATAL, timestamp_ms: int = 1_700, *, truncated: bool = False
) -> Headers:
    return render_dead_letter(
        headers,
        reason=reason,
        detail="retry-delay-ms=x: allowed are ASCII digits",
        topic="retry",
        partition=3,
        offset=99,
        timestamp_ms=timestamp_ms,
        connector_name="kafka-retry",
        stage="KAFKA_CONSUME",
        truncated=truncated,
    )


def test_a_dead_letter_has_the_headers_as_they_came_then_why_and_where_from() -> None:
    came: Headers = [("b", None), ("a", b""), ("a", b"\xff"), ("retry-attempt", b"x"), ("retry-attempt", b"x")]
    assert dead(came, Reason.BAD_HEADER) == [
        *came,
        ("retry-timestamp-ms", b"1700"),
        ("retry-dlq-reason", b"bad-header"),
        ("retry-dlq-detail", b"retry-delay-ms=x: allowed are ASCII digits"),
        ("__connect.errors.topic", b"retry"),
        ("__connect.errors.partition", b"3"),
        ("__connect.errors.offset", b"99"),
        ("__connect.errors.connector.name", b"kafka-retry"),
        ("__connect.errors.stage", b"KAFKA_CONSUME"),
        ("__connect.errors.exception.class.name", b"sidecar.BadHeader"),
        ("__connect.errors.exception.message", b"retry-delay-ms=x: allowed are ASCII digits"),
    ]


def test_a_record_without_a_timestamp_gets_none() -> None:
    assert "retry-timestamp-ms" not in dict(dead([], timestamp_ms=NO_TIMESTAMP))
    assert dict(dead([], timestamp_ms=0))["retry-timestamp-ms"] == b"0"


def test_headers_that_can_not_be_read_leave_only_ours() -> None:
    assert dead(None) == dead([])


def test_a_record_that_dies_again_tells_only_of_its_last_death() -> None:
    first = dead([("a", b"1")], Reason.TOO_LARGE, timestamp_ms=5, truncated=True)
    again = dead(first, Reason.FATAL, timestamp_ms=NO_TIMESTAMP)
    assert again == dead([("a", b"1")], Reason.FATAL, timestamp_ms=NO_TIMESTAMP)
    assert len(dict(again)) == len(again)


def test_a_record_without_its_value_says_so() -> None:
    assert dict(dead([], truncated=True))["retry-dlq-truncated"] == b"true"
    assert "retry-dlq-truncated" not in dict(dead([]))


@pytest.mark.parametrize(
    ("header", "name"),
    [
        (("retry-exception", b"com.acme.Broken"), b"com.acme.Broken"),
        (("x-ibm-retry-exception-type", b'"com.acme.Broken"'), b"com.acme.Broken"),
        (("retry-exception", b""), b"sidecar.Fatal"),
        (("retry-exception", None), b"sidecar.Fatal"),
        (("retry-exception", b"\xff"), b"sidecar.Fatal"),
        (("x-ibm-retry-exception-type", b'""'), b"sidecar.Fatal"),
    ],
)
def test_the_class_is_the_messages_own_or_else_the_reasons(header: tuple[str, bytes | None], name: bytes) -> None:
    assert dict(dead([header]))["__connect.errors.exception.class.name"] == name


def test_each_reason_has_a_class_name_of_its_own() -> None:
    names = {dict(dead([], reason))["__connect.errors.exception.class.name"] for reason in Reason}
    assert len(names) == len(Reason)
    assert b"sidecar.AttemptsExhausted" in names

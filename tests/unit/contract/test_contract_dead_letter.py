"""Headers of dead letters."""

from __future__ import annotations

import pytest

from sidecar.contract import fit_dead_letter, render_dead_letter
from sidecar.contract.sizes import record_bytes
from sidecar.model import NO_TIMESTAMP, Headers, Reason


def dead(
    headers: Headers | None, reason: Reason = Reason.FATAL, timestamp_ms: int = 1_700, *, detail: str = ""
) -> Headers:
    return render_dead_letter(
        headers,
        reason=reason,
        detail=detail or "retry-delay-ms=x: allowed are ASCII digits",
        topic="retry",
        partition=3,
        offset=99,
        timestamp_ms=timestamp_ms,
        connector_name="kafka-retry",
        stage="KAFKA_CONSUME",
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


def test_headers_that_cannot_be_read_leave_only_ours() -> None:
    assert dead(None) == dead([])


def test_a_record_that_dies_again_tells_only_of_its_last_death() -> None:
    _, _, first = fit_dead_letter(None, bytes(5_000), dead([("a", b"1")], Reason.TOO_LARGE, timestamp_ms=5), 4_000)
    assert "retry-dlq-truncated" in dict(first)
    again = dead(first, Reason.FATAL, timestamp_ms=NO_TIMESTAMP)
    assert again == dead([("a", b"1")], Reason.FATAL, timestamp_ms=NO_TIMESTAMP)
    assert len(dict(again)) == len(again)


def test_what_is_copied_for_connects_tools_and_what_explains_are_capped() -> None:
    stack = ("ü" * 300_000).encode()
    letter = dict(dead([("retry-exception", stack)], detail="é" * 5_000))
    assert letter["retry-exception"] == stack
    assert letter["__connect.errors.exception.class.name"] == ("ü" * 128).encode()
    assert letter["retry-dlq-detail"] == letter["__connect.errors.exception.message"] == ("é" * 500).encode()


CAME: Headers = [("retry-origin-topic", b"orders"), ("trace", bytes(3_000)), ("stack", bytes(9_000)), ("empty", None)]


@pytest.mark.parametrize(
    ("bytes_max", "missing", "left"),
    [
        (100_000, None, {"key", "value", "retry-origin-topic", "trace", "stack", "empty"}),
        (20_000, b"value", {"key", "retry-origin-topic", "trace", "stack", "empty"}),
        (9_000, b"value,headers", {"key", "retry-origin-topic", "trace", "empty"}),
        (4_000, b"value,headers", {"key", "retry-origin-topic", "empty"}),
        (2_000, b"value,headers,key", set()),
    ],
)
def test_of_what_does_not_fit_the_value_goes_first_then_the_largest_headers_then_the_key(
    bytes_max: int, missing: bytes | None, left: set[str]
) -> None:
    rendered = dead(CAME)
    key, value, headers = fit_dead_letter(bytes(1_500), bytes(30_000), rendered, bytes_max)
    assert record_bytes(key, value, headers) <= bytes_max
    names = dict(headers)
    there = {name for name, _ in CAME if name in names}
    assert there | {name for name, held in (("key", key), ("value", value)) if held is not None} == left
    assert names.get("retry-dlq-truncated") == missing
    assert {name for name, _ in dead([])} <= names.keys(), "ours are all there"


def test_where_nothing_fits_coordinates_and_reason_are_left() -> None:
    key, value, headers = fit_dead_letter(b"k", b"v", dead(CAME), 0)
    assert (key, value) == (None, None)
    assert [name for name, _ in headers] == [
        "retry-timestamp-ms",
        "retry-dlq-reason",
        "__connect.errors.topic",
        "__connect.errors.partition",
        "__connect.errors.offset",
        "retry-dlq-truncated",
    ]
    assert dict(headers)["retry-dlq-truncated"] == b"value,headers,key"


def test_a_letter_that_has_nothing_to_lose_lost_nothing() -> None:
    key, value, headers = fit_dead_letter(None, b"", dead([]), 0)
    assert (key, value) == (None, b"")
    assert "retry-dlq-truncated" not in dict(headers)


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


def test_each_reason_has_its_own_class_name() -> None:
    names = {dict(dead([], reason))["__connect.errors.exception.class.name"] for reason in Reason}
    assert len(names) == len(Reason)
    assert b"sidecar.AttemptsExhausted" in names

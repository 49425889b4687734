"""Profiles of schedulers: karafka, etf1, timebridge, sky. Requests in, messages out, tombstones as cancels."""

from __future__ import annotations

import json
from base64 import b64encode

import pytest

from sidecar.contract import DIALECTS, parse
from sidecar.contract.control import ControlKind, ControlRequest
from sidecar.contract.dialects.dialect import Message
from sidecar.model import Headers, Reason, Record, Rejection, Request, Scope, TimerId

AT_S = 1_893_456_000
AT_MS = AT_S * 1000
KARAFKA: Headers = [
    ("schedule_schema_version", b"1.0.0"),
    ("schedule_target_epoch", b"%d" % AT_S),
    ("schedule_source_type", b"schedule"),
    ("schedule_target_topic", b"orders"),
    ("schedule_target_key", b"customer-3"),
]
ETF1: Headers = [
    ("scheduler-epoch", b"%d" % AT_S),
    ("scheduler-target-topic", b"orders"),
    ("scheduler-target-key", b"customer-3"),
    ("customer-header", b"dummy"),
]
TIMEBRIDGE: Headers = [("X-Timebridge-When", b"2030-01-01T00:00:00Z"), ("X-Timebridge-Where", b"orders"), ("a", b"1")]


def envelope(**changed: object) -> bytes:
    said = {
        "time": AT_MS,
        "topic": "orders",
        "key": b64encode(b"customer-3").decode(),
        "value": b64encode(b"\xff\0").decode(),
        "headers": {"trace": b64encode(b"7").decode()},
    }
    return json.dumps({name: value for name, value in (said | changed).items() if value != "-"}).encode()


def parsed(
    profile: str, headers: Headers, key: bytes | None = b"id-1", value: bytes | None = b"v"
) -> Request | ControlRequest | Rejection:
    return parse(Record(3, 9, 5, key, value, headers), [DIALECTS[profile]])


def delivered(profile: str, headers: Headers, value: bytes | None = b"v", timestamp_ms: int = 7_999) -> Message:
    dialect = DIALECTS[profile]
    out = dialect.render(headers, attempt=0, limit=9, timer_id=TimerId(3, 9, 1), due_ms=1)
    return dialect.delivered((b"id-1", value, out), timestamp_ms)


@pytest.mark.parametrize(
    ("profile", "headers", "value", "code", "retry_id"),
    [
        ("karafka", KARAFKA, b"v", 4, b"id-1"),
        ("etf1", ETF1, b"v", 5, b"id-1"),
        ("timebridge", TIMEBRIDGE, b"v", 6, None),
        ("sky", [("own", b"1")], envelope(), 7, b"id-1"),
    ],
)
def test_a_schedule_says_when_and_where_and_replaces_the_one_of_its_id(
    profile: str, headers: Headers, value: bytes, code: int, retry_id: bytes | None
) -> None:
    assert parsed(profile, headers, value=value) == Request(
        code, "orders", due_ms=AT_MS, retry_id=retry_id, replace=retry_id is not None
    )


def test_deliveries_are_those_of_each_scheduler() -> None:
    assert delivered("etf1", ETF1) == (
        b"customer-3",
        b"v",
        [*ETF1, ("scheduler-timestamp", b"7"), ("scheduler-key", b"id-1")],
    )
    source: Headers = [
        ("schedule_source_partition", b"3"),
        ("schedule_source_offset", b"9"),
        ("schedule_source_key", b"id-1"),
    ]
    assert delivered("karafka", KARAFKA) == (b"customer-3", b"v", [*KARAFKA, *source])
    assert delivered("timebridge", TIMEBRIDGE) == (b"id-1", b"v", [("a", b"1")])
    assert delivered("sky", [("own", b"1")], envelope()) == (b"customer-3", b"\xff\0", [("trace", b"7")])
    assert delivered("sky", [], envelope(value=None, headers="-")) == (b"customer-3", None, [])


def test_a_schedule_without_a_target_key_is_delivered_without_a_key() -> None:
    assert delivered("etf1", ETF1[:2])[0] is None
    assert delivered("karafka", KARAFKA[:4])[0] is None


@pytest.mark.parametrize(
    ("profile", "headers"),
    [
        ("etf1", []),
        ("etf1", [("traceparent", b"00-1")]),
        ("etf1", ETF1),  # the scheduler's own tombstones keep the headers
        ("karafka", []),
        ("karafka", [("schedule_schema_version", b"1.0.0"), ("schedule_source_type", b"cancel")]),
        ("karafka", [("schedule_schema_version", b"1.0.0"), ("schedule_source_type", b"tombstone")]),
        ("sky", []),
        ("sky", [("schedule:expired", b"true")]),
    ],
)
def test_a_tombstone_cancels_what_its_dialect_has_pending_under_its_key(profile: str, headers: Headers) -> None:
    scope = Scope("orders" if headers is ETF1 else "", dialects=(DIALECTS[profile].code,))
    assert parsed(profile, headers, value=None) == ControlRequest(
        "tombstone-3-9", "id:id-1", ControlKind.CANCEL, b"id-1", needs_signature=False, scope=scope
    )


@pytest.mark.parametrize(
    ("headers", "named", "origin"),
    [
        ([], ("sky", "karafka", "etf1"), ""),
        (ETF1[1:2], ("etf1",), "orders"),
        ([KARAFKA[0], ("schedule_source_type", b"cancel")], ("karafka",), ""),
    ],
)
def test_a_tombstone_that_names_no_dialect_is_of_each_that_sends_such_ones(
    headers: Headers, named: tuple[str, ...], origin: str
) -> None:
    accepted = [DIALECTS[name] for name in ("native", "karafka", "etf1", "timebridge", "sky")]
    found = parse(Record(3, 9, 5, b"id-1", None, headers), accepted)
    assert isinstance(found, ControlRequest)
    assert set(found.scope.dialects) == {DIALECTS[name].code for name in named}
    assert found.scope.origin == origin


def test_a_tombstone_whose_target_is_no_topic_is_a_bad_header() -> None:
    refused = parsed("etf1", [("scheduler-target-topic", b"no topic")], value=None)
    assert isinstance(refused, Rejection)
    assert "scheduler-target-topic" in refused.detail


def test_a_null_value_of_a_native_message_is_no_tombstone() -> None:
    native = parse(
        Record(0, 0, 5, b"k", None, [("retry-origin-topic", b"orders")]), [DIALECTS["etf1"], DIALECTS["native"]]
    )
    assert isinstance(native, Request)
    assert native.dialect == 1
    # A message of Karafka's may have no payload; of the others a null value takes the schedule away.
    assert isinstance(parsed("karafka", KARAFKA, value=None), Request)
    assert isinstance(parsed("timebridge", TIMEBRIDGE, value=None), Request)


@pytest.mark.parametrize(
    ("profile", "changed", "value", "said"),
    [
        ("karafka", ("schedule_target_epoch", b"%d" % AT_MS), b"v", "looks like milliseconds"),
        ("etf1", ("scheduler-epoch", b"%d" % AT_MS), b"v", "looks like milliseconds"),
        ("sky", None, envelope(time=AT_S), "looks like seconds"),
        ("etf1", ("scheduler-epoch", b"-1"), b"v", "ASCII digits"),
        ("karafka", ("schedule_schema_version", b"2.0.0"), b"v", "allowed is 1.0.0"),
        ("karafka", ("schedule_source_type", b"message"), b"v", "allowed are schedule, cancel and tombstone"),
        ("karafka", ("schedule_target_partition", b"x"), b"v", "ASCII digits"),
        ("timebridge", ("X-Timebridge-When", b"+1h"), b"v", "RFC 3339"),
        ("timebridge", ("X-Timebridge-When", b"2030-02-30T00:00:00Z"), b"v", "RFC 3339"),
        ("timebridge", ("X-Timebridge-When", b"2030-01-01 00:00:00Z"), b"v", "RFC 3339"),
        ("sky", None, envelope(key="not base64!"), "base64"),
        ("sky", None, envelope(topic="-"), "the value is no schedule"),
        ("sky", None, envelope(topic="a b"), "a topic name"),
        ("sky", None, b"{", "the value is no schedule"),
    ],
)
def test_what_cannot_be_read_is_a_bad_header_that_says_why(
    profile: str, changed: tuple[str, bytes] | None, value: bytes, said: str
) -> None:
    headers = {"karafka": KARAFKA, "etf1": ETF1, "timebridge": TIMEBRIDGE, "sky": []}[profile]
    given = headers if changed is None else [each if each[0] != changed[0] else changed for each in headers]
    given = given if changed is None or changed[0] in dict(given) else [*given, changed]
    refused = parsed(profile, given, value=value)
    assert isinstance(refused, Rejection)
    assert refused.reason is Reason.BAD_HEADER
    assert said in refused.detail


@pytest.mark.parametrize("key", [None, b"", b"\xff", b"k" * 257])
@pytest.mark.parametrize(("profile", "headers"), [("karafka", KARAFKA), ("etf1", ETF1)])
def test_a_key_that_is_no_id_is_refused(profile: str, headers: Headers, key: bytes | None) -> None:
    refused = parsed(profile, headers, key=key)
    assert isinstance(refused, Rejection)
    assert "the id of the schedule" in refused.detail


@pytest.mark.parametrize(
    ("profile", "headers", "missing"),
    [
        ("karafka", KARAFKA[1:], "schedule_schema_version"),
        ("etf1", ETF1[1:], "scheduler-epoch"),
        ("etf1", ETF1[:1], "scheduler-target-topic"),
        ("timebridge", TIMEBRIDGE[:1], "X-Timebridge-Where"),
        ("timebridge", TIMEBRIDGE[1:], "X-Timebridge-When"),
    ],
)
def test_a_header_that_is_missing_is_named(profile: str, headers: Headers, missing: str) -> None:
    refused = parsed(profile, headers)
    assert isinstance(refused, Rejection)
    assert refused.reason is Reason.MISSING_HEADER
    assert missing in refused.detail


def test_a_repeated_header_is_refused() -> None:
    for profile, headers in (("karafka", KARAFKA), ("etf1", ETF1), ("timebridge", TIMEBRIDGE)):
        refused = parsed(profile, [*headers, headers[0]])
        assert isinstance(refused, Rejection)
        assert "more than once" in refused.detail


@pytest.mark.parametrize(
    ("text", "due_ms"),
    [
        (b"2030-01-01T00:00:00.000000001Z", AT_MS + 1),
        (b"2030-01-01T00:00:00.5Z", AT_MS + 500),
        (b"2030-01-01T02:00:00+02:00", AT_MS),
        (b"1960-01-01T00:00:00Z", 0),
    ],
)
def test_an_instant_is_rounded_up_and_never_before_1970(text: bytes, due_ms: int) -> None:
    came = parsed("timebridge", [("X-Timebridge-When", text), TIMEBRIDGE[1]])
    assert isinstance(came, Request)
    assert came.due_ms == due_ms


@pytest.mark.parametrize(("profile", "headers"), [("karafka", KARAFKA), ("etf1", ETF1), ("timebridge", TIMEBRIDGE)])
def test_a_redriven_schedule_is_due_then_or_within_a_second(profile: str, headers: Headers) -> None:
    again = DIALECTS[profile].redriven(headers, AT_MS + 1, keep_attempts=False, to_origin="other")
    came = parsed(profile, again)
    assert isinstance(came, Request)
    assert came.origin == "other"
    assert AT_MS + 1 <= (came.due_ms or 0) <= AT_MS + 1_000


def test_a_partition_of_karafka_is_kept() -> None:
    came = parsed("karafka", [*KARAFKA, ("schedule_target_partition", b"2")])
    assert isinstance(came, Request)
    assert came.origin_partition == 2

"""Profile ibm: requests in, fired records out."""

from __future__ import annotations

import pytest

from sidecar.contract import DIALECTS, parse
from sidecar.contract.control import ControlRequest
from sidecar.model import Headers, Reason, Record, Rejection, Request, TimerId

IBM = DIALECTS["ibm"]
REQUIRED: Headers = [
    ("x-ibm-retry-origin-topic", b"orders"),
    ("x-ibm-retry-exception-type", b"ExampleException"),
    ("x-ibm-retry-timestamp-ms", b"1700000000000"),
]


def parsed(headers: Headers) -> Request | ControlRequest | Rejection:
    return parse(Record(0, 0, 5, None, None, headers), [IBM])


def fired(headers: Headers, attempt: int) -> Headers:
    return IBM.render(headers, attempt=attempt, limit=3, timer_id=TimerId(0, 0, 0), due_ms=1)


def test_delays_count_from_the_timestamp_header_and_attempts_default_to_none_made() -> None:
    assert parsed(REQUIRED) == Request(
        dialect=2, origin="orders", base_ms=1_700_000_000_000, attempt=0, exception="ExampleException"
    )


def test_double_quotes_around_a_value_mean_nothing() -> None:
    quoted: Headers = [(name, b'"' + (value or b"") + b'"') for name, value in REQUIRED]
    assert parsed(quoted) == parsed(REQUIRED)
    assert parsed([*quoted, ("x-ibm-retry-attempts", b'"2"')]) == parsed([*REQUIRED, ("x-ibm-retry-attempts", b"2")])


@pytest.mark.parametrize("value", [b"", b'""', b" "])
def test_blank_attempts_are_none_made(value: bytes) -> None:
    assert parsed([*REQUIRED, ("x-ibm-retry-attempts", value)]) == parsed(REQUIRED)


@pytest.mark.parametrize("left_out", [0, 1, 2])
def test_a_required_header_that_is_not_there_is_named(left_out: int) -> None:
    headers = [header for index, header in enumerate(REQUIRED) if index != left_out]
    rejection = parsed(headers)
    assert isinstance(rejection, Rejection)
    assert rejection.reason is Reason.MISSING_HEADER
    assert rejection.detail.startswith(f"{REQUIRED[left_out][0]} missing")


def test_attempts_alone_claim_the_record() -> None:
    rejection = parsed([("x-ibm-retry-attempts", b"1")])
    assert isinstance(rejection, Rejection)
    assert rejection.detail.startswith("x-ibm-retry-origin-topic, x-ibm-retry-exception-type")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x-ibm-retry-timestamp-ms", b"yesterday"),
        ("x-ibm-retry-timestamp-ms", b"-1"),
        ("x-ibm-retry-timestamp-ms", b'""'),
        ("x-ibm-retry-timestamp-ms", b"9223372036854775808"),
        ("x-ibm-retry-timestamp-ms", None),
        ("x-ibm-retry-attempts", b"one"),
        ("x-ibm-retry-attempts", b'"1_0'),
        ("x-ibm-retry-attempts", None),
        ("x-ibm-retry-origin-topic", b'"not a topic"'),
        ("x-ibm-retry-origin-topic", None),
        ("x-ibm-retry-exception-type", b""),
        ("x-ibm-retry-exception-type", b"\xff"),
        ("x-ibm-retry-exception-type", None),
    ],
)
def test_a_value_that_cannot_be_used_is_a_bad_header(name: str, value: bytes | None) -> None:
    headers = [header for header in REQUIRED if header[0] != name]
    rejection = parsed([*headers, (name, value)])
    assert isinstance(rejection, Rejection)
    assert rejection.reason is Reason.BAD_HEADER
    assert rejection.detail.startswith(f"{name}=")


@pytest.mark.parametrize("name", [name for name, _ in REQUIRED] + ["x-ibm-retry-attempts"])
def test_a_header_that_repeats_is_refused_as_at_ibm(name: str) -> None:
    value = dict(REQUIRED).get(name, b"1")
    others = [header for header in REQUIRED if header[0] != name]
    assert parsed([*others, (name, value), (name, value)]) == Rejection(
        Reason.BAD_HEADER, f"{name} comes more than once: allowed is one"
    )


def test_only_the_attempts_change_on_the_way_out() -> None:
    headers: Headers = [("a", None), *REQUIRED, ("x-ibm-retry-attempts", b"1"), ("a", b""), ("retry-attempt", b"7")]
    assert fired(headers, attempt=1) == [
        ("a", None),
        *REQUIRED,
        ("x-ibm-retry-attempts", b"2"),
        ("a", b""),
        ("retry-attempt", b"7"),
    ]


def test_attempts_leave_in_quotes_if_they_came_in_quotes() -> None:
    assert fired([("x-ibm-retry-attempts", b'"9"')], attempt=9) == [("x-ibm-retry-attempts", b'"10"')]


def test_attempts_are_appended_when_they_did_not_come() -> None:
    assert fired(REQUIRED, attempt=0) == [*REQUIRED, ("x-ibm-retry-attempts", b"1")]

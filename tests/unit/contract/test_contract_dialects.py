"""The choice among dialects."""

from __future__ import annotations

import pytest

from sidecar.contract import DIALECTS, DIALECTS_BY_CODE, ControlRequest, Dialect, parse
from sidecar.model import Headers, Reason, Record, Rejection, Request
from sidecar.settings.table import BY_NAME

NATIVE, IBM_DIALECT = DIALECTS["native"], DIALECTS["ibm"]
BOTH: Headers = [
    ("retry-origin-topic", b"from-native"),
    ("x-ibm-retry-origin-topic", b"from-ibm"),
    ("x-ibm-retry-exception-type", b"E"),
    ("x-ibm-retry-timestamp-ms", b"1"),
]


def record(headers: Headers | None) -> Record:
    return Record(partition=0, offset=0, timestamp_ms=0, key=None, value=None, headers=headers)


def test_the_codes_that_are_stored_with_timers_never_change() -> None:
    assert {code: dialect.name for code, dialect in DIALECTS_BY_CODE.items()} == {
        1: "native",
        2: "ibm",
        3: "spring",
        4: "karafka",
        5: "etf1",
        6: "timebridge",
        7: "sky",
        8: "custom",
    }
    assert DIALECTS_BY_CODE[2] is IBM_DIALECT


def test_every_dialect_can_be_a_profile_and_nothing_else_can() -> None:
    profiles = BY_NAME["PROFILES"].kind
    assert profiles.parse(",".join(DIALECTS)) == tuple(DIALECTS)
    with pytest.raises(ValueError, match="toy"):
        profiles.parse("native,toy")


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS.keys())
def test_what_a_dialect_says_of_itself_agrees(dialect: Dialect) -> None:
    assert {dialect.origin_header, *dialect.exception_headers, dialect.attempt_header} <= dialect.names | {""}
    assert len(set(dialect.checks)) == len(dialect.checks)
    assert 1 <= dialect.code <= 255
    others = [other for other in DIALECTS.values() if other is not dialect]
    assert all(dialect.names.isdisjoint(other.names) for other in others)


def test_the_first_profile_that_claims_a_record_reads_it() -> None:
    first = parse(record(BOTH), [NATIVE, IBM_DIALECT])
    second = parse(record(BOTH), [IBM_DIALECT, NATIVE])
    assert isinstance(first, Request)
    assert isinstance(second, Request)
    assert (first.origin, second.origin) == ("from-native", "from-ibm")
    assert (first.dialect, second.dialect) == (1, 2)


def test_a_profile_that_is_not_accepted_claims_nothing() -> None:
    parsed = parse(record(BOTH[1:]), [NATIVE])
    assert isinstance(parsed, Rejection)
    assert parsed.reason is Reason.MISSING_HEADER


@pytest.mark.parametrize("headers", [[], [("trace", b"1")], [("retry-delay-ms", b"1")], [("retry_origin_topic", b"t")]])
def test_a_record_that_no_profile_claims_lacks_the_origin_topic(headers: Headers) -> None:
    parsed = parse(record(headers), [NATIVE, IBM_DIALECT])
    assert isinstance(parsed, Rejection)
    assert parsed.reason is Reason.MISSING_HEADER
    assert "retry-origin-topic (profile native)" in parsed.detail


def test_headers_that_cannot_be_read_are_a_bad_header() -> None:
    parsed = parse(record(None), [NATIVE, IBM_DIALECT])
    assert isinstance(parsed, Rejection)
    assert parsed.reason is Reason.BAD_HEADER
    assert "not UTF-8" in parsed.detail


@pytest.mark.parametrize("headers", [[], BOTH])
@pytest.mark.parametrize("value", [b"cancel", b"", None])
def test_a_record_with_the_header_of_control_records_is_one_whatever_else_it_has(
    headers: Headers, value: bytes | None
) -> None:
    control: Headers = [("retry-control", value), ("retry-control-id", b"c")]
    assert isinstance(parse(record([*headers, *control]), [NATIVE, IBM_DIALECT]), ControlRequest)
    nameless = parse(record([*headers, control[0]]), [NATIVE, IBM_DIALECT])
    assert isinstance(nameless, Rejection)
    assert nameless.reason is Reason.BAD_HEADER
    assert "retry-control-id is missing" in nameless.detail

"""Profile native: requests in, fired records out."""

from __future__ import annotations

import pytest

from sidecar.contract import DIALECTS, parse
from sidecar.model import ANY_PARTITION, DUE_MS_MAX, Headers, Reason, Record, Rejection, Request, TimerId

NATIVE = DIALECTS["native"]
ORIGIN = ("retry-origin-topic", b"orders")
TIMER = TimerId(partition=3, offset=41, first_ms=1_700_000_000_000)


def record(headers: Headers | None) -> Record:
    return Record(partition=0, offset=7, timestamp_ms=1_000, key=b"k", value=b"v", headers=headers)


def request_of(*headers: tuple[str, bytes | None]) -> Request:
    parsed = parse(record([ORIGIN, *headers]), [NATIVE])
    assert isinstance(parsed, Request), parsed
    return parsed


def rejection_of(*headers: tuple[str, bytes | None]) -> Rejection:
    parsed = parse(record(list(headers)), [NATIVE])
    assert isinstance(parsed, Rejection), parsed
    return parsed


def fired(headers: Headers, attempt: int = 0, limit: int = 6) -> Headers:
    return NATIVE.render(headers, attempt=attempt, limit=limit, timer_id=TIMER, due_ms=1_700_000_000_123)


def test_the_origin_topic_alone_is_a_request() -> None:
    assert request_of() == Request(dialect=NATIVE.code, origin="orders")
    assert request_of().origin_partition == ANY_PARTITION


def test_every_header_is_read() -> None:
    request = request_of(
        ("retry-due-ms", b"1700000000000"),
        ("retry-attempt", b"2"),
        ("retry-max-attempts", b"9"),
        ("retry-exception", "com.acme.Fehlgeschlagen€".encode()),
        ("retry-group", b"billing"),
        ("retry-origin-partition", b"12"),
        ("retry-id", b"order-1"),
        ("retry-replace", b"true"),
    )
    assert request == Request(
        dialect=1,
        origin="orders",
        due_ms=1_700_000_000_000,
        attempt=2,
        max_attempts=9,
        exception="com.acme.Fehlgeschlagen€",
        origin_partition=12,
        retry_id=b"order-1",
        replace=True,
    )
    assert request_of(("retry-delay-ms", b"250")).delay_ms == 250


@pytest.mark.parametrize(
    ("headers", "limit"),
    [
        ([("retry-max-attempts", b"5")], 5),
        ([("retry-remaining", b"0")], 2),
        ([("retry-remaining", b"4")], 6),
        ([("retry-remaining", b"4"), ("retry-max-attempts", b"3")], 3),
        ([("retry-remaining", b"1"), ("retry-max-attempts", b"9")], 3),
        ([], None),
    ],
)
def test_the_senders_limit_is_the_least_of_those_it_names(headers: Headers, limit: int | None) -> None:
    assert request_of(("retry-attempt", b"2"), *headers).max_attempts == limit


@pytest.mark.parametrize(
    "name",
    [
        "retry-due-ms",
        "retry-delay-ms",
        "retry-attempt",
        "retry-max-attempts",
        "retry-remaining",
        "retry-origin-partition",
    ],
)
@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"-1",
        b"+1",
        b"1_0",
        b" 1",
        b"1 ",
        b"1.0",
        b"0x1",
        b"1\x00",
        "١".encode(),
        "²".encode(),
        b"\xff",
        b"9223372036854775808",
        b"0" * 20,
        b"1" * 100_000,
    ],
)
def test_a_number_is_ascii_digits_within_64_bits(name: str, value: bytes | None) -> None:
    rejection = rejection_of(ORIGIN, (name, value))
    assert rejection.reason is Reason.BAD_HEADER
    assert rejection.detail.startswith(f"{name}=")
    assert len(rejection.detail) < 500


def test_the_greatest_numbers_are_taken() -> None:
    assert request_of(("retry-due-ms", b"9223372036854775807")).due_ms == DUE_MS_MAX
    assert request_of(("retry-due-ms", b"0")).due_ms == 0
    assert request_of(("retry-attempt", b"9223372036854775807")).attempt == 2**63 - 1
    assert request_of(("retry-origin-partition", b"2147483647")).origin_partition == 2**31 - 1


def test_a_partition_beyond_32_bits_is_refused() -> None:
    assert rejection_of(ORIGIN, ("retry-origin-partition", b"2147483648")).reason is Reason.BAD_HEADER


@pytest.mark.parametrize("name", ["orders", "a.b_c-D9", "..a", "x" * 249])
def test_kafkas_topic_names_are_taken(name: str) -> None:
    parsed = parse(record([("retry-origin-topic", name.encode())]), [NATIVE])
    assert parsed == Request(dialect=1, origin=name)


@pytest.mark.parametrize(
    "name", [None, b"", b".", b"..", b"a b", b"orders\n", b"a/b", "größe".encode(), b"\xff", b"a\x00", b"x" * 250]
)
def test_other_topic_names_are_refused(name: bytes | None) -> None:
    rejection = rejection_of(("retry-origin-topic", name))
    assert rejection.reason is Reason.BAD_HEADER
    assert "topic name" in rejection.detail


@pytest.mark.parametrize("name", ["retry-exception", "retry-group", "retry-id"])
@pytest.mark.parametrize("value", [None, b"", b"\xff\xfe", b"\xed\xa0\x80"])
def test_a_text_is_utf_8_and_not_empty(name: str, value: bytes | None) -> None:
    assert rejection_of(ORIGIN, (name, value)).reason is Reason.BAD_HEADER


def test_an_id_has_at_most_256_bytes() -> None:
    assert request_of(("retry-id", b"i" * 256)).retry_id == b"i" * 256
    assert "256 bytes" in rejection_of(ORIGIN, ("retry-id", b"i" * 257)).detail
    assert rejection_of(ORIGIN, ("retry-id", "€".encode() * 86)).reason is Reason.BAD_HEADER


@pytest.mark.parametrize("value", [None, b"", b"True", b"1", b"true ", b"yes"])
def test_replace_is_true_or_false(value: bytes | None) -> None:
    assert rejection_of(ORIGIN, ("retry-id", b"i"), ("retry-replace", value)).reason is Reason.BAD_HEADER


def test_replace_needs_an_id_to_replace() -> None:
    assert "retry-id" in rejection_of(ORIGIN, ("retry-replace", b"true")).detail
    assert request_of(("retry-replace", b"false")).replace is False


def test_due_and_delay_contradict_each_other() -> None:
    rejection = rejection_of(ORIGIN, ("retry-due-ms", b"1"), ("retry-delay-ms", b"1"))
    assert rejection.reason is Reason.BAD_HEADER
    assert "retry-due-ms and retry-delay-ms" in rejection.detail


@pytest.mark.parametrize(
    "name",
    [
        "retry-origin-topic",
        "retry-due-ms",
        "retry-attempt",
        "retry-max-attempts",
        "retry-remaining",
        "retry-exception",
        "retry-group",
        "retry-origin-partition",
        "retry-id",
        "retry-replace",
        "retry-timer-id",
        "retry-was-due-ms",
    ],
)
def test_a_header_of_ours_that_repeats_is_refused_also_when_equal(name: str) -> None:
    value = {"retry-replace": b"false"}.get(name, b"1")
    headers = [] if name == "retry-origin-topic" else [ORIGIN]
    rejection = rejection_of(*headers, (name, value), (name, value))
    assert rejection == Rejection(Reason.BAD_HEADER, f"{name} comes more than once: allowed is one")


def test_foreign_headers_may_repeat_be_null_and_begin_with_retry() -> None:
    request = request_of(("a", b"1"), ("a", None), ("retry-colour", b"\xff"), ("retry-colour", b"\xff"))
    assert request == request_of()


def test_a_fired_record_has_the_others_as_they_came_and_then_ours_in_order() -> None:
    headers: Headers = [
        ("retry-exception", b"E"),
        ("a", b"1"),
        ("retry-delay-ms", b"5"),
        ("a", None),
        ("retry-id", b"i"),
        ("b", b""),
        ("retry-replace", b"true"),
        ORIGIN,
        ("retry-max-attempts", b"4"),
        ("retry-origin-partition", b"2"),
        ("retry-group", b"g"),
        ("retry-colour", b"\xff\x00"),
        ("retry-attempt", b"1"),
        ("a", b"1"),
    ]
    assert fired(headers, attempt=1, limit=4) == [
        ("a", b"1"),
        ("a", None),
        ("b", b""),
        ("retry-max-attempts", b"4"),
        ("retry-origin-partition", b"2"),
        ("retry-colour", b"\xff\x00"),
        ("a", b"1"),
        ("retry-attempt", b"2"),
        ("retry-remaining", b"2"),
        ("retry-origin-topic", b"orders"),
        ("retry-group", b"g"),
        ("retry-id", b"i"),
        ("retry-exception", b"E"),
        ("retry-timer-id", b"3-41-1700000000000"),
        ("retry-was-due-ms", b"1700000000123"),
    ]


def test_what_only_concerns_the_sidecar_does_not_leave_it() -> None:
    gone = ["retry-due-ms", "retry-delay-ms", "retry-replace", "retry-target", "retry-control", "retry-control-id"]
    gone += ["retry-control-signature", "retry-controller"]
    names = [name for name, _ in fired([ORIGIN, *((name, b"1") for name in gone)])]
    assert names == [
        "retry-attempt",
        "retry-remaining",
        "retry-origin-topic",
        "retry-timer-id",
        "retry-was-due-ms",
    ]


def test_remaining_is_never_below_zero() -> None:
    assert ("retry-remaining", b"0") in fired([ORIGIN], attempt=5, limit=6)
    assert ("retry-remaining", b"0") in fired([ORIGIN], attempt=9, limit=6)


def test_the_headers_that_came_are_not_changed() -> None:
    headers: Headers = [ORIGIN, ("retry-attempt", b"1")]
    fired(headers, attempt=1)
    assert headers == [ORIGIN, ("retry-attempt", b"1")]


def test_a_consumer_that_fails_again_sends_the_record_as_it_is_until_nothing_remains() -> None:
    headers: Headers = [("trace", b"t"), ORIGIN, ("retry-delay-ms", b"1"), ("retry-max-attempts", b"3")]
    for attempt in range(3):
        request = parse(record(headers), [NATIVE])
        assert isinstance(request, Request)
        assert (request.attempt, request.max_attempts) == (attempt, 3)
        headers = fired(headers, attempt=attempt, limit=3)
        assert len(dict(headers)) == len(headers)
    assert dict(headers)["retry-remaining"] == b"0"
    last = parse(record(headers), [NATIVE])
    assert isinstance(last, Request)
    assert (last.attempt, last.max_attempts) == (3, 3)
    assert headers[0] == ("trace", b"t")

"""Profile spring: records as Spring Kafka writes them, in its binary encodings."""

from __future__ import annotations

import pytest

from sidecar.contract import DIALECTS, parse
from sidecar.contract.control import ControlRequest
from sidecar.contract.dead_letter import DeadLetter, group_of
from sidecar.contract.dialects.spring import Spring
from sidecar.model import Headers, Reason, Record, Rejection, Request, TimerId

SPRING = DIALECTS["spring"]
DUE_MS = 1_795_217_589_549
DUE = bytes.fromhex("01a1fb4e852d")
"""As BigInteger.valueOf(1795217589549L).toByteArray() writes it."""
FORWARDED: Headers = [
    ("kafka_original-topic", b"orders"),
    ("kafka_exception-fqcn", b"org.springframework.kafka.listener.ListenerExecutionFailedException"),
    ("kafka_exception-cause-fqcn", b"com.acme.Busy"),
    ("retry_topic-attempts", b"\0\0\0\2"),
    ("retry_topic-original-timestamp", DUE),
    ("retry_topic-backoff-timestamp", DUE),
]
PUBLISHED: Headers = [
    ("kafka_dlt-original-topic", b"orders"),
    ("kafka_dlt-original-partition", b"\0\0\0\1"),
    ("kafka_dlt-exception-fqcn", b"com.acme.Busy"),
]


def parsed(headers: Headers) -> Request | ControlRequest | Rejection:
    return parse(Record(0, 0, 5, b"k", b"v", headers), [SPRING])


def fired(headers: Headers, attempt: int) -> Headers:
    return SPRING.render(headers, attempt=attempt, limit=9, timer_id=TimerId(0, 0, 0), due_ms=1)


def test_a_forwarded_record_is_due_at_its_backoff_timestamp_and_returns_to_its_original_topic() -> None:
    assert parsed(FORWARDED) == Request(dialect=3, origin="orders", due_ms=DUE_MS, attempt=0, exception="com.acme.Busy")


def test_the_delivery_keeps_the_number_that_spring_gave_it_and_loses_the_backoff_timestamp() -> None:
    out = fired(FORWARDED, 0)
    assert dict(out)["retry_topic-attempts"] == b"\0\0\0\2"
    assert "retry_topic-backoff-timestamp" not in dict(out)
    assert [each for each in FORWARDED if each[0].startswith(("kafka", "retry_topic-orig"))] == out[:-1]


def test_a_record_of_a_dead_letter_recoverer_is_counted_by_the_sidecar() -> None:
    came = parsed(PUBLISHED)
    assert came == Request(dialect=3, origin="orders", attempt=0, exception="com.acme.Busy")
    out = fired(PUBLISHED, 0)
    assert dict(out)["retry_topic-attempts"] == b"\0\0\0\2"
    # The recoverer appends the original topic again; the last one is the topic that it was consumed from.
    again = parsed([*out, ("kafka_dlt-original-topic", b"orders")])
    assert isinstance(again, Request)
    assert again.attempt == 1
    assert dict(fired(out, 1))["retry_topic-attempts"] == b"\0\0\0\3"


def test_a_record_that_passed_retry_topics_returns_to_the_first_topic_not_to_the_last_retry_topic() -> None:
    both = parsed([("kafka_dlt-original-topic", b"orders-retry-2"), ("kafka_original-topic", b"orders")])
    assert isinstance(both, Request)
    assert both.origin == "orders"


@pytest.mark.parametrize(("attempts", "made"), [(b"\0\0\0\1", 0), (b"\2", 0), (b"\5", 3), (b"\0\0\x7f\xff", 32_765)])
def test_attempts_are_four_bytes_or_one(attempts: bytes, made: int) -> None:
    came = parsed([*FORWARDED[:3], ("retry_topic-attempts", attempts), FORWARDED[-1]])
    assert isinstance(came, Request)
    assert came.attempt == made


@pytest.mark.parametrize(
    ("header", "said"),
    [
        (("retry_topic-attempts", b"2\n3"), "big-endian"),
        (("retry_topic-attempts", b"\0\0\0\0"), "allowed are 1 to 32767"),
        (("retry_topic-attempts", None), "allowed are 1 to 32767"),
        (("retry_topic-backoff-timestamp", b""), "1 to 8 bytes"),
        (("retry_topic-backoff-timestamp", b"\xff"), "1 to 8 bytes"),
        (("retry_topic-backoff-timestamp", b"1795217589549"), "1 to 8 bytes"),
        (("retry_topic-backoff-timestamp", (1_795_217_589).to_bytes(4, "big")), "looks like seconds"),
        (("kafka_original-topic", b"or ders"), "a topic name"),
    ],
)
def test_what_spring_does_not_write_is_a_bad_header(header: tuple[str, bytes | None], said: str) -> None:
    others = [each for each in FORWARDED if each[0] != header[0]]
    refused = parsed([*others, header])
    assert isinstance(refused, Rejection)
    assert refused.reason is Reason.BAD_HEADER
    assert said in refused.detail


def test_a_record_without_an_original_topic_lacks_it() -> None:
    refused = parsed(FORWARDED[3:])
    assert isinstance(refused, Rejection)
    assert refused.reason is Reason.MISSING_HEADER


def test_a_dead_letter_names_the_cause_and_not_the_wrapper() -> None:
    wrapped: Headers = [("kafka_dlt-exception-fqcn", b"Wrapper"), ("kafka_dlt-exception-cause-fqcn", b"com.acme.Busy")]
    assert DeadLetter([*wrapped, ("retry-dlq-reason", b"fatal")], [SPRING]).exception == "com.acme.Busy"


def test_a_delivery_names_the_group_of_the_listener_that_failed_last() -> None:
    assert "retry-group" not in dict(fired(PUBLISHED, 0))
    out = fired([*PUBLISHED, ("kafka_dlt-original-consumer-group", b"mail")], 0)
    assert dict(out)["retry-group"] == b"mail"
    again: Headers = [*out, ("kafka_dlt-original-consumer-group", b"shop")]
    assert [value for name, value in fired(again, 1) if name == "retry-group"] == [b"shop"]
    assert group_of(again) == DeadLetter(again, [SPRING]).group == "shop"
    assert group_of([("retry-origin-topic", b"orders"), *again]) == "mail", "a native message names its own"


@pytest.mark.parametrize("keep", [False, True])
def test_a_redriven_record_is_as_from_a_retry_topic(keep: bool) -> None:
    dead: Headers = [*PUBLISHED, ("retry_topic-attempts", b"\0\0\0\3")]
    again = parsed(Spring().redriven(dead, DUE_MS, keep_attempts=keep, to_origin="other"))
    assert isinstance(again, Request)
    assert (again.origin, again.due_ms, again.attempt) == ("other", DUE_MS, 2 if keep else 0)

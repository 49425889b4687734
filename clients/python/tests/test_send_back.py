"""The records that an application sends back; tests on a real broker show that a sidecar accepts them."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from confluent_kafka import Message
from retry_sidecar import (
    Consumed,
    Retry,
    RetryTopic,
    attempt_of,
    exception_name,
    is_for_group,
    retry_record,
    timer_id_of,
)

ORIGIN = ("retry-origin-topic", b"orders")
CAUSE = ("retry-exception", b"ValueError")


class Aiokafka(NamedTuple):
    """A record as aiokafka returns it."""

    topic: str
    partition: int
    offset: int
    key: Any
    value: Any
    headers: tuple[tuple[str, bytes], ...]


class SupplierDown(Exception):
    """An error of the application."""

    class Twice(Exception):
        """An error within a class."""


def consumed(*headers: tuple[str, bytes | None], topic: str = "orders") -> Message:
    """Return a message as confluent-kafka returns it."""
    return Message(topic=topic, partition=2, offset=7, key=b"k", value=b"v", headers=list(headers))


def sent_back(*headers: tuple[str, bytes], group: str | None = None) -> list[tuple[str, bytes | None]]:
    """Return the headers with which a message of topic `orders` goes to the retry topic."""
    record = retry_record(consumed(*headers), ValueError(), group=group)
    assert (record.key, record.value) == (b"k", b"v")
    assert retry_record(Aiokafka("orders", 2, 7, b"k", b"v", headers), ValueError(), group=group) == record
    return record.headers


def test_the_group_that_the_headers_name_stays_unless_another_is_given() -> None:
    named = ("retry-group", b"billing")
    assert sent_back(named) == [ORIGIN, CAUSE, named]
    assert sent_back(named, group="shipping") == [ORIGIN, CAUSE, ("retry-group", b"shipping")]


@pytest.mark.parametrize("name", ["retry-group", "retry-origin-topic"])
def test_a_header_of_the_sidecar_that_is_no_text_does_not_keep_a_message_from_going_back(name: str) -> None:
    """The application is handling an error already: one about somebody else's header would lose its message."""
    kept = [("retry-attempt", b"3"), ("other", b"\xff\xfe")]
    goes = kept if name == "retry-group" else [("other", b"\xff\xfe")]
    assert sent_back(*kept, (name, b"\xff\xfe")) == [*goes, ORIGIN, CAUSE]


HISTORY = [
    ("retry-attempt", b"4"),
    ("retry-remaining", b"1"),
    ("retry-max-attempts", b"5"),
    ("retry-group", b"billing"),
    ("retry-id", b"order-17"),
    ("retry-origin-partition", b"7"),
    ("retry-timer-id", b"0-1-2"),
    ("retry-was-due-ms", b"2"),
    ("retry-redrives", b"3"),
    ("retry-policy", b"slow"),
    ("retry-first-ms", b"1"),
]
IBM = [("x-ibm-retry-attempts", b'"2"'), ("x-ibm-retry-exception-type", b"E"), ("x-ibm-retry-timestamp-ms", b"1")]


def test_the_history_of_this_topic_goes_on() -> None:
    kept = [header for header in HISTORY if header[0] != "retry-group"]
    assert sent_back(ORIGIN, *HISTORY) == [*kept, ORIGIN, CAUSE, ("retry-group", b"billing")]
    assert attempt_of(consumed(ORIGIN, *HISTORY)) == 4
    assert timer_id_of(consumed(ORIGIN, *HISTORY)) == "0-1-2"


@pytest.mark.parametrize("other", [b"shipments", b"order", b"", b"\xff"])
def test_headers_copied_from_a_message_of_another_topic_have_no_effect(other: bytes) -> None:
    """Its attempts are not made, its partition is not there, and who cancels its id does not mean this message."""
    leaked = [("retry-origin-topic", other), ("trace", b"1"), *HISTORY]
    assert sent_back(*leaked) == [("trace", b"1"), ORIGIN, CAUSE]
    assert sent_back(*leaked, group="shop") == [("trace", b"1"), ORIGIN, CAUSE, ("retry-group", b"shop")]
    assert attempt_of(consumed(*leaked)) == 0
    assert timer_id_of(consumed(*leaked)) is None


@pytest.mark.parametrize("name", [b"orders", b'"orders"'])
def test_a_message_that_came_back_in_ibms_headers_continues_counting_in_ours(name: bytes) -> None:
    """One dialect a record: which of two a sidecar reads is a matter of its PROFILES."""
    assert sent_back(("x-ibm-retry-origin-topic", name), *IBM) == [ORIGIN, ("retry-attempt", b"2"), CAUSE]
    assert attempt_of(consumed(("x-ibm-retry-origin-topic", name), *IBM)) == 2


@pytest.mark.parametrize("count", [b"", b'""', b"two"])
def test_a_count_in_ibms_headers_that_is_none_is_left_out(count: bytes) -> None:
    assert sent_back(("x-ibm-retry-origin-topic", b"orders"), ("x-ibm-retry-attempts", count)) == [ORIGIN, CAUSE]


def test_a_hostile_count_in_ibms_headers_is_beyond_every_limit() -> None:
    leaked = ("x-ibm-retry-attempts", b"9" * 10_000)
    assert ("retry-attempt", b"999999999") in sent_back(("x-ibm-retry-origin-topic", b"orders"), leaked)


def test_ibms_headers_of_another_topic_have_no_effect() -> None:
    assert sent_back(("x-ibm-retry-origin-topic", b"shipments"), *IBM) == [ORIGIN, CAUSE]


def test_a_group_that_failed_on_another_topic_does_not_keep_a_message_from_others() -> None:
    failed = ("retry-group", b"billing")
    assert not is_for_group(consumed(ORIGIN, failed), "shop")
    assert is_for_group(consumed(ORIGIN, failed), "billing")
    assert is_for_group(consumed(("retry-origin-topic", b"invoices"), failed), "shop")
    assert is_for_group(consumed(), "shop")


def test_class_names_are_those_that_tracebacks_show() -> None:
    assert exception_name(TimeoutError()) == "TimeoutError"
    assert exception_name(SupplierDown()) == f"{__name__}.SupplierDown"
    assert exception_name(SupplierDown.Twice()) == f"{__name__}.SupplierDown.Twice"
    assert exception_name(SupplierDown.Twice(), qualified=False) == "Twice"
    bare = retry_record(consumed(), SupplierDown(), qualified_names=False)
    assert ("retry-exception", b"SupplierDown") in bare.headers


def test_other_headers_keep_their_order_repeats_and_null_values() -> None:
    others = [("a", b"1"), ("b", None), ("a", b"1"), ("", b"")]
    assert retry_record(consumed(*others)).headers == [*others, ORIGIN]
    assert retry_record(consumed(), delay_ms=5, due_ms=None).headers == [ORIGIN, ("retry-delay-ms", b"5")]


def test_a_dictionary_of_headers_with_texts_is_read_too() -> None:
    message = Message(topic="orders", headers={"retry-origin-topic": "orders", "retry-attempt": "1", "n": None})
    assert retry_record(message).headers == [("retry-attempt", b"1"), ("n", None), ORIGIN]


def test_a_deserialized_value_cannot_be_sent_back() -> None:
    with pytest.raises(TypeError, match="the value is dict: allowed are bytes or None"):
        retry_record(Aiokafka("orders", 0, 0, b"k", {"order": 1}, ()))
    with pytest.raises(TypeError, match="the key is str"):
        Consumed.of(Aiokafka("orders", 0, 0, "k", None, ()))


def test_a_request_has_the_headers_that_it_names() -> None:
    request = Retry(origin="orders", delay_ms=5, attempt=1, max_attempts=3, retry_id="a", replace=True, policy="slow")
    assert dict(request.headers()) == {
        "retry-origin-topic": b"orders",
        "retry-delay-ms": b"5",
        "retry-attempt": b"1",
        "retry-max-attempts": b"3",
        "retry-id": b"a",
        "retry-replace": b"true",
        "retry-policy": b"slow",
    }


def test_two_due_times_or_a_replacement_without_id_cannot_be_asked_for() -> None:
    with pytest.raises(ValueError, match="due_ms=1 and delay_ms=2"):
        Retry(origin="orders", due_ms=1, delay_ms=2)
    with pytest.raises(ValueError, match="due_ms=1 and delay_ms=2"):
        retry_record(consumed(), due_ms=1, delay_ms=2)
    with pytest.raises(ValueError, match="needs a retry_id"):
        Retry(origin="orders", replace=True)


def test_the_topic_of_retries_sends_the_record_with_the_producer() -> None:
    produced: list[tuple[str, dict[str, Any]]] = []

    class Producer:
        def produce(self, topic: str, **given: Any) -> None:
            produced.append((topic, given))

    producer: Any = Producer()
    RetryTopic(producer, "retries", qualified_names=False).send_back(consumed(), SupplierDown(), due_ms=9, group="shop")
    ((topic, given),) = produced
    assert (topic, given["key"], given["value"]) == ("retries", b"k", b"v")
    assert given["headers"] == [
        ORIGIN,
        ("retry-due-ms", b"9"),
        ("retry-exception", b"SupplierDown"),
        ("retry-group", b"shop"),
    ]

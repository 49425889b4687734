"""The messages that an application sends back; tests on a real broker show that it accepts them."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import Message

from sidecar.client import RetryTopic, is_for_group


class Producer:
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.produced: list[tuple[str, dict[str, Any]]] = []

    def produce(self, topic: str, **given: Any) -> None:
        self.produced.append((topic, given))


def consumed(*headers: tuple[str, bytes]) -> Message:
    """Return a message of topic `orders`."""
    return Message(topic="orders", key=b"k", value=b"v", headers=list(headers))


def sent_back(*headers: tuple[str, bytes], group: str | None = None) -> list[tuple[str, bytes]]:
    """Return the headers with which a message of topic `orders` goes to the retry topic."""
    producer: Any = Producer()
    RetryTopic(producer).send_back(consumed(*headers), ValueError(), group=group)
    ((topic, given),) = producer.produced
    assert (topic, given["key"], given["value"]) == ("retry", b"k", b"v")
    kept: list[tuple[str, bytes]] = given["headers"]
    return kept


ORIGIN = ("retry-origin-topic", b"orders")
CAUSE = ("retry-exception", b"ValueError")


def test_the_group_that_the_headers_name_stays_unless_another_is_given() -> None:
    named = ("retry-group", b"billing")
    assert sent_back(named) == [ORIGIN, CAUSE, named]
    assert sent_back(named, group="shipping") == [ORIGIN, CAUSE, ("retry-group", b"shipping")]


@pytest.mark.parametrize("name", ["retry-group", "retry-origin-topic"])
def test_a_header_of_ours_that_is_no_text_does_not_keep_a_message_from_going_back(name: str) -> None:
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
]
IBM = [("x-ibm-retry-attempts", b'"2"'), ("x-ibm-retry-exception-type", b"E"), ("x-ibm-retry-timestamp-ms", b"1")]


def test_the_history_of_this_topic_goes_on() -> None:
    kept = [header for header in HISTORY if header[0] != "retry-group"]
    assert sent_back(ORIGIN, *HISTORY) == [*kept, ORIGIN, CAUSE, ("retry-group", b"billing")]


@pytest.mark.parametrize("other", [b"shipments", b"order", b"", b"\xff"])
def test_headers_copied_from_a_message_of_another_topic_count_for_nothing(other: bytes) -> None:
    """Its attempts are not made, its partition is not there, and who cancels its id does not mean this message."""
    leaked = [("retry-origin-topic", other), ("trace", b"1"), *HISTORY]
    assert sent_back(*leaked) == [("trace", b"1"), ORIGIN, CAUSE]
    assert sent_back(*leaked, group="shop") == [("trace", b"1"), ORIGIN, CAUSE, ("retry-group", b"shop")]


@pytest.mark.parametrize("name", [b"orders", b'"orders"'])
def test_a_message_that_came_back_in_ibms_headers_continues_counting_in_ours(name: bytes) -> None:
    """One dialect a record: which of two a sidecar reads is a matter of its PROFILES."""
    assert sent_back(("x-ibm-retry-origin-topic", name), *IBM) == [ORIGIN, ("retry-attempt", b"2"), CAUSE]


@pytest.mark.parametrize("count", [b"", b'""', b"two"])
def test_a_count_in_ibms_headers_that_is_none_is_left_out(count: bytes) -> None:
    assert sent_back(("x-ibm-retry-origin-topic", b"orders"), ("x-ibm-retry-attempts", count)) == [ORIGIN, CAUSE]


def test_a_hostile_count_in_ibms_headers_is_beyond_every_limit() -> None:
    leaked = ("x-ibm-retry-attempts", b"9" * 10_000)
    assert ("retry-attempt", b"999999999") in sent_back(("x-ibm-retry-origin-topic", b"orders"), leaked)


def test_ibms_headers_of_another_topic_count_for_nothing() -> None:
    assert sent_back(("x-ibm-retry-origin-topic", b"shipments"), *IBM) == [ORIGIN, CAUSE]


def test_a_group_that_failed_on_another_topic_does_not_keep_a_message_from_others() -> None:
    failed = ("retry-group", b"billing")
    assert not is_for_group(consumed(ORIGIN, failed), "shop")
    assert is_for_group(consumed(ORIGIN, failed), "billing")
    assert is_for_group(consumed(("retry-origin-topic", b"invoices"), failed), "shop")

"""What an application sends back; that the broker takes it is tested on a real one."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import Message

from sidecar.client import RetryTopic


class Producer:
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.produced: list[tuple[str, dict[str, Any]]] = []

    def produce(self, topic: str, **given: Any) -> None:
        self.produced.append((topic, given))


def sent_back(*headers: tuple[str, bytes], group: str | None = None) -> list[tuple[str, bytes]]:
    """Return the headers with which a message of topic `orders` goes to the retry topic."""
    producer: Any = Producer()
    message = Message(topic="orders", key=b"k", value=b"v", headers=list(headers))
    RetryTopic(producer).send_back(message, ValueError(), group=group)
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
    assert sent_back(*kept, (name, b"\xff\xfe")) == [*kept, ORIGIN, CAUSE]

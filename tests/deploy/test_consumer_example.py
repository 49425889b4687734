"""The application of the example chart, on a real broker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from sidecar.clock import SystemClock
from sidecar.demo.application import headers_of
from tests.deploy.charts import EXAMPLE

pytestmark = pytest.mark.broker

_LONGEST_S = 60.0


@pytest.fixture
def names(bootstrap: str, unique: Callable[[str], str]) -> dict[str, str]:
    """Environment of the application, with topics of its own that exist."""
    given = {
        "BOOTSTRAP_SERVERS": bootstrap,
        "TOPIC": unique("orders"),
        "RETRY_TOPIC": unique("retry"),
        "GROUP": unique("shop"),
        "FAIL_PERCENT": "100",
    }
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topics = [NewTopic(given[name], num_partitions=1) for name in ("TOPIC", "RETRY_TOPIC")]
    for created in admin.create_topics(topics).values():
        created.result(_LONGEST_S)
    return given


@pytest.fixture
def application(names: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """The application, running."""
    process = subprocess.Popen([sys.executable, str(EXAMPLE / "files" / "consumer.py")], env={**os.environ, **names})
    yield process
    process.kill()
    process.wait()


def first_message(bootstrap: str, topic: str) -> Message:
    """Return what comes first on a topic."""
    clock = SystemClock()
    until_s = clock.monotonic_s() + _LONGEST_S
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    try:
        while clock.monotonic_s() < until_s:
            message = consumer.poll(0.5)
            if message is not None and message.error() is None:
                return message
    finally:
        consumer.close()
    raise AssertionError(f"nothing came on {topic}")


def test_what_fails_goes_to_the_retry_topic_and_the_application_stops_in_order(
    bootstrap: str, names: dict[str, str], application: subprocess.Popen[bytes]
) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(names["TOPIC"], key="k", value="v", headers={"trace": "t"})
    producer.flush(_LONGEST_S)

    retried = first_message(bootstrap, names["RETRY_TOPIC"])
    headers = headers_of(retried)
    assert (retried.key(), retried.value()) == (b"k", b"v")
    assert headers["retry-origin-topic"] == names["TOPIC"].encode()
    assert headers["retry-group"] == names["GROUP"].encode()
    assert headers["retry-exception"].endswith(b"SupplierDown")
    assert headers["trace"] == b"t"

    application.send_signal(signal.SIGTERM)
    assert application.wait(_LONGEST_S) == 0

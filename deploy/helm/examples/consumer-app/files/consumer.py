"""An application with the sidecar: what it cannot handle goes to the retry topic and comes back when it is due.

It fails on purpose, as often as FAIL_PERCENT says. `isolation.level` matters: with read_committed each retry comes
exactly once.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from types import FrameType

from confluent_kafka import Consumer, KafkaException, Message, Producer

from sidecar.client import Delivery, RetryTopic, is_for_group

BOOTSTRAP_SERVERS = os.environ.get("BOOTSTRAP_SERVERS", "localhost:9092")
TOPIC = os.environ.get("TOPIC", "orders")
RETRY_TOPIC = os.environ.get("RETRY_TOPIC", "retry")
GROUP = os.environ.get("GROUP", "shop")
FAIL_PERCENT = float(os.environ.get("FAIL_PERCENT", "20"))


class SupplierDown(Exception):
    """Worth another try."""


def handle(message: Message) -> None:
    """Do the work.

    Raises:
        SupplierDown: It did not succeed.
    """
    if random.uniform(0, 100) < FAIL_PERCENT:
        raise SupplierDown
    print(f"handled {message.topic()}-{message.partition()}@{message.offset()}", flush=True)


def stop_on_failure(delivery: Delivery) -> None:
    """End the process when the retry topic does not take a message: its offset is not committed, it is read again."""
    if delivery.error is not None:
        sys.exit(f"{RETRY_TOPIC} does not take the message: {delivery.error}")


def main() -> None:
    """Handle messages until SIGTERM."""
    running = True

    def end(_number: int, _frame: FrameType | None) -> None:
        nonlocal running
        running = False

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    producer = Producer({"bootstrap.servers": BOOTSTRAP_SERVERS, "enable.idempotence": True})
    retries = RetryTopic(producer, RETRY_TOPIC)
    consumer = Consumer(
        {
            "bootstrap.servers": BOOTSTRAP_SERVERS,
            "group.id": GROUP,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([TOPIC])
    try:
        while running:
            for message in consumer.consume(100, timeout=0.5):
                if message.error() is not None:
                    raise KafkaException(message.error())
                # A retry of another group's failure is on the same topic.
                if not is_for_group(message, GROUP):
                    continue
                try:
                    handle(message)
                except SupplierDown as error:
                    retries.send_back(message, error, group=GROUP, on_delivery=stop_on_failure)
            if producer.flush(30):
                sys.exit(f"{RETRY_TOPIC} was not reached in 30 s")
            if consumer.assignment():
                commit(consumer)
    finally:
        consumer.close()


def commit(consumer: Consumer) -> None:
    """Commit what is handled, or safe on the retry topic."""
    try:
        consumer.commit(asynchronous=False)
    except KafkaException as error:
        if error.args[0].name() != "_NO_OFFSET":
            raise


if __name__ == "__main__":
    main()

"""An application with the sidecar: what it cannot handle goes to the retry topic and comes back when it is due.

It fails on purpose, as often as FAIL_PERCENT says. `isolation.level` matters: with read_committed each retry comes
exactly once.
"""

from __future__ import annotations

import os
import random
import signal
from types import FrameType

from confluent_kafka import Consumer, Message, Producer
from retry_sidecar.confluent import Retrying

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


def main() -> None:
    """Handle messages until SIGTERM. An error of Kafka ends the process; what is not committed is read again."""
    running = True

    def end(_number: int, _frame: FrameType | None) -> None:
        nonlocal running
        running = False

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    producer = Producer({"bootstrap.servers": BOOTSTRAP_SERVERS, "enable.idempotence": True})
    consumer = Consumer(
        {
            "bootstrap.servers": BOOTSTRAP_SERVERS,
            "group.id": GROUP,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    retrying = Retrying(consumer, producer, group=GROUP, topic=RETRY_TOPIC, retry_on=(SupplierDown,))
    take = retrying(handle)
    consumer.subscribe([TOPIC])
    try:
        while running:
            # Commits when all that failed is safe on the retry topic.
            with retrying:
                for message in consumer.consume(100, timeout=0.5):
                    take(message)
    finally:
        consumer.close()


if __name__ == "__main__":
    main()

"""A consumer with confluent-kafka: what fails goes to the retry topic and comes back when it is due."""

import os
import signal

from confluent_kafka import Consumer, Message, Producer
from retry_sidecar import attempt_of
from retry_sidecar.confluent import Retrying

BOOTSTRAP_SERVERS, TOPIC, RETRY_TOPIC, GROUP = (
    os.environ[name] for name in ("BOOTSTRAP_SERVERS", "TOPIC", "RETRY_TOPIC", "GROUP")
)


class SupplierDown(Exception):
    """An error that is worth a retry."""


def handle(message: Message) -> None:
    """Handle an order such as `order-7/2`, whose supplier is down for the first 2 attempts."""
    value = (message.value() or b"").decode()
    attempt = attempt_of(message)
    if attempt < int(value.partition("/")[2]):
        raise SupplierDown(value)
    print(f"handled {value} attempt {attempt}", flush=True)


def main() -> None:
    """Handle messages until SIGTERM. Any error of Kafka ends the process; what is not committed is read again."""
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopping.append(number))
    consumer = Consumer(
        {
            "bootstrap.servers": BOOTSTRAP_SERVERS,
            "group.id": GROUP,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    producer = Producer({"bootstrap.servers": BOOTSTRAP_SERVERS, "enable.idempotence": True})
    # Sends to the retry topic with the consumed topic as origin, and skips other groups' deliveries and repeats.
    retrying = Retrying(consumer, producer, group=GROUP, topic=RETRY_TOPIC, retry_on=(SupplierDown,))
    take = retrying(handle)
    consumer.subscribe([TOPIC])
    try:
        while not stopping:
            with retrying:  # commits when the retry topic has all that failed
                for message in consumer.consume(500, timeout=0.5):
                    take(message)
    finally:
        consumer.close()


main()

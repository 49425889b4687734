"""A consumer with aiokafka: what fails goes to the retry topic and comes back when it is due."""

import asyncio
import os
import signal

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord
from retry_sidecar import attempt_of
from retry_sidecar.aiokafka import AiokafkaRetrying

BOOTSTRAP_SERVERS, TOPIC, RETRY_TOPIC, GROUP = (
    os.environ[name] for name in ("BOOTSTRAP_SERVERS", "TOPIC", "RETRY_TOPIC", "GROUP")
)


class SupplierDown(Exception):
    """An error that is worth a retry."""


async def handle(record: ConsumerRecord[bytes, bytes]) -> None:
    """Handle an order such as `order-7/2`, whose supplier is down for the first 2 attempts."""
    value = (record.value or b"").decode()
    attempt = attempt_of(record)
    if attempt < int(value.partition("/")[2]):
        raise SupplierDown(value)
    print(f"handled {value} attempt {attempt}", flush=True)


async def main() -> None:
    """Handle messages until SIGTERM. Any error of Kafka ends the process; what is not committed is read again."""
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    consumer = AIOKafkaConsumer(
        TOPIC,
        bootstrap_servers=BOOTSTRAP_SERVERS,
        group_id=GROUP,
        isolation_level="read_committed",  # aiokafka's default is read_uncommitted
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    producer = AIOKafkaProducer(bootstrap_servers=BOOTSTRAP_SERVERS, enable_idempotence=True)
    # Sends to the retry topic with the consumed topic as origin, and skips other groups' deliveries and repeats.
    retrying = AiokafkaRetrying(consumer, producer, group=GROUP, topic=RETRY_TOPIC, retry_on=(SupplierDown,))
    take = retrying(handle)
    async with consumer, producer:
        while not stopping.is_set():
            async with retrying:  # commits when the retry topic has all that failed
                for records in (await consumer.getmany(timeout_ms=500, max_records=500)).values():
                    for record in records:
                        await take(record)


asyncio.run(main())

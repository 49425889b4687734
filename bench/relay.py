"""The yardstick: a plain transactional relay with the same client library.

Reads 10,000 messages, writes them with their headers to another topic, commits both in one transaction, and only then
reads on.
"""

from __future__ import annotations

import uuid

from confluent_kafka import Consumer, Producer, TopicPartition

from sidecar.clock import SystemClock

PER_TRANSACTION = 10_000
_CALL_S = 30.0


def relay(bootstrap_servers: str, source: str, target: str, count: int) -> list[tuple[float, int]]:
    """Relay `count` messages; return (epoch ms, messages committed so far) after each transaction."""
    name = f"bench-relay-{uuid.uuid4().hex}"
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": name,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
        }
    )
    producer = Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "transactional.id": name,
            "linger.ms": 5,
            "partitioner": "murmur2_random",
        }
    )
    clock = SystemClock()
    progress: list[tuple[float, int]] = []
    carried = 0
    try:
        producer.init_transactions(_CALL_S)
        consumer.subscribe([source])
        while carried < count:
            offsets: dict[int, int] = {}
            taken = 0
            while taken < PER_TRANSACTION and carried + taken < count:
                for message in consumer.consume(min(PER_TRANSACTION - taken, count - carried - taken), 1.0):
                    if not taken:
                        producer.begin_transaction()
                    producer.produce(target, message.value(), message.key(), headers=message.headers())
                    offsets[message.partition() or 0] = (message.offset() or 0) + 1
                    taken += 1
            positions = [TopicPartition(source, number, offset) for number, offset in offsets.items()]
            producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), _CALL_S)
            producer.commit_transaction(_CALL_S)
            carried += taken
            progress.append((clock.wall_ms(), carried))
    finally:
        consumer.close()
    return progress

"""Messages of the measured size: 512-byte values, three headers, a key."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from sidecar.clock import SystemClock
from sidecar.contract.dead_letter import render_dead_letter
from sidecar.model import Headers, Reason

VALUE_BYTES = 512
PARTITIONS = 4
DAY_MS = 24 * 3_600_000

_VALUES = [random.Random(number).randbytes(VALUE_BYTES) for number in range(64)]
_FLUSH_S = 60.0
_FAILED_MS = 1_770_000_000_000


class Sender:
    """A producer that sends measured messages into one retry topic and fails loudly.

    Args:
        bootstrap_servers: of the broker.
        topic: the retry topic.
        origin: where the messages go when they are due; of several each takes its turn.
        transactional_id: send in one transaction that `commit` ends; until then no reader sees anything.
    """

    def __init__(
        self, bootstrap_servers: str, topic: str, origin: str | Sequence[str], transactional_id: str | None = None
    ) -> None:
        config: dict[str, Any] = {
            "bootstrap.servers": bootstrap_servers,
            "enable.idempotence": True,
            "linger.ms": 5,
            "partitioner": "murmur2_random",
            "delivery.report.only.error": True,
            "on_delivery": self._on_delivery,
            "log_level": 0,
        }
        if transactional_id is not None:
            config["transactional.id"] = transactional_id
        self._producer = Producer(config)
        self._topic = topic
        self._origins = [name.encode() for name in ([origin] if isinstance(origin, str) else origin)]
        self._failure: KafkaError | None = None
        self._sent = 0
        if transactional_id is not None:
            self._producer.init_transactions(_FLUSH_S)
            self._producer.begin_transaction()

    def _on_delivery(self, error: KafkaError | None, _message: Message) -> None:
        self._failure = self._failure or error

    def send(self, dues_ms: Iterable[int]) -> None:
        """Send a message for each due time."""
        origins = self._origins
        for due_ms in dues_ms:
            number = self._sent
            headers: Headers = [
                ("retry-origin-topic", origins[number % len(origins)]),
                ("retry-due-ms", b"%d" % due_ms),
                ("trace-id", b"4bf92f3577b34da6"),
            ]
            self._send(b"%08d" % number, _VALUES[number % len(_VALUES)], headers)
            self._sent += 1
            if not number % 1000:
                self._producer.poll(0)

    def send_dead(self, count: int) -> None:
        """Send dead letters as the sidecar writes them."""
        for number in range(count):
            origin = self._origins[number % len(self._origins)]
            came: Headers = [("retry-origin-topic", origin), ("retry-attempt", b"6"), ("trace-id", b"4bf92f3577b34da6")]
            headers = render_dead_letter(
                came,
                reason=Reason.ATTEMPTS_EXHAUSTED,
                detail="6 of 6 retries are made",
                topic="bench-retry",
                partition=number % PARTITIONS,
                offset=number,
                timestamp_ms=_FAILED_MS,
                connector_name="bench",
                stage="KEY_CONVERTER",
            )
            self._send(b"%08d" % number, _VALUES[number % len(_VALUES)], headers)
            if not number % 1000:
                self._producer.poll(0)

    def _send(self, key: bytes, value: bytes, headers: Headers) -> None:
        given: list[tuple[str, str | bytes | None]] = [*headers]
        while True:
            try:
                self._producer.produce(self._topic, value, key, headers=given)
                return
            except BufferError:
                self._producer.poll(0.1)

    def flush(self) -> None:
        """Return when the broker has everything.

        Raises:
            KafkaException: something was not delivered.
        """
        left = self._producer.flush(_FLUSH_S)
        if self._failure is not None:
            raise KafkaException(self._failure)
        if left:
            raise TimeoutError(f"{left} messages were not delivered within {_FLUSH_S:g} s")

    def commit(self) -> None:
        """Show everything to readers at once."""
        self._producer.commit_transaction(_FLUSH_S)


def send(bootstrap_servers: str, topic: str, origin: str | Sequence[str], dues_ms: Iterable[int]) -> None:
    """Send a message for each due time and return when the broker has them all."""
    sender = Sender(bootstrap_servers, topic, origin)
    sender.send(dues_ms)
    sender.flush()


def over_a_day(count: int, now_ms: int, least_ms: int) -> Iterator[int]:
    """Yield due times at random from `now_ms + least_ms` to a day later, always the same ones after `now_ms`."""
    dice = random.Random(count)
    return (now_ms + dice.randint(least_ms, DAY_MS) for _ in range(count))


def within_a_second(count: int, start_ms: int) -> Iterator[int]:
    """Yield due times evenly over the second that starts at `start_ms`."""
    return (start_ms + number * 1000 // count for number in range(count))


def steady(
    bootstrap_servers: str, topic: str, origin: str, rate: int, seconds: int, delays_ms: tuple[int, int]
) -> None:
    """Send `rate` messages a second for `seconds` seconds, each with a random delay between the two.

    It runs in a separate process, so that the measuring one does not slow it down.
    """
    clock, pause, dice = SystemClock(), threading.Event(), random.Random(rate)
    sender = Sender(bootstrap_servers, topic, origin)
    started_s = clock.monotonic_s()
    sent, total = 0, rate * seconds
    while sent < total:
        allowed = min(total, int((clock.monotonic_s() - started_s) * rate))
        now_ms = clock.wall_ms()
        sender.send(now_ms + dice.randint(*delays_ms) for _ in range(allowed - sent))
        sent = allowed
        pause.wait(0.01)
    sender.flush()

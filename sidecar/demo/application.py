"""An application that uses the sidecar: a shop that handles orders, payments and e-mails, and often fails.

`Shop.run` shows the pattern: a message that fails goes to the retry topic with the class name of its error, and the
consumer continues with the next one. When it is due the sidecar delivers it to its origin topic, where the same loop
consumes it again. Settings of the sidecar say which errors are retriable, fatal and droppable.
"""

from __future__ import annotations

import threading
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer

from sidecar import log
from sidecar.client import Delivery, RetryTopic, is_for_group
from sidecar.contract.dialects import native
from sidecar.demo.plan import INPUT_TOPIC, ORIGINS, PLAN, Kind, Plan
from sidecar.errors import CommandFailed

GROUP: Final = "shop"
_BATCH = 500
_WAIT_S = 0.1
_FLUSH_S = 30.0


class SupplierDown(Exception):
    """A temporary error: worth another try."""


class CardRejected(Exception):
    """A permanent error: the demo's FATAL_EXCEPTION."""


class OrderWithdrawn(Exception):
    """An error of a message that is not needed any more: the demo's DROPPABLE_EXCEPTION."""


class Shop:
    """The application."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.handled = 0
        self.failed = 0
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
                "group.id": GROUP,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                # With it the sidecar's messages come exactly once. The default of Java clients is read_uncommitted.
                "isolation.level": "read_committed",
            },
            logger=log.librdkafka_logger(),
        )
        self._producer = Producer(
            {"bootstrap.servers": bootstrap_servers, "enable.idempotence": True}, logger=log.librdkafka_logger()
        )
        self._retries = RetryTopic(self._producer, INPUT_TOPIC)
        self._undelivered: KafkaError | None = None

    def run(self, stop: threading.Event) -> None:
        """Handle messages until `stop` is set.

        Raises:
            CommandFailed: The consumer failed, or the broker refuses messages for the retry topic.
        """
        self._consumer.subscribe(list(ORIGINS))
        try:
            while not stop.is_set():
                messages = self._consumer.consume(_BATCH, timeout=_WAIT_S)
                for message in messages:
                    self._take(message)
                if messages:
                    # Commit only messages that are handled, or safe on the retry topic.
                    self._confirm()
                    self._consumer.commit(asynchronous=False)
        except KafkaException as error:
            raise CommandFailed(f"the broker failed the application: {error.args[0].str()}") from error
        finally:
            self._consumer.close()

    def _take(self, message: Message) -> None:
        if (error := message.error()) is not None:
            raise KafkaException(error)
        if not is_for_group(message, GROUP):
            return
        try:
            handle(message)
        except (SupplierDown, CardRejected, OrderWithdrawn) as failure:
            self.failed += 1
            self._retries.send_back(
                message, failure, delay_ms=_wanted_delay_ms(message), group=GROUP, on_delivery=self._delivered
            )
            self._producer.poll(0)
        else:
            self.handled += 1

    def _delivered(self, delivery: Delivery) -> None:
        if delivery.error is not None:
            self._undelivered = delivery.error

    def _confirm(self) -> None:
        unsent = self._producer.flush(_FLUSH_S)
        if unsent or self._undelivered is not None:
            why = "no answer in time" if self._undelivered is None else self._undelivered.str()
            raise CommandFailed(f"the application could not send messages to {INPUT_TOPIC}: {why}")


def handle(message: Message) -> None:
    """Handle a message, or fail as its plan says.

    Raises:
        SupplierDown: The plan has a temporary error for this try.
        CardRejected: The plan has a permanent error.
        OrderWithdrawn: The plan has a droppable error.
    """
    plan = plan_of(message)
    if not plan.fails(attempt_of(message)):
        return
    match plan.kind:
        case Kind.FATAL:
            raise CardRejected
        case Kind.DROPPABLE:
            raise OrderWithdrawn
        case _:
            raise SupplierDown


def plan_of(message: Message) -> Plan:
    """Return the plan of a message."""
    return Plan.parse(headers_of(message)[PLAN].decode())


def attempt_of(message: Message) -> int:
    """Return the number of retries made; the sidecar counts them in a header."""
    return int(headers_of(message).get(native.ATTEMPT, b"0"))


def headers_of(message: Message) -> dict[str, bytes]:
    """Return the headers that have a value, by name."""
    headers = message.headers() or []
    pairs = headers.items() if isinstance(headers, dict) else headers
    return {name: value.encode() if isinstance(value, str) else value for name, value in pairs if value is not None}


def _wanted_delay_ms(message: Message) -> int | None:
    return plan_of(message).delay_ms(attempt_of(message))

"""An application that uses the sidecar: a shop that handles orders, payments and e-mails, and often fails.

`Shop.run` shows the pattern: a message that fails goes to the retry topic with the class name of its error, and the
consumer continues with the next one. Offsets are committed when that is confirmed. When the message is due the sidecar
delivers it to its origin topic, where the same loop consumes it again. Settings of the sidecar say which
errors are retriable, fatal and droppable.
"""

from __future__ import annotations

import threading
from typing import Final

from confluent_kafka import Consumer, KafkaException, Message, Producer
from retry_sidecar import Result, RetryNotDelivered, attempt_of
from retry_sidecar.confluent import Retrying

from sidecar import log
from sidecar.demo.plan import INPUT_TOPIC, ORIGINS, PLAN, Kind, Plan
from sidecar.errors import CommandFailed

GROUP: Final = "shop"
_BATCH = 500
_WAIT_S = 0.1


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
        self._retrying = Retrying(
            self._consumer,
            Producer(
                {"bootstrap.servers": bootstrap_servers, "enable.idempotence": True}, logger=log.librdkafka_logger()
            ),
            group=GROUP,
            topic=INPUT_TOPIC,
            retry_on=(SupplierDown, CardRejected, OrderWithdrawn),
            delay_ms=_wanted_delay_ms,
            # The demo's settings name the classes without their module.
            qualified_names=False,
        )

    def run(self, stop: threading.Event) -> None:
        """Handle messages until `stop` is set.

        Raises:
            CommandFailed: The consumer failed, or the broker refuses messages for the retry topic.
        """
        take = self._retrying(handle)
        self._consumer.subscribe(list(ORIGINS))
        try:
            while not stop.is_set():
                with self._retrying:
                    results = [take(message) for message in self._consumer.consume(_BATCH, timeout=_WAIT_S)]
                self.handled += results.count(Result.HANDLED)
                self.failed += results.count(Result.SENT_BACK)
        except KafkaException as error:
            raise CommandFailed(f"the broker failed the application: {error.args[0].str()}") from error
        except RetryNotDelivered as error:
            raise CommandFailed(f"the application failed: {error}") from error
        finally:
            self._consumer.close()


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


def headers_of(message: Message) -> dict[str, bytes]:
    """Return the headers that have a value, by name."""
    headers = message.headers() or []
    pairs = headers.items() if isinstance(headers, dict) else headers
    return {name: value.encode() if isinstance(value, str) else value for name, value in pairs if value is not None}


def _wanted_delay_ms(message: Message, _: BaseException) -> int | None:
    return plan_of(message).delay_ms(attempt_of(message))

"""Looks at the size of the DLQ once in a while, in the background."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final

from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from sidecar.clock import Clock
from sidecar.kafka.admin.offsets import REQUEST_TIMEOUT_S, LogBounds

LOOK_EVERY_S: Final = 60.0


class DlqSize:
    """Asks for the partitions of the DLQ and then for the bounds of their logs; used by one thread.

    Args:
        admin: Of the cluster.
        topic: The DLQ.
        clock: The clock of this machine.
        publish: Called with the topic and the number of offsets in it, transaction markers included. Not called when a
            partition gives no answer: the former figure stays.
    """

    def __init__(self, admin: AdminClient, topic: str, clock: Clock, publish: Callable[[str, int], None]) -> None:
        self._admin = admin
        self._topic = topic
        self._clock = clock
        self._publish = publish
        self._look_at_s = float("-inf")
        self._described: Future[Any] | None = None
        self._bounds: LogBounds | None = None

    def advance(self) -> None:
        """Process an answer, or ask when it is time. Never waits."""
        if self._bounds is not None:
            self._take_bounds(self._bounds)
        elif self._described is not None:
            self._take_partitions(self._described)
        elif (now_s := self._clock.monotonic_s()) >= self._look_at_s:
            self._look_at_s = now_s + LOOK_EVERY_S
            asked = self._admin.describe_topics(TopicCollection([self._topic]), request_timeout=REQUEST_TIMEOUT_S)
            self._described = asked[self._topic]

    def _take_partitions(self, described: Future[Any]) -> None:
        if not described.done():
            return
        self._described = None
        try:
            partitions = len(described.result().partitions)
        except KafkaException:
            return
        self._bounds = LogBounds(self._admin, {self._topic: range(partitions)})

    def _take_bounds(self, asked: LogBounds) -> None:
        if not asked.done():
            return
        self._bounds = None
        bounds = asked.result()
        if not asked.errors:
            self._publish(self._topic, sum(each.end - each.start for each in bounds.values()))

"""Writes the counts and the state of each owned partition to the status topic, and measures the clock by it.

These records are no part of any transaction: at most one a second for a partition, when it changed, or every five.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import structlog
from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaError, KafkaException, Message, Producer

from sidecar.clock import Clock
from sidecar.contract import status
from sidecar.engine.group.view import PartitionView
from sidecar.engine.partition import State
from sidecar.kafka.clock_guard import ClockGuard

log = structlog.get_logger(__name__)

EVERY_S: Final = 5.0
CHANGED_EVERY_S: Final = 1.0
CHANGED_FIELDS: Final = ("state", "pending", "sequence", "restore_remaining", "due_backlog")


class StatusPublisher:
    """Owns the producer of the status topic; used by the loop."""

    def __init__(
        self, config: Mapping[str, Any], topic: str, clock: Clock, guard: ClockGuard, token: str | None = None
    ) -> None:
        """Args:
        token: API_TOKEN; when set, the records are signed with it.
        """
        self._producer = Producer(dict(config))
        self._topic = topic
        self._token = token
        self._clock = clock
        self._guard = guard
        self._published: dict[int, tuple[float, tuple[object, ...]]] = {}
        self.delivered_s = float("-inf")
        """When the broker last took a record (monotonic)."""
        self.trouble = ""
        """What it said when it did not."""

    def advance(self, views: Sequence[PartitionView]) -> None:
        """Publish what is due to be published and serve delivery reports. Never waits."""
        now_s = self._clock.monotonic_s()
        for view in views:
            seen = tuple(getattr(view, name) for name in CHANGED_FIELDS)
            published_s, published = self._published.get(view.partition, (float("-inf"), ()))
            if now_s - published_s >= (EVERY_S if seen == published else CHANGED_EVERY_S):
                self._published[view.partition] = (now_s, seen)
                self._publish(view)
        self._producer.poll(0)

    def _publish(self, view: PartitionView) -> None:
        now_ms = self._clock.wall_ms()
        key, value = status.partition_key(view.partition), view.to_json()
        headers: Any = status.signed(self._token, self._topic, view.partition, key, value, now_ms)
        try:
            self._producer.produce(
                self._topic, value, key, view.partition, headers=headers, on_delivery=partial(self._delivered, now_ms)
            )
        except (BufferError, KafkaException) as cause:
            self.trouble = str(cause)

    def _delivered(self, sent_ms: int, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            if self.trouble != error.str():
                log.warning("status_not_written", topic=self._topic, reason=error.str())
            self.trouble = error.str()
            return
        self.trouble = ""
        self.delivered_s = self._clock.monotonic_s()
        kind, broker_ms = message.timestamp()
        if kind == TIMESTAMP_LOG_APPEND_TIME:
            self._guard.measured(sent_ms=sent_ms, acknowledged_ms=self._clock.wall_ms(), broker_ms=broker_ms)
        else:
            self.trouble = f"{self._topic} has no message.timestamp.type=LogAppendTime, so the clock cannot be measured"

    def forget(self, partition: int) -> None:
        """Publish this partition anew when it is owned again."""
        self._published.pop(partition, None)

    def part_with(self, view: PartitionView) -> None:
        """Publish the last figures of a partition that is given back, so that nobody has to wait for them to age."""
        self.forget(view.partition)
        self._publish(replace(view, state=State.CLOSED, owner="", url=None))

    def close(self, timeout_s: float) -> None:
        """Give what is under way so long."""
        self._producer.flush(timeout_s)

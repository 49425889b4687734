"""Writes the counts and the state of each owned partition to the status topic, and measures the clock with it.

These records are not part of a transaction: each partition has at most one a second when it changed, else one in 5 s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import structlog

from sidecar.clock import Clock
from sidecar.contract import status
from sidecar.engine.group.view import PartitionView
from sidecar.engine.partition import State
from sidecar.errors import KafkaFailed
from sidecar.kafka.clock_guard import ClockGuard
from sidecar.kafka.writer import Written
from sidecar.runtime.ports import Writer
from sidecar.runtime.reporting.starts import OwnStart

log = structlog.get_logger(__name__)

EVERY_S: Final = 5.0
CHANGED_EVERY_S: Final = 1.0
CHANGED_FIELDS: Final = ("state", "pending", "sequence", "restore_remaining", "due_backlog")


class StatusPublisher:
    """Owns the writer of the status topic; used by the loop.

    Args:
        writer: Its reports must not wait, as they measure the clock.
        topic: The status topic.
        clock: This machine's.
        guard: Told each measurement.
        token: API_TOKEN; when set, the records are signed with it.
        start: The start of this process, which is published once.
    """

    def __init__(
        self,
        writer: Writer,
        topic: str,
        clock: Clock,
        guard: ClockGuard,
        token: str | None = None,
        *,
        start: OwnStart,
    ) -> None:
        self._writer = writer
        self._topic = topic
        self._token = token
        self._clock = clock
        self._guard = guard
        self._start = start
        self._start_asked_s = float("-inf")
        self._published: dict[int, tuple[float, tuple[object, ...]]] = {}
        self.delivered_s = float("-inf")
        """When the broker last accepted a record (monotonic)."""
        self.error = ""
        """Why the last record was not accepted; empty when it was."""

    def advance(self, views: Sequence[PartitionView]) -> None:
        """Publish the views that are due and serve delivery reports. Never waits."""
        now_s = self._clock.monotonic_s()
        if not self._start.is_written and now_s - self._start_asked_s >= EVERY_S:
            self._start_asked_s = now_s
            self._write(status.START_PARTITION, self._start.key, self._start.value)
        for view in views:
            seen = tuple(getattr(view, name) for name in CHANGED_FIELDS)
            published_s, published = self._published.get(view.partition, (float("-inf"), ()))
            if now_s - published_s >= (EVERY_S if seen == published else CHANGED_EVERY_S):
                self._published[view.partition] = (now_s, seen)
                self._publish(view)
        self._writer.poll(0)

    def _publish(self, view: PartitionView) -> None:
        self._write(view.partition, status.partition_key(view.partition), view.to_json())

    def _write(self, partition: int, key: bytes, value: bytes) -> None:
        now_ms = self._clock.wall_ms()
        headers = status.signed(self._token, self._topic, partition, key, value, now_ms)
        try:
            report = partial(self._reported, now_ms, key)
            self._writer.write(self._topic, key, value, partition=partition, headers=headers, report=report)
        except (BufferError, KafkaFailed) as cause:
            self.error = str(cause)

    def _reported(self, sent_ms: int, key: bytes, written: Written | KafkaFailed) -> None:
        if isinstance(written, KafkaFailed):
            if self.error != str(written):
                log.warning("status_not_written", topic=self._topic, reason=str(written))
            self.error = str(written)
            return
        self.error = ""
        self.delivered_s = self._clock.monotonic_s()
        if key == self._start.key:
            self._start.written(written)
        if written.broker_ms is not None:
            acknowledged_ms = self._clock.wall_ms()
            self._guard.measured(sent_ms=sent_ms, acknowledged_ms=acknowledged_ms, broker_ms=written.broker_ms)
        else:
            self.error = f"{self._topic} has no message.timestamp.type=LogAppendTime, so the clock cannot be measured"

    def clear(self, partition: int) -> None:
        """Forget when this partition was published, so that it is published at once when owned again."""
        self._published.pop(partition, None)

    def publish_release(self, view: PartitionView) -> None:
        """Publish the last view of a partition that is released, so that others need not wait for it to expire."""
        self.clear(view.partition)
        self._publish(replace(view, state=State.CLOSED, owner="", url=None))

    def close(self, timeout_s: float) -> None:
        """Wait at most `timeout_s` for records in flight."""
        self._writer.flush(timeout_s)

"""Compares the driver's clock, which says what is due, with the broker's."""

from __future__ import annotations

from typing import Final

import structlog
from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaError, Message, Producer

from sidecar import log
from sidecar.clock import Clock, SystemClock
from sidecar.contract.status import DRIVER_CLOCK_KEY
from sidecar.kafka import config
from sidecar.kafka.clock_guard import ClockGuard
from sidecar.settings import Settings

logger = structlog.get_logger(__name__)

EVERY_S: Final = 10.0
ANSWER_S: Final = 5.0


class ClockCheck:
    """Says when nothing may fire because the clock cannot be trusted."""

    def __init__(self, settings: Settings, clock: Clock | None = None) -> None:
        self._topic = settings.status_topic
        self._clock = clock or SystemClock()
        self._guard = ClockGuard(self._clock, settings.max_clock_skew_ms)
        self._producer = Producer({**config.status_producer(settings), "logger": log.librdkafka_logger()})
        self._measured_s = float("-inf")

    def blocker(self) -> str | None:
        """Return why nothing may fire, None when the clock is good; measures when it is time to."""
        if self._clock.monotonic_s() - self._measured_s >= EVERY_S:
            self._measure()
        return self._guard.obstacle()

    def _measure(self) -> None:
        self._measured_s = self._clock.monotonic_s()
        self._sent_ms = self._clock.wall_ms()
        self._producer.produce(self._topic, b"", DRIVER_CLOCK_KEY, 0, on_delivery=self._delivered)
        self._producer.flush(ANSWER_S)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            logger.warning("clock_not_measured", reason=error.str())
            return
        kind, broker_ms = message.timestamp()
        if kind == TIMESTAMP_LOG_APPEND_TIME:
            now_ms = self._clock.wall_ms()
            self._guard.measured(sent_ms=self._sent_ms, acknowledged_ms=now_ms, broker_ms=broker_ms)

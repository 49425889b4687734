"""Compares the driver's clock, which decides what is due, with the broker's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog

from sidecar import log
from sidecar.clock import Clock, SystemClock
from sidecar.contract.status import DRIVER_CLOCK_KEY
from sidecar.errors import KafkaFailed
from sidecar.kafka import config
from sidecar.kafka.clock_guard import ClockGuard
from sidecar.kafka.writer import Writer, Written
from sidecar.settings import Settings

logger = structlog.get_logger(__name__)

EVERY_S: Final = 10.0
ANSWER_S: Final = 5.0


class ClockCheck:
    """Blocks deliveries while the driver's clock is too far from the broker's.

    Args:
        settings: The effective settings.
        clock: The clock of this machine.
        skewed: Called with the driver's clock minus the broker's, in seconds, after each measurement.
    """

    def __init__(
        self, settings: Settings, clock: Clock | None = None, skewed: Callable[[float], None] = lambda _: None
    ) -> None:
        self._skewed = skewed
        self._topic = settings.status_topic
        self._clock = clock or SystemClock()
        self._guard = ClockGuard(self._clock, settings.max_clock_skew_ms)
        self._writer = Writer({**config.status_producer(settings), "logger": log.librdkafka_logger()})
        self._measured_s = float("-inf")

    def blocker(self) -> str | None:
        """Return why nothing may fire, None when the clock is right; measure first if the last measurement is old."""
        if self._clock.monotonic_s() - self._measured_s >= EVERY_S:
            self._measure()
        return self._guard.blocker()

    def _measure(self) -> None:
        self._measured_s = self._clock.monotonic_s()
        self._sent_ms = self._clock.wall_ms()
        self._writer.write(self._topic, DRIVER_CLOCK_KEY, b"", partition=0, report=self._reported)
        self._writer.flush(ANSWER_S)

    def _reported(self, written: Written | KafkaFailed) -> None:
        if isinstance(written, KafkaFailed):
            logger.warning("clock_not_measured", reason=str(written))
        elif written.broker_ms is not None:
            acknowledged_ms = self._clock.wall_ms()
            self._guard.measured(sent_ms=self._sent_ms, acknowledged_ms=acknowledged_ms, broker_ms=written.broker_ms)
            if self._guard.skew_ms is not None:
                self._skewed(self._guard.skew_ms / 1000)

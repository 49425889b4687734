"""Compares the clock of this machine with the broker's, which judges what is due.

The broker stamps a record of the status topic between its sending and its acknowledgement. So the driver learns how far
its clock is off, and an executor learns an instant that the broker's clock has passed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

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
MEASUREMENTS: Final = 6
"""The last measurements, of which the one that was acknowledged fastest tells most."""
DRIFT: Final = 1 / 1000
"""The most by which two clocks can go at a different speed: each is slewed by 500 ppm at most."""


class _Stamp(NamedTuple):
    broker_ms: int
    acknowledged_s: float
    """The monotonic time at which the broker's clock had passed it for certain."""


class ClockCheck:
    """Measures the broker's clock when it is asked and the last measurement is old.

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
        self._stamps: deque[_Stamp] = deque(maxlen=MEASUREMENTS)

    def blocker(self) -> str | None:
        """Return why nothing may fire, None when the clock of this machine is right."""
        self._measure_if_old()
        return self._guard.blocker()

    def passed_ms(self) -> int:
        """Return an instant that the broker's clock has passed, 0 when it was never measured.

        It depends on the monotonic clock of this machine alone, and is behind the broker's clock by the time that an
        acknowledgement takes.
        """
        self._measure_if_old()
        now_s = self._clock.monotonic_s()
        since = ((each.broker_ms, (now_s - each.acknowledged_s) * 1000) for each in self._stamps)
        return max((broker_ms + int(gone_ms * (1 - DRIFT)) for broker_ms, gone_ms in since), default=0)

    def _measure_if_old(self) -> None:
        if self._clock.monotonic_s() - self._measured_s < EVERY_S:
            return
        self._measured_s = self._clock.monotonic_s()
        self._sent_ms = self._clock.wall_ms()
        self._writer.write(self._topic, DRIVER_CLOCK_KEY, b"", partition=0, report=self._reported)
        self._writer.flush(ANSWER_S)

    def _reported(self, written: Written | KafkaFailed) -> None:
        if isinstance(written, KafkaFailed):
            logger.warning("clock_not_measured", reason=str(written))
        elif written.broker_ms is not None:
            acknowledged_ms = self._clock.wall_ms()
            self._stamps.append(_Stamp(written.broker_ms, self._clock.monotonic_s()))
            self._guard.measured(sent_ms=self._sent_ms, acknowledged_ms=acknowledged_ms, broker_ms=written.broker_ms)
            if self._guard.skew_ms is not None:
                self._skewed(self._guard.skew_ms / 1000)

"""Sends the demo's messages: well-formed ones to their origin topics, malformed ones straight to the retry topic."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from sidecar.clock import SystemClock
from sidecar.demo.plan import DemoMessage
from sidecar.errors import CommandFailed, KafkaFailed
from sidecar.kafka.writer import Writer, Written

_STEP_S = 0.05
_FLUSH_S = 30.0


class Sender:
    """Sends all messages, evenly over a span of time."""

    def __init__(self, writer: Writer, messages: Sequence[DemoMessage], seconds: float) -> None:
        self.sent = 0
        self._writer = writer
        self._messages = messages
        self._seconds = seconds
        self._undelivered: KafkaFailed | None = None

    def run(self, stop: threading.Event) -> None:
        """Send until all is sent or `stop` is set.

        Raises:
            CommandFailed: The broker did not accept all messages.
        """
        clock = SystemClock()
        start_s = clock.monotonic_s()
        total = len(self._messages)
        while self.sent < total and not stop.wait(_STEP_S):
            share = 1.0 if self._seconds <= 0 else min(1.0, (clock.monotonic_s() - start_s) / self._seconds)
            for message in self._messages[self.sent : round(total * share)]:
                self._send(message)
        outputs = self._writer.flush(_FLUSH_S)
        if outputs or self._undelivered is not None:
            why = self._undelivered or "no answer in time"
            raise CommandFailed(f"not all messages of the demo could be sent: {why}")

    def _send(self, message: DemoMessage) -> None:
        while True:
            try:
                self._writer.write(
                    message.topic, message.key, message.value, headers=message.headers, report=self._reported
                )
            except BufferError:
                self._writer.poll(_STEP_S)
                continue
            self._writer.poll(0)
            self.sent += 1
            return

    def _reported(self, written: Written | KafkaFailed) -> None:
        if isinstance(written, KafkaFailed):
            self._undelivered = written

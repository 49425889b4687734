"""Sends the demo's messages: well-formed ones to their origin topics, malformed ones straight to the retry topic."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from confluent_kafka import KafkaError, Message, Producer

from sidecar.clock import SystemClock
from sidecar.demo.plan import DemoMessage
from sidecar.errors import CommandFailed

_STEP_S = 0.05
_FLUSH_S = 30.0


class Sender:
    """Sends all messages, evenly over a span of time."""

    def __init__(self, producer: Producer, messages: Sequence[DemoMessage], seconds: float) -> None:
        self.sent = 0
        self._producer = producer
        self._messages = messages
        self._seconds = seconds
        self._undelivered: KafkaError | None = None

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
        outputs = self._producer.flush(_FLUSH_S)
        if outputs or self._undelivered is not None:
            why = "no answer in time" if self._undelivered is None else self._undelivered.str()
            raise CommandFailed(f"not all messages of the demo could be sent: {why}")

    def _send(self, message: DemoMessage) -> None:
        while True:
            try:
                self._producer.produce(
                    message.topic, message.value, message.key, headers=[*message.headers], on_delivery=self._delivered
                )
            except BufferError:
                self._producer.poll(_STEP_S)
                continue
            self._producer.poll(0)
            self.sent += 1
            return

    def _delivered(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            self._undelivered = error

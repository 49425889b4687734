"""Sends many control records at once; one reader collects their outcomes as they arrive.

with ControlStream(settings, ControlKind.CANCEL) as stream:
    stream.open(deadline_s=15)
    stream.put(timer)
    for answer in stream.answers(0.1): ...
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from sidecar.clock import Clock
from sidecar.contract.control import ControlKind, Outcome, render_control, sign_control
from sidecar.contract.status import OutcomeRecord
from sidecar.control.client import ControlClient
from sidecar.control.outcomes import OutcomeReader
from sidecar.errors import KafkaFailed
from sidecar.kafka.admin.cluster import Deadline
from sidecar.kafka.writer import Written
from sidecar.model import TimerId
from sidecar.settings import Settings

IN_FLIGHT_MAX: Final = 1_000


class TimerOutcome(NamedTuple):
    """The outcome of a control record for one timer."""

    timer: TimerId
    outcome: Outcome
    detail: str


class ControlStream(ControlClient):
    """Sends control records for timers without waiting for each; used by one thread.

    Args:
        settings: Names the topics, the brokers and the token that records are signed with.
        kind: What to do with each timer.
        due_ms: The new due time, for a reschedule.
        clock: Stamps signatures and control ids.
    """

    in_flight_max = IN_FLIGHT_MAX

    def __init__(
        self, settings: Settings, kind: ControlKind, due_ms: int | None = None, clock: Clock | None = None
    ) -> None:
        super().__init__(settings, clock)
        self._kind = kind
        self._due_ms = due_ms
        self._reader = OutcomeReader(settings)
        self._waiting: dict[str, TimerId] = {}
        self._error: KafkaFailed | None = None

    @property
    def in_flight(self) -> Sequence[TimerId]:
        """Timers whose record was sent and has no outcome yet."""
        return list(self._waiting.values())

    def open(self, *, deadline_s: float) -> None:
        """Start to read outcomes; call before the first `put`.

        Raises:
            BrokerUnavailable: No answer in time.
            CommandFailed: The status topic does not exist, or cannot be read.
        """
        topic, deadline = self._settings.status_topic, Deadline(deadline_s, self._clock)
        ends = self._status_offsets(range(self._partitions(topic, deadline)), deadline)
        self._reader.start(ends)

    def put(self, timer: TimerId) -> None:
        """Send a control record to the partition of the timer; returns at once.

        Raises:
            ValueError: It would be refused; the text says why.
            CommandFailed: The cluster refuses the record.
        """
        topic, token, control_id = self._settings.input_topic, self._settings.api_token, self._new_id()
        headers = render_control(self._kind, timer, control_id, self._due_ms)
        if token is not None:
            headers = [*headers, sign_control(headers, token, topic, timer.partition, self._clock.wall_ms())]
        try:
            self._writer.write(topic, None, None, partition=timer.partition, headers=headers, report=self._reported)
        except KafkaFailed as error:
            raise self._failed(error, f"topic {topic}") from error
        self._waiting[control_id] = timer

    def answers(self, timeout_s: float) -> list[TimerOutcome]:
        """Return the available outcomes, after waiting for the first one.

        Raises:
            CommandFailed: Records were refused, or the status topic cannot be read.
        """
        self._writer.poll(0)
        if self._error is not None:
            raise self._failed(self._error, f"topic {self._settings.input_topic}")
        found = []
        for control_id, _, read in self._reader.read(timeout_s):
            if control_id not in self._waiting:
                continue
            record = OutcomeRecord.from_json(read.value)
            if record is not None and self._reader.is_signed(read):
                found.append(TimerOutcome(self._waiting.pop(control_id), record.outcome, record.detail))
        return found

    def close(self) -> None:
        """Close the clients, after a moment for records that are not sent yet."""
        super().close()
        self._reader.close()

    def _reported(self, written: Written | KafkaFailed) -> None:
        if isinstance(written, KafkaFailed):
            self._error = written

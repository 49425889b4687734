"""Explains to people why this instance is not ready."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog

from sidecar.clock import Clock
from sidecar.engine.partition import State
from sidecar.kafka.clock_guard import ClockGuard
from sidecar.runtime.assignment import Assignment
from sidecar.runtime.jobs import Jobs
from sidecar.runtime.ports import Consumer, Status
from sidecar.runtime.ports import State as LocalState
from sidecar.runtime.transaction.failures import Failures

log = structlog.get_logger(__name__)

BROKER_ERROR_EVERY_S: Final = 10.0


class Readiness:
    """Collects the reasons."""

    def __init__(
        self,
        clock: Clock,
        guard: ClockGuard,
        state: LocalState,
        status: Status,
        consumer: Consumer,
        assignment: Assignment,
        failures: Failures,
        jobs: Jobs,
        *,
        login_blocker: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._clock = clock
        self._guard = guard
        self._state = state
        self._status = status
        self._consumer = consumer
        self._assignment = assignment
        self._failures = failures
        self._jobs = jobs
        self._login_blocker = login_blocker
        self._broker_error = ""
        self._broker_error_s = self._logged_s = float("-inf")

    def broker_error(self, text: str) -> None:
        """Note a transient error of the client library; a new one is logged, at a limited rate."""
        now_s = self._clock.monotonic_s()
        if text != self._broker_error and now_s - self._logged_s >= BROKER_ERROR_EVERY_S:
            log.warning("broker_trouble", reason=text)
            self._logged_s = now_s
        self._broker_error = text
        self._broker_error_s = now_s

    def blockers(self) -> list[str]:
        """Return why no transaction may begin now."""
        return [each for each in (self._guard.blocker(), self._state.blocker()) if each]

    def reasons(self) -> list[str]:
        """Return why the instance is not ready; an empty list when it is."""
        reasons = self.blockers()
        reasons.extend(filter(None, (self._login_blocker(), self._failures.blocker(), self._jobs.blocker())))
        if self._broker_error_s > max(self._status.delivered_s, self._failures.committed_s):
            reasons.append(f"no broker answers: {self._broker_error}")
        if not self._jobs.has_producer:
            reasons.append("the transactional producer is not ready yet")
        if self._consumer.membership() is None:
            why = self._consumer.refusal
            reasons.append("it has not joined the consumer group yet" + (f": {why}" if why else ""))
        for each in self._assignment.partitions.values():
            if each.state is not State.RUNNING:
                reasons.append(f"partition {each.number} is {each.state}" + (f": {each.reason}" if each.reason else ""))
        return reasons

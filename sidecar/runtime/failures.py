"""What failed transactions teach: whom to leave out, when to try again, when to give up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import structlog

from sidecar.clock import Clock
from sidecar.engine.plan import Plan
from sidecar.errors import TransactionFailed
from sidecar.kafka.fences import Fences
from sidecar.kafka.producer import Refused, guilty_of
from sidecar.runtime.commit import Result
from sidecar.runtime.origins import ClosedOrigins

log = structlog.get_logger(__name__)

BACK_OFF_FIRST_S: Final = 0.05
BACK_OFF_MAX_S: Final = 5.0
ITEMS_MAX: Final = 10_000
INIT_TIMEOUT_S: Final = 10.0
DLQ_AGAIN_S: Final = 5.0
TRACE_S: Final = 30.0
TRACED_FIRES_MAX: Final = 1_000


class Failures:
    """Owned by the loop."""

    init_timeout_s: float = INIT_TIMEOUT_S

    def __init__(self, clock: Clock, fences: Fences) -> None:
        self._clock = clock
        self._fences = fences
        self._in_a_row = 0
        self._wait_until_s = float("-inf")
        self._said = ""
        self._dlq_trouble = ""
        self._dlq_again_s = float("-inf")
        self.unfireable: dict[tuple[int, bytes], str] = {}
        """Timers whose fire the broker refused, with its words; they go to the DLQ."""
        self.items_max = ITEMS_MAX
        """Most messages in, and most fires, in one transaction; halved to find out which record is refused."""
        self.committed_s = float("-inf")
        self._failed_s = float("-inf")

    def waiting(self) -> bool:
        """Return whether it is too early to try again."""
        return self._clock.monotonic_s() < self._wait_until_s

    def obstacle(self) -> str | None:
        """Return what to tell people while transactions fail, None when they do not."""
        return self._dlq_trouble or (self._said if self._in_a_row > 2 else None) or None

    def back_off(self, text: str) -> None:
        """Wait before the next try, longer each time."""
        self._said = text
        wait_s = min(BACK_OFF_FIRST_S * 2**self._in_a_row, BACK_OFF_MAX_S)
        self._in_a_row = min(self._in_a_row + 1, 30)  # a night without a broker must not overflow the line above
        self._wait_until_s = self._clock.monotonic_s() + wait_s

    def tracing(self, fires: int) -> bool:
        """Return whether to ask for every delivery report, to learn which record it is that fails; few cost nothing."""
        return fires < TRACED_FIRES_MAX or self._clock.monotonic_s() - self._failed_s < TRACE_S

    def dlq_open(self) -> bool:
        """Return whether dead letters may be tried: else messages stay in the input topic, and due timers wait."""
        return not self._dlq_trouble or self._clock.monotonic_s() >= self._dlq_again_s

    def committed(self, dead_letters: int, taken_in: int) -> None:
        """A transaction went through.

        Args:
            dead_letters: How many it wrote.
            taken_in: How many messages it took in: the first of them was what the DLQ had refused, or that was not
                this one's to write any more.
        """
        self._in_a_row = 0
        self._said = ""
        if dead_letters or taken_in:
            self._dlq_trouble = ""
        self.unfireable = {}
        self.items_max = min(ITEMS_MAX, self.items_max * 2)
        self.committed_s = self._clock.monotonic_s()

    def renewed(self) -> None:
        """There is a new producer."""
        log.info("producer_ready")

    def renewal_failed(self, error: TransactionFailed) -> None:
        """No new producer could be had."""
        log.warning("producer_not_ready", reason=str(error))
        self.back_off(f"the transactional producer can not be had: {error}")

    def outcome(self, error: TransactionFailed) -> str:
        """Return the label of the metric."""
        return "fenced" if error.fenced else "unknown" if error.unknown else "aborted"

    def failed(self, error: TransactionFailed, result: Result, closed: ClosedOrigins, dlq_topic: str) -> bool:
        """Learn from a transaction that was not committed; return whether the producer must be replaced.

        Raises:
            Twin: another process keeps fencing this one.
        """
        log.warning("transaction_failed", reason=str(error), outcome=self.outcome(error), refused=len(result.refused))
        if error.fenced:
            self._fences.producer_fenced(result.seconds)
        now_s = self._clock.monotonic_s()
        plan = result.work.plan
        written = plan.fires + sum(len(part.dead_letters) for part in plan.parts)
        self._failed_s = now_s
        to_dlq = [each for each in result.refused if each.outgoing.topic == dlq_topic]
        refused = [each for each in result.refused if each.outgoing.topic != dlq_topic]
        if to_dlq:
            self._dlq_trouble = f"the DLQ {to_dlq[0].outgoing.topic} can not be written: {to_dlq[0].text}"
            self._dlq_again_s = now_s + DLQ_AGAIN_S
        if not result.refused:
            self._doubt(plan, closed, dlq_topic, now_s)
        own_fault = closed.refused(refused, len(refused) == written, self._clock.wall_ms(), now_s)
        if own_fault:
            self._suspect(own_fault, result.spared)
        if result.refused:
            self._in_a_row = 0  # something was learnt, so the next try differs
        self.back_off(str(error))
        # After an error of the broker on a record the next transaction of this producer would fail out of order.
        return error.replace or error.unknown or bool(result.refused)

    def _doubt(self, plan: Plan, closed: ClosedOrigins, dlq_topic: str, now_s: float) -> None:
        """Look for a missing right: it fails the transaction as a whole, and no record is named."""
        dead_letters = any(part.dead_letters for part in plan.parts)
        topics = {topic for part in plan.parts for topic in part.fired}
        closed.doubt({*topics, dlq_topic} if dead_letters else topics)
        if dead_letters and closed.denied(dlq_topic):
            self._dlq_trouble = f"the DLQ {dlq_topic} can not be written: this user has no right to"
            self._dlq_again_s = now_s + DLQ_AGAIN_S

    def _suspect(self, refused: list[Refused], spared: Mapping[tuple[str, int], int]) -> None:
        """Find the guilty: those that the broker names, or one that is alone; of several, fewer are tried next."""
        guilty = guilty_of(refused, spared)
        if not guilty and len({(each.partition, each.outgoing.source) for each in refused}) == 1:
            guilty = refused[:1]
        for each in guilty:
            self.unfireable[each.partition, each.outgoing.source] = each.text
        if not guilty:
            self.items_max = max(1, min(len(refused), self.items_max) // 2)

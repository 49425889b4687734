"""Learns from failed transactions: which records to leave out, when to retry, when to give up."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final, NamedTuple

import structlog

from sidecar.clock import Clock
from sidecar.contract.sizes import content_bytes
from sidecar.engine.transaction import Plan
from sidecar.errors import TransactionFailed
from sidecar.kafka.fences import Fences
from sidecar.kafka.producer import Refusal, Refused, rejected_of
from sidecar.model import Reason
from sidecar.runtime.origins import ClosedOrigins
from sidecar.runtime.transaction.commit import Result
from sidecar.runtime.transaction.oversize import SINGLY_ITEMS_MAX, Oversize
from sidecar.runtime.transaction.pace import ITEMS_MAX, Pace, largest_record

log = structlog.get_logger(__name__)

BACK_OFF_FIRST_S: Final = 0.05
BACK_OFF_MAX_S: Final = 5.0
INIT_TIMEOUT_S: Final = 10.0
DLQ_AGAIN_S: Final = 5.0
DLQ_AGAIN_MAX_S: Final = 60.0
SILENT_BYTES_MAX: Final = 64 * 1024
"""At most this many bytes, or a single record, not accepted in time: a slow link is not the cause."""
STOOD_STILL_S: Final = 5.5
"""A round of the loop that takes longer than any of its waits: the process was suspended. What timed out meanwhile
was not tried."""
TRACE_S: Final = 30.0
TRACED_DELIVERIES_MAX: Final = 1_000


class _ClosedDlq(NamedTuple):
    """A DLQ that could not be written."""

    error: str
    again_s: float
    """When it is tried again."""
    wait_s: float


class Failures:
    """What was learnt from failures; owned by the loop."""

    init_timeout_s: float = INIT_TIMEOUT_S

    def __init__(self, clock: Clock, fences: Fences) -> None:
        self._clock = clock
        self._fences = fences
        self._in_a_row = 0
        self._wait_until_s = float("-inf")
        self._said = ""
        self._closed_dlqs: dict[str, _ClosedDlq] = {}
        """By topic, the DLQs that could not be written."""
        self.unfireable: dict[tuple[int, bytes], tuple[Reason, str]] = {}
        """Timers whose delivery the broker refused, with its error text; they go to the DLQ."""
        self.pace = Pace()
        self.oversize = Oversize()
        self._suspects_max = ITEMS_MAX
        """Halved until the refused record is found."""
        self.committed_s = float("-inf")
        self._failed_s = float("-inf")
        self._round_s = clock.monotonic_s()
        self._stood_still_s = float("-inf")
        """When the process last went on after it was suspended."""

    @property
    def items_max(self) -> int:
        """Most ingested messages, and most deliveries, in one transaction."""
        return min(self._suspects_max, self.pace.items_max, SINGLY_ITEMS_MAX if self.oversize.singly else ITEMS_MAX)

    @property
    def suspects_one(self) -> bool:
        """Whether a transaction has one message to find out which of them is refused: mostly it is a delivery."""
        return self._suspects_max == 1

    def next_round(self) -> None:
        """Note that the loop goes round again."""
        now_s = self._clock.monotonic_s()
        if now_s - self._round_s > STOOD_STILL_S:
            self._stood_still_s = now_s
        self._round_s = now_s

    def waiting(self) -> bool:
        """Return whether it is too early to retry."""
        return self._clock.monotonic_s() < self._wait_until_s

    def blocker(self) -> str | None:
        """Return a reason for people while transactions fail, None otherwise."""
        return (
            next((each.error for each in self._closed_dlqs.values()), None)
            or (self._said if self._in_a_row > 2 else None)
            or None
        )

    def back_off(self, text: str) -> None:
        """Wait before the next attempt, longer each time."""
        self._said = text
        wait_s = min(BACK_OFF_FIRST_S * 2**self._in_a_row, BACK_OFF_MAX_S)
        self._in_a_row = min(self._in_a_row + 1, 30)  # a night without a broker must not overflow the line above
        self._wait_until_s = self._clock.monotonic_s() + wait_s

    def tracing(self, deliveries: int) -> bool:
        """Return whether to request all delivery reports, to learn which record fails; a few cost nothing."""
        return deliveries < TRACED_DELIVERIES_MAX or self._clock.monotonic_s() - self._failed_s < TRACE_S

    def dlq_open(self, topic: str) -> bool:
        """Return whether a DLQ may be tried; if not, dead letters wait, and so does the ingest of their partition."""
        closed = self._closed_dlqs.get(topic)
        return closed is None or self._clock.monotonic_s() >= closed.again_s

    @property
    def closed_dlqs(self) -> Collection[str]:
        """The DLQs that could not be written when they were tried last."""
        return self._closed_dlqs.keys()

    def postpone_dlq(self, topic: str) -> None:
        """Try a closed DLQ some seconds later: it is not there yet."""
        again_s = self._clock.monotonic_s() + DLQ_AGAIN_S
        self._closed_dlqs[topic] = self._closed_dlqs[topic]._replace(again_s=again_s)

    def committed(self, result: Result, *, more: bool) -> None:
        """Reset what was learnt after a commit.

        Args:
            result: Result of the transaction.
            more: Messages or due timers are left for the next transaction.
        """
        self._in_a_row = 0
        self._said = ""
        parts = result.work.plan.partition_plans
        ingested = any(partition_plan.ingested for partition_plan in parts)
        written = {outgoing.topic for partition_plan in parts for _, outgoing in partition_plan.dead_letters}
        # If the transaction was to try a DLQ again and had no dead letter for it, another instance owns the refused one
        # now.
        tried = written | (self._closed_dlqs.keys() - result.work.closed_dlqs if ingested else set())
        self._closed_dlqs = {topic: closed for topic, closed in self._closed_dlqs.items() if topic not in tried}
        # A timer that cannot be stored waits for the DLQ: a commit without it says nothing about it.
        self.clear({partition_plan.number for partition_plan in parts}, unstorable=not self._closed_dlqs)
        self.oversize.singly = False
        self._suspects_max = min(ITEMS_MAX, self._suspects_max * 2)
        size = largest_record(result.work.plan) if self.pace.slow_bytes else 0
        self.pace.committed(result.seconds, result.work.items, size, more=more)
        self.committed_s = self._clock.monotonic_s()

    def clear(self, partitions: Collection[int], *, unstorable: bool = True) -> None:
        """Forget what was learnt about records of these partitions: they are gone, or belong to another owner."""
        self.unfireable = {place: why for place, why in self.unfireable.items() if place[0] not in partitions}
        self.oversize.clear(partitions, unstorable=unstorable)

    def renewed(self) -> None:
        """Log that a new producer is ready."""
        log.info("producer_ready")

    def renewal_failed(self, error: TransactionFailed) -> None:
        """Back off after no new producer could be created."""
        self._fences.init_failed()
        log.warning("producer_not_ready", reason=str(error))
        self.back_off(f"the transactional producer cannot be created: {error}")

    def outcome(self, error: TransactionFailed) -> str:
        """Return the label of the metric."""
        return "fenced" if error.fenced else "unknown" if error.unknown else "aborted"

    def failed(
        self,
        error: TransactionFailed,
        result: Result,
        closed: ClosedOrigins,
        dlq_topics: Collection[str],
        limit_of: Callable[[str], int],
    ) -> bool:
        """Learn from a transaction that was not committed; return whether the producer must be replaced.

        Args:
            error: Why it failed.
            result: Result of the transaction.
            closed: Closes the origins that the failure concerns.
            dlq_topics: Every DLQ.
            limit_of: Returns the known size limit of a topic.

        Raises:
            DuplicateInstance: Another process keeps fencing this one.
        """
        log.warning("transaction_failed", reason=str(error), outcome=self.outcome(error), refused=len(result.refused))
        if error.fenced:
            self._fences.producer_fenced(result.seconds)
        now_s = self._clock.monotonic_s()
        plan = result.work.plan
        self._failed_s = now_s
        self.pace.failed(result.seconds, result.work.items, largest_record(plan), unknown=error.unknown)
        too_large, hopeless = self.oversize.learn(result, dlq_topics, limit_of)
        for each in too_large:
            topic, key, value, headers = each.outgoing.topic, *each.outgoing[2:5]
            size = content_bytes(key, value, headers)
            detail = (
                f"{size} bytes, and more than {limit_of(topic)} when compressed: {topic} takes no more ({each.text})"
            )
            self.unfireable[each.partition, each.outgoing.source] = Reason.TOO_LARGE, detail
        closed.recheck({each.outgoing.topic for each in result.refused if each.why is Refusal.LARGE})
        closed.recheck({each.topic for each in result.unwritten})
        untried = _is_nothing_written(result) or self._stood_still_s >= now_s - result.seconds
        others = [
            each
            for each in result.refused
            if each.why is not Refusal.LARGE and not (untried and each.why is Refusal.SILENT)
        ]
        to_dlq = [each for each in others if each.outgoing.topic in dlq_topics] + hopeless
        for topic, text in {each.outgoing.topic: each.text for each in reversed(to_dlq)}.items():
            self._close_dlq(topic, f"the DLQ {topic} cannot be written: {text}", now_s)
            closed.recheck({topic})
        if not result.refused:
            self._recheck(plan, closed, now_s)
        self._judge([each for each in others if each.outgoing.topic not in dlq_topics], result, closed, now_s)
        if result.refused:
            self._in_a_row = 0  # something was learnt, so the next attempt differs
        self.back_off(str(error))
        # After the broker refused a record, the next transaction of this producer would fail with a sequence error.
        return error.replace or error.unknown or bool(result.refused)

    def _judge(self, refused: list[Refused], result: Result, closed: ClosedOrigins, now_s: float) -> None:
        """Close origins, or suspect records."""
        silent = [each for each in refused if each.why is Refusal.SILENT]
        if not _is_silence(silent, result):
            refused = [each for each in refused if each.why is not Refusal.SILENT]
        own_fault = closed.refused(refused, self._clock.wall_ms(), now_s)
        if own_fault:
            self._suspect(own_fault, result.accepted)

    def _close_dlq(self, topic: str, error: str, now_s: float) -> None:
        """Close a DLQ for a while, longer each time."""
        before = self._closed_dlqs.get(topic)
        wait_s = DLQ_AGAIN_S if before is None else min(2 * before.wait_s, DLQ_AGAIN_MAX_S)
        self._closed_dlqs[topic] = _ClosedDlq(error, now_s + wait_s, wait_s)
        self.oversize.unstorable.clear()  # they wait; by then the changelog may accept more

    def _recheck(self, plan: Plan, closed: ClosedOrigins, now_s: float) -> None:
        """Look for a missing permission: it fails the transaction as a whole, and no record is named."""
        parts = plan.partition_plans
        dlqs = {outgoing.topic for partition_plan in parts for _, outgoing in partition_plan.dead_letters}
        closed.recheck({topic for partition_plan in parts for topic in partition_plan.fired} | dlqs)
        for topic in sorted(dlqs):
            if closed.denied(topic):
                self._close_dlq(topic, f"the DLQ {topic} cannot be written: this user has no permission", now_s)

    def _suspect(self, refused: list[Refused], accepted: Mapping[tuple[str, int], int]) -> None:
        """Find the rejected records: those the broker names, or a single one; of several, try fewer next."""
        rejected = rejected_of(refused, accepted)
        if not rejected and len({(each.partition, each.outgoing.source) for each in refused}) == 1:
            rejected = refused[:1]
        for each in rejected:
            self.unfireable[each.partition, each.outgoing.source] = Reason.UNFIREABLE, each.text
        if not rejected:
            self._suspects_max = max(1, min(len(refused), self._suspects_max) // 2)


def _is_nothing_written(result: Result) -> bool:
    """Return whether no record was accepted: then a timeout says nothing about a single topic."""
    plans = result.work.plan.partition_plans
    records = result.work.plan.deliveries + sum(len(each.dead_letters) for each in plans)
    return len(result.refused) == records and not result.changelog_written


def _is_silence(silent: list[Refused], result: Result) -> bool:
    """Return whether topics that timed out are silent, and not just behind a slow link."""
    if any((each.outgoing.topic, each.target) in result.delivered_to for each in silent):
        return False
    sizes = (content_bytes(each.outgoing.key, each.outgoing.value, each.outgoing.headers) for each in silent)
    return len(silent) == 1 or sum(sizes) <= SILENT_BYTES_MAX

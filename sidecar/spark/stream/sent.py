"""What the plans of one partition step send."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from sidecar.changelog.codec import Checkpoint
from sidecar.engine.items import outcome_records
from sidecar.engine.ports import Outgoing
from sidecar.engine.transaction import PartitionPlan
from sidecar.spark.stream.wire import LATE_STEP_MS, StatusRecord, Tally


@dataclass(frozen=True, slots=True)
class PlanOutput:
    """The records that one plan sends."""

    before: int
    checkpoint: Checkpoint
    records: list[Outgoing]
    status_records: list[StatusRecord]


@dataclass(slots=True)
class Sent:
    """What the plans of a step send, and how much of each kind."""

    outputs: list[PlanOutput] = field(default_factory=list)
    fired: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    deferred: Counter[str] = field(default_factory=Counter)
    held: Counter[str] = field(default_factory=Counter)
    stored: int = 0
    dropped: int = 0
    rejected: int = 0
    controls: int = 0
    cancelled: int = 0
    late: Counter[int] = field(default_factory=Counter)

    def add(self, part: PartitionPlan, before: int, now_ms: int) -> None:
        """Add what a plan sends; `before` is the sequence of the checkpoint before it."""
        records = [*(outgoing for _, outgoing in part.dead_letters), *part.deliveries]
        status_records = [
            StatusRecord(key, value, []) for key, value in outcome_records(part.control_outcomes, part.number, now_ms)
        ]
        self.outputs.append(PlanOutput(before, part.checkpoint, records, status_records))
        self.fired.update(part.fired)
        self.reasons.update(reason.value for reason, _ in part.dead_letters)
        self.deferred.update(part.deferred)
        self.held.update(part.held)
        self.stored += part.stored
        self.dropped += len(part.dropped)
        self.rejected += part.rejected
        self.controls += len(part.control_outcomes)
        self.cancelled += part.cancelled
        self.late.update(-((outgoing.due_ms - now_ms) // LATE_STEP_MS) * LATE_STEP_MS for outgoing in part.deliveries)

    def tally(self) -> Tally:
        """Return the counts."""
        return Tally(
            fired=dict(self.fired),
            dead=dict(self.reasons),
            deferred=dict(self.deferred),
            held=dict(self.held),
            stored=self.stored,
            dropped=self.dropped,
            rejected=self.rejected,
            controls=self.controls,
            cancelled=self.cancelled,
            late=dict(self.late),
        )

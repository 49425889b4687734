"""What the plans of one partition step send."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from sidecar.changelog.codec import Checkpoint
from sidecar.engine.items import outcome_records
from sidecar.engine.ports import Outgoing
from sidecar.engine.transaction import PartitionPlan, Plan
from sidecar.spark.stream.wire import LATE_STEP_MS, Closing, OutputPart, StatusRecord, Tally


@dataclass(frozen=True, slots=True)
class PlanOutput:
    """The records that one plan sends."""

    before: int
    checkpoint: Checkpoint
    records: list[Outgoing]
    status_records: list[StatusRecord]
    release_ms: int = 0
    """The instant before which it is not sent: all that it delivers is due by then; 0: at once."""

    def part(self, partition: int, closings: Sequence[Closing], *, ahead: bool = False) -> OutputPart:
        """Return it as it travels, but for the status records.

        Args:
            partition: The input partition.
            closings: The topics that the step treated as closed beside those of its state.
            ahead: Whether the next step begins with it.
        """
        return OutputPart(
            partition=partition,
            before=self.before,
            after=self.checkpoint.sequence,
            next_input_offset=self.checkpoint.next_input_offset,
            records=self.records,
            last=False,
            offset_base=self.checkpoint.offset_base,
            closings=[each for each in closings if each.sequence <= self.before],
            ahead=ahead,
            release_ms=self.release_ms,
        )


def delivers_only(planned: Plan) -> bool:
    """Return whether all that a plan does is to send what is due."""
    return not planned.unresolved and not any(
        part.dead_letters or part.deferred or part.held or part.control_outcomes or part.cancelled
        for part in planned.partition_plans
    )


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
    late_ahead: Counter[int] = field(default_factory=Counter)

    def add(self, part: PartitionPlan, before: int, now_ms: int, release_ms: int = 0) -> None:
        """Add what a plan sends.

        Args:
            part: The plan.
            before: The sequence of the checkpoint before it.
            now_ms: Its instant.
            release_ms: The instant before which it is not sent; 0: the last due of what it delivers because it is due.
        """
        records = [*(outgoing for _, outgoing in part.dead_letters), *part.deliveries]
        status_records = [
            StatusRecord(key, value, []) for key, value in outcome_records(part.control_outcomes, part.number, now_ms)
        ]
        # What a command fires before its due waits for no clock.
        dues_ms = [outgoing.due_ms for outgoing in part.deliveries if outgoing.due_ms <= now_ms]
        due_ms = release_ms or max(dues_ms, default=0)
        self.outputs.append(PlanOutput(before, part.checkpoint, records, status_records, due_ms))
        self.fired.update(part.fired)
        self.reasons.update(reason.value for reason, _ in part.dead_letters)
        self.deferred.update(part.deferred)
        self.held.update(part.held)
        self.stored += part.stored
        self.dropped += len(part.dropped)
        self.rejected += part.rejected
        self.controls += len(part.control_outcomes)
        self.cancelled += part.cancelled
        late = self.late_ahead if release_ms else self.late
        late.update(-((outgoing.due_ms - now_ms) // LATE_STEP_MS) * LATE_STEP_MS for outgoing in part.deliveries)

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
            late_ahead=dict(self.late_ahead),
        )

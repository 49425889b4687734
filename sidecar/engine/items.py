"""The items that ingest makes of input records, in offset order: the input of plan()."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from sidecar.contract.control import ID_PREFIX, ControlKind, Outcome, Target
from sidecar.contract.status import OutcomeRecord, outcome_key
from sidecar.model import ANY_SCOPE, Headers, Reason, Scope


class Arrival(NamedTuple):
    """A message that becomes a timer, or fires at once when it is overdue."""

    offset: int
    due_ms: int
    origin: str
    lasting: bytes
    """The part of the entry that never changes, see changelog/entry.py."""
    retry_id: bytes | None
    replace: bool


class Ordered(NamedTuple):
    """An arrival that does not fire before an earlier one of its origin and key."""

    offset: int
    arrival: Arrival
    lane: bytes
    """Of its origin and key, see engine/lanes.py."""


class Dead(NamedTuple):
    """A record that goes to the DLQ; `headers` are those of the dead letter."""

    offset: int
    reason: Reason
    key: bytes | None
    value: bytes | None
    headers: Headers


class Dropped(NamedTuple):
    """A droppable record: counted and logged only."""

    offset: int
    detail: str


class Control(NamedTuple):
    """A valid control record."""

    offset: int
    control_id: str
    kind: ControlKind
    target: Target
    due_ms: int = 0
    """New due time of a reschedule."""
    scope: Scope = ANY_SCOPE


class BadControl(NamedTuple):
    """A control record that is refused: it changes nothing, and the outcome says why."""

    offset: int
    control_id: str
    target: str
    """The target as received."""
    detail: str


Item = Arrival | Ordered | Dead | Dropped | Control | BadControl


class ControlOutcome(NamedTuple):
    """The outcome of one control record."""

    offset: int
    control_id: str
    outcome: Outcome
    timers: int
    """Number of timers changed; for pause and resume, number of timers pending for the origin."""
    target: str
    detail: str = ""


def outcome_records(outcomes: Iterable[ControlOutcome], partition: int, at_ms: int) -> list[tuple[bytes, bytes]]:
    """Return key and value of each outcome's record on the status topic.

    Args:
        outcomes: Outcomes of one partition.
        partition: Number of the partition.
        at_ms: Time of the plan.
    """
    return [
        (
            outcome_key(outcome.control_id, outcome.offset),
            OutcomeRecord(outcome.outcome, outcome.timers, outcome.target, partition, at_ms, outcome.detail).to_json(),
        )
        for outcome in outcomes
    ]


def target_text(target: Target) -> str:
    """Return the text form of a target, as in control records."""
    return f"{ID_PREFIX}{target.decode()}" if isinstance(target, bytes) else str(target)

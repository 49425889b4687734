"""What intake makes of the records of the input topic, in offset order: the food of plan()."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from sidecar.contract.control import ID_PREFIX, ControlKind, Outcome, Target
from sidecar.contract.status import OutcomeRecord, outcome_key
from sidecar.model import Headers, Reason


class Arrival(NamedTuple):
    """A message that becomes a timer, or fires at once when it is overdue."""

    offset: int
    due_ms: int
    origin: str
    lasting: bytes
    """The part of the entry that stays, see changelog/entry.py."""
    retry_id: bytes | None
    replace: bool


class Dead(NamedTuple):
    """A record that goes to the DLQ; `headers` are the ones that the dead letter carries."""

    offset: int
    reason: Reason
    key: bytes | None
    value: bytes | None
    headers: Headers


class Dropped(NamedTuple):
    """A droppable record: counted, logged, gone."""

    offset: int
    detail: str


class Control(NamedTuple):
    """A control record that can be acted on."""

    offset: int
    control_id: str
    kind: ControlKind
    target: Target
    due_ms: int = 0
    """For a reschedule."""


class BadControl(NamedTuple):
    """A control record that is refused: nothing is done, and the outcome says why."""

    offset: int
    control_id: str
    target: str
    """As it came."""
    detail: str


Item = Arrival | Dead | Dropped | Control | BadControl


class ControlOutcome(NamedTuple):
    """The outcome of one control record."""

    offset: int
    control_id: str
    outcome: Outcome
    timers: int
    """How many timers it acted on; for pause and resume how many of the origin wait."""
    target: str
    detail: str = ""


def outcome_records(outcomes: Iterable[ControlOutcome], partition: int, at_ms: int) -> list[tuple[bytes, bytes]]:
    """Return key and value of each answer's record on the status topic.

    Args:
        answers: Of one partition.
        partition: Its number.
        at_ms: The instant of the plan.
    """
    return [
        (
            outcome_key(outcome.control_id, outcome.offset),
            OutcomeRecord(outcome.outcome, outcome.timers, outcome.target, partition, at_ms, outcome.detail).to_json(),
        )
        for outcome in outcomes
    ]


def target_text(target: Target) -> str:
    """Return a target as control records name it."""
    return f"{ID_PREFIX}{target.decode()}" if isinstance(target, bytes) else str(target)

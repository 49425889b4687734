"""What intake makes of the records of the input topic, in offset order: the food of plan()."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from sidecar.model import Headers, Reason, TimerId


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


class ControlKind(StrEnum):
    """What a control record does."""

    CANCEL = "cancel"
    RESCHEDULE = "reschedule"
    FIRE = "fire"
    PAUSE = "pause"
    RESUME = "resume"


class Control(NamedTuple):
    """A control record. Its target is a timer id, a retry id (bytes), or an origin topic for pause and resume."""

    offset: int
    kind: ControlKind
    target: TimerId | bytes | str
    due_ms: int = 0


Item = Arrival | Dead | Dropped | Control


class Outcome(StrEnum):
    """The answer to a control record."""

    CANCELLED = "cancelled"
    RESCHEDULED = "rescheduled"
    FIRED = "fired"
    PAUSED = "paused"
    RESUMED = "resumed"
    NOT_PENDING = "not-pending"
    ORIGIN_PAUSED = "origin-paused"


class Answer(NamedTuple):
    """The outcome of one control record."""

    offset: int
    outcome: Outcome
    timers: int
    """How many timers it acted on."""

"""An owned partition: its states, and what the engine keeps of it in memory.

                      ┌──────────────────────── reset ───────────────────────┐
                      ▼                                                      │
    (assigned) ──► ASSIGNED ── committed offset is stable ──► RESTORING ── target reached ──► RUNNING
                      │                                          │                              │
                      ├──────────── a record or row that cannot be read ──────────────────────►│
                      ▼                                          ▼                              ▼
                   STOPPED ◄─────────────────────────────────────┴──────────────────────────────┘
    any state ── revoked, lost, shut down ──► CLOSED

A partition ingests and fires only while RUNNING. STOPPED waits for a person: the reason is shown, the others continue.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from sidecar.changelog.codec import Checkpoint
from sidecar.changelog.entry import KEY, due_ms_of
from sidecar.engine.crossings import Crossings
from sidecar.engine.delivered import NOTHING, Delivered
from sidecar.engine.group.activity import Activity
from sidecar.engine.ports import StoreReader
from sidecar.engine.rows import BEHIND_PARTITION, Rows, after
from sidecar.errors import invariant
from sidecar.wheel.counts import Counts


class State(StrEnum):
    """The state of a partition, as shown by the API."""

    ASSIGNED = "assigned"
    RESTORING = "restoring"
    RUNNING = "running"
    STOPPED = "stopped"
    CLOSED = "closed"


TRANSITIONS: Final[Mapping[State, frozenset[State]]] = {
    State.ASSIGNED: frozenset({State.ASSIGNED, State.RESTORING, State.STOPPED, State.CLOSED}),
    State.RESTORING: frozenset({State.ASSIGNED, State.RUNNING, State.STOPPED, State.CLOSED}),
    State.RUNNING: frozenset({State.ASSIGNED, State.STOPPED, State.CLOSED}),
    State.STOPPED: frozenset({State.ASSIGNED, State.CLOSED}),
    State.CLOSED: frozenset(),
}


@dataclass(slots=True)
class Partition:
    """The committed state of an owned partition in memory."""

    number: int
    state: State = State.ASSIGNED
    reason: str = ""
    """Why the partition is STOPPED, or not RUNNING yet."""
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    counts: Counts = field(default_factory=Counts)
    changelog_offset: int = 0
    next_due_ms: int | None = None
    """Stored due of the first timer above the watermark."""
    next_slot_end_ms: int | None = None
    """Slot end of the first block that needs a tombstone."""
    removed_passed: bool = False
    """The watermark has passed removed records that still need tombstones."""
    closures_over: bool = False
    """The checkpoint names closed origins that have opened since: a new one is needed."""
    activity: Activity = field(default_factory=Activity)
    """The activity of the last hour."""
    restored_ms: int = 0
    """When it was last restored, by the broker's clock."""
    activity_whole: bool = False
    """`activity` includes that of previous owners."""
    lanes_from: dict[bytes, int] = field(default_factory=dict)
    """Of lanes that were read lately, the offset below which no timer is pending: see engine/lanes.py."""
    crossings: Crossings = field(default_factory=Crossings)
    delivered: Delivered = NOTHING
    """What must not be delivered again after the changelog's part of a transaction was rolled back."""
    set_back_ms: int = 0
    """When records were last ingested that had been ingested before, since the group's offset was set back; 0: not
    known."""
    rows: Rows = field(init=False)

    def __post_init__(self) -> None:
        self.rows = Rows(self.number)

    @property
    def watermark(self) -> bytes:
        """The key at or below which no timer is pending."""
        return KEY.pack(self.checkpoint.watermark_ms, self.checkpoint.watermark_offset)

    def set_back_after(self, now_ms: int) -> int:
        """Return `set_back_ms` after a transaction at this time."""
        replays = self.checkpoint.next_input_offset < self.checkpoint.highest_input_offset
        return now_ms if replays else self.set_back_ms

    def transition_to(self, state: State, reason: str = "") -> None:
        """Move to another state. Raises InvariantViolated for a move that TRANSITIONS does not have."""
        invariant(
            state in TRANSITIONS[self.state], "no such transition", partition=self.number, old=self.state, new=state
        )
        self.state = state
        self.reason = reason

    def look_ahead(self, store: StoreReader, stored_end_ms: int | None = None) -> None:
        """Find what is due next, with one seek each.

        Args:
            store: Holds exactly what is committed.
            stored_end_ms: Earliest slot end of the blocks stored since the last call.
        """
        rows = self.rows
        row = store.first(rows.timer + self.watermark + b"\0", after(rows.timer))
        self.next_due_ms = None if row is None else due_ms_of(row[BEHIND_PARTITION])
        # A seek from the last known end does not step over the rows that tombstoning deleted.
        ends = [end_ms for end_ms in (self.next_slot_end_ms, stored_end_ms) if end_ms is not None]
        start = rows.block + min(ends, default=0).to_bytes(8, "big")
        block = store.first(start, after(rows.block))
        self.next_slot_end_ms = None if block is None else rows.block_of(block).slot_end_ms
        upper = rows.removed + self.watermark + b"\0"
        self.removed_passed = store.first(rows.removed, upper) is not None

    def wakes_at_ms(self) -> int | None:
        """Return when there is work without new input: a timer is due, or the changelog is out of date."""
        if self.removed_passed or self.closures_over or self.delivered.pending:
            return 0
        candidates = [at for at in (self.next_due_ms, self.next_slot_end_ms) if at is not None]
        return min(candidates, default=None)

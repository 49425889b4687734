"""Applies control records within a plan, a bounded number of timers at a time.

A record that names a retry id or has a filter can target any number of timers. The next transaction continues where
one stopped: the record stays at the head of its partition until it is done, and the checkpoint has its progress. Its
targets are all timers that are pending and meant when the record is reached, since later records of the partition wait
for it; timers that come due meanwhile fire, and are not counted.

The timers of a retry id are gone through in the order of their ids, those of a filter in that of their keys (due,
offset). A timer only ever moves to a later key while such a record goes on (`Overlay.stays_above`), so none escapes it.
One that it has moved itself may come again: it is where the record wants it, and is left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple, Protocol

from msgspec.structs import replace

from sidecar.changelog.codec import Closed, Closure, Unfinished
from sidecar.changelog.entry import KEY, MOVING, ORDERED, Head, head, origin_of
from sidecar.contract.control import EVERY_ORIGIN, ControlKind, Outcome
from sidecar.contract.filter import MessageFilter
from sidecar.engine.allowance import Allowance
from sidecar.engine.items import BadControl, Control, ControlOutcome, target_text
from sidecar.engine.overlay import Overlay
from sidecar.engine.repeats import Repeats, command_of
from sidecar.engine.selection import in_scope, selection_of
from sidecar.engine.standing import Standing
from sidecar.engine.transaction import Terms
from sidecar.errors import invariant
from sidecar.model import StoredOffset, TimerId

PAUSED_MAX: Final = 1000
"""Most paused origins of a partition: every checkpoint names them all."""
REASONS_MAX: Final = 3
"""Most reasons that an outcome gives for what a fire leaves as it is."""
CHANGED_SHARE: Final = 4
"""Of the timers that a filter may look at in a plan, one in so many may be changed: that costs ten times as much, and
what is due waits for it."""

Dispose = Callable[[bytes, Head, str], bool]
"""Fires a timer, defers it, or sends it to the DLQ; returns whether it went to the DLQ. Never stored: a plan holds
tens of thousands of objects, and a reference cycle would leave them to the garbage collector."""


class Keep(Protocol):
    """Stores a timer again, or sends it to the DLQ if it cannot be stored; returns whether it went to the DLQ."""

    def __call__(self, entry: bytes, fixed: Head, due_ms: int, requested_ms: int) -> bool: ...


class Acts(NamedTuple):
    """What becomes of timers that a control record has taken. Never stored, like `Dispose`."""

    dispose: Dispose
    keep: Keep
    let_next_go: Callable[[bytes, Head], None]
    """Looks again at the timer that waits behind one that goes out of turn."""


class Controls:
    """The control records of one partition in one plan.

    Args:
        overlay: The partition as the plan changes it.
        standing: What must not be delivered again.
        terms: Terms of the plan.
        allowance: Remaining budget of the partition.
    """

    def __init__(
        self,
        overlay: Overlay,
        standing: Standing,
        terms: Terms,
        allowance: Allowance,
    ) -> None:
        checkpoint = overlay.partition.checkpoint
        self.paused = {name: each for name, each in checkpoint.closed.items() if each.why == Closure.PAUSED}
        self.stopped = checkpoint.stopped
        self.unfinished = checkpoint.unfinished
        self.repeats = Repeats(checkpoint.acted, overlay.now_ms)
        self.unresolved: set[str] = set()
        """Unknown origins of timers that are to fire now."""
        self.outcomes: list[ControlOutcome] = []
        self.cancelled = 0
        self._overlay = overlay
        self._standing = standing
        self._terms = terms
        self.closed: dict[str, Closed]
        """Closed origins by name; EVERY_ORIGIN can be one of the names."""
        self.closure_of: Callable[[str], Closed | None]
        """Returns why an origin is closed, None when it is open. Called for each due timer, so a pause of the whole
        group must cost nothing while there is none."""
        self._close()
        self._allowance = allowance
        self._note_progress()

    def begin(self, first_offset: int) -> None:
        """Begin a batch: an unfinished record is continued only if it comes first."""
        if self.unfinished is not None and self.unfinished.control_offset != first_offset:
            self.unfinished = None  # the group's offset was set back
            self._note_progress()

    def refuse(self, bad: BadControl, *, answered: bool) -> None:
        """Record the outcome of a control record that cannot be applied."""
        started = self.unfinished
        self.unfinished = None
        self._note_progress()
        if not answered:
            timers = 0 if started is None else started.acted  # its signature grew old meanwhile
            self.outcomes.append(
                ControlOutcome(bad.offset, bad.control_id, Outcome.BAD_REQUEST, timers, bad.target, bad.detail)
            )

    def act(self, control: Control, acts: Acts, *, answered: bool) -> bool:
        """Apply a record, and note its outcome unless it has one; return False if the next transaction continues."""
        # The same record again, since the group's offset was set back, acts again: all after it do too.
        if not answered and self._is_repeated(control):
            return True
        if control.kind.is_for_origins:
            outcome, timers, detail = self._switch(control.kind, str(control.target))
        else:
            if self._allowance.exhausted or self._must_wait(control):
                return False
            progress, detail, more = self._act_on(control, acts)
            if more:
                return False
            timers = progress.acted or self._fired_before(control)
            outcome = (
                control.kind.done if timers else Outcome.ORIGIN_PAUSED if progress.skipped else Outcome.NOT_PENDING
            )
        if outcome is not Outcome.BAD_REQUEST:
            self.repeats.remember(control, outcome, timers)
        if not answered:
            self._answer(control, outcome, timers, detail)
        return True

    def _fired_before(self, control: Control) -> int:
        """Return the number of timers that a record fired in a transaction that was rolled back, as far as known."""
        is_one = control.kind is ControlKind.FIRE and isinstance(control.target, TimerId)
        return int(is_one and self._standing.has_met(control.target))  # type: ignore[arg-type]  # the line above

    def _is_repeated(self, control: Control) -> bool:
        """Answer a command whose control id was acted on before, without acting again."""
        first = self.repeats.first(control)
        if first is None:
            return False
        if first.command == command_of(control):
            self._answer(control, Outcome(first.outcome), first.timers, "this is the outcome of the first such command")
        else:
            detail = "retry-control-id: another command had this id in the last minutes: use an id once"
            self._answer(control, Outcome.BAD_REQUEST, 0, detail)
        return True

    def _answer(self, control: Control, outcome: Outcome, timers: int, detail: str) -> None:
        target = target_text(control.target)
        self.outcomes.append(ControlOutcome(control.offset, control.control_id, outcome, timers, target, detail))

    def _switch(self, kind: ControlKind, origin: str) -> tuple[Outcome, int, str]:
        if kind is ControlKind.RESUME:
            self.paused.pop(origin, None)
            self.stopped = self.stopped and origin != EVERY_ORIGIN
            self._close()
            return Outcome.RESUMED, self._waiting(origin), ""
        known = origin in self.paused or origin == EVERY_ORIGIN
        if not known and len(self.paused) >= PAUSED_MAX:
            return Outcome.BAD_REQUEST, 0, f"{PAUSED_MAX} origins are paused already: resume some first"
        self.closed[origin] = self.paused.setdefault(origin, Closed(Closure.PAUSED, self._overlay.now_ms))
        if origin == EVERY_ORIGIN:
            self.stopped = kind is ControlKind.STOP
            self._close()
        return Outcome.STOPPED if kind is ControlKind.STOP else Outcome.PAUSED, self._waiting(origin), ""

    def _waiting(self, origin: str) -> int:
        counts, delta = self._overlay.partition.counts, self._overlay.delta.origins
        if origin == EVERY_ORIGIN:
            return counts.pending + sum(delta.values())
        return counts.origins.get(origin, 0) + delta.get(origin, 0)

    def _close(self) -> None:
        """Recompute the closed origins."""
        self.closed = {**self._terms.closed, **self.paused}
        every = self.paused.get(EVERY_ORIGIN)
        self.closure_of = self.closed.get if every is None else lambda _: every

    def _must_wait(self, control: Control) -> bool:
        """Return whether a filter begins or goes on with the next plan: it goes through what is committed."""
        by_filter = isinstance(control.target, MessageFilter)
        return by_filter and (self._overlay.is_changed or bool(self._standing.known.pending))

    def _note_progress(self, control: Control | None = None) -> None:
        """Keep the timers in their places to which an unfinished record comes in their order.

        Args:
            control: The record; None: not read yet. If it names a retry id, some timers wait longer than they must.
        """
        begun = self.unfinished
        by_id = control is not None and not isinstance(control.target, MessageFilter)
        far = None if begun is None or by_id else KEY.pack(begun.seen_first_ms, begun.seen_offset)
        self._overlay.stays_above = far

    def _act_on(self, control: Control, acts: Acts) -> tuple[Unfinished, str, bool]:
        """Apply to the next targets; return the progress, a text about skipped ones, and whether there are more."""
        progress = self.unfinished or Unfinished(control.offset)
        is_meant, by_filter = _matcher(control), isinstance(control.target, MessageFilter)
        left = -(-self._allowance.timers // CHANGED_SHARE) if by_filter else self._allowance.timers
        entries, full = self._targets(control, progress)
        acted, skipped, dead = progress.acted, progress.skipped, progress.dead
        seen = (progress.seen_offset, progress.seen_first_ms)
        why: dict[str, None] = {}
        ordered: list[tuple[bytes, Head]] = []
        for entry in entries:
            if self._allowance.bytes <= 0 or self._allowance.headers.left <= 0 or left <= 0:
                full = True
                break
            self._allowance.bytes -= len(entry)
            fixed = head(entry)
            place = (fixed.offset, fixed.due_ms if by_filter else fixed.first_ms)
            if not is_meant(entry, fixed):
                seen = place
                continue
            origin = origin_of(entry, fixed)
            if self._due_now(control) and self.is_unknown(origin):
                full = True
                break
            seen = place
            if self._standing.has(fixed, origin) and not self._due_now(control):
                continue
            if blocker := self._blocker(control, entry, fixed, origin):
                skipped += 1
                if len(why) < REASONS_MAX:
                    why[blocker] = None
                continue
            dead += self._change(control, entry, fixed, acts)
            acted += 1
            left -= 1
            if fixed.flags & ORDERED:
                ordered.append((entry, fixed))
        progress = replace(
            progress, acted=acted, skipped=skipped, dead=dead, seen_offset=seen[0], seen_first_ms=seen[1]
        )
        self.unfinished = progress if full and progress.seen_offset >= 0 else None
        self._note_progress(control)
        # Behind the last target: it may move targets.
        for entry, fixed in ordered:
            acts.let_next_go(entry, fixed)
        return progress, _detail(progress, why), full

    def _blocker(self, control: Control, entry: bytes, fixed: Head, origin: str) -> str:
        """Return why a fire leaves a timer as it is, empty when it does not."""
        if control.kind is not ControlKind.FIRE:
            return ""
        if (closed := self.closure_of(origin)) is not None:
            return f"{origin} is {closed.why}"
        # It would be put off again and again in front of a filter.
        by_filter = isinstance(control.target, MessageFilter)
        if by_filter and self._terms.is_stuck(self._overlay.partition.number, entry, fixed, origin):
            return f"{origin} cannot take it, and its DLQ cannot be written now"
        return ""

    def _targets(self, control: Control, progress: Unfinished) -> tuple[Iterable[bytes], bool]:
        """Return the entries to process now, and whether there may be more."""
        target = control.target
        if isinstance(target, bytes):
            limit = self._allowance.timers
            seen = (StoredOffset(progress.seen_offset), progress.seen_first_ms) if progress.seen_offset >= 0 else None
            keys, cost = self._overlay.named_keys(target, seen, limit)
            self._allowance.timers -= cost
            return map(self._overlay.pending_at, keys), len(keys) == limit
        if isinstance(target, MessageFilter):
            return self._in_range(target, progress)
        invariant(isinstance(target, TimerId), "a control record names neither timer nor retry id", target=target)
        self._allowance.timers -= 1
        entry = self._overlay.find_meant(target.offset, target.first_ms)  # type: ignore[union-attr]  # the invariant above
        return (() if entry is None else (entry,)), False

    def _in_range(self, wanted: MessageFilter, progress: Unfinished) -> tuple[Sequence[bytes], bool]:
        """Return the next timers that are due when a filter says, and whether there may be more."""
        if wanted.origin is not None and not self._waiting(wanted.origin):
            return (), False
        lower = KEY.pack(wanted.due_from, 0)
        if progress.seen_offset >= 0:
            lower = max(lower, KEY.pack(progress.seen_first_ms, progress.seen_offset) + b"\0")
        limit, limit_bytes = self._allowance.timers, self._allowance.bytes
        entries = self._overlay.scan(lower, KEY.pack(wanted.due_to, 0), limit, limit_bytes)
        self._allowance.timers -= max(1, len(entries))
        return entries, len(entries) >= limit or sum(map(len, entries)) >= limit_bytes

    def _due_now(self, control: Control) -> bool:
        """Return whether the record makes its targets due."""
        moves = control.kind is ControlKind.RESCHEDULE and control.due_ms <= self._overlay.now_ms
        return moves or control.kind is ControlKind.FIRE

    def is_unknown(self, origin: str) -> bool:
        """Return whether a delivery must wait for the lookup of its origin, as a message does at ingest."""
        unknown = origin not in self._terms.origins and self.closure_of(origin) is None
        if unknown:
            self.unresolved.add(origin)
        return unknown

    def _change(self, control: Control, entry: bytes, fixed: Head, acts: Acts) -> bool:
        """Apply the record to one timer; return whether the timer went to the DLQ."""
        self._overlay.take(entry)
        origin = origin_of(entry, fixed)
        if control.kind is ControlKind.CANCEL:
            self.cancelled += 1
        elif not self._due_now(control):
            return acts.keep(entry, fixed, control.due_ms, control.due_ms)
        else:
            requested_ms = fixed.requested_ms if control.kind is ControlKind.FIRE else control.due_ms
            # What a broker refuses is known by the key of its timer. A stored due may be of this plan, and another one
            # in the next plan; the first due stays.
            place = MOVING.pack(fixed.first_ms, fixed.offset, requested_ms, fixed.level, fixed.flags & ORDERED)
            moved = place + entry[MOVING.size :]
            return acts.dispose(moved, head(moved), origin)
        return False


def _matcher(control: Control) -> Callable[[bytes, Head], bool]:
    """Return what tells whether a record means a timer that its target leads to."""
    target, scope = control.target, control.scope
    if not isinstance(target, MessageFilter):
        return lambda entry, fixed: in_scope(entry, fixed, scope)
    matches = selection_of(target).matcher()
    # What it has moved comes again, and is no target then; nor is what had this due before.
    done_ms = control.due_ms if control.kind is ControlKind.RESCHEDULE else -1

    def is_meant(entry: bytes, fixed: Head) -> bool:
        return fixed.requested_ms != done_ms and matches(entry, fixed) and in_scope(entry, fixed, scope)

    return is_meant


def _detail(progress: Unfinished, why: Iterable[str]) -> str:
    words = []
    if progress.skipped:
        words.append(f"{progress.skipped} were left as they are: {', '.join(why) or 'their origin is not open'}")
    if progress.dead:
        words.append(f"{progress.dead} went to the DLQ, which says why")
    return "; ".join(words)

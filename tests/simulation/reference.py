"""The expected behaviour, one message at a time: without watermark, block, wheel, store or deferral queue.

The ledger sees what went in and what came out of each committed transaction. When a timer whose origin is not open
fires later is left to the engine; that it may not fire early, twice, after a cancel or not at all is checked here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

ALWAYS_MS = 2**62
Id = tuple[int, int]
"""Input offset and first due: with the partition this is the timer id."""
Met = Mapping[int, Sequence[Id]]
"""By the offset of a filter, the timers that stand where it looks in a transaction, whether it means them or not."""


class Send(NamedTuple):
    """A message. `delay_ms` counts from its ingest, for a record without a time."""

    offset: int
    origin: str
    due_ms: int | None
    delay_ms: int = 0
    retry_id: bytes | None = None
    replace: bool = False
    key: bytes | None = None

    def due_at(self, now_ms: int) -> int:
        return now_ms + self.delay_ms if self.due_ms is None else self.due_ms


@dataclass(frozen=True, slots=True)
class Match:
    """A filter: an origin, or any, and when messages are due."""

    origin: str | None
    due_from_ms: int
    due_to_ms: int
    """Exclusive."""


class Command(NamedTuple):
    """A control record; the target is a timer id, a retry id, a filter or an origin. A "forged" one is a stranger's."""

    offset: int
    kind: str
    target: Id | bytes | Match | str
    due_ms: int = 0


Input = Send | Command


class Closure(NamedTuple):
    """An origin that cannot be fired to: since when in truth, and since when as the engine was told."""

    since_ms: int
    told_ms: int


class Partial(NamedTuple):
    """A control record that the transaction did in part: up to and with this timer, in the order of their ids. How far
    a filter came is in `Transaction.met`."""

    command: Command
    seen: Id


class Transaction(NamedTuple):
    """All that one committed transaction says to the outside."""

    now_ms: int
    inputs: Sequence[Input]
    """Those that are done."""
    partial: Partial | None
    fired: Sequence[Id]
    dead: Sequence[Id]
    answers: Sequence[tuple[int, str, int]]
    known: frozenset[str]
    closed: Mapping[str, Closure]
    timeout_ms: int
    met: Met


@dataclass(slots=True)
class Timer:
    """A message that waits."""

    requested_ms: int
    earliest_ms: int
    """It may leave from then on: its due, or the moment at which somebody asked to fire it."""
    origin: str
    retry_id: bytes | None
    lane: tuple[str, bytes] | None = None
    """Origin and key, if it may not fire before an earlier one that has both."""


@dataclass(slots=True)
class Progress:
    """The progress of a control record."""

    offset: int
    acted: int = 0
    skipped: int = 0
    seen: Id = (-1, -1)


class Ledger:
    """The sequential truth of one partition.

    Args:
        every_ms: Of each origin with a rate, the time between two of its turns.
        late_ms: How much later than its turn a timer may fire.
        ordered: The origins whose messages keep the order of their key.
    """

    def __init__(
        self, every_ms: Mapping[str, int] | None = None, late_ms: int = 0, ordered: frozenset[str] = frozenset()
    ) -> None:
        self._every_ms = every_ms or {}
        self._ordered = ordered
        self._late_ms = late_ms
        self._in_turn: dict[str, list[int]] = {}
        """When the timers of such an origin fired, without those that a control record fired."""
        self.pending: dict[Id, Timer] = {}
        self.paused: set[str] = set()
        self.highest = 0
        self._progress: Progress | None = None
        self._now_ms = 0
        self._transaction: Transaction
        self._fired: list[Id] = []
        self._dead: list[Id] = []

    def begin_topic(self) -> int:
        """Continue with a recreated input topic: return the offset that its records count from."""
        self._progress = None
        return self.highest

    def skip(self, offset: int) -> None:
        """The input topic holds nothing below this offset."""
        self.highest = max(self.highest, offset)

    def commit(self, transaction: Transaction) -> list[Id]:
        """Check one transaction and return what it fired by scan, in its order."""
        self._transaction = transaction
        if transaction.now_ms < self._now_ms:
            self._in_turn.clear()  # the clock stepped back, perhaps to a time at which some fired before
        self._now_ms = transaction.now_ms
        self._fired, self._dead = list(transaction.fired), list(transaction.dead)
        answers: list[tuple[int, str, int]] = []
        self._go_on(transaction)
        for item in transaction.inputs:
            if isinstance(item, Send):
                self._send(item)
            else:
                answer = self._command(item)
                self._progress = None
                if item.offset >= self.highest:
                    answers.append(answer)
            self.highest = max(self.highest, item.offset + 1)
        if transaction.partial is not None:
            command, seen = transaction.partial
            self._progress = self._act(command, self._progress or Progress(command.offset), seen)
        assert list(transaction.answers) == answers, ("false outcome", transaction.answers, answers)
        return self._scanned()

    def _is_open(self, origin: str) -> bool:
        world = self._transaction
        return origin in world.known and origin not in world.closed and not self._is_paused(origin)

    def _is_paused(self, origin: str) -> bool:
        return origin in self.paused or "*" in self.paused

    def _closed_for_ms(self, origin: str, *, told: bool) -> int:
        """Return how long an origin has been closed, not counting pauses; -1 when it is open or paused."""
        closure = self._transaction.closed.get(origin)
        if closure is None or self._is_paused(origin):
            return -1
        return self._now_ms - (closure.told_ms if told else closure.since_ms)

    def _send(self, send: Send) -> None:
        due_ms = send.due_at(self._now_ms)
        timer_id = (send.offset, due_ms)
        if timer_id in self.pending:
            assert send.offset < self.highest, ("taken in twice", send)
            return
        if send.replace and send.retry_id is not None:
            for other in self._named(send.retry_id):
                if self.pending[other].origin == send.origin:
                    del self.pending[other]
        lane = None if send.key is None or send.origin not in self._ordered else (send.origin, send.key)
        self.pending[timer_id] = Timer(due_ms, due_ms, send.origin, send.retry_id, lane)
        if due_ms <= self._now_ms:
            self._leave(timer_id, in_turn=True)

    def _leave(self, timer_id: Id, *, in_turn: bool = False) -> None:
        """Check the result, in this very transaction, of a timer that is due at ingest."""
        origin = self.pending[timer_id].origin
        timeout_ms = self._transaction.timeout_ms
        if self._is_open(origin) and in_turn and (origin in self._every_ms or self._ahead(timer_id)):
            if timer_id in self._fired:
                assert not self._ahead(timer_id), ("before an earlier one of its key", timer_id, self._ahead(timer_id))
                self._fired.remove(timer_id)
                del self.pending[timer_id]
                self._take_turn(origin)
        elif self._is_open(origin):
            assert timer_id in self._fired, ("should have fired", timer_id)
            self._fired.remove(timer_id)
            del self.pending[timer_id]
        elif timer_id in self._dead and self._closed_for_ms(origin, told=False) > timeout_ms:
            self._dead.remove(timer_id)
            del self.pending[timer_id]
        else:
            assert self._closed_for_ms(origin, told=True) <= timeout_ms, ("should be a dead letter", timer_id)

    def _ahead(self, timer_id: Id) -> list[Id]:
        """Return the pending timers that this one may not fire before."""
        lane = self.pending[timer_id].lane
        earlier = (each for each in self.pending if each[0] < timer_id[0])
        return [] if lane is None else [each for each in earlier if self.pending[each].lane == lane]

    def _named(self, retry_id: bytes) -> list[Id]:
        return [timer_id for timer_id, timer in self.pending.items() if timer.retry_id == retry_id]

    def _go_on(self, transaction: Transaction) -> None:
        """A record that was done in part is gone on with only when it comes first: else the offsets were set back."""
        taken = [*transaction.inputs, *([transaction.partial.command] if transaction.partial else [])]
        if taken and self._progress is not None and self._progress.offset != taken[0].offset:
            self._progress = None

    def _command(self, command: Command) -> tuple[int, str, int]:
        kind, target = command.kind, command.target
        if kind == "forged":
            return command.offset, "bad-request", self._progress.acted if self._progress else 0
        if isinstance(target, str):
            waiting = sum(target in (timer.origin, "*") for timer in self.pending.values())
            if kind == "pause":
                self.paused.add(target)
                return command.offset, "paused", waiting
            self.paused.discard(target)
            return command.offset, "resumed", waiting
        progress = self._act(command, self._progress or Progress(command.offset), None)
        done = {"cancel": "cancelled", "fire": "fired", "reschedule": "rescheduled"}[kind]
        outcome = done if progress.acted else "origin-paused" if progress.skipped else "not-pending"
        return command.offset, outcome, progress.acted

    def _act(self, command: Command, progress: Progress, upto: Id | None) -> Progress:
        """Act on the targets behind those that were seen, up to one of them or, when None, all."""
        kind, target = command.kind, command.target
        if isinstance(target, bytes):
            named = sorted(self._named(target))
            hit = [each for each in named if each > progress.seen and (upto is None or each <= upto)]
        elif isinstance(target, Match):
            hit = self._meant(command, target)
        else:
            assert isinstance(target, tuple)
            hit = [target] if target in self.pending else []
        chosen = [each for each in hit if kind != "fire" or self._is_open(self.pending[each].origin)]
        for timer_id in chosen:
            timer = self.pending[timer_id]
            if kind == "cancel":
                del self.pending[timer_id]
            elif kind == "fire":
                timer.earliest_ms = min(timer.earliest_ms, self._now_ms)
                self._leave(timer_id)
            else:
                timer.requested_ms = timer.earliest_ms = command.due_ms
                if command.due_ms <= self._now_ms:
                    self._leave(timer_id)
        if upto is None and isinstance(target, Match) and target.due_to_ms >= ALWAYS_MS and kind == "cancel":
            left = [each for each, timer in self.pending.items() if target.origin in {None, timer.origin}]
            assert target.due_from_ms or not left, ("a filter has left some that it means", target, left)
        acted, skipped = progress.acted + len(chosen), progress.skipped + len(hit) - len(chosen)
        return Progress(progress.offset, acted, skipped, upto or progress.seen)

    def _meant(self, command: Command, target: Match) -> list[Id]:
        """Return what a filter means of the timers that it met; a reschedule leaves what is to be due then already."""
        met = [each for each in self._transaction.met[command.offset] if each in self.pending]
        met = [each for each in met if target.origin in {None, self.pending[each].origin}]
        moves = command.kind == "reschedule"
        return [each for each in met if not moves or self.pending[each].requested_ms != command.due_ms]

    def _scanned(self) -> list[Id]:
        for timer_id in self._fired:
            ahead = set(self._ahead(timer_id) if timer_id in self.pending else ()) - set(self._dead)
            assert not ahead, ("before an earlier one of its key", timer_id, ahead)
            timer = self._taken(timer_id, "fired")
            assert self._is_open(timer.origin), ("fired to an origin that is not open", timer_id, timer.origin)
            self._take_turn(timer.origin)
        for timer_id in self._dead:
            timer = self._taken(timer_id, "dead letter")
            long_ms = self._closed_for_ms(timer.origin, told=False)
            assert long_ms > self._transaction.timeout_ms, ("given up too soon", timer_id, long_ms)
        return self._fired

    def _take_turn(self, origin: str) -> None:
        """Check that the origin's rate allowed what fired by now, over any time that ends here."""
        if (every_ms := self._every_ms.get(origin)) is None:
            return
        fired = self._in_turn.setdefault(origin, [])
        for turns, at_ms in enumerate(reversed(fired), 1):
            enough_ms = turns * every_ms - self._late_ms
            assert self._now_ms - at_ms >= enough_ms, ("above the rate", origin, turns, at_ms, self._now_ms)
        fired.append(self._now_ms)

    def _taken(self, timer_id: Id, what: str) -> Timer:
        assert timer_id in self.pending, (what + " but not pending: twice, or cancelled", timer_id)
        timer = self.pending.pop(timer_id)
        assert timer.earliest_ms <= self._now_ms, (what + " early", timer_id, timer.earliest_ms, self._now_ms)
        return timer

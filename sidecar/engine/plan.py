"""plan(): one step of the engine as pure data. A plan is committed or discarded as a whole.

The rules; without any one of them the simulation fails:

- `now` is one instant for the whole plan. A timer is stored iff its due is after now; otherwise it fires unstored.
- The watermark never moves back: after a complete scan max(old, (now, greatest offset)), after a bounded one the key of
  the last timer disposed of. A timer at or below it is stored just above it; the requested due is kept.
- Keys (due, offset) are compared whole. No key is used twice.
- A timer due for an origin that is not open is stored again, later: the watermark moves on and no other timer waits.
- A timer that exceeds its origin's rate is stored again at its turn, once; what a control record fires does not wait.
- An ordered timer does not fire before an earlier one of its lane, unless a control record fires it: see lanes.py.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Final

from sidecar.changelog.codec import CHECKPOINT_KEY, Checkpoint, Closure, encode_checkpoint
from sidecar.changelog.entry import (
    BEHIND,
    DEFERRED,
    FLAGS_AT,
    HELD,
    KEY,
    KEY_BYTES,
    MOVING,
    Head,
    due_ms_of,
    head,
    payload_of,
)
from sidecar.contract.sizes import DELIVERY_OVERHEAD_BYTES
from sidecar.engine.allowance import HEADERS_EACH, Allowance, Headers
from sidecar.engine.closures import deferral_ms, noted
from sidecar.engine.controls import Acts, Controls
from sidecar.engine.dead_letters import dead_of, outgoing_of
from sidecar.engine.deliver import Due, render_delivery
from sidecar.engine.followers import Followers
from sidecar.engine.items import Arrival, BadControl, Control, Dead, Dropped, Item, Ordered
from sidecar.engine.overlay import Overlay, new_entry
from sidecar.engine.partition import Partition
from sidecar.engine.plan_checks import check_due, check_plan
from sidecar.engine.ports import Origin, Outgoing, StoreReader
from sidecar.engine.rates import Turns
from sidecar.engine.read_ahead import due_in_turn
from sidecar.engine.records import block_records, removed_records, tombstones
from sidecar.engine.replacement import TOO_MANY, replaced
from sidecar.engine.standing import Standing
from sidecar.engine.transaction import BLOCK_OVERHEAD_BYTES, PartitionPlan, Plan, Terms
from sidecar.errors import invariant
from sidecar.model import OFFSET_MAX, Reason, StoredOffset
from sidecar.wheel.counts import SlotKey
from sidecar.wheel.geometry import WIDTHS_MS

ENTRY_BYTES_MAX: Final = 2**31 - 1
_TOPIC_OF: Final = itemgetter(0)
_DUE_MS_OF: Final = itemgetter(5)


def plan(
    partitions: Sequence[Partition],
    batches: Mapping[int, Sequence[Item]],
    store: StoreReader,
    now_ms: int,
    terms: Terms,
) -> Plan:
    """Return what one transaction does: ingest the items, then fire what is due; partitions without work are left out.

    Args:
        partitions: RUNNING ones.
        batches: Items by partition number, in offset order.
        store: Holds exactly what is committed.
        now_ms: Read once, after the previous commit was applied.
        terms: Everything else that the plan depends on.
    """
    due = sum(1 for partition in partitions if partition.next_due_ms is not None and partition.next_due_ms <= now_ms)
    share = max(1, terms.deliveries_max // max(1, due)) if terms.deliveries_max else 0
    share_bytes = max(1, terms.delivery_bytes_max // max(1, due))
    ingesting = max(1, len(batches))
    headers_max = max(1, terms.deliveries_max) * HEADERS_EACH
    # Two of them: ingest must not delay what is due.
    headers_in, headers_due = Headers(headers_max), Headers(headers_max)
    partition_plans: list[PartitionPlan] = []
    unresolved: set[str] = set()
    left: dict[int, Sequence[Item]] = {}
    waits_for: dict[int, str] = {}
    for partition in partitions:
        batch = batches.get(partition.number, ())
        wakes_ms = partition.wakes_at_ms()
        if not batch and (wakes_ms is None or wakes_ms > now_ms):
            continue
        planner = _Planner(partition, store, now_ms, terms, ingesting, headers_in)
        ingested = planner.ingest(batch)
        if ingested < len(batch):
            left[partition.number] = batch[ingested:]
            if planner.waits_for:
                waits_for[partition.number] = planner.waits_for
        planner.complete = planner.standing.remove(share, share_bytes, planner.let_next_go)
        if planner.complete:
            planner.scan(share, share_bytes, headers_due)
        unresolved |= planner.unresolved | planner.controls.unresolved
        if (partition_plan := planner.finish(ingested)) is not None:
            check_plan(partition, partition_plan, now_ms, terms)
            partition_plans.append(partition_plan)
    return Plan(now_ms, partition_plans, frozenset(unresolved), left, waits_for)


class _Planner:
    """Plans one partition of a transaction."""

    def __init__(
        self, partition: Partition, store: StoreReader, now_ms: int, terms: Terms, ingesting: int, headers: Headers
    ) -> None:
        self.partition = partition
        self.store = store
        self.now_ms = now_ms
        self.terms = terms
        self.overlay = Overlay(partition, store, now_ms, keeps_order=terms.keeps_order)
        self.checkpoint = partition.checkpoint
        self.allowance = Allowance(
            max(1, terms.deliveries_max // ingesting), max(1, terms.delivery_bytes_max // ingesting), headers
        )
        self.standing = Standing(self.overlay)
        self.controls = Controls(self.overlay, self.standing, terms, self.allowance)
        self.followers = Followers(self.overlay, self.allowance)
        self.next_input_offset = self.checkpoint.next_input_offset
        self.highest = self.checkpoint.highest_input_offset
        self.offset_base = self.checkpoint.offset_base
        self.deliveries: list[Outgoing] = []
        self.dead_letters: list[tuple[Reason, Outgoing]] = []
        self.dropped: list[Dropped] = []
        self.deferred: dict[str, int] = {}
        self.held: dict[str, int] = {}
        self.put_behind: dict[str, int] = {}
        self.turns: Turns | None = None
        if terms.rate_of is not None:
            self.turns = Turns(
                *(self.checkpoint.turns, terms.rate_of, terms.partitions),
                *(now_ms, self.checkpoint.watermark_ms, terms.late_ms),
            )
        self.unresolved: set[str] = set()
        self.waits_for = ""
        """The closed DLQ that the next item must go to."""
        self.stored = 0
        self.rejected = 0
        self.cancelled = 0
        self.scanned: list[bytes] = []
        self.complete = True

    # Ingest

    def ingest(self, batch: Sequence[Item]) -> int:
        """Process the items in order; return how many: the rest waits for the next plan."""
        if batch:
            self.controls.begin(batch[0].offset)
        arrive = self._arrive_measured if self.terms.unstorable or not self.terms.compressed else self._arrive
        at = 0
        while at < len(batch):
            if stored := self._store_plain(batch, at):
                at += stored
                continue
            item = batch[at]
            if type(item) is Ordered:
                if not arrive(item.arrival, item.lane):
                    return at
            elif type(item) is Arrival:
                if not arrive(item):
                    return at
            elif type(item) is Dead:
                self.waits_for = self.terms.closed_dlq_of(item.key, item.value, item.headers)
                if self.waits_for or self.allowance.headers.left <= 0:
                    return at
                self.allowance.headers.left -= len(item.headers)
                self._send_dead_letter(item, 0, KEY.pack(0, self.offset_base + item.offset))
                self.rejected += 1
            elif type(item) is Dropped:
                self.dropped.append(item)
            elif not self._control(item):
                return at
            self.next_input_offset = item.offset + 1
            self.highest = max(self.highest, self.next_input_offset)
            at += 1
        return at

    def _store_plain(self, batch: Sequence[Item], at: int) -> int:
        """Store a run of plain messages; return how many they are."""
        if self.terms.unstorable or self.standing.known:
            return 0
        bytes_max = ENTRY_BYTES_MAX
        if not self.terms.compressed:
            bytes_max = self.terms.changelog_max_message_bytes - BLOCK_OVERHEAD_BYTES
        count = self.overlay.store_plain(batch, at, self.highest, bytes_max) - at
        if count:
            self.stored += count
            self.next_input_offset = self.highest = batch[at + count - 1].offset + 1
        return count

    def _control(self, item: Item) -> bool:
        answered = item.offset < self.highest  # its outcome stands
        if type(item) is BadControl:
            self.controls.refuse(item, answered=answered)
            return True
        invariant(type(item) is Control, "an item of no known kind", item=item)
        acts = Acts(self._dispose_now, self._keep, self.let_next_go)
        return self.controls.act(item, acts, answered=answered)  # type: ignore[arg-type]  # the invariant above

    def _arrive_measured(self, arrival: Arrival, lane: bytes | None = None) -> bool:
        offset: StoredOffset = self.offset_base + arrival.offset  # type: ignore[assignment]  # no call for each message
        said = self.terms.why_unstorable(self.partition.number, offset, MOVING.size + len(arrival.lasting))
        if said and arrival.due_ms > self.now_ms:
            return self._refuse(arrival, Reason.TOO_LARGE, said)
        return self._arrive(arrival, lane)

    def _arrive(self, arrival: Arrival, lane: bytes | None = None) -> bool:
        """Store a message, or dispose of it; return False when that exceeds the plan's budget."""
        input_offset, due_ms, origin, lasting, retry_id, replace = arrival
        if (replace or due_ms <= self.now_ms) and self.allowance.exhausted:
            return False
        offset: StoredOffset = self.offset_base + input_offset  # type: ignore[assignment]  # no call for each message
        seen = input_offset < self.highest
        if seen and self.overlay.find(offset, due_ms) is not None:
            return True  # the group's offset was set back, and this message is still pending
        if replace and retry_id is not None and not self._replace(retry_id, new_entry(arrival, offset, lane)):
            detail = f"retry-id: too many timers are pending under this id ({TOO_MANY}); cancel some first"
            return self._refuse(arrival, Reason.BAD_HEADER, detail)
        self.stored += 1
        if self.standing.known and self.standing.meets_arrival(offset, due_ms, origin):
            return True
        if due_ms > self.now_ms:
            if seen:
                self.overlay.store_again(new_entry(arrival, offset, lane), due_ms, due_ms)
            else:
                self.overlay.store_new(offset, due_ms, lasting, origin, retry_id, lane)
            return True
        entry = new_entry(arrival, offset, lane)
        self._dispose(entry, head(entry), origin)
        return True

    def _replace(self, retry_id: bytes, by: bytes) -> bool:
        """Remove the timers that a message replaces; return False, and remove none, when they are too many."""
        entries, cost = replaced(self.overlay, retry_id, by)
        self.allowance.timers -= cost
        if entries is None:
            return False
        for entry in entries:
            self.allowance.bytes -= len(entry)
            self.overlay.take(entry)
        for entry in entries:
            self.let_next_go(entry, head(entry))
        self.cancelled += len(entries)
        return True

    def _refuse(self, arrival: Arrival, reason: Reason, detail: str) -> bool:
        entry = new_entry(arrival, self.checkpoint.stored_offset(arrival.offset))
        self.waits_for = self.terms.closed_dlq_of(*payload_of(entry, fixed := head(entry)))
        if self.waits_for:
            return False
        self.rejected += 1
        self._dead_letter(entry, fixed, reason, detail, "intake")
        return True

    def let_next_go(self, entry: bytes, fixed: Head) -> None:
        """Look again, in the next plan, at the timer that waits behind one that goes out of turn."""
        if (waiting := self.overlay.next_behind(entry, fixed)) is not None:
            self.overlay.take(waiting)
            self._keep(waiting, again := head(waiting), self.now_ms + 1, again.requested_ms, DEFERRED | BEHIND)

    def _keep(self, entry: bytes, fixed: Head, due_ms: int, requested_ms: int, flags: int = 0) -> bool:
        """Store a timer again, or send it to the DLQ if it cannot be stored; return whether it went to the DLQ."""
        if said := self.terms.why_dead(self.partition.number, entry, fixed):
            self._dead_letter(entry, fixed, Reason.TOO_LARGE, said, "fire")
            return True
        self.overlay.store_again(entry, due_ms, requested_ms, flags)
        return False

    # Due

    def scan(self, limit: int, limit_bytes: int, headers: Headers) -> None:
        """Dispose of timers that came due since the watermark, in key order, until a limit is reached."""
        partition = self.partition
        if partition.next_due_ms is None or partition.next_due_ms > self.now_ms:
            return
        self.complete = limit > 0 and headers.left > 0
        if self.complete:
            ahead, reached = self.terms.ahead.get(partition.number), self.overlay.watermark
            for due, full in due_in_turn(partition, self.store, ahead, self.now_ms, limit, limit_bytes, headers):
                reached = check_due(due, reached, self.now_ms)
                self.complete = self._dispose_of(due) and not full
                if not self.complete:
                    break
        self.overlay.delete(self.scanned)
        left = limit - len(self.scanned) if self.complete else 0
        self.followers.go(left, self._dispose, self.let_next_go)

    def _dispose_of(self, due: Iterable[Due]) -> bool:
        """Dispose of due timers; stop at one with an unknown origin and return False."""
        overlay, fire, open_origins = self.overlay, self.deliveries.append, dict[str, Origin | None]()
        fired: defaultdict[tuple[SlotKey, str], int] = defaultdict(int)
        known, compressed = True, self.terms.compressed
        take_turn = None if self.turns is None else self.turns.take
        for key, entry, size, slot, outgoing, lane_row in due:
            origin = outgoing.topic
            try:
                topic = open_origins[origin]
            except KeyError:
                topic = open_origins[origin] = self._open_origin(origin)
            if (
                topic is not None
                and slot is not None
                and (compressed or size + DELIVERY_OVERHEAD_BYTES <= topic.max_message_bytes)
                and outgoing.partition < topic.partitions
                and (lane_row is None or overlay.leaves(lane_row, key))
            ):
                if take_turn is not None and (turn_ms := take_turn(origin, outgoing.due_ms)) is not None:
                    self._hold_singly(entry or overlay.pending_at(key), origin, turn_ms)
                else:
                    fired[slot, origin] += 1
                    fire(outgoing)
            elif key not in overlay.taken:
                if self.controls.is_unknown(origin):
                    known = False
                    break
                self._dispose_singly(entry or overlay.pending_at(key), origin, outgoing)
            self.scanned.append(key)
        for (slot, origin), count in fired.items():
            overlay.delta.add(slot, origin, False, -count)
        return known

    def _dispose_singly(self, entry: bytes, origin: str, outgoing: Outgoing) -> None:
        fixed = head(entry)
        self.overlay.count_off(entry, fixed, origin)
        self._dispose(entry, fixed, origin, outgoing)
        if fixed.flags & BEHIND:
            self.followers.note(entry, fixed)

    def _hold_singly(self, entry: bytes, origin: str, turn_ms: int) -> None:
        fixed = head(entry)
        self.overlay.count_off(entry, fixed, origin)
        self._move(entry, fixed, origin, turn_ms, DEFERRED | HELD, self.held)

    def _open_origin(self, name: str) -> Origin | None:
        """Return an origin to which every timer that fits can go; None when timers must be checked individually."""
        if self.overlay.taken or self.terms.unfireable or self.controls.closure_of(name) is not None:
            return None
        return self.terms.origins.get(name)

    def _dispose_now(self, entry: bytes, fixed: Head, origin: str) -> bool:
        """Dispose of a timer that a control record makes due: it waits neither for a turn nor behind another one."""
        return not self.standing.meets(fixed, origin) and self._dispose(entry, fixed, origin, in_turn=False)

    def _dispose(
        self, entry: bytes, fixed: Head, origin: str, rendered: Outgoing | None = None, *, in_turn: bool = True
    ) -> bool:
        """Fire a due timer, defer or hold it, or send it to the DLQ; return whether it went to the DLQ.

        Args:
            rendered: The record to deliver, if it was rendered ahead.
            in_turn: Its origin's rate and the order of its lane apply.
        """
        if (closed := self.controls.closure_of(origin)) is not None:
            closed_for_long = (
                closed.why != Closure.PAUSED and self.now_ms - closed.since_ms > self.terms.origin_timeout_ms
            )
            if closed_for_long and self.terms.entry_may_die(entry, fixed):
                detail = f"{origin} has been {closed.why} for longer than ORIGIN_TIMEOUT"
                self._dead_letter(entry, fixed, Reason.UNFIREABLE, detail, "fire")
                return True
            return self._defer(entry, fixed, origin, closed.since_ms)
        topic = self.terms.origins.get(origin)
        if topic is None:
            # Overdue at arrival, and its origin is no longer known: it is looked up soon.
            self.unresolved.add(origin)
            return self._defer(entry, fixed, origin, self.now_ms)
        blocker = self.terms.why_unfireable(self.partition.number, entry, fixed, topic)
        if blocker is not None:
            if not self.terms.entry_may_die(entry, fixed):
                return self._defer(entry, fixed, origin, fixed.requested_ms)
            self._dead_letter(entry, fixed, *blocker, "fire")
            return True
        if in_turn and (dead := self._wait(entry, fixed, origin)) is not None:
            return dead
        if rendered is None:
            rendered = render_delivery(self.partition.number, entry, fixed, origin)
            self.allowance.headers.left -= len(rendered.headers)
        self.deliveries.append(rendered)
        return False

    def _wait(self, entry: bytes, fixed: Head, origin: str) -> bool | None:
        """Hold a due timer or put it behind another one; return whether it went to the DLQ, None when it may fire.

        A turn is taken only by a timer that fires at it: one that waits for another one takes its turn afterwards.
        """
        turns, ahead = self.turns, self.overlay.ahead(entry, fixed)
        if turns is not None and fixed.flags & HELD and not turns.missed(fixed.due_ms):
            turns = None
        if ahead is not None:
            turn_ms = None if turns is None else turns.next_ms(origin, fixed.due_ms)
            # The one ahead has taken an earlier turn.
            follows = turn_ms is not None and turn_ms >= due_ms_of(ahead)
            if not follows or not self.overlay.pending_at(ahead)[FLAGS_AT] & HELD:
                due_ms = max(due_ms_of(ahead), self.now_ms + 1)
                return self._move(entry, fixed, origin, due_ms, DEFERRED | BEHIND, self.put_behind)
        if turns is not None and (turn_ms := turns.take(origin, fixed.due_ms)) is not None:
            return self._move(entry, fixed, origin, turn_ms, DEFERRED | HELD, self.held)
        return None

    def _defer(self, entry: bytes, fixed: Head, origin: str, since_ms: int) -> bool:
        """Store a due timer again, as much later as it has waited since its origin closed; return as `_dispose`."""
        # What made it late before says nothing about the origin.
        delay_ms = deferral_ms(self.now_ms - max(fixed.requested_ms, since_ms), self.overlay.deferred(origin))
        return self._move(entry, fixed, origin, self.now_ms + delay_ms, DEFERRED, self.deferred)

    def _move(self, entry: bytes, fixed: Head, origin: str, due_ms: int, flags: int, counts: dict[str, int]) -> bool:
        # What a command fires before its due is due from then on.
        if self._keep(entry, fixed, due_ms, min(fixed.requested_ms, self.now_ms), flags):
            return True
        counts[origin] = counts.get(origin, 0) + 1
        return False

    def _dead_letter(self, entry: bytes, fixed: Head, reason: Reason, detail: str, stage: str) -> None:
        dead = dead_of(entry, fixed, (reason, detail), stage, self.terms, self.partition.number, self.checkpoint)
        self.allowance.headers.left -= len(dead.headers)
        self._send_dead_letter(dead, fixed.requested_ms, entry[:KEY_BYTES])

    def _send_dead_letter(self, dead: Dead, due_ms: int, source: bytes) -> None:
        self.dead_letters.append((dead.reason, outgoing_of(dead, due_ms, source, self.terms, self.partition.number)))

    # Records

    def finish(self, ingested: int) -> PartitionPlan | None:
        """Return the partition's plan, None when there is nothing to commit."""
        watermark = self._watermark()
        sequence = self.checkpoint.sequence + 1
        self.overlay.lanes.finish(self.overlay.mutations.rows)
        records = block_records(self.overlay, sequence, self.terms)
        records += removed_records(self.overlay, watermark)
        records += tombstones(self.overlay, self.store, watermark)
        changed = self.partition.closures_over or self.controls.unfinished != self.checkpoint.unfinished
        if not (
            ingested or self.deliveries or self.dead_letters or records or self.scanned or changed or self.standing.met
        ):
            return None
        due_ms, offset = KEY.unpack(watermark)
        counts = self.partition.counts.plus(self.overlay.delta)
        checkpoint = Checkpoint(
            sequence=sequence,
            watermark_ms=due_ms,
            watermark_offset=offset,
            next_input_offset=self.next_input_offset,
            highest_input_offset=self.highest,
            input_topic_id=self.checkpoint.input_topic_id,
            wall_ms=self.now_ms,
            closed=noted(self.terms.closed, self.controls.paused, counts.origins),
            unfinished=self.controls.unfinished,
            has_fired=self.checkpoint.has_fired or bool(self.deliveries),
            offset_base=self.offset_base,
            turns={} if self.turns is None else self.turns.kept(),
            assignment=self.checkpoint.assignment,
            former=self.checkpoint.former,
            stopped=self.controls.stopped,
            acted=self.controls.repeats.kept(),
            changelog_topic_id=self.checkpoint.changelog_topic_id,
            rebuilt_from=self.checkpoint.rebuilt_from,
        )
        records.append((CHECKPOINT_KEY, encode_checkpoint(checkpoint)))
        for suffix, value in counts.rows(self.overlay.delta):
            self.overlay.mutations.rows[self.overlay.rows.counter + suffix] = value
        return PartitionPlan(
            number=self.partition.number,
            checkpoint=checkpoint,
            counts=counts,
            records=records,
            deliveries=self.deliveries,
            fired=Counter(map(_TOPIC_OF, self.deliveries)),
            fired_dues_ms=sorted(map(_DUE_MS_OF, self.deliveries)),
            dead_letters=self.dead_letters,
            control_outcomes=self.controls.outcomes,
            dropped=self.dropped,
            deferred=self.deferred,
            held=self.held,
            put_behind=self.put_behind,
            delivered_before=self.standing.counts,
            delivered_after=self.standing.after(self.next_input_offset),
            set_back_ms=self.partition.set_back_after(self.now_ms),
            mutations=self.overlay.mutations,
            ingested=ingested,
            stored=self.stored,
            rejected=self.rejected,
            cancelled=self.cancelled + self.controls.cancelled,
            complete=self.complete,
            taken=frozenset(self.overlay.taken),
            stored_end_ms=min(((slot + 1) * WIDTHS_MS[level] for level, slot in self.overlay.groups), default=None),
        )

    def _watermark(self) -> bytes:
        if self.complete:
            return max(self.overlay.watermark, KEY.pack(self.now_ms, OFFSET_MAX))
        return self.scanned[-1] if self.scanned else self.overlay.watermark

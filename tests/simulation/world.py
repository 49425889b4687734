"""One partition in a random world: sends, control records, clocks, closed origins, kills, restores, compaction."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from sidecar.changelog.codec import Closed
from sidecar.changelog.codec import Closure as Why
from sidecar.changelog.entry import head, lasting
from sidecar.engine.apply import apply_committed
from sidecar.engine.closures import DEFERRAL_MAX_MS
from sidecar.engine.items import Arrival, Item, Ordered
from sidecar.engine.overlay import Overlay
from sidecar.engine.partition import Partition, State
from sidecar.engine.plan import plan
from sidecar.engine.ports import Origin, Outgoing
from sidecar.engine.rates import LATE_MS, every_ns
from sidecar.engine.restore import ChangelogRead, Restore, to_spill
from sidecar.engine.rows import Identity, lane_of
from sidecar.engine.transaction import PartitionPlan, Terms
from sidecar.model import StoredOffset
from tests.fold import fold
from tests.simulation.audit import check_deferrals, check_fold, check_names, check_rows, rows_of, timers_of
from tests.simulation.commands import by_filter, item_of, met_by_filters
from tests.simulation.memory_log import MemoryLog
from tests.simulation.memory_store import MemoryStore
from tests.simulation.reference import (
    Closure,
    Command,
    Id,
    Input,
    Ledger,
    Met,
    Partial,
    Send,
    Transaction,
)

START_MS = 1_700_000_000_000
ORIGINS = ("A", "B", "C.c-c_c")
RETRY_IDS = (b"x", "ü".encode())
# The widths are 1 s, 64 s, 68 min, 3 d: some of each level and some at their edges.
DELAYS_MS = (-3, 0, 1, 2, 5, 500, 999, 1000, 1001, 5000, 15_000, 63_999, 64_000, 70_000, 300_000, 4_200_000, 3 * 10**8)
STEPS_MS = (1, 1, 2, 500, 1000, 3000, 5000, 8000, 30_000, 70_000, 600_000, 5_000_000, -5, -700, -20_000, -200_000)
TIMEOUT_MS = 3_600_000
PARTITIONS = 2
RATE = 2.0
"""Messages a second of an origin, in every third world: a turn of each partition a second."""
BUMPS_MS = 100
"""A key is never used twice, so a timer's stored due may be that much after its turn."""
IDENTITY = Identity("cluster", "topic")
WAKES_MAX = 5_000


class KilledError(Exception):
    """The process dies here."""


class World:
    """Everything that happens comes from the seed, so a failure can be had again."""

    def __init__(self, seed: int, *, apply_before_commit: bool = False) -> None:
        self.rng = random.Random(seed)
        self.keys = random.Random(seed)
        """The keys of messages: other worlds stay what they are."""
        self.trace: list[tuple[object, ...]] = []
        self.now_ms = self.greatest_ms = START_MS
        self.set_back = 0
        """Inputs that came again because an operator set the offsets back; each may move a timer by one more."""
        self.log = MemoryLog()
        self.rates = {"B": RATE} if seed % 3 == 2 else {}
        every_ms = {origin: every_ns(rate, PARTITIONS) // 1_000_000 for origin, rate in self.rates.items()}
        self.ordered = frozenset({"A", "B"}) if seed % 4 == 1 else frozenset[str]()
        """Origins whose messages keep the order of their key, in every fourth world."""
        self.ledger = Ledger(every_ms, LATE_MS + BUMPS_MS, self.ordered)
        self.topic = 0
        """How often the input topic was made anew."""
        self.start = 0
        """First offset of its log."""
        self.base = 0
        """What the messages of former topics take of the offsets in timer ids."""
        self.inputs: list[Input] = []
        """What the topic holds, by Kafka's offset; those before `start` are gone. Each has its timer's offset."""
        self.folders = [MemoryStore(), MemoryStore()]
        self.folder = 0
        self.committed = 0
        self.closed: dict[str, tuple[Why, Closure]] = {}
        self.unknown: set[str] = set()
        self.partition = Partition(0)
        self._apply_before_commit = apply_before_commit
        self.restore(cold=True)

    @property
    def store(self) -> MemoryStore:
        return self.folders[self.folder]

    # One transaction

    def step(self, *, limit: int = 4, ends: str = "applied") -> bool:
        """Plan, and commit if there is something.

        `ends` is "applied", "aborted", "killed" (after the commit) or "rolled back" (by a broker that had said that it
        is committed).
        """
        first = self.partition.checkpoint.next_input_offset
        taken = self.inputs[first : first + limit]
        if self.rates or self.ordered:
            # Of a message that is fired as it comes the ledger cannot tell whether a later command did that.
            commands = (at for at, item in enumerate(taken) if at and isinstance(item, Command))
            taken = taken[: next(commands, len(taken))]
        items = [self._item(item) for item in taken]
        known = frozenset(ORIGINS) - self.unknown
        terms = Terms(
            "retry",
            "dlq",
            "app",
            dict.fromkeys(known, Origin(4, 1_000_000)),
            closed={name: Closed(why, closure.told_ms) for name, (why, closure) in self.closed.items()},
            origin_timeout_ms=TIMEOUT_MS,
            rate_of=self.rates.get if self.rates else None,
            partitions=PARTITIONS,
            deliveries_max=self.rng.choice([1, 2, 3, 50]),
            delivery_bytes_max=self.rng.choice([100, 300, 1 << 20]),
        )
        made = plan([self.partition], {0: items}, self.store, self.now_ms, terms)
        if not made.partition_plans:
            return False
        (partition_plan,) = made.partition_plans
        partial = None
        if (unfinished := partition_plan.checkpoint.unfinished) is not None:
            command = self.inputs[unfinished.control_offset]
            assert isinstance(command, Command)
            partial = Partial(command, (unfinished.seen_offset, unfinished.seen_first_ms))
        taken = taken[: partition_plan.ingested]
        done = [*taken, *([partial.command] if partial else [])]
        met = met_by_filters(done, self.partition, self.store, partition_plan.checkpoint.unfinished, self.base)
        assert made.left.get(0, []) == items[partition_plan.ingested :], ("items are lost", items, made.left)
        self.trace.append(
            ("plan", self.now_ms, ends, partition_plan.checkpoint, [str(item) for item in taken], partial)
        )
        if self._apply_before_commit:
            apply_committed(self.store, self.partition, partition_plan, IDENTITY, self.log.end)
        if ends == "aborted":
            self.log.abort(len(partition_plan.records))
            return True
        if ends == "rolled back":
            apply_committed(
                self.store, self.partition, partition_plan, IDENTITY, self.log.end + len(partition_plan.records)
            )
            self.store.flush()  # only the broker ended
            self.log.abort(len(partition_plan.records))
            return True
        *others, checkpoint = partition_plan.records
        self.rng.shuffle(others)
        partition_plan.records[:] = [*others, checkpoint]
        written_to = self.log.commit(partition_plan.records)
        self.committed = partition_plan.checkpoint.next_input_offset
        self.ledger.skip(self.base + self.start)
        self._tell_ledger(partition_plan, taken, partial, known, met)
        if ends == "applied":
            if not self._apply_before_commit:
                apply_committed(self.store, self.partition, partition_plan, IDENTITY, written_to)
            self._check(partition_plan)
        return True

    def _item(self, item: Input) -> Item:
        if isinstance(item, Command):
            return item_of(item, self.base, self.now_ms)
        due_ms = item.due_at(self.now_ms)
        body = lasting(
            due_ms,
            self.now_ms,
            0,
            3,
            1,
            item.origin.encode(),
            item.retry_id,
            item.key,
            f"{item.offset}:{due_ms}".encode(),
            [("retry-origin-topic", item.origin.encode())],
        )
        arrival = Arrival(item.offset - self.base, due_ms, item.origin, body, item.retry_id, item.replace)
        if item.key is None or item.origin not in self.ordered:
            return arrival
        return Ordered(arrival.offset, arrival, lane_of(item.origin, item.key))

    def _tell_ledger(
        self,
        partition_plan: PartitionPlan,
        taken: Sequence[Input],
        partial: Partial | None,
        known: frozenset[str],
        met: Met,
    ) -> None:
        scanned = self.ledger.commit(
            Transaction(
                self.now_ms,
                taken,
                partial,
                [_id_of(fire) for fire in partition_plan.deliveries],
                [_id_of(dead) for _, dead in partition_plan.dead_letters],
                [
                    (self.base + answer.offset, answer.outcome.value, answer.timers)
                    for answer in partition_plan.control_outcomes
                ],
                known,
                {name: closure for name, (_, closure) in self.closed.items()},
                TIMEOUT_MS,
                met,
            )
        )
        sources = {_id_of(fire): fire.source for fire in partition_plan.deliveries}
        order = [sources[timer_id] for timer_id in scanned]
        assert order == sorted(order), ("fired out of order", scanned)

    # Checks

    def _check(self, partition_plan: PartitionPlan | None = None) -> None:
        store, rows = self.store, self.partition.rows
        have = timers_of(store, rows)
        truth = {key: (timer.requested_ms, timer.origin, timer.retry_id) for key, timer in self.ledger.pending.items()}
        assert have == truth, ("lost or risen again", have, truth)
        check_rows(self.partition, store)
        bumps_ms = self.base + len(self.inputs) + self.set_back
        latest_ms = max(self.greatest_ms, self.now_ms) + DEFERRAL_MAX_MS + bumps_ms
        check_deferrals(store, rows, latest_ms, bumps_ms)
        for entry in rows_of(store, rows.timer).values():
            fixed = head(entry)
            assert partition_plan is None or not partition_plan.complete or fixed.due_ms > self.now_ms, (
                "due and not fired",
                fixed,
            )
        overlay = Overlay(self.partition, store, self.now_ms)
        for offset, first_ms in truth:
            assert overlay.find(StoredOffset(offset), first_ms) is not None, ("not found by its id", offset, first_ms)
        check_names(overlay, truth, RETRY_IDS)
        if self.rng.random() < 0.3:
            self._check_fold(self.log.compacted(self.rng))

    def _check_fold(self, left: Sequence[ChangelogRead]) -> None:
        check_fold(self.partition, self.store, fold((record.key, record.value) for record in left))

    # Restore

    def restore(self, *, cold: bool = False) -> None:
        """The process died: another one begins from a state folder, and may die as well before it is done."""
        if cold:
            self.folders[self.folder] = MemoryStore()
        self.trace.append(("restore", "cold" if cold else "warm", self.folder))
        while True:
            self.store.crash()
            self.partition = Partition(0)
            self.partition.transition_to(State.RESTORING)
            try:
                self._restore_once()
                break
            except KilledError:
                if self.rng.random() < 0.5:
                    self.log.compact(self.rng)
        self._check_fold(self.log.records)
        before = self.partition.checkpoint
        self.partition.checkpoint = before.of_topic(f"topic {self.topic}", self.start)
        # The group's offset wins over the changelog's: an operator may have moved it. Before the first checkpoint
        # nothing tells a recreated topic from the former one, but no offset is below the start of the log.
        offset = self.committed if before.meets(f"topic {self.topic}") else 0
        self._reset_to(max(offset, self.start))
        self.partition.transition_to(State.RUNNING)
        self._check()

    def _restore_once(self) -> None:
        rng, store = self.rng, self.store
        one = Restore(self.partition, store, IDENTITY)
        left = self.log.left_for(one)
        deadly = 0.05 if rng.random() < 0.5 else 0.0
        while left:
            size = rng.choice([1, 2, 5, 1000])
            one.apply(left[:size], "changelog")
            left = left[size:]
            self._maybe_die(deadly)
            while to_spill([one], rng.choice([1, 2000])) and not one.spill():
                self._maybe_die(deadly)
        while not one.settle():
            self._maybe_die(deadly)
        self._maybe_die(deadly)
        one.finish(self.log.end, self.rng.getrandbits(63) | 1)

    def _maybe_die(self, probability: float) -> None:
        if self.rng.random() < 0.2:
            self.store.flush()
        if self.rng.random() < probability:
            raise KilledError

    def _reset_to(self, offset: int) -> None:
        self.committed = offset
        self.partition.checkpoint = replace(self.partition.checkpoint, next_input_offset=offset)

    # What happens

    @property
    def _next_offset(self) -> int:
        return self.base + len(self.inputs)

    def act(self) -> None:
        """Let one random thing happen."""
        weights = [act.weight for act in ACTS]
        (chosen,) = self.rng.choices(ACTS, weights)
        chosen.run(self)

    def send(self) -> None:
        rng = self.rng
        origin = rng.choice(ORIGINS)
        retry_id = rng.choice([None, None, None, *RETRY_IDS, RETRY_IDS[0]])
        replace_others = retry_id is not None and rng.random() < 0.4
        delay_ms = rng.choice(DELAYS_MS)
        due_ms = None if rng.random() < 0.15 else self.now_ms + delay_ms
        key = self.keys.choice([b"k", b"k", b"k", b"l", None]) if self.ordered else None
        self._record(Send(self._next_offset, origin, due_ms, max(0, delay_ms), retry_id, replace_others, key))

    def command(self) -> None:
        rng = self.rng
        if not self.inputs:
            return
        kind = rng.choice(["cancel", "reschedule", "reschedule", "fire", "cancel", "fire", "forged"])
        self._record(Command(self._next_offset, kind, self._target(), self._due_ms()))

    def filter(self) -> None:
        origin = self.rng.choice([None, *ORIGINS, *ORIGINS])
        self._record(by_filter(self.rng, self._next_offset, origin, [self._due_ms() for _ in range(3)]))

    def pause(self) -> None:
        kind = self.rng.choice(["pause", "pause", "resume"])
        self._record(Command(self._next_offset, kind, self.rng.choice(ORIGINS)))

    def pause_all(self) -> None:
        """The whole group; resumed as often, for otherwise nothing would ever fire."""
        self._record(Command(self._next_offset, self.rng.choice(["pause", "resume", "resume"]), "*"))

    def shuffle_one_timer(self) -> None:
        """Move one timer about: the case that most rules on keys exist for."""
        target = self._target()
        for _ in range(self.rng.randint(2, 5)):
            self._record(Command(self._next_offset, "reschedule", target, self._due_ms()))
            if self.rng.random() < 0.5:
                self.step()

    def make_topic_anew(self) -> None:
        """Delete and recreate the input topic, with the records not yet ingested; its first records may be gone too."""
        unfinished = self.partition.checkpoint.unfinished
        self.topic += 1
        self.base = self.ledger.begin_topic()
        self.start = self.rng.choice([0, 0, 3, unfinished.control_offset if unfinished else 0])
        self.inputs = [Send(self.base + offset, ORIGINS[0], START_MS) for offset in range(self.start)]
        self.trace.append(("topic made anew", self.topic, self.base, self.start))
        self.restore()

    def _record(self, item: Input) -> None:
        self.trace.append(("input", item))
        self.inputs.append(item)

    def _due_ms(self) -> int:
        rng = self.rng
        timers = [head(entry) for entry in rows_of(self.store, self.partition.rows.timer).values()]
        dues = [due_ms for fixed in timers for due_ms in (fixed.due_ms, fixed.first_ms)]
        if dues and rng.random() < 0.4:
            return rng.choice(dues)
        return self.now_ms + rng.choice(DELAYS_MS)

    def _target(self) -> Id | bytes:
        rng = self.rng
        if self.ledger.pending and rng.random() < 0.4:
            return rng.choice(sorted(self.ledger.pending))
        sends = [item for item in self.inputs if isinstance(item, Send)][-8:]
        if not sends or rng.random() < 0.05:
            return (0, START_MS + 7)
        if rng.random() < 0.15:
            return rng.choice(RETRY_IDS)
        offset = rng.choice(sends).offset
        heads = [head(entry) for entry in rows_of(self.store, self.partition.rows.timer).values()]
        wrong = [fixed.due_ms for fixed in heads if fixed.offset == offset]
        if wrong and rng.random() < 0.15:  # the offset with a due that it was moved to
            return (offset, rng.choice(wrong))
        return (offset, next(send for send in sends if send.offset == offset).due_at(self.now_ms))

    def turn_clock(self) -> None:
        self.now_ms = max(START_MS, self.now_ms + self.rng.choice(STEPS_MS))
        self.greatest_ms = max(self.greatest_ms, self.now_ms)
        self.trace.append(("clock", self.now_ms))

    def turn_origin(self) -> None:
        """An origin closes, opens, or nothing is known of it for a while."""
        origin = self.rng.choice(ORIGINS)
        if origin in self.closed or origin in self.unknown:
            self.closed.pop(origin, None)
            self.unknown.discard(origin)
        elif self.rng.random() < 0.3:
            self.unknown.add(origin)
        else:
            why = self.rng.choice([Why.UNAUTHORISED, Why.VANISHED, Why.UNREACHABLE])
            self.closed[origin] = (why, Closure(self.now_ms, self.now_ms))
        self.trace.append(("origins", dict(self.closed), set(self.unknown)))

    def take_step(self) -> None:
        self.step(limit=self.rng.choice([0, 1, 4]))

    def reset_offsets(self) -> None:
        offset = self.partition.checkpoint.next_input_offset
        again = min(offset - self.start, self.rng.randint(1, 12))
        self.set_back += again
        self._reset_to(offset - again)
        self.trace.append(("operator resets to", self.committed))

    def flush(self) -> None:
        self.store.flush()
        self.trace.append(("flush", self.folder))

    def compact(self) -> None:
        self.log.compact(self.rng, everything=self.rng.random() < 0.3)
        self.trace.append(("compact", len(self.log.records)))

    def abort(self) -> None:
        """A transaction is aborted: its plan is forgotten, and the same process goes on."""
        if self.step(ends="aborted"):
            self._check()

    def kill(self) -> None:
        self.step(ends=self.rng.choice(["aborted", "killed", "rolled back"]))
        self.folder = self.rng.choice([0, 0, 1])
        self.restore(cold=self.rng.random() < 0.3)
        for origin, (why, closure) in self.closed.items():
            known = self.partition.checkpoint.closed.get(origin)
            if known is None or known.why is Why.PAUSED:  # the new owner finds out anew
                self.closed[origin] = (why, Closure(closure.since_ms, max(closure.since_ms, self.now_ms)))
            else:
                self.closed[origin] = (why, Closure(min(closure.since_ms, known.since_ms), known.since_ms))

    # The end

    def finish(self) -> None:
        """Open every origin: all must fire, and nothing may be left behind, in the rows or in the log."""
        self.closed.clear()
        self.unknown.clear()
        for origin in (*ORIGINS, "*"):
            self._record(Command(self._next_offset, "resume", origin))
        while self.partition.checkpoint.next_input_offset < len(self.inputs):
            assert self.step()
        self._run_dry()
        assert not self.ledger.pending, ("never fired", self.ledger.pending)
        # What was removed in the transaction that stored it has no block: the next transaction deletes it.
        self.now_ms += 2 * max(DELAYS_MS)
        self.send()
        self.step()
        self._run_dry()
        left = [row for row in self.store.rows if row != self.partition.rows.meta]
        assert not left, ("rows are left behind", left)
        self.log.compact(self.rng, everything=True)
        assert [record.key for record in self.log.records] == [b"c"], ("records are left behind", self.log.records)

    def _run_dry(self) -> None:
        for _ in range(WAKES_MAX):
            wakes_ms = self.partition.wakes_at_ms()
            if wakes_ms is None:
                return
            self.now_ms = max(self.now_ms, wakes_ms)
            assert self.step(), ("it woke for nothing", wakes_ms)
        raise AssertionError("it never comes to rest")


class Act:
    """Something that may happen, and how often it does."""

    def __init__(self, weight: int, run: Callable[[World], None]) -> None:
        self.weight = weight
        self.run = run


ACTS = (
    Act(36, World.send),
    Act(17, World.command),
    Act(2, World.shuffle_one_timer),
    Act(4, World.filter),
    Act(5, World.pause),
    Act(2, World.pause_all),
    Act(4, World.turn_origin),
    Act(14, World.turn_clock),
    Act(18, World.take_step),
    Act(3, World.reset_offsets),
    Act(1, World.make_topic_anew),
    Act(2, World.flush),
    Act(4, World.compact),
    Act(2, World.abort),
    Act(4, World.kill),
)


def _id_of(outgoing: Outgoing) -> Id:
    offset, first_ms = (outgoing.value or b"").split(b":")
    return int(offset), int(first_ms)

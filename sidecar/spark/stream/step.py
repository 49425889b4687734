"""One turn of one input partition: the same plan() as the embedded engine's, again and again until a bound is reached.

A turn is a function of the state, the records and the instant of the micro-batch, and of nothing else: Spark may run it
again, and what it sends is then the same to the byte.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from msgspec.structs import replace

from sidecar.changelog.codec import Checkpoint, Closure, Engine
from sidecar.changelog.entry import LASTING, LASTING_ORIGIN_PARTITION, payload
from sidecar.contract import Dialect, status
from sidecar.contract.sizes import DELIVERY_OVERHEAD_BYTES
from sidecar.engine.group.view import PartitionView
from sidecar.engine.ingest import Ingest
from sidecar.engine.items import Arrival, Item, outcome_records
from sidecar.engine.partition import Partition, State
from sidecar.engine.plan import plan
from sidecar.engine.ports import Origin, Outgoing
from sidecar.engine.transaction import PartitionPlan, Terms
from sidecar.errors import PartitionStopped
from sidecar.model import Record
from sidecar.policy import Policy, PolicyConfig
from sidecar.spark.marks import ALL, ReplayClosings
from sidecar.spark.state.entries import (
    META,
    REASON,
    STOPPED,
    BufferedEntries,
    Meta,
    StateEntries,
    Stopped,
    decode_meta,
    encode,
)
from sidecar.spark.state.shard_store import ShardStore
from sidecar.spark.stream import topic_metadata
from sidecar.spark.stream.topic_metadata import Lookup, TopicMetadata
from sidecar.spark.stream.wire import LATE_STEP_MS, Closing, OutputPart, StatusRecord, Tally, cut
from sidecar.spark.waiting import Waiting

PLANS_MAX: Final = 5
"""Most steps of one turn, each with what one plan gives; what is left wakes the next micro-batch at once."""
DELIVERIES_MAX: Final = 10_000
DELIVERY_BYTES_MAX: Final = 16 * 1024 * 1024
INGEST_BYTES_MAX: Final = 32 * 1024 * 1024
"""About so much of what came is taken in by one turn; the rest waits in the state."""
SHARING: Final = 4
"""So many input partitions of one state partition have these bounds; of more each one has less."""
TRY_AGAIN_MS: Final = 60_000
"""A partition that cannot go on is tried again after so long: a later version may read what this one cannot."""
PUBLISH_MS: Final = 3_000
"""Counts are published when something changed, and at least so often: readers take a figure of 10 s for unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What a turn needs of the settings and the topics; sent to the executors once."""

    policy: PolicyConfig
    profiles: tuple[str, ...]
    app_id: str
    status_topic: str
    owner: str
    url: str | None = None
    origin_timeout_ms: int = 86_400_000
    dlq_max_message_bytes: int = 1_048_588
    api_token: str | None = None
    input_topic_id: str = ""
    input_partitions: int = 1
    state_partitions: int = 1

    @property
    def share(self) -> float:
        """Return which part of the bounds each input partition has, so that they hold for a state partition."""
        return min(1.0, SHARING * self.state_partitions / self.input_partitions)

    @property
    def delivery_share(self) -> float:
        """Return which part of a step's bounds it has, where the bound of the steps cannot be divided further."""
        return min(1.0, PLANS_MAX * self.share)


@dataclass(slots=True)
class StepResult:
    """What a turn gives."""

    output_parts: list[OutputPart]
    tally: Tally
    wakes_ms: int
    """When the partition wants its next turn at the latest; after the instant of this one."""
    woke_ms: int
    """What that was before this turn; 0: nothing."""


@dataclass(frozen=True, slots=True)
class _PlanOutput:
    """What one plan sends."""

    before: int
    checkpoint: Checkpoint
    records: list[Outgoing]
    status_records: list[StatusRecord]


@dataclass(slots=True)
class _Sent:
    outputs: list[_PlanOutput] = field(default_factory=list)
    fired: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    deferred: Counter[str] = field(default_factory=Counter)
    stored: int = 0
    dropped: int = 0
    rejected: int = 0
    controls: int = 0
    cancelled: int = 0
    late: Counter[int] = field(default_factory=Counter)

    def add(self, part: PartitionPlan, before: int, now_ms: int) -> None:
        records = [*(outgoing for _, outgoing in part.dead_letters), *part.deliveries]
        status_records = [
            StatusRecord(key, value, []) for key, value in outcome_records(part.control_outcomes, part.number, now_ms)
        ]
        self.outputs.append(_PlanOutput(before, part.checkpoint, records, status_records))
        self.fired.update(part.fired)
        self.reasons.update(reason.value for reason, _ in part.dead_letters)
        self.deferred.update(part.deferred)
        self.stored += part.stored
        self.dropped += len(part.dropped)
        self.rejected += part.rejected
        self.controls += len(part.control_outcomes)
        self.cancelled += part.cancelled
        self.late.update(-((outgoing.due_ms - now_ms) // LATE_STEP_MS) * LATE_STEP_MS for outgoing in part.deliveries)

    def tally(self) -> Tally:
        return Tally(
            fired=dict(self.fired),
            dead=dict(self.reasons),
            deferred=dict(self.deferred),
            stored=self.stored,
            dropped=self.dropped,
            rejected=self.rejected,
            controls=self.controls,
            cancelled=self.cancelled,
            late=dict(self.late),
        )


class PartitionSteps:
    """Runs the turns of partitions. Pure but for `lookup`, which is asked last and only for the turn to come.

    Args:
        rules: The same on all executors.
        dialects: Those of the rules' profiles.
        lookup: Asks the broker for topics.
        again: What the turns of one micro-batch take for closed.
    """

    def __init__(
        self,
        rules: Rules,
        dialects: Sequence[Dialect],
        lookup: Lookup,
        replay_closings: ReplayClosings = ReplayClosings(),  # noqa: B008 - it never changes
    ) -> None:
        self._rules = rules
        self._dialects = dialects
        self._policy = Policy(rules.policy)
        self._lookup = lookup
        self._replay_closings = replay_closings

    def step(self, partition: int, state: StateEntries, chunks: Iterable[bytes], now_ms: int) -> StepResult | None:
        """Take in what came and fire what is due; None when this instant has had its turn.

        Args:
            partition: Of the input topic.
            cells: Its state, which is written. When it cannot be read it stays as it is, what came is kept with it,
                and the other partitions go on.
            chunks: What came, in any order.
            now_ms: The instant of the micro-batch.
        """
        waiting = Waiting(state, max(1, int(INGEST_BYTES_MAX * self._rules.share)))
        came = waiting.add(chunks)
        found = state.get(STOPPED)
        stopped = None if found is None else REASON.decode(found)
        if stopped is not None and now_ms - stopped.tried_ms < TRY_AGAIN_MS:
            return self._stop(partition, state, waiting, stopped, now_ms)
        buffered = BufferedEntries(state)
        try:
            result = self._go_on(partition, buffered, waiting, now_ms, came=came)
        except PartitionStopped as error:
            since_ms = now_ms if stopped is None else stopped.since_ms
            wakes_ms = _wakes_ms(state) if stopped is None else stopped.wakes_ms
            return self._stop(partition, state, waiting, Stopped(str(error), since_ms, now_ms, wakes_ms), now_ms)
        if result is None:
            return None
        waiting.save()
        buffered.flush()
        if stopped is not None:
            state.remove(STOPPED)
            result.woke_ms = stopped.wakes_ms
        return result

    def _go_on(
        self, partition: int, state: StateEntries, waiting: Waiting, now_ms: int, *, came: bool
    ) -> StepResult | None:
        value = state.get(META)
        meta = Meta() if value is None else decode_meta(value)
        if meta.last_step_ms == now_ms and not came:
            return None
        if meta.held[0] != meta.held[1]:
            waiting.adopt(meta.held)
            meta.held = (meta.held[1], meta.held[1])
        closings = self._replay_closings.of(partition, now_ms)
        result = _PartitionStep(self._rules, self._policy, self._dialects, partition, state, meta, now_ms, closings)
        result.run(waiting)
        used, unresolved = result.used()
        answers = self._lookup(asked) if (asked := topic_metadata.to_ask(meta.topics, unresolved, now_ms)) else {}
        meta.topics = topic_metadata.refreshed(
            meta.topics, answers, used, result.sent_to(), meta.counted_origins, now_ms
        )
        output_parts = result.output_parts()
        woke_ms, meta.wakes_ms = meta.wakes_ms, result.wakes_ms()
        meta.last_step_ms = now_ms
        state.put(META, encode(meta))
        return StepResult(output_parts, result.sent.tally(), meta.wakes_ms, woke_ms)

    def _stop(self, partition: int, state: StateEntries, waiting: Waiting, stopped: Stopped, now_ms: int) -> StepResult:
        """Keep what came, and say why the partition cannot go on."""
        waiting.save_all()
        woke_ms, stopped.wakes_ms = stopped.wakes_ms, now_ms + PUBLISH_MS
        state.put(STOPPED, encode(stopped))
        view = stopped_view(partition, self._rules, stopped)
        status_record = signed(
            self._rules, partition, StatusRecord(status.partition_key(partition), view.to_json(), []), now_ms
        )
        part = OutputPart(
            partition=partition, before=0, after=0, next_input_offset=0, records=[], status_records=[status_record]
        )
        return StepResult([part], Tally(stopped={partition: stopped.reason}), stopped.wakes_ms, woke_ms)


def _wakes_ms(state: StateEntries) -> int:
    """Return the expiry of the timer that is registered, 0 when that is what cannot be read."""
    try:
        return decode_meta(state.get(META) or b"").wakes_ms
    except PartitionStopped:
        return 0


class _PartitionStep:
    def __init__(
        self,
        rules: Rules,
        policy: Policy,
        dialects: Sequence[Dialect],
        number: int,
        state: StateEntries,
        meta: Meta,
        now_ms: int,
        closings: Sequence[Closing],
    ) -> None:
        self.sent = _Sent()
        self._rules = rules
        self._policy = policy
        self._dialects = dialects
        self._closings = closings
        self._meta = meta
        self._number = number
        self._now_ms = now_ms
        self._before = meta.checkpoint.sequence
        self._store = ShardStore(state, meta, number)
        self._unresolved: set[str] = set()
        self._complete = True
        self._waits = False
        self._look()

    def _look(self) -> None:
        """See what is known of the topics, for the step to come."""
        meta, rules, now_ms = self._meta, self._rules, self._now_ms
        for topic, why, sequence in self._closings:
            if sequence == meta.checkpoint.sequence or sequence < self._before == meta.checkpoint.sequence:
                if topic == rules.policy.dlq_topic:
                    meta.topics.setdefault(topic, TopicMetadata(1, rules.dlq_max_message_bytes))
                for name in meta.topics.keys() & ({topic} if topic != ALL else meta.topics.keys()):
                    meta.topics[name] = topic_metadata.refusing(meta.topics[name], why, now_ms)
        self._origins: Mapping[str, Origin] = topic_metadata.known_origins(meta.topics)
        self._closed = topic_metadata.closed_origins(meta.topics, meta.checkpoint.closed, now_ms)
        self._dlq_open = rules.policy.dlq_topic not in self._closed
        self._ingest = Ingest(
            self._policy,
            self._dialects,
            self._origins,
            topic_metadata.missing_topics(meta.topics, now_ms),
            input_topic=rules.policy.input_topic,
            app_id=rules.app_id,
            api_token=rules.api_token,
            forbidden=topic_metadata.forbidden_topics(meta.topics, now_ms),
        )

    def run(self, waiting: Waiting) -> None:
        """Take in and fire until nothing is left or a bound is reached."""
        meta, share = self._meta, self._rules.share
        if not meta.settled:
            self._store.settle()
            self._unresolved = meta.counted_origins.keys() - meta.topics.keys()
            if not meta.settled or self._unresolved:
                # What an origin is like is asked for before anything that was imported is decided.
                self._complete = False
                self._store.save()
                return
        partition = Partition(self._number, State.RUNNING, checkpoint=meta.checkpoint, counts=meta.counts())
        closed = meta.checkpoint.closed
        partition.closures_over = any(
            name in self._origins and name not in self._closed and closed[name].why != Closure.PAUSED for name in closed
        )
        came = sorted(waiting.take(), key=_offset_of) if self._dlq_open else []
        items = self._items(came)
        left: Sequence[Item] = items
        for _ in range(max(1, int(PLANS_MAX * share))):
            if self._closings and self.sent.outputs:
                self._look()
            upto_ms = self._store.split_due(self._now_ms)
            partition.next_due_ms = self._store.next_due_ms()
            batches = {self._number: left} if left and self._dlq_open else {}
            planned = plan([partition], batches, self._store, upto_ms, self._terms())
            left = planned.left.get(self._number, ()) if batches else left
            self._unresolved |= planned.unresolved
            self._complete = planned.complete and upto_ms == self._now_ms
            for part in planned.partition_plans:
                self._take_over(partition, part, upto_ms)
            partition.closures_over = False
            if not planned.partition_plans or (planned.complete and not left) or planned.unresolved:
                break
        self._store.finish()
        waiting.put_back(came[len(items) - len(left) :])
        self._waits = bool(waiting)

    def _terms(self) -> Terms:
        rules = self._rules
        return Terms(
            input_topic=rules.policy.input_topic,
            dlq_topic=rules.policy.dlq_topic,
            app_id=rules.app_id,
            origins=self._origins,
            closed=self._closed,
            origin_timeout_ms=rules.origin_timeout_ms,
            dlq_max_message_bytes=rules.dlq_max_message_bytes,
            dlq_open=self._dlq_open,
            deliveries_max=max(1, int(DELIVERIES_MAX * rules.delivery_share)),
            delivery_bytes_max=max(1, int(DELIVERY_BYTES_MAX * rules.delivery_share)),
        )

    def _take_over(self, partition: Partition, part: PartitionPlan, now_ms: int) -> None:
        self._store.apply(part)
        topic_id = self._rules.input_topic_id or part.checkpoint.input_topic_id
        self.sent.add(part, partition.checkpoint.sequence, now_ms)
        partition.checkpoint = replace(part.checkpoint, engine=Engine.SPARK, input_topic_id=topic_id)
        partition.counts = part.counts
        self._meta.checkpoint = partition.checkpoint
        self._meta.count(part.counts)

    # Intake

    def _items(self, came: Sequence[Arrival | Record]) -> list[Item]:
        """Return what can be taken in now: all before the first one whose origin the broker must be asked for."""
        items: list[Item] = []
        for at, each in enumerate(came):
            item = self._item(each)
            if isinstance(item, str):
                # The others that are not known either are asked for in the same breath.
                self._unresolved.update(name for name in map(self._item, came[at:]) if isinstance(name, str))
                break
            items.append(item)
        return items

    def _item(self, came: Arrival | Record) -> Item | str:
        if isinstance(came, Record):
            return self._ingest.examine(came, self._now_ms)
        origin = self._origins.get(came.origin)
        target = int.from_bytes(came.lasting[LASTING_ORIGIN_PARTITION], "big", signed=True)
        if (
            origin is not None
            and target < origin.partitions
            and len(came.lasting) + DELIVERY_OVERHEAD_BYTES <= origin.max_message_bytes
        ):
            return came
        return self._ingest.examine(_record(self._number, came), self._now_ms)

    # What leaves

    def used(self) -> tuple[set[str], set[str]]:
        """Return the topics to keep facts of, and those to ask for now."""
        dlq = () if self._dlq_open else (self._rules.policy.dlq_topic,)
        return {*self._meta.counted_origins, *self._unresolved, *self.sent.fired, *dlq}, self._unresolved

    def sent_to(self) -> set[str]:
        """Return the topics that this turn sends to, and that have not refused any of it."""
        dlq = (self._rules.policy.dlq_topic,) if self.sent.reasons else ()
        return {*self.sent.fired, *dlq} - self._closed.keys()

    def wakes_ms(self) -> int:
        """Return when the next turn is wanted."""
        due_ms = self._store.next_due_ms()
        if not self._complete or (self._waits and self._dlq_open) or self._unresolved:
            return self._now_ms + 1
        return max(self._now_ms + 1, min(self._meta.published_ms + PUBLISH_MS, due_ms or 2**62))

    def output_parts(self) -> list[OutputPart]:
        """Return what is sent, in parts; empty when there is nothing to say."""
        meta, now_ms, outputs = self._meta, self._now_ms, self.sent.outputs
        if not outputs and now_ms - meta.published_ms < PUBLISH_MS - 500:
            return []
        meta.published_ms = now_ms
        view = StatusRecord(status.partition_key(self._number), self._view().to_json(), [])
        found: list[OutputPart] = []
        for output in outputs or [_PlanOutput(meta.checkpoint.sequence, meta.checkpoint, [], [])]:
            last = not outputs or output is outputs[-1]
            status_records = [
                signed(self._rules, self._number, status_record, now_ms)
                for status_record in [*output.status_records, *[view] * last]
            ]
            parts = list(cut(output.records))
            for at, part in enumerate(parts, 1):
                ends = at == len(parts)
                found.append(
                    OutputPart(
                        partition=self._number,
                        before=output.before,
                        after=output.checkpoint.sequence,
                        next_input_offset=output.checkpoint.next_input_offset,
                        records=part,
                        status_records=status_records if ends else [],
                        ends=ends,
                        last=ends and last,
                        offset_base=output.checkpoint.offset_base,
                        closings=[each for each in self._closings if each.sequence <= output.before] if ends else [],
                    )
                )
        return found

    def _view(self) -> PartitionView:
        meta = self._meta
        view = PartitionView(
            partition=self._number,
            state=State.RUNNING if meta.settled else State.RESTORING,
            owner=self._rules.owner,
            url=self._rules.url,
            restored=1.0 if meta.settled else 0.0,
            next_due_ms=self._store.next_due_ms() if meta.settled else None,
            due_backlog=0 if self._complete else self._backlog(),
            reason="" if self._dlq_open else f"the DLQ {self._rules.policy.dlq_topic} cannot be written",
            listable=False,
        )
        return view.counted(meta.counts(), meta.checkpoint, self._now_ms)

    def _backlog(self) -> int:
        return sum(
            count for level, slot, count in self._meta.counted_slots if level == 0 and slot < self._now_ms // 1000
        )


def _offset_of(came: Arrival | Record) -> int:
    return came.offset


def _record(number: int, arrival: Arrival) -> Record:
    """Return the record that an arrival was made of."""
    _, timestamp_ms, _, _, _, _, origin_length, retry_id_length = LASTING.unpack_from(arrival.lasting)
    key, value, headers = payload(arrival.lasting, LASTING.size + origin_length + retry_id_length)
    return Record(number, arrival.offset, timestamp_ms, key, value, headers)


def signed(rules: Rules, partition: int, status_record: StatusRecord, now_ms: int) -> StatusRecord:
    """Return a record of the status topic with its signature, if there is a token."""
    headers = status.signed(
        rules.api_token, rules.status_topic, partition, status_record.key, status_record.value, now_ms
    )
    return StatusRecord(status_record.key, status_record.value, headers)


def stopped_view(partition: int, rules: Rules, stopped: Stopped) -> PartitionView:
    """Return what is told of a partition whose state cannot be read."""
    return PartitionView(
        partition=partition,
        state=State.STOPPED,
        owner=rules.owner,
        url=rules.url,
        reason=stopped.reason,
        listable=False,
    )

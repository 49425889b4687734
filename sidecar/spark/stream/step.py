"""One step of one input partition: it repeats the plan() of the embedded engine until a bound is reached.

A partition step is a function of the state, the records and the micro-batch's instant alone: a repeat sends the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

from msgspec.structs import replace

from sidecar import __version__
from sidecar.changelog.codec import Closure, Engine
from sidecar.changelog.entry import LASTING_ORIGIN_PARTITION
from sidecar.contract import Dialect, status
from sidecar.contract.dialects.registry import Profile
from sidecar.contract.sizes import DELIVERY_OVERHEAD_BYTES
from sidecar.engine.group.view import PartitionView
from sidecar.engine.ingest import Ingest
from sidecar.engine.items import Arrival, Item
from sidecar.engine.partition import Partition, State
from sidecar.engine.plan import plan
from sidecar.engine.ports import Origin
from sidecar.engine.rates import LATE_MS
from sidecar.engine.transaction import PartitionPlan, Terms
from sidecar.errors import PartitionStopped
from sidecar.model import Record
from sidecar.policy import Policy, PolicyConfig
from sidecar.spark.marks import ALL, ReplayClosings
from sidecar.spark.state.entries import (
    INDEX,
    META,
    REASON,
    ROOT,
    STOPPED,
    BufferedEntries,
    Meta,
    StateEntries,
    Stopped,
    StoredEntries,
    WrittenEntries,
    decode_meta,
    encode,
)
from sidecar.spark.state.shard_store import ShardStore
from sidecar.spark.state.waiting import Waiting
from sidecar.spark.stream import topic_metadata
from sidecar.spark.stream.horizon import AHEAD_BYTES_MAX, AHEAD_DELIVERIES_MAX, horizon_ms, instants, note_step
from sidecar.spark.stream.sent import PlanOutput, Sent, delivers_only
from sidecar.spark.stream.status_records import signed, stopped_view
from sidecar.spark.stream.topic_metadata import Lookup, TopicMetadata
from sidecar.spark.stream.wire import Closing, OutputPart, StatusRecord, Tally, record_of

PLANS_MAX: Final = 5
"""The most plans of one step; what is left wakes the next micro-batch at once."""
DELIVERIES_MAX: Final = 10_000
DELIVERY_BYTES_MAX: Final = 16 * 1024 * 1024
INGEST_BYTES_MAX: Final = 32 * 1024 * 1024
"""The approximate limit of what one step ingests; the rest waits in the state."""
STEP_MS_MAX: Final = 60_000
"""The longest time between two steps whose turns are all met in the second one."""
SHARING: Final = 4
"""The input partitions of one state partition that have these bounds in full; of more each one has less."""
TRY_AGAIN_MS: Final = 60_000
"""The time after which a stopped partition is tried again: a later version may read what this one cannot."""
PUBLISH_MS: Final = 3_000
"""The longest time between two publications of counts: readers treat a figure older than 10 s as unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The settings and topic properties that a partition step needs; Spark sends them to the executors once."""

    policy: PolicyConfig
    profiles: tuple[Profile, ...]
    app_id: str
    status_topic: str
    owner: str
    url: str | None = None
    listable: bool = False
    origin_timeout_ms: int = 86_400_000
    dlq_max_message_bytes: int = 1_048_588
    api_token: str | None = None
    input_topic_id: str = ""
    input_partitions: int = 1
    state_partitions: int = 1
    query_began_ms: int = 0
    ahead: bool = True
    """Whether steps plan ahead. It is False only for a micro-batch that never ran with True."""

    @property
    def share(self) -> float:
        """Return the part of the bounds that each input partition has, so that they hold for a state partition."""
        return min(1.0, SHARING * self.state_partitions / self.input_partitions)

    @property
    def delivery_share(self) -> float:
        """Return the part of a plan's bounds that each has, where the number of plans cannot be divided further."""
        return min(1.0, PLANS_MAX * self.share)


@dataclass(slots=True)
class StepResult:
    """The result of a partition step."""

    output_parts: list[OutputPart]
    tally: Tally
    wakes_ms: int
    """The latest instant of the partition's next step; after the instant of this one."""
    woke_ms: int
    """The `wakes_ms` of the step before; 0: none."""


class PartitionSteps:
    """Runs the steps of partitions. Pure except for `lookup`, which runs last and serves the next step only.

    Args:
        rules: The rules, the same on all executors.
        dialects: The dialects of the rules' profiles.
        lookup: Asks the broker for topics.
        replay_closings: The topics that the steps of a replayed micro-batch treat as closed.
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

    def step(self, partition: int, stored: StoredEntries, chunks: Iterable[bytes], now_ms: int) -> StepResult | None:
        """Ingest new records and fire due timers; return None when this instant had its step already.

        Args:
            partition: A partition of the input topic.
            stored: Its state, which is written. A state that cannot be read stays as it is, the new records are kept
                with it, and the other partitions continue.
            chunks: The new records, in any order.
            now_ms: The instant of the micro-batch.
        """
        state = WrittenEntries(stored)
        state.fetch((INDEX, STOPPED, META, ROOT))
        waiting = Waiting(state, max(1, int(INGEST_BYTES_MAX * self._rules.share)))
        came = waiting.add(chunks)
        found = state.get(STOPPED)
        stopped = None if found is None else REASON.decode(found)
        if stopped is not None and now_ms - stopped.tried_ms < TRY_AGAIN_MS:
            return self._stop(partition, state, waiting, stopped, now_ms)
        buffered = state.buffered()
        try:
            result = self._run(partition, buffered, waiting, now_ms, came=came)
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

    def _run(
        self, partition: int, state: BufferedEntries, waiting: Waiting, now_ms: int, *, came: bool
    ) -> StepResult | None:
        meta = Meta() if (value := state.get(META)) is None else decode_meta(value)
        if meta.last_step_ms == now_ms and not came:
            return None
        closings = self._replay_closings.of(partition, now_ms)
        result = self._begun(partition, state, meta, now_ms, closings)
        result.run(waiting)
        used, unresolved = result.used()
        answers = self._lookup(asked) if (asked := topic_metadata.to_ask(meta.topics, unresolved, now_ms)) else {}
        topics = topic_metadata.refreshed(meta.topics, answers, used, result.sent_to(), meta.counted_origins, now_ms)
        output_parts = result.output_parts()
        woke_ms, meta.wakes_ms = meta.wakes_ms, result.wakes_ms()
        note_step(meta, now_ms)
        if result.may_plan_ahead():
            output_parts += self._plan_ahead(partition, state, meta, closings)
        if meta.ahead_ms:
            # What the broker says of topics may differ when this step is repeated, and what was sent ahead may not.
            meta.next_topics = topics
        else:
            meta.topics = topics
        state.put(META, encode(meta))
        return StepResult(output_parts, result.sent.tally(), meta.wakes_ms, woke_ms)

    def _begun(
        self, partition: int, state: StateEntries, meta: Meta, now_ms: int, closings: Sequence[Closing]
    ) -> _PartitionStep:
        """Return a step that has made the plans that the one before made ahead."""
        ahead_ms, meta.ahead_ms = meta.ahead_ms, 0
        began_ms = meta.last_step_ms if ahead_ms else now_ms
        step = self._step(partition, state, meta, began_ms, closings)
        step.store.read_ahead(max(ahead_ms, now_ms))
        if ahead_ms:
            step.run_ahead(ahead_ms, trial=False)
            meta.topics, meta.next_topics = meta.next_topics, {}
            step.begin(now_ms)
        return step

    def _step(
        self, partition: int, state: StateEntries, meta: Meta, now_ms: int, closings: Sequence[Closing]
    ) -> _PartitionStep:
        return _PartitionStep(self._rules, self._policy, self._dialects, partition, state, meta, now_ms, closings)

    def _plan_ahead(
        self, partition: int, state: BufferedEntries, meta: Meta, closings: Sequence[Closing]
    ) -> list[OutputPart]:
        """Return what the next step begins with: made on a copy of the state, which that step will find."""
        now_ms, copied = meta.last_step_ms, decode_meta(encode(meta))
        trial = self._step(partition, state.copied(), copied, now_ms, ())
        trial.store.read_ahead(horizon_ms(meta), tidies=False)
        meta.ahead_ms = trial.run_ahead(horizon_ms(meta), trial=True)
        return [output.part(partition, closings, ahead=True) for output in trial.sent.outputs]

    def _stop(self, partition: int, state: StateEntries, waiting: Waiting, stopped: Stopped, now_ms: int) -> StepResult:
        """Keep the new records, and publish why the partition stopped."""
        rules = self._rules
        waiting.save_all()
        woke_ms, stopped.wakes_ms = stopped.wakes_ms, now_ms + PUBLISH_MS
        state.put(STOPPED, encode(stopped))
        view = stopped_view(partition, rules.owner, rules.url, stopped, listable=rules.listable).to_json()
        status_record = StatusRecord(status.partition_key(partition), view, [])
        status_record = signed(rules.api_token, rules.status_topic, partition, status_record, now_ms)
        part = OutputPart(
            partition=partition, before=0, after=0, next_input_offset=0, records=[], status_records=[status_record]
        )
        return StepResult([part], Tally(stopped={partition: stopped.reason}), stopped.wakes_ms, woke_ms)


def _wakes_ms(state: StateEntries) -> int:
    """Return the expiry of the registered timer, 0 when it cannot be read."""
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
        self.sent = Sent()
        self._rules = rules
        self._policy = policy
        self._dialects = dialects
        self._closings = closings
        self._meta = meta
        self._number = number
        self.store = ShardStore(state, meta, number)
        self._unresolved: set[str] = set()
        self._complete = True
        self._waits = False
        self.begin(now_ms)

    def begin(self, now_ms: int) -> None:
        """Go to an instant."""
        self._now_ms = now_ms
        self._before = self._meta.checkpoint.sequence
        # A turn cannot be met between two micro-batches.
        since_ms = now_ms - self._meta.last_step_ms if self._meta.last_step_ms > 0 else 0
        self._late_ms = LATE_MS + min(max(0, since_ms), STEP_MS_MAX)
        self._load_topics()

    def _load_topics(self) -> None:
        """Load the metadata of the topics for the next plan."""
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
        """Ingest and fire until nothing is left or a bound is reached."""
        meta, share = self._meta, self._rules.share
        if not meta.settled:
            self.store.settle()
            self._unresolved = meta.counted_origins.keys() - meta.topics.keys()
            if not meta.settled or self._unresolved:
                # The metadata of the origins comes before any decision on imported timers.
                self._complete = False
                self.store.save()
                return
        partition = Partition(self._number, State.RUNNING, checkpoint=meta.checkpoint, counts=meta.counts())
        closed = meta.checkpoint.closed
        partition.closures_over = any(
            name in self._origins and name not in self._closed and closed[name].why != Closure.PAUSED for name in closed
        )
        came = sorted(waiting.take(), key=attrgetter("offset")) if self._dlq_open else []
        items = self._items(came)
        left: Sequence[Item] = items
        for _ in range(max(1, int(PLANS_MAX * share))):
            if self._closings and self.sent.outputs:
                self._load_topics()
            upto_ms = self.store.split_due(self._now_ms)
            partition.next_due_ms = self.store.next_due_ms()
            batches = {self._number: left} if left and self._dlq_open else {}
            planned = plan([partition], batches, self.store, upto_ms, self._terms())
            left = planned.left.get(self._number, ()) if batches else left
            self._unresolved |= planned.unresolved
            self._complete = planned.complete and upto_ms == self._now_ms
            for part in planned.partition_plans:
                self._take_over(partition, part, upto_ms)
            partition.closures_over = False
            if not planned.partition_plans or (planned.complete and not left) or planned.unresolved:
                break
        self.store.finish()
        waiting.put_back(came[len(items) - len(left) :])
        self._waits = bool(waiting)

    def run_ahead(self, until_ms: int, *, trial: bool) -> int:
        """Fire what comes due up to an instant that may not be over, in a plan for each SLICE_MS.

        Args:
            until_ms: The instant.
            trial: Whether to end before the first plan that does more than deliver, or exceeds the bounds.

        Returns:
            The instant of the last plan, 0 when there is none.
        """
        meta, reached_ms = self._meta, 0
        partition = Partition(self._number, State.RUNNING, checkpoint=meta.checkpoint, counts=meta.counts())
        left = max(1, int(AHEAD_DELIVERIES_MAX * min(1.0, self._rules.share)))
        terms = self._terms(deliveries_max=left)
        for now_ms in instants(meta, until_ms):
            due_ms = self.store.next_due_ms()
            if due_ms is None or due_ms > until_ms:
                break
            if due_ms > now_ms:
                continue
            if self._closings and self.sent.outputs:
                self._load_topics()
                terms = self._terms(deliveries_max=terms.deliveries_max)
            upto_ms = self.store.split_due(now_ms, ahead=False)
            partition.next_due_ms = self.store.next_due_ms()
            planned = plan([partition], {}, self.store, upto_ms, terms)
            left -= sum(len(part.deliveries) for part in planned.partition_plans)
            if trial and (left < 0 or upto_ms < now_ms or not planned.complete or not delivers_only(planned)):
                break
            for part in planned.partition_plans:
                self._take_over(partition, part, upto_ms, now_ms)
                reached_ms = now_ms
        return reached_ms

    def may_plan_ahead(self) -> bool:
        """Return whether nothing is left that the next step has to do at once."""
        meta = self._meta
        ready = self._rules.ahead and meta.settled and self._complete and not (self._waits or self._unresolved)
        # A herd is planned once, when it is due: a part of it costs as much to read as all of it.
        return ready and 0 < self.store.bytes_due(horizon_ms(meta)) <= AHEAD_BYTES_MAX

    def _terms(self, deliveries_max: int | None = None) -> Terms:
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
            rate_of=self._policy.rate_of,
            partitions=rules.input_partitions,
            late_ms=self._late_ms,
            keeps_order=False,
            deliveries_max=deliveries_max or max(1, int(DELIVERIES_MAX * rules.delivery_share)),
            delivery_bytes_max=max(1, int(DELIVERY_BYTES_MAX * rules.delivery_share)),
        )

    def _take_over(self, partition: Partition, part: PartitionPlan, now_ms: int, release_ms: int = 0) -> None:
        self.store.apply(part)
        topic_id = self._rules.input_topic_id or part.checkpoint.input_topic_id
        self.sent.add(part, partition.checkpoint.sequence, now_ms, release_ms)
        partition.checkpoint = replace(part.checkpoint, engine=Engine.SPARK, input_topic_id=topic_id)
        partition.counts = part.counts
        self._meta.checkpoint = partition.checkpoint
        self._meta.count(part.counts)

    # Ingest

    def _items(self, came: Sequence[Arrival | Record]) -> list[Item]:
        """Return the records that can be ingested now: all before the first one with an unknown origin."""
        items: list[Item] = []
        for at, each in enumerate(came):
            item = self._item(each)
            if isinstance(item, str):
                # One lookup asks for the other unknown origins too.
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
        return self._ingest.examine(record_of(self._number, came), self._now_ms)

    # Output

    def used(self) -> tuple[set[str], set[str]]:
        """Return the topics whose metadata is kept, and those to ask for now."""
        dlq = () if self._dlq_open else (self._rules.policy.dlq_topic,)
        return {*self._meta.counted_origins, *self._unresolved, *self.sent.fired, *dlq}, self._unresolved

    def sent_to(self) -> set[str]:
        """Return the topics that this step sends to and that have not refused a record of it."""
        dlq = (self._rules.policy.dlq_topic,) if self.sent.reasons else ()
        return {*self.sent.fired, *dlq} - self._closed.keys()

    def wakes_ms(self) -> int:
        """Return the latest instant of the next step."""
        due_ms = self.store.next_due_ms()
        if not self._complete or (self._waits and self._dlq_open) or self._unresolved:
            return self._now_ms + 1
        return max(self._now_ms + 1, min(self._meta.published_ms + PUBLISH_MS, due_ms or 2**62))

    def output_parts(self) -> list[OutputPart]:
        """Return what is sent, a part for each plan; empty when there is nothing to send."""
        rules, meta, now_ms, outputs = self._rules, self._meta, self._now_ms, self.sent.outputs
        if not outputs and now_ms - meta.published_ms < PUBLISH_MS - 500:
            return []
        meta.published_ms = now_ms
        view = StatusRecord(status.partition_key(self._number), self._view().to_json(), [])
        found: list[OutputPart] = []
        for output in outputs or [PlanOutput(meta.checkpoint.sequence, meta.checkpoint, [], [])]:
            last = not outputs or output is outputs[-1]
            status_records = [
                signed(rules.api_token, rules.status_topic, self._number, status_record, now_ms)
                for status_record in [*output.status_records, *[view] * last]
            ]
            found.append(replace(output.part(self._number, self._closings), status_records=status_records, last=last))
        return found

    def _view(self) -> PartitionView:
        meta = self._meta
        view = PartitionView(
            partition=self._number,
            state=State.RUNNING if meta.settled else State.RESTORING,
            owner=self._rules.owner,
            url=self._rules.url,
            restored=1.0 if meta.settled else 0.0,
            next_due_ms=self.store.next_due_ms() if meta.settled else None,
            due_backlog=0 if self._complete else self._backlog(),
            reason="" if self._dlq_open else f"the DLQ {self._rules.policy.dlq_topic} cannot be written",
            listable=self._rules.listable,
            release=__version__,
            restored_ms=self._rules.query_began_ms,
        )
        return view.counted(meta.counts(), meta.checkpoint, self._now_ms)

    def _backlog(self) -> int:
        due_s = self._now_ms // 1000
        return sum(count for level, slot, count in self._meta.counted_slots if level == 0 and slot < due_s)

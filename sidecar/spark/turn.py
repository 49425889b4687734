"""One turn of one input partition: the same plan() as the embedded engine's, again and again until a bound is reached.

A turn is a function of the state, the records and the instant of the micro-batch, and of nothing else: Spark may run it
again, and what it sends is then the same to the byte.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from msgspec.structs import replace

from sidecar.changelog.codec import Engine
from sidecar.changelog.entry import LASTING, payload
from sidecar.contract import Dialect, signature
from sidecar.engine.intake import Intake
from sidecar.engine.items import Arrival, Item, outcome_records
from sidecar.engine.partition import Partition, State
from sidecar.engine.plan import RECORD_OVERHEAD_BYTES, PartitionPlan, Terms, plan
from sidecar.engine.ports import Origin, Outgoing
from sidecar.engine.view import PartitionView
from sidecar.model import Record
from sidecar.policy import Policy, PolicyConfig
from sidecar.spark.cells import META, Cells, Meta, decode_meta, encode, held_cell
from sidecar.spark.facts import Lookup, closed_origins, known_origins, missing_topics, refreshed, to_ask
from sidecar.spark.shard_store import ShardStore
from sidecar.spark.wire import LATE_STEP_MS, Chunk, Delivery, Note, Tally, cut, decode_chunk, encode_chunk

_ORIGIN_PARTITION: Final = slice(21, 25)
"""Of the lasting part of an entry."""

FIRES_MAX: Final = 50_000
"""Most fires of one turn; what is left wakes the next micro-batch at once."""
BYTES_MAX: Final = 64 * 1024 * 1024
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


@dataclass(slots=True)
class Turned:
    """What a turn gives."""

    deliveries: list[Delivery]
    tally: Tally
    wakes_ms: int
    """When the partition wants its next turn at the latest; after the instant of this one."""
    woke_ms: int
    """What that was before this turn; 0: nothing."""


@dataclass(slots=True)
class _Sent:
    fires: list[Outgoing] = field(default_factory=list)
    dead: list[Outgoing] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    fired: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    deferred: Counter[str] = field(default_factory=Counter)
    stored: int = 0
    dropped: int = 0
    rejected: int = 0
    controls: int = 0
    cancelled: int = 0
    late: Counter[int] = field(default_factory=Counter)
    bytes: int = 0

    def add(self, part: PartitionPlan, now_ms: int) -> None:
        self.fires += part.fires
        self.dead += [outgoing for _, outgoing in part.dead_letters]
        self.notes += [Note(key, value, []) for key, value in outcome_records(part.answers, part.number, now_ms)]
        self.fired.update(part.fired)
        self.reasons.update(reason.value for reason, _ in part.dead_letters)
        self.deferred.update(part.deferred)
        self.stored += part.stored
        self.dropped += len(part.dropped)
        self.rejected += part.rejected
        self.controls += len(part.answers)
        self.cancelled += part.cancelled
        self.late.update(-((outgoing.due_ms - now_ms) // LATE_STEP_MS) * LATE_STEP_MS for outgoing in part.fires)
        self.bytes += sum(len(outgoing.value or b"") + 200 for outgoing in part.fires)

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


class Turns:
    """Runs the turns of partitions. Pure but for `lookup`, which is asked last and only for the turn to come.

    Args:
        rules: The same on all executors.
        dialects: Those of the rules' profiles.
        lookup: Asks the broker for topics.
    """

    def __init__(self, rules: Rules, dialects: Sequence[Dialect], lookup: Lookup) -> None:
        self._rules = rules
        self._dialects = dialects
        self._policy = Policy(rules.policy)
        self._lookup = lookup

    def turn(self, partition: int, cells: Cells, chunks: Iterable[bytes], now_ms: int) -> Turned | None:
        """Take in what came and fire what is due; None when this instant has had its turn.

        Args:
            partition: Of the input topic.
            cells: Its state, which is written.
            chunks: What came, in any order.
            now_ms: The instant of the micro-batch.
        """
        value = cells.get(META)
        meta = Meta() if value is None else decode_meta(value)
        chunks = list(chunks)
        if meta.turned_ms == now_ms and not chunks:
            return None
        turned = _Turn(self._rules, self._policy, self._dialects, partition, cells, meta, now_ms).run(chunks)
        used, unresolved = turned.used()
        answers = self._lookup(asked) if (asked := to_ask(meta.facts, unresolved, now_ms)) else {}
        meta.facts = refreshed(meta.facts, answers, used, now_ms)
        deliveries = turned.deliveries()
        woke_ms, meta.wakes_ms = meta.wakes_ms, turned.wakes_ms()
        meta.turned_ms = now_ms
        cells.put(META, encode(meta))
        return Turned(deliveries, turned.sent.tally(), meta.wakes_ms, woke_ms)


class _Turn:
    def __init__(
        self,
        rules: Rules,
        policy: Policy,
        dialects: Sequence[Dialect],
        number: int,
        cells: Cells,
        meta: Meta,
        now_ms: int,
    ) -> None:
        self.sent = _Sent()
        self._rules = rules
        self._cells = cells
        self._meta = meta
        self._number = number
        self._now_ms = now_ms
        self._before = meta.checkpoint.sequence
        self._store = ShardStore(cells, meta, number)
        self._origins: Mapping[str, Origin] = known_origins(meta.facts)
        self._closed = closed_origins(meta.facts, meta.checkpoint.closed, now_ms)
        self._unresolved: set[str] = set()
        self._complete = True
        self._intake = Intake(
            policy,
            dialects,
            self._origins,
            missing_topics(meta.facts, now_ms),
            input_topic=rules.policy.input_topic,
            app_id=rules.app_id,
            dlq_max_message_bytes=rules.dlq_max_message_bytes,
            api_token=rules.api_token,
        )

    def run(self, chunks: Sequence[bytes]) -> _Turn:
        meta = self._meta
        if not meta.settled:
            self._store.settle()
        partition = Partition(self._number, State.RUNNING, checkpoint=meta.checkpoint, counts=meta.counts())
        came = sorted(self._came(chunks), key=_offset_of)
        items = self._items(came)
        left: Sequence[Item] = items
        while True:
            upto_ms = self._store.split_due(self._now_ms)
            partition.next_due_ms = self._store.next_due_ms()
            batches = {self._number: left} if left else {}
            planned = plan([partition], batches, self._store, upto_ms, self._terms())
            left = planned.left.get(self._number, ())
            self._unresolved |= planned.unresolved
            self._complete = planned.complete and upto_ms == self._now_ms
            for part in planned.parts:
                self._take_over(partition, part, upto_ms)
            full = len(self.sent.fires) >= FIRES_MAX or self.sent.bytes >= BYTES_MAX
            if not planned.parts or full or (planned.complete and not left) or planned.unresolved:
                break
        self._store.finish()
        self._hold(came[len(items) - len(left) :])
        return self

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
        )

    def _take_over(self, partition: Partition, part: PartitionPlan, now_ms: int) -> None:
        self._store.apply(part)
        topic_id = self._rules.input_topic_id or part.checkpoint.input_topic_id
        partition.checkpoint = replace(part.checkpoint, engine=Engine.SPARK, input_topic_id=topic_id)
        partition.counts = part.counts
        self._meta.checkpoint = partition.checkpoint
        self._meta.count(part.counts)
        self.sent.add(part, now_ms)

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

    def _came(self, chunks: Iterable[bytes]) -> Iterator[Arrival | Record]:
        first, end = self._meta.held
        for number in range(first, end):
            value = self._cells.get(held_cell(number))
            self._cells.remove(held_cell(number))
            chunk = decode_chunk(value or b"")
            yield from chunk.arrivals
            yield from chunk.records
        self._meta.held = (end, end)
        for value in chunks:
            chunk = decode_chunk(value)
            yield from chunk.arrivals
            yield from chunk.records

    def _item(self, came: Arrival | Record) -> Item | str:
        if isinstance(came, Record):
            return self._intake.examine(came, self._now_ms)
        origin = self._origins.get(came.origin)
        target = int.from_bytes(came.lasting[_ORIGIN_PARTITION], "big", signed=True)
        if (
            origin is not None
            and target < origin.partitions
            and len(came.lasting) + RECORD_OVERHEAD_BYTES <= origin.max_message_bytes
        ):
            return came
        return self._intake.examine(_record(self._number, came), self._now_ms)

    def _hold(self, waiting: Sequence[Arrival | Record]) -> None:
        """Keep what was not taken in for the next turn."""
        if not waiting:
            return
        arrivals = [each for each in waiting if isinstance(each, Arrival)]
        records = [each for each in waiting if isinstance(each, Record)]
        _, end = self._meta.held
        self._cells.put(held_cell(end), encode_chunk(Chunk(arrivals, records)))
        self._meta.held = (end, end + 1)

    # What leaves

    def used(self) -> tuple[set[str], set[str]]:
        """Return the origins to keep facts of, and those to ask for now."""
        return {*self._meta.counted_origins, *self._unresolved, *self.sent.fired}, self._unresolved

    def wakes_ms(self) -> int:
        """Return when the next turn is wanted."""
        first, end = self._meta.held
        due_ms = self._store.next_due_ms()
        if not self._complete or first != end or self._unresolved:
            return self._now_ms + 1
        return max(self._now_ms + 1, min(self._meta.published_ms + PUBLISH_MS, due_ms or 2**62))

    def deliveries(self) -> list[Delivery]:
        """Return what is sent, in parts; empty when there is nothing to say."""
        meta, now_ms = self._meta, self._now_ms
        changed = meta.checkpoint.sequence != self._before
        notes = self.sent.notes
        if changed or now_ms - meta.published_ms >= PUBLISH_MS - 500:
            notes = [*notes, Note(b"p/%d" % self._number, self._view().to_json(), [])]
            meta.published_ms = now_ms
        if not notes:
            return []
        parts = list(cut([*self.sent.dead, *self.sent.fires]))
        return [
            Delivery(
                partition=self._number,
                before=self._before,
                after=meta.checkpoint.sequence,
                next_input_offset=meta.checkpoint.next_input_offset,
                records=part,
                notes=[self._signed(note) for note in notes] if at == len(parts) - 1 else [],
                last=at == len(parts) - 1,
                offset_base=meta.checkpoint.offset_base,
            )
            for at, part in enumerate(parts)
        ]

    def _signed(self, note: Note) -> Note:
        token = self._rules.api_token
        if token is None:
            return note
        parts = signature.status_parts(self._rules.status_topic, self._number, note.key, note.value)
        return Note(note.key, note.value, [(signature.HEADER, signature.sign(token, parts, self._now_ms))])

    def _view(self) -> PartitionView:
        meta = self._meta
        counts = meta.counts()
        return PartitionView(
            partition=self._number,
            state=State.RUNNING,
            owner=self._rules.owner,
            url=self._rules.url,
            pending=counts.pending,
            watermark_ms=meta.checkpoint.watermark_ms or None,
            restored=1.0,
            restore_remaining=0,
            by_origin=counts.origins,
            deferred_by_origin=counts.deferred,
            slots=counts.slots,
            next_due_ms=self._store.next_due_ms(),
            due_backlog=0 if self._complete else self._backlog(),
            closed_origins={
                name: (closed.why.value, closed.since_ms) for name, closed in meta.checkpoint.closed.items()
            },
            sequence=meta.checkpoint.sequence,
            lag=None,
            as_of_ms=self._now_ms,
            listable=False,
        )

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

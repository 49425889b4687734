"""A transaction as data: the terms that plan() gets, and the plan that it returns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from sidecar.changelog.codec import BLOCK_BYTES_MAX, Checkpoint, Closed
from sidecar.changelog.entry import KEY, KEY_BYTES, Head, origin_of, payload_of
from sidecar.contract.sizes import BATCH_BYTES, DELIVERY_OVERHEAD_BYTES, FRAMING_BYTES
from sidecar.engine.delivered import NOTHING, Delivered
from sidecar.engine.dlqs import PolicyDlqs
from sidecar.engine.items import ControlOutcome, Dropped, Item
from sidecar.engine.partition import Partition
from sidecar.engine.ports import Mutations, Origin, Outgoing
from sidecar.engine.rates import LATE_MS, RateOf
from sidecar.engine.read_ahead import ReadAhead
from sidecar.model import Headers, Reason, StoredOffset
from sidecar.wheel.counts import Counts

ChangelogRecord = tuple[bytes, bytes | None]
"""Key and value; a value of None deletes."""

BLOCK_OVERHEAD_BYTES: Final = BATCH_BYTES + FRAMING_BYTES + 512
"""Size of a changelog record besides its one entry: framing, key, head and the repeated origin."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What plan() needs to know besides the partition and its store."""

    input_topic: str
    dlq_topic: str
    app_id: str
    origins: Mapping[str, Origin]
    """Topics that exist by a definite answer of the broker; a timer for any other waits, see `Plan.unresolved`."""
    closed: Mapping[str, Closed] = field(default_factory=dict)
    """Closed origins, without paused ones, each since it was last seen open. A new owner of a partition continues from
    its restored checkpoint."""
    origin_timeout_ms: int = 86_400_000
    compressed: bool = False
    """Writes are compressed, so only an attempt shows whether a record fits its topic. Otherwise sizes are checked."""
    dlq_max_message_bytes: int = 1_048_588
    changelog_max_message_bytes: int = 1_114_112
    block_bytes_max: int = BLOCK_BYTES_MAX
    """Most bytes of entries in a block; a larger entry is a block by itself, so 1 makes each entry a block."""
    dlq_open: bool = True
    """Whether dead letters can be written; while they cannot, timers due for the DLQ are deferred, and a batch is
    ingested only up to the first record that must go there."""
    unfireable: Mapping[tuple[int, bytes], tuple[Reason, str]] = field(default_factory=dict)
    """Timers whose delivery the broker refused, by (partition, key), with the error text."""
    unstorable: Mapping[tuple[int, StoredOffset, int], str] = field(default_factory=dict)
    """Timers that the changelog refused, by (partition, offset, bytes of the entry), with the error text. In a retry
    topic that was made anew, another message may have the offset."""
    cut_dead_letters: Mapping[tuple[int, bytes], int] = field(default_factory=dict)
    """Dead letters that were too large for the DLQ, by (partition, `Outgoing.source`), with the size to cut each to."""
    rate_of: RateOf | None = None
    """The rates of origins; None: no origin has one."""
    partitions: int = 1
    """Number of input partitions; each has an equal share of a rate."""
    late_ms: int = LATE_MS
    """Longest time after its turn that a held timer may fire."""
    keeps_order: bool = True
    """Whether ordered timers wait for those ahead of them."""
    ahead: Mapping[int, ReadAhead] = field(default_factory=dict)
    """Timers read ahead, by partition."""
    deliveries_max: int = 10_000
    delivery_bytes_max: int = 16 * 1024 * 1024
    policy_dlqs: PolicyDlqs | None = None
    """The DLQs of policies; None: every dead letter goes to `dlq_topic`. `dlq_open` and `dlq_max_message_bytes` are of
    `dlq_topic` only."""

    @property
    def dlq_topics(self) -> frozenset[str]:
        """Every DLQ."""
        return frozenset({self.dlq_topic, *(self.policy_dlqs.bytes_max if self.policy_dlqs else ())})

    @property
    def closed_dlqs(self) -> frozenset[str]:
        """The DLQs that cannot be written for now."""
        others = frozenset[str]() if self.policy_dlqs is None else self.policy_dlqs.closed
        return others if self.dlq_open else others | {self.dlq_topic}

    def dlq_of(self, key: bytes | None, value: bytes | None, headers: Headers) -> str:
        """Return the DLQ of a message."""
        return self.dlq_topic if self.policy_dlqs is None else self.policy_dlqs.choose(key, value, headers)

    def dead_letter_bytes_max(self, topic: str, partition: int, source: bytes) -> int | None:
        """Return the size to cut a dead letter of a partition to, None when only an attempt shows it."""
        others = {} if self.policy_dlqs is None else self.policy_dlqs.bytes_max
        known = None if self.compressed else others.get(topic, self.dlq_max_message_bytes)
        return self.cut_dead_letters.get((partition, source), known)

    def closed_dlq_of(self, key: bytes | None, value: bytes | None, headers: Headers) -> str:
        """Return the DLQ of a message if it cannot be written for now, empty when it can."""
        if self.dlq_open and (self.policy_dlqs is None or not self.policy_dlqs.closed):
            return ""
        topic = self.dlq_of(key, value, headers)
        return topic if topic in self.closed_dlqs else ""

    def entry_may_die(self, entry: bytes, fixed: Head) -> bool:
        """Return whether the DLQ of a timer can be written."""
        if self.policy_dlqs is None:
            return self.dlq_open
        return not self.closed_dlq_of(*payload_of(entry, fixed))

    def why_unstorable(self, partition: int, offset: StoredOffset, entry_bytes: int) -> str:
        """Return why the changelog cannot hold a timer, empty when it can as far as known."""
        if said := self.unstorable.get((partition, offset, entry_bytes)):
            return said
        if self.compressed or entry_bytes + BLOCK_OVERHEAD_BYTES <= self.changelog_max_message_bytes:
            return ""
        return f"{entry_bytes} bytes; the changelog takes {self.changelog_max_message_bytes} (max.message.bytes)"

    def is_stuck(self, partition: int, entry: bytes, fixed: Head, origin: str) -> bool:
        """Return whether a timer can neither fire nor go to its DLQ for now, though its origin is open."""
        topic = self.origins.get(origin)
        return (
            topic is not None
            and not self.entry_may_die(entry, fixed)
            and self.why_unfireable(partition, entry, fixed, topic) is not None
        )

    def why_dead(self, partition: int, entry: bytes, fixed: Head) -> str:
        """Return why a timer that the changelog cannot hold goes to its DLQ, empty when it does not, or not now."""
        said = self.why_unstorable(partition, fixed.offset, len(entry))
        return said if said and self.entry_may_die(entry, fixed) else ""

    def why_unfireable(self, partition: int, entry: bytes, fixed: Head, topic: Origin) -> tuple[Reason, str] | None:
        """Return why a timer can never fire to its origin, None when it can."""
        size = len(entry) + DELIVERY_OVERHEAD_BYTES
        if not self.compressed and size > topic.max_message_bytes:
            origin = origin_of(entry, fixed)
            return Reason.TOO_LARGE, f"{size} bytes; {origin} takes {topic.max_message_bytes} (max.message.bytes)"
        if fixed.origin_partition >= topic.partitions:
            origin = origin_of(entry, fixed)
            return Reason.UNFIREABLE, f"partition {fixed.origin_partition}; {origin} has {topic.partitions} now"
        return self.unfireable.get((partition, entry[:KEY_BYTES])) if self.unfireable else None


@dataclass(slots=True)
class PartitionPlan:
    """What one transaction does for one partition."""

    number: int
    checkpoint: Checkpoint
    counts: Counts
    records: list[ChangelogRecord]
    """Changelog records."""
    deliveries: list[Outgoing]
    """Records that are still to be written to origins."""
    fired: Mapping[str, int]
    """Number of deliveries by origin, written or not."""
    fired_dues_ms: Sequence[int]
    """Requested dues of all deliveries, sorted."""
    dead_letters: list[tuple[Reason, Outgoing]]
    control_outcomes: list[ControlOutcome]
    dropped: list[Dropped]
    deferred: Mapping[str, int]
    """Deferrals by origin."""
    held: Mapping[str, int]
    """Timers that were held, by origin."""
    mutations: Mutations
    ingested: int
    stored: int
    rejected: int
    """Records of the batch that went to the DLQ without becoming a timer."""
    cancelled: int
    complete: bool
    """Everything due was disposed of."""
    stored_end_ms: int | None
    """Earliest slot end of the stored blocks."""
    taken: frozenset[bytes]
    """Keys of the timers that are removed before their due."""
    put_behind: Mapping[str, int] = field(default_factory=dict)
    """Ordered timers that were put behind another one, by origin."""
    delivered_before: Mapping[str, int] = field(default_factory=dict)
    """Messages that are not delivered, since an earlier transaction has delivered them, by origin."""
    delivered_after: Delivered = NOTHING
    """What the partition must not deliver again after this transaction."""
    set_back_ms: int = 0
    """See `Partition.set_back_ms`."""

    @property
    def watermark(self) -> bytes:
        """The key at or below which no timer is pending after the commit."""
        return KEY.pack(self.checkpoint.watermark_ms, self.checkpoint.watermark_offset)


@dataclass(slots=True)
class Plan:
    """One transaction."""

    now_ms: int
    partition_plans: list[PartitionPlan]
    unresolved: frozenset[str]
    """Origins of due timers that wait for a lookup."""
    left: Mapping[int, Sequence[Item]] = field(default_factory=dict)
    """Items left over, by partition: the first ones of the next plan."""
    waits_for: Mapping[int, str] = field(default_factory=dict)
    """The closed DLQ that the first item left over must go to, by partition."""

    @property
    def deliveries(self) -> int:
        """Number of deliveries."""
        return sum(len(partition_plan.fired_dues_ms) for partition_plan in self.partition_plans)

    @property
    def complete(self) -> bool:
        """Whether everything due was disposed of."""
        return all(partition_plan.complete for partition_plan in self.partition_plans)

    def read_aheads(self, partitions: Mapping[int, Partition]) -> Iterator[ReadAhead]:
        """Yield an empty read-ahead for each partition with more due timers than the plan has."""
        for partition_plan in self.partition_plans:
            if not partition_plan.complete:
                yield ReadAhead(
                    partitions[partition_plan.number], partition_plan.watermark, partition_plan.taken, self.now_ms
                )

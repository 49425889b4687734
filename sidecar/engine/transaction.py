"""One transaction as data: the terms that plan() is given, and the plan that it returns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from sidecar.changelog.codec import BLOCK_BYTES_MAX, Checkpoint, Closed
from sidecar.changelog.entry import KEY
from sidecar.contract.sizes import BATCH_BYTES, FRAMING_BYTES
from sidecar.engine.items import ControlOutcome, Dropped, Item
from sidecar.engine.partition import Partition
from sidecar.engine.ports import Mutations, Origin, Outgoing
from sidecar.engine.read_ahead import ReadAhead
from sidecar.model import Reason, StoredOffset
from sidecar.wheel.counts import Counts

ChangelogRecord = tuple[bytes, bytes | None]
"""Key and value; a value of None deletes."""

BLOCK_OVERHEAD_BYTES: Final = BATCH_BYTES + FRAMING_BYTES + 512
"""What a record of the changelog takes besides the one entry in it: framing, key, head, the origin named again."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What plan() needs to know of the world besides the partition and its store."""

    input_topic: str
    dlq_topic: str
    app_id: str
    origins: Mapping[str, Origin]
    """Topics with a definite answer of the broker; a timer for any other waits for one, see `Plan.unresolved`."""
    closed: Mapping[str, Closed] = field(default_factory=dict)
    """Origins that cannot be fired to now, other than paused ones, each since the moment from which on it was never
    seen open. Whoever takes a partition over goes on from what its restored checkpoint says."""
    origin_timeout_ms: int = 86_400_000
    compressed: bool = False
    """What is written is, so only trying tells whether a record fits its topic. Else sizes are judged before."""
    dlq_max_message_bytes: int = 1_048_588
    changelog_max_message_bytes: int = 1_114_112
    block_bytes_max: int = BLOCK_BYTES_MAX
    """Of the entries of a block; one that is larger is a block by itself, so 1 makes each a block."""
    dlq_open: bool = True
    """Whether dead letters can be written; while they cannot, what is due for the DLQ is deferred too, and of a batch
    nothing is taken in from the first record on that must go there."""
    unfireable: Mapping[tuple[int, bytes], tuple[Reason, str]] = field(default_factory=dict)
    """Timers whose fire the broker refused, by (partition, key), with its words."""
    unstorable: Mapping[tuple[int, StoredOffset], str] = field(default_factory=dict)
    """Timers that the changelog refused, by (partition, offset), with the broker's words."""
    cut_dead_letters: Mapping[tuple[int, bytes], int] = field(default_factory=dict)
    """Dead letters that were too large for the DLQ, by (partition, `Outgoing.source`), and to what each is cut."""
    ahead: Mapping[int, ReadAhead] = field(default_factory=dict)
    """What was read before its turn, by partition."""
    deliveries_max: int = 10_000
    delivery_bytes_max: int = 16 * 1024 * 1024

    def why_unstorable(self, partition: int, offset: StoredOffset, entry_bytes: int) -> str:
        """Return why the changelog cannot hold a timer, empty when it can, as far as is known."""
        if said := self.unstorable.get((partition, offset)):
            return said
        if self.compressed or entry_bytes + BLOCK_OVERHEAD_BYTES <= self.changelog_max_message_bytes:
            return ""
        return f"{entry_bytes} bytes; the changelog takes {self.changelog_max_message_bytes} (max.message.bytes)"


@dataclass(slots=True)
class PartitionPlan:
    """What one transaction does for one partition."""

    number: int
    checkpoint: Checkpoint
    counts: Counts
    records: list[ChangelogRecord]
    """Changelog records."""
    deliveries: list[Outgoing]
    """Those that are still to be written."""
    fired: Mapping[str, int]
    """How many by origin, written or not."""
    fired_dues_ms: Sequence[int]
    """Requested dues of all of them, in their order."""
    dead_letters: list[tuple[Reason, Outgoing]]
    control_outcomes: list[ControlOutcome]
    dropped: list[Dropped]
    deferred: Mapping[str, int]
    """Deferrals by origin."""
    mutations: Mutations
    ingested: int
    stored: int
    rejected: int
    """Records of the batch that went to the DLQ without ever being a timer."""
    cancelled: int
    complete: bool
    """Everything due was disposed of."""
    stored_end_ms: int | None
    """Least slot end of the blocks that it stores."""
    taken: frozenset[bytes]
    """Keys of the timers that it takes away before their turn."""

    @property
    def watermark(self) -> bytes:
        """The key up to which every timer will be gone."""
        return KEY.pack(self.checkpoint.watermark_ms, self.checkpoint.watermark_offset)


@dataclass(slots=True)
class Plan:
    """One transaction."""

    now_ms: int
    partition_plans: list[PartitionPlan]
    unresolved: frozenset[str]
    """Origins of due timers that wait for an answer of the broker."""
    left: Mapping[int, Sequence[Item]] = field(default_factory=dict)
    """Items that are not part of it, by partition: the first ones of the next plan."""

    @property
    def deliveries(self) -> int:
        """How many records it fires."""
        return sum(len(partition_plan.fired_dues_ms) for partition_plan in self.partition_plans)

    @property
    def complete(self) -> bool:
        """Whether everything due was disposed of."""
        return all(partition_plan.complete for partition_plan in self.partition_plans)

    def read_aheads(self, partitions: Mapping[int, Partition]) -> Iterator[ReadAhead]:
        """Yield an empty read-ahead of each partition that has more due than the plan disposes of."""
        for partition_plan in self.partition_plans:
            if not partition_plan.complete:
                yield ReadAhead(
                    partitions[partition_plan.number], partition_plan.watermark, partition_plan.taken, self.now_ms
                )

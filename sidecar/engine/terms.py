"""What plan() needs to know of the world besides the partition and its store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from sidecar.changelog.codec import BLOCK_BYTES_MAX, Closed
from sidecar.contract.sizes import BATCH_BYTES, FRAMING_BYTES
from sidecar.engine.deliver import ReadAhead
from sidecar.engine.ports import Origin
from sidecar.model import Reason

BLOCK_OVERHEAD_BYTES: Final = BATCH_BYTES + FRAMING_BYTES + 512
"""What a record of the changelog takes besides the one entry in it: framing, key, head, the origin named again."""


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms of one plan."""

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
    unstorable: Mapping[tuple[int, int], str] = field(default_factory=dict)
    """Timers that the changelog refused, by (partition, offset), with the broker's words."""
    cut_letters: Mapping[tuple[int, bytes], int] = field(default_factory=dict)
    """Dead letters that were too large for the DLQ, by (partition, `Outgoing.source`), and to what each is cut."""
    ahead: Mapping[int, ReadAhead] = field(default_factory=dict)
    """What was read before its turn, by partition."""
    fires_max: int = 10_000
    fire_bytes_max: int = 16 * 1024 * 1024

    def why_unstorable(self, partition: int, offset: int, entry_bytes: int) -> str:
        """Return why the changelog cannot hold a timer, empty when it can, as far as is known."""
        if said := self.unstorable.get((partition, offset)):
            return said
        if self.compressed or entry_bytes + BLOCK_OVERHEAD_BYTES <= self.changelog_max_message_bytes:
            return ""
        return f"{entry_bytes} bytes; the changelog takes {self.changelog_max_message_bytes} (max.message.bytes)"

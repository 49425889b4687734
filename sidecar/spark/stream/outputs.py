"""What the sink sends of one plan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from sidecar.engine.ports import Outgoing
from sidecar.spark.stream.wire import Closing, Packed, StatusRecord


@dataclass(slots=True)
class PlanOutput:
    """The records of one plan of a partition step, and the mark that is committed with them."""

    partition: int
    before: int
    after: int
    began: int
    """The sequence at which the partition step began."""
    next_input_offset: int
    last: bool = True
    """Whether the partition step ends with it."""
    offset_base: int = 0
    """The offset base of the checkpoint after the plan."""
    digest: str = ""
    """The digest of the partition step up to the end of this plan."""
    packed: list[Packed] = field(default_factory=list)
    status_records: list[StatusRecord] = field(default_factory=list)
    closings: list[Closing] = field(default_factory=list)
    release_ms: int = 0
    """The instant before which it is not sent, by the broker's clock; 0: at once."""
    ahead: bool = False
    """Whether it is what the next step begins with; `began` is the end of this one then."""
    step_digest: str = ""
    """Of what is sent ahead: the digest of the step before it."""

    @property
    def moves(self) -> bool:
        """Return whether it changes the state; one that does not has only counts, which are published again."""
        return self.after != self.before

    @property
    def count(self) -> int:
        """The number of its records."""
        return sum(packed.total for packed in self.packed)

    def records(self) -> Iterator[Outgoing]:
        """Yield its records."""
        for packed in self.packed:
            yield from packed.records()

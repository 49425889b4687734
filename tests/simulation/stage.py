"""One partition on a small stage, for tests that say by hand what happens: no chance, no clock."""

from __future__ import annotations

from msgspec.structs import replace

from sidecar.changelog.entry import Head, head, lasting
from sidecar.contract.control import ControlKind, Outcome, Target
from sidecar.engine.apply import apply_committed
from sidecar.engine.items import Arrival, Control, Item
from sidecar.engine.partition import Partition, State
from sidecar.engine.plan import plan
from sidecar.engine.ports import Origin
from sidecar.engine.restore import Restore
from sidecar.engine.rows import Identity
from sidecar.engine.transaction import PartitionPlan, Plan, Terms
from sidecar.model import ANY_PARTITION, ANY_SCOPE, Headers, Scope
from tests.fold import Folded, fold
from tests.simulation.audit import check_rows, rows_of
from tests.simulation.memory_log import MemoryLog
from tests.simulation.memory_store import MemoryStore

NOW = 1_700_000_000_000
"""A whole second, and not the edge of a coarser slot."""
IDENTITY = Identity("cluster", "changelog-id")
ORIGINS = {"A": Origin(4, 1_000_000), "B": Origin(4, 1_000_000)}
TERMS = Terms("retry", "dlq", "app", ORIGINS)


class Stage:
    """A running partition with its store and log."""

    def __init__(self, number: int = 0) -> None:
        self.store = MemoryStore()
        self.log = MemoryLog()
        self.partition = Partition(number)
        self.partition.transition_to(State.RESTORING)
        self.partition.transition_to(State.RUNNING)
        self.next_offset = 0

    def send(
        self,
        due_ms: int,
        origin: str = "A",
        *,
        retry_id: bytes | None = None,
        replace: bool = False,
        value: bytes | None = b"value",
        headers: Headers | None = None,
        origin_partition: int = ANY_PARTITION,
        offset: int | None = None,
    ) -> Arrival:
        """Return a message at the next offset."""
        at = self._offset(offset)
        came = headers if headers is not None else [("retry-origin-topic", origin.encode()), ("trace", None)]
        body = lasting(due_ms, NOW, 1, 4, 1, origin.encode(), retry_id, b"key", value, came, origin_partition)
        return Arrival(at, due_ms, origin, body, retry_id, replace)

    def control(
        self,
        kind: ControlKind,
        target: Target,
        due_ms: int = 0,
        *,
        scope: Scope = ANY_SCOPE,
        offset: int | None = None,
    ) -> Control:
        """Return a control record at the next offset."""
        at = self._offset(offset)
        return Control(at, f"control-{at}", kind, target, due_ms, scope)

    def _offset(self, offset: int | None) -> int:
        if offset is None:
            offset = self.next_offset
            self.next_offset += 1
        return offset

    def plan(self, now_ms: int, *items: Item, terms: Terms = TERMS) -> Plan:
        before = self.partition.checkpoint
        if items and items[0].offset < before.next_input_offset:  # the group's offset was set back: as recovery does
            self.partition.checkpoint = replace(before, next_input_offset=items[0].offset)
        return plan([self.partition], {self.partition.number: items}, self.store, now_ms, terms)

    def commit(self, now_ms: int, *items: Item, terms: Terms = TERMS) -> PartitionPlan:
        """Plan, commit and apply; there must be something to do."""
        (partition_plan,) = self.plan(now_ms, *items, terms=terms).partition_plans
        apply_committed(self.store, self.partition, partition_plan, IDENTITY, self.log.commit(partition_plan.records))
        check_rows(self.partition, self.store)
        assert rows_of(self.store, self.partition.rows.timer) == self.folded().pending
        return partition_plan

    def folded(self) -> Folded:
        return fold((record.key, record.value) for record in self.log.records)

    def timers(self) -> list[Head]:
        return [head(entry) for entry in rows_of(self.store, self.partition.rows.timer).values()]

    def dues(self) -> list[int]:
        """Return the stored dues."""
        return [timer.due_ms for timer in self.timers()]

    def restored(self, store: MemoryStore, *, slice_size: int = 1000, assignment: int = 0) -> Partition:
        """Return the partition as a new process restores it into a store."""
        partition = Partition(self.partition.number)
        partition.transition_to(State.RESTORING)
        restore = Restore(partition, store, IDENTITY)
        left = self.log.left_for(restore)
        while left:
            restore.apply(left[:slice_size], "changelog")
            left = left[slice_size:]
        while not restore.settle():
            pass
        restore.finish(self.log.end, assignment)
        return partition


def fired(partition_plan: PartitionPlan) -> list[int]:
    """Return the input offsets that a plan fires, in its order."""
    return [int.from_bytes(fire.source[8:], "big") for fire in partition_plan.deliveries]


def outcomes(partition_plan: PartitionPlan) -> list[tuple[Outcome, int]]:
    """Return what a plan answers, without the offsets."""
    return [(answer.outcome, answer.timers) for answer in partition_plan.control_outcomes]

"""The consumer group: members, generations, rebalances in which partitions move by and by, offsets."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tests.simulation.fakes.logs import Transaction
    from tests.simulation.fakes.timeline import Timeline

SESSION_S: Final = 12.0
REBALANCE_S: Final = 30.0


class GroupRefusal(Exception):
    """An error code of the group protocol, by name."""


@dataclass(slots=True)
class Member:
    """One member as the coordinator sees it."""

    heard_s: float
    generation: int = -1
    owned: set[int] = field(default_factory=set)
    """What it had when it joined last."""


class Group:
    """Cooperative and sticky: a partition is given to another member only once its owner has let go of it."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self.members: dict[str, Member] = {}
        self.generation = 0
        self.offsets: dict[int, int] = {}
        self.metadata: dict[int, str] = {}
        """Of the offsets; an offset that an operator sets has none."""
        self.pending: list[Transaction] = []
        """Transactions whose offsets are not settled."""
        self.partitions = 0
        """Of the input topic."""
        self.may_read = True
        self._joined: set[str] | None = None
        """Who has joined the rebalance that is under way."""
        self._since_s = 0.0
        self._assigned: dict[str, set[int]] = {}
        self._static: dict[str, str] = {}
        """By group.instance.id, the member that has it."""
        self._fenced: set[str] = set()

    # What members do

    def join(self, name: str, instance_id: str | None) -> None:
        """Become a member; one that has the same instance id is fenced, and its assignment is handed on."""
        former = self._static.get(instance_id) if instance_id is not None else None
        if instance_id is not None:
            self._static[instance_id] = name
        if former is None:
            self.members[name] = Member(self._timeline.now_s)
            self.rebalance()
            return
        self._fenced.add(former)
        self.members[name] = Member(self._timeline.now_s, owned=self.members.pop(former).owned)
        self._assigned[name] = self._assigned.pop(former, set())
        if self._joined is not None:
            self._joined.discard(former)

    def is_fenced(self, name: str) -> bool:
        return name in self._fenced

    def leave(self, name: str) -> None:
        self._static = {each: member for each, member in self._static.items() if member != name}
        if self.members.pop(name, None) is not None:
            self._assigned.pop(name, None)
            self.rebalance()

    def heartbeat(self, name: str) -> bool:
        """Return False when the member is no longer one."""
        member = self.members.get(name)
        if member is not None:
            member.heard_s = self._timeline.now_s
        return member is not None

    def sync(self, name: str, owned: Iterable[int]) -> set[int] | None:
        """Take part in what goes on; return the new assignment when there is one for this member."""
        member = self.members[name]
        if self._joined is not None:
            member.owned = set(owned)
            self._joined.add(name)
            self._complete(force=False)
        if self._joined is None and member.generation != self.generation:
            member.generation = self.generation
            return set(self._assigned.get(name, ()))
        return None

    def check(self, name: str, generation: int) -> None:
        """Raise GroupRefusal unless offsets may be committed under this membership."""
        if name in self._fenced:
            raise GroupRefusal("FENCED_INSTANCE_ID")
        if name not in self.members:
            raise GroupRefusal("UNKNOWN_MEMBER_ID")
        if generation != self.generation:
            raise GroupRefusal("ILLEGAL_GENERATION")

    # What the coordinator does

    def rebalance(self) -> None:
        """Have all members join again."""
        if self._joined is None:
            self._joined = set()
            self._since_s = self._timeline.now_s

    def tick(self) -> None:
        now_s = self._timeline.now_s
        for name in [name for name, each in self.members.items() if now_s - each.heard_s > SESSION_S]:
            self.leave(name)
        if self._joined is not None and now_s - self._since_s > REBALANCE_S:
            for name in [name for name in self.members if name not in self._joined]:
                self.leave(name)
            self._complete(force=True)

    def _complete(self, *, force: bool) -> None:
        assert self._joined is not None
        if not (force or self._joined >= self.members.keys()):
            return
        self._joined = None
        self.generation += 1
        if not self.members:
            return
        target = self._target()
        held = {number: name for name, each in self.members.items() for number in each.owned}
        self._assigned = {
            name: {number for number in numbers if held.get(number, name) == name} for name, numbers in target.items()
        }

    def _target(self) -> dict[str, set[int]]:
        names = list(self.members)
        most = -(-self.partitions // len(names))
        target: dict[str, set[int]] = {name: set() for name in names}
        taken: set[int] = set()
        for name in names:
            for number in sorted(self.members[name].owned):
                if number not in taken and number < self.partitions and len(target[name]) < most:
                    target[name].add(number)
                    taken.add(number)
        for number in range(self.partitions):
            if number not in taken:
                target[min(names, key=lambda name: len(target[name]))].add(number)
        return target

    # Offsets

    def is_stable(self, partition: int) -> bool:
        return not any(partition in each.offsets for each in self.pending)

    def settle(self, transaction: Transaction, *, committed: bool) -> None:
        """Apply or forget the offsets of a transaction."""
        if transaction in self.pending:
            self.pending = [each for each in self.pending if each is not transaction]
            if committed:
                self.offsets.update(transaction.offsets)
                self.metadata.update({each: transaction.metadata.get(each, "") for each in transaction.offsets})

    def set_offset(self, partition: int, offset: int) -> None:
        """Set an offset as an operator does."""
        self.offsets[partition] = offset
        self.metadata.pop(partition, None)

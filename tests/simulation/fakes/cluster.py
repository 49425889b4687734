"""The brokers: topics, transactions with epochs and time-outs, and who may reach whom."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from tests.simulation.fakes.group import Group, GroupRefusal
from tests.simulation.fakes.logs import Fate, Log, Row, Topic, Transaction
from tests.simulation.fakes.timeline import Timeline

TRANSACTION_TIMEOUT_S: Final = 20.0
MARKERS_S: Final = 0.06
"""Longest time from the answer to a commit until its markers are written, while all is well."""
INPUT_BYTES: Final = 100_000


class Refusal(Exception):
    """An error code of the protocol, by name."""


class Unreachable(Exception):
    """No broker answers this client."""


@dataclass(slots=True)
class Producer:
    """The transaction coordinator's state of a transactional id."""

    epoch: int = -1
    transaction: Transaction | None = None


@dataclass(slots=True)
class Link:
    """The network between one process and the brokers."""

    cut: bool = False
    round_trip_s: float = 0.002
    bytes_per_s: float = 1e9
    loses_answers: bool = False
    """Requests arrive, and their answers do not."""


@dataclass(slots=True)
class Cluster:
    """All brokers as one, and what operators and misfortune do to it."""

    timeline: Timeline
    rng: random.Random
    topics: dict[str, Topic] = field(default_factory=dict)
    producers: dict[str, Producer] = field(default_factory=dict)
    group: Group = field(init=False)
    completed: Callable[[Transaction], None] = lambda _transaction: None
    """Told each transaction once its markers are written."""
    settled: Callable[[Transaction, str, int], None] = lambda _transaction, _topic, _partition: None
    """Told a part that was left open, once it is committed."""
    away: bool = False
    """No broker answers."""
    coordinator_away: bool = False
    """The coordinator of groups and transactions moves."""
    markers_wait: bool = False
    """Markers are not written."""
    refusals_s: list[float] = field(default_factory=list)
    """When a record was refused."""
    _ending: list[Transaction] = field(default_factory=list)
    _left: list[tuple[Transaction, str, int]] = field(default_factory=list)
    """Parts of committed transactions that have no marker, by topic and partition."""
    _made: int = 0

    def __post_init__(self) -> None:
        self.group = Group(self.timeline)
        self.timeline.every_step(self.tick)

    # Topics

    def create(self, name: str, partitions: int, max_bytes: int, *, compacted: bool = False) -> Topic:
        self._made += 1
        topic = self.topics[name] = Topic(name, self._made, partitions, max_bytes, compacted=compacted)
        return topic

    def delete(self, name: str) -> None:
        del self.topics[name]

    def log(self, topic: str, partition: int) -> Log:
        """Return a partition's log. Raises Refusal."""
        found = self.topics.get(topic)
        if found is None or not 0 <= partition < len(found.logs):
            raise Refusal("UNKNOWN_TOPIC_OR_PART")
        return found.logs[partition]

    def send(self, topic: str, partition: int, row: Row, timestamp_ms: int) -> int:
        """Write as an application does, outside of any transaction; return the offset."""
        return self.log(topic, partition).append([row], timestamp_ms, None)

    def reach(self, link: Link, *, coordinator: bool = False) -> None:
        """Raise Unreachable when the brokers do not answer this process now."""
        if link.cut or self.away or (coordinator and self.coordinator_away):
            raise Unreachable

    # Transactions

    def init(self, transactional_id: str) -> int | None:
        """Fence older producers, abort what they left open; return the epoch, None while a marker is to be written."""
        producer = self.producers.setdefault(transactional_id, Producer())
        if (transaction := producer.transaction) is not None:
            if transaction.answered_commit:
                return None
            self._end(producer, transaction, Fate.ABORTED)
        producer.epoch += 1
        return producer.epoch

    def transaction_of(self, transactional_id: str, epoch: int) -> Transaction | None:
        """Return the open transaction, begun now if need be; None while the one before waits for its markers.

        Raises Refusal when the producer is fenced.
        """
        producer = self._checked(transactional_id, epoch)
        if producer.transaction is None:
            producer.transaction = Transaction(transactional_id, self.timeline.now_s)
        return None if producer.transaction.answered_commit else producer.transaction

    def produce(self, transaction: Transaction, topic: str, partition: int, rows: list[Row], wall_ms: int) -> int:
        """Append a batch and return its first offset. The batch was judged before."""
        log = self.log(topic, partition)
        first = log.append(rows, wall_ms, transaction)
        transaction.writes += [(topic, partition, each) for each in log.entries[-len(rows) :]]
        return first

    def send_offsets(
        self,
        transaction: Transaction,
        offsets: dict[int, int],
        metadata: Mapping[int, str],
        member: str,
        generation: int,
    ) -> None:
        """Make offsets pending. Raises Refusal."""
        if not offsets:
            return  # no request is sent, and nothing is checked
        if transaction.fate is not Fate.OPEN:
            raise GroupRefusal("INVALID_PRODUCER_EPOCH")  # another producer ended it meanwhile
        self.group.check(member, generation)
        transaction.offsets.update(offsets)
        transaction.metadata.update(metadata)
        self.group.pending.append(transaction)

    def commit(self, transactional_id: str, epoch: int, began_ms: int) -> None:
        """Raise Refusal when the producer is fenced; a transaction that was committed before is so again."""
        producer = self._checked(transactional_id, epoch)
        transaction = producer.transaction
        if transaction is None or transaction.answered_commit:
            return
        transaction.answered_commit = True
        transaction.began_ms = began_ms
        transaction.ends_s = self.timeline.now_s + self.rng.random() * MARKERS_S
        self._ending.append(transaction)
        if not transaction.logs and not transaction.offsets:
            transaction.ends_s = self.timeline.now_s

    def abort(self, transactional_id: str, epoch: int) -> None:
        """Raise Refusal when the producer is fenced."""
        producer = self._checked(transactional_id, epoch)
        if producer.transaction is not None and not producer.transaction.answered_commit:
            self._end(producer, producer.transaction, Fate.ABORTED)

    def take_back(self) -> int:
        """Abort what was said to be committed and has no markers yet, as a coordinator that restarts may."""
        taken = list(self._ending)
        for transaction in taken:
            self._give_up(transaction)
        return len(taken)

    def leave_open(self, topic: str, partition: int, *, fences: bool = True) -> int:
        """Commit what was said to be committed and has no markers yet, but forget the marker of one partition.

        There it stays open until the next transaction of its producer ends. Return how many.

        Args:
            topic: The topic.
            partition: Of the topic.
            fences: Its producer has to be replaced.
        """
        taken = 0
        for transaction in list(self._ending):
            if any(place == [topic, partition] for *place, _ in transaction.writes):
                self._left.append((transaction, topic, partition))
                taken += 1
                if fences:
                    self._give_up(transaction, Fate.COMMITTED)
                else:
                    self._end(self.producers[transaction.transactional_id], transaction, Fate.COMMITTED)
        return taken

    def take_back_part(self, topic: str | None, partition: int) -> int:
        """Commit what was said to be committed and has no markers yet, except in one partition; return how many.

        There an ABORT marker ends it, as after a moment without a leader.

        Args:
            topic: The topic; None: the group's offsets of all partitions.
            partition: Of the topic.
        """
        taken = 0
        for transaction in list(self._ending):
            entries = [each for *place, each in transaction.writes if place == [topic, partition]]
            if topic is not None and not entries:
                continue
            for each in entries:
                each.is_rolled_back = True
            transaction.keeps_offsets = topic is not None
            taken += 1
            self._give_up(transaction, Fate.COMMITTED)
        return taken

    def tick(self) -> None:
        """Write markers, end transactions that are open for too long, expel silent members."""
        now_s = self.timeline.now_s
        if self._ending and not self.markers_wait:
            for transaction in [each for each in self._ending if each.ends_s <= now_s]:
                self._end(self.producers[transaction.transactional_id], transaction, Fate.COMMITTED)
        for producer in self.producers.values():
            open_one = producer.transaction
            if open_one is None or open_one.answered_commit:
                continue
            if now_s - open_one.began_s > TRANSACTION_TIMEOUT_S:
                self._give_up(open_one)
        self.group.tick()

    def _give_up(self, transaction: Transaction, fate: Fate = Fate.ABORTED) -> None:
        producer = self.producers[transaction.transactional_id]
        producer.epoch += 1
        self._end(producer, transaction, fate)

    def _checked(self, transactional_id: str, epoch: int) -> Producer:
        producer = self.producers.setdefault(transactional_id, Producer())
        if producer.epoch != epoch:
            raise Refusal("PRODUCER_FENCED")
        return producer

    def _end(self, producer: Producer, transaction: Transaction, fate: Fate) -> None:
        transaction.fate = fate
        if transaction in self._ending:
            self._ending.remove(transaction)
        left = [each for each in self._left if each[0].transactional_id == transaction.transactional_id]
        for former, topic, partition in left:
            if former is not transaction and self.log(topic, partition) in transaction.logs:
                self._end_left(former, topic, partition, committed=fate is Fate.COMMITTED)
        kept = {self.log(topic, partition) for each, topic, partition in left if each is transaction}
        for log in transaction.logs.keys() - kept:
            log.mark(transaction)
        self.group.settle(transaction, committed=fate is Fate.COMMITTED and transaction.keeps_offsets)
        if producer.transaction is transaction:
            producer.transaction = None
        if fate is Fate.COMMITTED:
            self.completed(transaction)

    def _end_left(self, transaction: Transaction, topic: str, partition: int, *, committed: bool) -> None:
        self._left.remove((transaction, topic, partition))
        for *place, entry in transaction.writes:
            if place == [topic, partition]:
                entry.is_rolled_back = not committed
        self.log(topic, partition).mark(transaction)
        if committed:
            self.settled(transaction, topic, partition)

    def abort_left(self) -> None:
        """Abort the parts that are left open, as an operator does who finds them."""
        for left in list(self._left):
            self._end_left(*left, committed=False)

    def is_left_open(self, transaction: Transaction, topic: str, partition: int) -> bool:
        """Return whether the part of a transaction in a partition has no marker."""
        return (transaction, topic, partition) in self._left

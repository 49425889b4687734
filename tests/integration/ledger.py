"""Input against the contents of the topics: no message lost, none twice, none early.

It knows nothing of the sidecar but the headers that go in and the topics that it writes: the origin topic is stamped by
the broker, so that a timestamp there is when a message really came back.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from threading import Event
from typing import Final

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from sidecar.changelog.entry import HEAD, payload
from sidecar.clock import SystemClock
from tests.broker import Read, read_committed, unique
from tests.fold import fold
from tests.integration.sidecars import Sidecar, Stage
from tests.waiting import eventually

SEND_S: Final = 60.0
_LOT_S: Final = 0.05
ID: Final = "ledger-id"
ROLLED_BACK: Final = ("store_not_confirmed", "changelog_rolled_back")


@dataclass(frozen=True, slots=True)
class Balance:
    """The contents of the topics, as ids."""

    lost: Sequence[str]
    """Neither fired nor dead-lettered nor in the changelog as pending nor still before the committed input offset."""
    twice: Sequence[str]
    early: Sequence[str]
    fired: int
    dead: int
    pending: int
    unread: int
    """Sent, and not below the group's committed offset yet."""
    lateness_ms: Sequence[int]
    """Of all fires, ascending."""

    def require_right(self) -> None:
        """Fail unless nothing is lost, twice or early."""
        wrong = [*self.lost, *self.twice, *self.early]
        assert not wrong, str(self)

    def __str__(self) -> str:
        wrong = {"lost": self.lost, "twice": self.twice, "early": self.early}
        said = ", ".join(f"{len(ids)} {what} {list(ids)[:5]}" for what, ids in wrong.items())
        return f"{said}; {self.fired} fired, {self.dead} dead, {self.pending} pending, {self.unread} not taken in"


@dataclass(slots=True)
class Ledger:
    """The messages of one stage. The ids are in a header, so that no key or value is special."""

    stage: Stage
    due_ms: dict[str, int] = field(default_factory=dict)
    """Of every message that the broker has taken."""
    place: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Input partition and offset of each."""
    doomed: set[str] = field(default_factory=set)
    """Those that name no origin, and belong on the DLQ."""
    keys: int = 0
    """Messages share so many keys; 0: each has its own."""
    _admin: AdminClient | None = None

    def send(self, count: int, within_ms: tuple[int, int], *, seed: int = 1) -> None:
        """Send messages that are due between these two times from now; return when the broker has them all."""
        clock = SystemClock()
        with_dice = random.Random(seed)
        producer = Producer({"bootstrap.servers": self.stage.bootstrap, "enable.idempotence": True, "linger.ms": 5})
        start_ms = clock.wall_ms()
        first = len(self.due_ms)
        for number in range(first, first + count):
            self._send_one(producer, f"m{number}", start_ms + with_dice.randint(*within_ms))
        assert producer.flush(SEND_S) == 0, "the broker did not take all in time"

    def stream(self, stop: Event, per_second: int, within_ms: tuple[int, int], *, seed: int = 1) -> None:
        """Send so many a second until told to stop, one in twenty doomed; return when the broker has them all."""
        clock, dice = SystemClock(), random.Random(seed)
        producer = Producer({"bootstrap.servers": self.stage.bootstrap, "enable.idempotence": True, "linger.ms": 5})
        start_s, number = clock.monotonic_s(), 0
        while not stop.wait(_LOT_S):
            while number < (clock.monotonic_s() - start_s) * per_second:
                due_ms = clock.wall_ms() + dice.randint(*within_ms)
                self._send_one(producer, f"s{number}", due_ms, doomed=number % 20 == 7)
                number += 1
            producer.poll(0)
        assert producer.flush(SEND_S) == 0, "the broker did not take all in time"

    def _send_one(self, producer: Producer, name: str, due_ms: int, *, doomed: bool = False) -> None:
        def delivered(error: KafkaError | None, message: Message) -> None:
            assert error is None, error
            if doomed:
                self.doomed.add(name)
            self.due_ms[name] = due_ms
            self.place[name] = (message.partition() or 0, message.offset() or 0)

        headers: list[tuple[str, str | bytes | None]] = [("retry-due-ms", str(due_ms)), (ID, name)]
        if not doomed:
            headers.append(("retry-origin-topic", self.stage.origin))
        key = f"k{int(name[1:]) % self.keys}" if self.keys else name
        producer.produce(
            self.stage.input_topic, f"value of {name}".encode(), key.encode(), headers=headers, on_delivery=delivered
        )

    # What the topics say

    def fired(self) -> list[Read]:
        """Return what is in the origin."""
        return read_committed(self.stage.bootstrap, [self.stage.origin])

    def pending(self) -> list[str]:
        """Return the ids that the changelog says are pending, as the definition of the changelog says it."""
        records = read_committed(self.stage.bootstrap, [self.stage.changelog_topic])
        names = []
        for partition in range(self.stage.partitions):
            folded = fold((each.key, each.value) for each in records if each.partition == partition)
            names += [_id_of_entry(entry) for entry in folded.pending.values()]
        return names

    def changelog_records(self) -> int:
        """Return how many records and markers the changelog has, open transactions included."""
        reader = Consumer({"bootstrap.servers": self.stage.bootstrap, "group.id": unique("reader")})
        try:
            topic = self.stage.changelog_topic
            places = [TopicPartition(topic, partition) for partition in range(self.stage.partitions)]
            return sum(reader.get_watermark_offsets(place, timeout=15.0)[1] for place in places)
        finally:
            reader.close()

    def balance(self) -> Balance:
        """Compare. The result is exact only when no writer is running."""
        records = self.fired()
        dead = read_committed(self.stage.bootstrap, [self.stage.dlq_topic])
        pending = self.pending()
        unread = self._unread()
        out = [_id(each) for each in (*records, *dead)]
        seen = Counter([*out, *pending])
        early = [_id(each) for each in records if each.timestamp_ms < self.due_ms[_id(each)]]
        strange = sorted(seen.keys() - self.due_ms.keys())
        assert not strange, f"never sent: {strange[:5]}"
        return Balance(
            lost=sorted(self.due_ms.keys() - seen.keys() - unread),
            twice=sorted(name for name, count in seen.items() if count > 1),
            early=sorted(early),
            fired=len(records),
            dead=len(dead),
            pending=len(pending),
            unread=len(unread),
            lateness_ms=sorted(each.timestamp_ms - self.due_ms[_id(each)] for each in records),
        )

    def committed_offsets(self) -> dict[int, int]:
        """Return the group's committed input offset by partition, where there is one."""
        stage = self.stage
        self._admin = self._admin or AdminClient({"bootstrap.servers": stage.bootstrap})
        asked = [TopicPartition(stage.input_topic, partition) for partition in range(stage.partitions)]
        answer = self._admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(stage.group_id, asked)])
        found = answer[stage.group_id].result(15.0).topic_partitions or []
        return {each.partition: each.offset for each in found if each.offset >= 0}

    def _unread(self) -> set[str]:
        committed = self.committed_offsets()
        return {name for name, (partition, offset) in self.place.items() if offset >= committed.get(partition, 0)}

    def require_order(self) -> None:
        """Fail unless the messages of each key came back in the order in which they were sent."""
        last: dict[bytes | None, tuple[int, int]] = {}
        for record in sorted(self.fired(), key=lambda each: (each.partition, each.offset)):
            place = self.place[_id(record)]
            partition, offset = last.get(record.key, (place[0], -1))
            assert (partition, offset) < place, (
                f"{_id(record)} of {record.key!r}, sent at {place}, came behind {offset}"
            )
            assert partition == place[0], f"{record.key!r} is in partitions {partition} and {place[0]} of the input"
            last[record.key] = place

    # Waiting

    def await_pending(self, sidecars: Iterable[Sidecar], count: int, deadline_s: float = 30.0) -> None:
        """Wait until the instances say together that so many wait."""
        running = list(sidecars)
        eventually(lambda: sum(each.pending() for each in running) == count, deadline_s, f"{count} are pending")

    def await_ingested(self, deadline_s: float = 30.0) -> None:
        """Wait until the group has committed past every message that was sent."""
        eventually(lambda: not self._unread(), deadline_s, "all that was sent is taken in")

    def await_due(self) -> None:
        """Wait until all that was sent is due."""
        last_ms, clock = max(self.due_ms.values()), SystemClock()
        eventually(lambda: clock.wall_ms() > last_ms, (last_ms - clock.wall_ms()) / 1000 + 5, "all is due")

    def await_fired(self, deadline_s: float = 40.0, count: int | None = None) -> None:
        """Wait until all, or as many as `count`, are back, once or more often."""
        wanted = len(self.due_ms) - len(self.doomed) if count is None else count
        read_committed(
            self.stage.bootstrap,
            [self.stage.origin],
            deadline_s,
            until=lambda records: len({_id(each) for each in records}) >= wanted,
        )

    def settle(self, *running: Sidecar, deadline_s: float = 40.0, broker_may_roll_back: bool = False) -> Balance:
        """Wait until all are back and nothing is pending, then compare.

        Args:
            running: The sidecars.
            deadline_s: Longest time until all are back.
            broker_may_roll_back: Messages of one transaction may come twice if a sidecar says that the broker has
                rolled back what it had reported as committed, which a single broker does that is killed at that moment
                (ADR 7).

        Raises:
            AssertionError: not all came back in time, or something is lost, twice or early.
        """
        try:
            self.await_fired(deadline_s)
        except AssertionError as late:
            raise AssertionError(f"{late}\n{self.balance()}") from late
        if running:
            self.await_pending(running, 0)
        balance = self.balance()
        if broker_may_roll_back and any(event in each.log for each in running for event in ROLLED_BACK):
            require_one_transaction(self.fired(), balance.twice)
            balance = replace(balance, twice=(), fired=balance.fired - len(balance.twice))
        balance.require_right()
        wanted = (len(self.due_ms) - len(self.doomed), 0, 0)
        assert (balance.fired, balance.pending, balance.unread) == wanted, str(balance)
        return balance


def require_one_transaction(fired: Iterable[Read], twice: Sequence[str]) -> None:
    """Fail unless the first copies of these messages are of one transaction, and no message came more than twice.

    In a partition of the origin a transaction ends with a marker, which takes an offset that no reader gets.
    """
    by_place = {(each.partition, each.offset): _id(each) for each in fired}
    copies: dict[str, list[tuple[int, int]]] = {}
    for place, name in by_place.items():
        copies.setdefault(name, []).append(place)
    assert all(len(copies[name]) == 2 for name in twice), f"more than twice: {sorted(twice)[:5]}"
    firsts: dict[int, list[int]] = {}
    for name in twice:
        partition, offset = min(copies[name])
        firsts.setdefault(partition, []).append(offset)
    for partition, offsets in firsts.items():
        whole = range(min(offsets), max(offsets) + 1)
        ends = [offset for offset in whole if (partition, offset) not in by_place]
        assert not ends, f"twice in several transactions: partition {partition} of the origin ends one at {ends[:5]}"


def _id(record: Read) -> str:
    return (record.header(ID) or b"").decode()


def _id_of_entry(entry: bytes) -> str:
    fixed = HEAD.unpack_from(entry)
    origin_length, retry_id_length = fixed[-2:]
    _, _, headers = payload(entry, HEAD.size + origin_length + retry_id_length)
    return dict(headers)[ID].decode()  # type: ignore[union-attr]

"""Two instances that want one partition, each in its own time, against a broker that keeps the rules of Kafka.

An instance is a generator: at every yield anybody else may run. It learns of a rebalance only when it polls.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from msgspec.structs import replace

from sidecar.changelog.entry import lasting
from sidecar.engine.apply import apply_committed
from sidecar.engine.items import Arrival
from sidecar.engine.partition import Partition, State
from sidecar.engine.plan import plan
from sidecar.engine.ports import Origin
from sidecar.engine.restore import Restore
from sidecar.engine.rows import Identity
from sidecar.engine.transaction import PartitionPlan, Terms
from tests.fold import fold
from tests.simulation.broker import Broker, Fate, FencedError
from tests.simulation.memory_store import MemoryStore

START_MS = 1_700_000_000_000
TERMS = Terms("retry", "dlq", "app", {"A": Origin(4, 1_000_000)}, deliveries_max=3)
IDENTITY = Identity("cluster", "topic")
MESSAGES = 6
TURNS = 2500
QUIET_FROM = 1300
"""From this turn on nobody disturbs the owner any more, so all must be fired at the end."""

MISTAKES = {
    "empty": "the offsets of every transaction are an empty list, which no coordinator checks",
    "unnamed": "a transaction that only fires does not name its partition",
    "target first": "the target of the restore is taken before committed() is stable",
    "unstable": "committed() does not wait for open transactions",
    "stop at lso": "the restore stops at the last stable offset",
    "assume abort": "a commit without an answer is taken for an abort",
    "apply first": "the store is written before the commit",
}


class Group:
    """The world that the instances share."""

    def __init__(self, seed: int, mistake: str) -> None:
        self.rng = random.Random(seed)
        self.mistake = mistake
        self.broker = Broker()
        self.now_ms = START_MS
        self.dues = [START_MS + self.rng.choice([5, 300, 1500, 4000]) for _ in range(MESSAGES)]

    def arrival(self, offset: int) -> Arrival:
        due_ms = self.dues[offset]
        return Arrival(
            offset, due_ms, "A", lasting(due_ms, START_MS, 0, 3, 1, b"A", None, None, b"%d" % offset, []), None, False
        )


class Instance:
    """One process with its state folder."""

    def __init__(self, name: str, group: Group) -> None:
        self.name = name
        self.group = group
        self.broker = group.broker
        self.store = MemoryStore()
        self.partition = Partition(0)
        self.generation = -1

    def run(self) -> Iterator[None]:
        while True:
            yield
            if self.broker.member != self.name:
                self.generation = -1
            elif self.generation != self.broker.generation:
                yield from self._reset()
            else:
                yield from self._step()

    def _reset(self) -> Iterator[None]:
        """Design of the reset: committed() until stable, then the target, then the tail of the changelog to it."""
        broker, mistake = self.broker, self.group.mistake
        generation = broker.generation
        if self.group.rng.random() < 0.3:
            self.store.crash()
        target = broker.end_offset()
        yield
        while not broker.offsets_are_stable() and mistake != "unstable":
            yield
        next_input = broker.committed
        yield
        if mistake != "target first":
            target = broker.end_offset()
        yield
        while broker.last_stable_offset() < target:
            if mistake == "stop at lso":
                target = broker.last_stable_offset()
            yield
        self.partition = Partition(0)
        self.partition.transition_to(State.RESTORING)
        restore = Restore(self.partition, self.store, IDENTITY)
        start = restore.begin(0, broker.end_offset())
        restore.apply(broker.read_committed(start, target), "changelog")
        if restore.refuted or restore.unconfirmed:
            restore.start_over()
            restore.apply(broker.read_committed(0, target), "changelog")
        while not restore.settle():
            yield
        restore.finish(target, self.group.rng.getrandbits(63) | 1)
        self.partition.checkpoint = replace(self.partition.checkpoint, next_input_offset=next_input)
        self.partition.transition_to(State.RUNNING)
        self.generation = generation

    def _step(self) -> Iterator[None]:
        rng, next_input = self.group.rng, self.partition.checkpoint.next_input_offset
        arrivals = [self.group.arrival(next_input)] if next_input < MESSAGES and rng.random() < 0.6 else []
        made = plan([self.partition], {0: arrivals}, self.store, self.group.now_ms, TERMS)
        if not made.partition_plans:
            return
        (partition_plan,) = made.partition_plans
        transaction = self.broker.begin()
        try:
            yield from self._commit(transaction, partition_plan, bool(arrivals))
        except FencedError:
            if self.broker.fates[transaction] is Fate.OPEN:
                self.broker.end(transaction, Fate.ABORTED)
            self.generation = -1

    def _commit(self, transaction: int, partition_plan: PartitionPlan, took_in: bool) -> Iterator[None]:
        broker, rng, mistake = self.broker, self.group.rng, self.group.mistake
        late = rng.random() < 0.5  # the client library may hand the data over behind the offsets
        if mistake == "apply first":
            apply_committed(self.store, self.partition, partition_plan, IDENTITY, self.partition.changelog_offset)
        yield
        if not late:
            yield from self._produce(transaction, partition_plan)
        named = mistake != "empty" and (took_in or mistake != "unnamed")
        offsets = [partition_plan.checkpoint.next_input_offset] if named else []
        broker.send_offsets(transaction, self.generation, offsets)
        yield
        if late:
            yield from self._produce(transaction, partition_plan)
        if rng.random() < 0.05:
            broker.end(transaction, Fate.ABORTED)
            self.generation = -1
            return
        written = [at for at, record in enumerate(broker.changelog) if record.transaction == transaction]
        broker.end(transaction, Fate.COMMITTED)
        answer_lost = rng.random() < 0.05
        yield
        if answer_lost:
            if mistake != "assume abort":
                self.generation = -1
        elif mistake != "apply first":
            apply_committed(self.store, self.partition, partition_plan, IDENTITY, max(written) + 1)

    def _produce(self, transaction: int, partition_plan: PartitionPlan) -> Iterator[None]:
        for fire in partition_plan.deliveries:
            self.broker.produce_fire(transaction, fire.value or b"")
            yield
        for key, value in partition_plan.records:
            self.broker.produce_changelog(transaction, key, value)
            if self.group.rng.random() < 0.5:
                yield


def run(seed: int, mistake: str = "") -> Broker:
    """Run one schedule and check what a read_committed consumer has seen at its end."""
    group = Group(seed, mistake)
    rng, broker = group.rng, group.broker
    instances = {name: Instance(name, group) for name in "AB"}
    actors = {name: instance.run() for name, instance in instances.items()}
    broker.rebalance("A")
    wakes = dict.fromkeys(actors, 0)
    for turn in range(TURNS):
        group.now_ms += rng.choice([0, 1, 5, 30])
        chance = rng.random()
        if chance < 0.03 and turn < QUIET_FROM:
            broker.rebalance(rng.choice("AB"))
        elif chance < 0.05 and turn < QUIET_FROM:  # stopped: its transaction may time out meanwhile
            wakes[rng.choice("AB")] = turn + rng.randint(1, 200)
        elif chance < 0.06:
            broker.time_out(rng)
        elif chance < 0.09:
            broker.compact(rng)
        elif chance < 0.11:
            instances[rng.choice("AB")].store.flush()
        name = rng.choice("AB")
        if wakes[name] <= turn:
            next(actors[name])
    _check(broker)
    return broker


def _check(broker: Broker) -> None:
    fired = sorted(broker.committed_fires())
    assert fired == [b"%d" % offset for offset in range(MESSAGES)], ("lost or fired twice", fired)
    log = broker.read_committed(0, broker.end_offset())
    blocks = [record.key for record in log if record.key and record.key[:1] == b"b" and record.value is not None]
    assert len(blocks) == len(set(blocks)), ("a committed block key is used twice", blocks)
    left = fold((record.key, record.value) for record in log).pending
    assert not left, ("fired, and pending in the changelog", left)

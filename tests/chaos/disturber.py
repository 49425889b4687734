"""What goes wrong: one or two faults at a time, dealt by seeded dice, and everything whole again before the next."""

from __future__ import annotations

import random
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from confluent_kafka import KafkaException

from sidecar.clock import SystemClock
from sidecar.devbroker.local_broker import LocalBroker
from sidecar.devbroker.local_cluster import LocalCluster
from sidecar.errors import BrokerUnavailable
from tests.chaos.alone import Alone
from tests.integration.cluster.faults import LONG_S, freeze, heal, thaw
from tests.integration.cluster.roles import group_coordinator, leader, transaction_coordinator
from tests.integration.sidecars import Sidecar, Sidecars, Stage

AT_LEAST: Final = 2
"""So many instances run, or come back after the fault."""
_LASTS_S: Final = (0.0, 12.0)
_QUIET_S: Final = (1.0, 10.0)
_FORGETS: Final = 0.3
_TOGETHER: Final = 0.4


class Disturber:
    """Does the damage, and counts it.

    Args:
        dice: Seeded.
        cluster: The three nodes.
        stage: The topics.
        sidecars: Has the instances, and makes further ones.
        instances: Two that run, and others that may join.
        only: The names of the faults that come; all when it is empty.
    """

    def __init__(
        self,
        dice: random.Random,
        cluster: LocalCluster,
        stage: Stage,
        sidecars: Sidecars,
        instances: Sequence[Sidecar],
        only: Sequence[str] = (),
    ) -> None:
        self.faults: Counter[str] = Counter()
        self.ended: list[str] = []
        """Instances that ended by themselves, with their exit status."""
        self.wrong: list[str] = []
        """What came of a fault and should not have, or did not come."""
        self.healed_ms = 0
        """When the last fault was over."""
        self.longest_outage_s = 0.0
        """The longest time in which fewer than two nodes ran."""
        self._dice = dice
        self._cluster = cluster
        self._stage = stage
        self._instances = instances
        self._wanted = set(instances[:AT_LEAST])
        self._frozen: set[Sidecar] = set()
        self._gone: set[Sidecar] = set()
        """Those that were ended on purpose."""
        self._kills = 0
        self._outage_s: float | None = None
        self._clock = SystemClock()
        self.alone = Alone(dice, cluster, stage, sidecars, self._gone)
        self._acts: dict[str, Callable[[], None]] = {
            "a node is killed": lambda: self._kill_nodes(self._any_node()),
            "a node leaves in order": self._shut_a_node_down,
            "a node is frozen": self._freeze_a_node,
            "two nodes are killed": lambda: self._kill_nodes(*dice.sample(self._cluster.nodes, 2)),
            "all nodes are killed": lambda: self._kill_nodes(*self._cluster.nodes),
            "a leader is killed": lambda: self._kill_nodes(self._node_of(self._leader)),
            "the group's coordinator is killed": lambda: self._kill_nodes(self._node_of(self._group)),
            "a transaction's coordinator is killed": lambda: self._kill_nodes(self._node_of(self._transactions)),
            "the active controller is killed": lambda: self._kill_nodes(self._node_of(cluster.active_controller)),
            "an instance is killed": self._kill_an_instance,
            "an instance leaves in order": self._stop_an_instance,
            "an instance is frozen": self._freeze_an_instance,
            "an instance joins or leaves for good": self._grow_or_shrink,
        }
        self._names = sorted(only or [*self._acts, *self.alone.acts])
        if unknown := set(self._names) - {*self._acts, *self.alone.acts}:
            raise ValueError(f"no fault is named {unknown}: there are {sorted([*self._acts, *self.alone.acts])}")
        self._deck: list[str] = []

    @property
    def kills(self) -> int:
        """How many processes were killed."""
        return self._kills + self.alone.kills

    def disturb_until(self, until_s: float, stopped: threading.Event) -> None:
        """Let faults come until this monotonic time; everything runs when it returns."""
        while self._clock.monotonic_s() < until_s and not stopped.wait(self._dice.uniform(*_QUIET_S)):
            names = self._deal()
            print(f"{self._clock.wall_ms()} {', '.join(names)}", file=sys.stderr, flush=True)
            if names[0] in self.alone.acts:
                self._act_alone(names[0])
            else:
                for name in names:
                    self._acts[name]()
                    self.faults[name] += 1
                self._note_outage()
                stopped.wait(self._dice.uniform(*_LASTS_S))
            self.heal()

    def _deal(self) -> Sequence[str]:
        """Return a fault, or two that come together; each comes once before any comes again."""
        if not self._deck:
            self._deck = self._dice.sample(self._names, len(self._names))
        names = [self._deck.pop()]
        if self._deck and not self.alone.acts.keys() & {names[0], self._deck[-1]} and self._dice.random() < _TOGETHER:
            names.append(self._deck.pop())
        return names

    def _act_alone(self, name: str) -> None:
        try:
            heal(self._cluster)
            running = [each for each in self._instances if each in self._wanted]
            self.faults[name] += self.alone.act(name, running)
        except (AssertionError, KafkaException, BrokerUnavailable) as error:
            self.wrong.append(f"{name}: {error}")
            print(f"wrong: {self.wrong[-1]}", file=sys.stderr, flush=True)

    def heal(self) -> None:
        """Let all nodes and all wanted instances run again."""
        for node in self._cluster.running:
            thaw(node)
        for each in self._frozen:
            if each.running:
                each.thaw()
        self._frozen.clear()
        self._cluster.start(LONG_S)
        if self._outage_s is not None:
            self.longest_outage_s = max(self.longest_outage_s, self._clock.monotonic_s() - self._outage_s)
            self._outage_s = None
        for each in sorted(self._wanted, key=lambda one: one.name):
            if not each.running:
                self._start(each)
        self.healed_ms = self._clock.wall_ms()

    # Nodes

    def _any_node(self) -> LocalBroker:
        return self._dice.choice(self._cluster.nodes)

    def _node_of(self, role: Callable[[], LocalBroker]) -> LocalBroker:
        """Return the node with a role, or any while another fault keeps the cluster from saying."""
        try:
            return role()
        except (KafkaException, BrokerUnavailable, AssertionError):
            return self._any_node()

    def _leader(self) -> LocalBroker:
        stage = self._stage
        topics = (stage.input_topic, stage.changelog_topic, stage.status_topic, stage.dlq_topic, stage.origin)
        return leader(self._cluster, self._dice.choice(topics), 0)

    def _group(self) -> LocalBroker:
        return group_coordinator(self._cluster, self._stage.group_id)

    def _transactions(self) -> LocalBroker:
        return transaction_coordinator(self._cluster, f"{self._stage.app_id}-one")

    def _kill_nodes(self, *nodes: LocalBroker) -> None:
        for node in nodes:
            self._kills += node.running
            node.kill()

    def _shut_a_node_down(self) -> None:
        self._any_node().shut_down()

    def _freeze_a_node(self) -> None:
        if running := self._cluster.running:
            freeze(self._dice.choice(running))

    def _note_outage(self) -> None:
        if len(self._cluster.running) < 2 and self._outage_s is None:
            self._outage_s = self._clock.monotonic_s()

    # Instances

    def _start(self, instance: Sidecar) -> None:
        if instance.status is not None and instance not in self._gone:
            self.ended.append(f"{instance.name}: {instance.status}")
            print(instance.last_lines(), file=sys.stderr, flush=True)
        self._gone.discard(instance)
        instance.start()

    def _one(self) -> Sidecar | None:
        """Return a wanted instance that runs and is not frozen."""
        there = [each for each in self._instances if each in self._wanted - self._frozen and each.running]
        return self._dice.choice(there) if there else None

    def _kill_an_instance(self) -> None:
        if (instance := self._one()) is not None:
            instance.kill()
            self._kills += 1
            self._gone.add(instance)
            if self._dice.random() < _FORGETS:
                instance.forget_state()

    def _stop_an_instance(self) -> None:
        if (instance := self._one()) is not None:
            instance.stop(LONG_S)
            self._gone.add(instance)

    def _freeze_an_instance(self) -> None:
        if (instance := self._one()) is not None:
            instance.freeze()
            self._frozen.add(instance)

    def _grow_or_shrink(self) -> None:
        spare = [each for each in self._instances if each not in self._wanted]
        if spare and (len(self._wanted) == AT_LEAST or self._dice.random() < 0.5):
            joining = self._dice.choice(spare)
            self._wanted.add(joining)
            self._start(joining)
        elif (leaving := self._one()) is not None:
            leaving.stop(LONG_S)
            self._gone.add(leaving)
            self._wanted.discard(leaving)

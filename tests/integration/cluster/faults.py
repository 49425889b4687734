"""Load on a cluster of three nodes, what goes wrong with them meanwhile, and when they are whole again."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final

from confluent_kafka import Consumer, KafkaException, TopicPartition

from sidecar.clock import SystemClock
from sidecar.devbroker.local_broker import LocalBroker
from sidecar.devbroker.local_cluster import LocalCluster
from sidecar.errors import BrokerUnavailable
from tests.broker import partitions_of, unique
from tests.integration.cluster.roles import out_of_sync
from tests.integration.ledger import Balance, Ledger
from tests.integration.scenarios import SESSION, share
from tests.integration.sidecars import Sidecar, Sidecars, Stage
from tests.waiting import eventually

PER_SECOND: Final = 60
WITHIN_MS: Final = (0, 4_000)
LONG_S: Final = 600.0
"""For what takes seconds, on a machine that has other work."""

Fault = Callable[[], object]


class Witness:
    """Counts what comes to the origin while it comes. What it was, the ledger says in the end."""

    def __init__(self, stage: Stage) -> None:
        self.count = 0
        self._stage = stage

    def watch(self, stop: threading.Event) -> None:
        """Count until told to stop. Errors are of nodes that are away: the client goes on by itself."""
        bootstrap, topic = self._stage.bootstrap, self._stage.origin
        consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": unique("witness"), "enable.auto.commit": False}
        )
        try:
            consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions_of(bootstrap, topic))])
            while not stop.is_set():
                self.count += sum(message.error() is None for message in consumer.consume(1_000, timeout=0.2))
        finally:
            consumer.close()

    def await_more(self, more: int = PER_SECOND) -> None:
        """Wait until so many more have come than have now."""
        wanted = self.count + more
        eventually(lambda: self.count >= wanted, LONG_S, f"{wanted} have come back, {more} more than there were")


@contextmanager
def load(ledger: Ledger, per_second: int = PER_SECOND) -> Iterator[Witness]:
    """Send a steady stream meanwhile."""
    stop, witness = threading.Event(), Witness(ledger.stage)
    with ThreadPoolExecutor(2, "load") as threads:
        tasks = [threads.submit(ledger.stream, stop, per_second, WITHIN_MS), threads.submit(witness.watch, stop)]
        try:
            yield witness
        finally:
            stop.set()
        for each in tasks:
            each.result()


def two_share(stage: Stage, sidecars: Sidecars, **settings: str) -> tuple[Sidecar, Sidecar]:
    """Start two instances and return when each has partitions."""
    one, two = (sidecars.make(name, stage, INSTANCE_ID=name, **SESSION, **settings) for name in ("one", "two"))
    one.start()
    two.start()
    eventually(lambda: share(one, two), LONG_S, "both have partitions")
    return one, two


def survive(cluster: LocalCluster, ledger: Ledger, instances: Sequence[Sidecar], *faults: Fault) -> Balance:
    """Let the faults come one after the other under load, and compare in the end.

    What is due goes on coming while a fault lasts and after it: one node of three is away, and two are enough.
    """
    with load(ledger) as witness:
        for fault in faults:
            witness.await_more()
            fault()
            witness.await_more()
            heal(cluster)
        witness.await_more()
    return settle(ledger, *instances)


def settle(ledger: Ledger, *instances: Sidecar) -> Balance:
    """Wait until everything that is due is back, and compare; says how long that took."""
    clock = SystemClock()
    ledger.await_due()
    start_s = clock.monotonic_s()
    balance = ledger.settle(*instances, deadline_s=LONG_S)
    took_s, late_ms = clock.monotonic_s() - start_s, balance.lateness_ms[-1]
    print(f"{balance}; all is back {took_s:.1f} s after the last due, the latest {late_ms} ms late")
    assert balance.dead == len(ledger.doomed), balance
    return balance


def heal(cluster: LocalCluster) -> None:
    """Start the nodes that are away, let the frozen go on, and return when every replica is in sync."""
    for node in cluster.running:
        thaw(node)
    cluster.start(LONG_S)
    eventually(lambda: _is_whole(cluster), LONG_S, "every replica is in sync, and a controller is active")


def freeze(node: LocalBroker) -> None:
    """Stop a node with SIGSTOP: it answers nothing, and its connections stay open."""
    assert node.pid is not None
    os.kill(node.pid, signal.SIGSTOP)


def thaw(node: LocalBroker) -> None:
    """Let a frozen node go on; nothing happens to one that is not."""
    assert node.pid is not None
    os.kill(node.pid, signal.SIGCONT)


def _is_whole(cluster: LocalCluster) -> bool:
    try:
        return cluster.active_controller().running and not out_of_sync(cluster)
    except (KafkaException, BrokerUnavailable):
        return False

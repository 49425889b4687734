"""One query on a standalone cluster whose executors, workers and driver fail, one after the other.

The executors' clocks are ahead. After each failure the ledger holds: every message came once, none early, none is lost.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.broker import read_committed
from tests.integration.ledger import Ledger
from tests.integration.sidecars import Sidecar, Sidecars, set_stage
from tests.spark.cluster.standalone import StandaloneCluster
from tests.spark.cluster.trap import AFTER_COMMIT, BEFORE_COMMIT, FREEZE, KILL
from tests.waiting import eventually

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(1800)]

WAIT_S = 180.0
BURST = 3_000
LEAST = 10
"""A transaction with so many deliveries is one of the burst; what is sent ahead goes in small ones."""


class Running:
    """A query on a cluster, and the ledger of all its messages."""

    def __init__(self, cluster: StandaloneCluster, driver: Sidecar, folder: Path) -> None:
        self.cluster = cluster
        self.driver = driver
        self.ledger = Ledger(driver.stage)
        checkpoint = ["--checkpoint", f"file://{folder}/checkpoint", "--state-partitions", "2"]
        self._command = ["-m", "sidecar", "spark", "run", *checkpoint, *cluster.options()]
        self._bursts = 0

    def start(self) -> None:
        self.driver.start(self._command)
        self.driver.await_ready(WAIT_S)

    def burst(self, within_ms: tuple[int, int]) -> None:
        """Send messages, and return when all are ingested."""
        self._bursts += 1
        self.ledger.send(BURST, within_ms, seed=self._bursts)

    def require_right(self) -> None:
        """Wait until all messages have come, and fail unless each came once and none early."""
        topic, sent = [self.driver.stage.origin], len(self.ledger.due_ms)
        read_committed(self.driver.stage.bootstrap, topic, WAIT_S, until=lambda seen: len(seen) >= sent)
        balance = self.ledger.balance()
        balance.require_right()
        assert (balance.fired, balance.dead) == (sent, 0), str(balance)


@pytest.fixture(scope="module")
def running(java: Path, bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Two workers of one core, and a query whose first messages have come."""
    folder = tmp_path_factory.mktemp("cluster")
    cluster, drivers = StandaloneCluster(folder, java), Sidecars(folder)
    try:
        for _ in range(2):
            cluster.add_worker()
        running = Running(cluster, drivers.make("driver", set_stage(bootstrap, 4)), folder)
        running.start()
        running.burst((0, 2_000))
        running.require_right()
        yield running
    finally:
        drivers.end()
        cluster.end()


@pytest.mark.parametrize("point", [BEFORE_COMMIT, AFTER_COMMIT])
def test_an_executor_is_killed_in_the_middle_of_a_fire(running: Running, point: str) -> None:
    """Before the commit its deliveries are with the broker; after it, Spark does not know of them."""
    running.cluster.trap.arm(point, KILL, LEAST)
    running.burst((3_000, 6_000))
    killed = running.cluster.trap.sprung(WAIT_S)
    running.require_right()
    assert killed not in {each.pid for each in running.cluster.executors()}
    assert running.driver.running


def test_a_worker_is_killed_and_another_one_takes_its_place(running: Running) -> None:
    running.burst((3_000, 15_000))
    gone = running.cluster.workers[0]
    eventually(gone.executors, WAIT_S, "it has an executor")
    gone.kill()
    running.burst((0, 6_000))
    running.require_right()
    fresh = running.cluster.add_worker()
    eventually(fresh.executors, WAIT_S, "the new worker has an executor")
    running.burst((0, 3_000))
    running.require_right()


def test_an_executor_that_was_replaced_writes_late(running: Running) -> None:
    """A machine stands still in the middle of a transaction, and goes on when another has done its work."""
    running.cluster.trap.arm(BEFORE_COMMIT, FREEZE, LEAST)
    running.burst((3_000, 6_000))
    frozen = running.cluster.trap.sprung(WAIT_S)
    running.require_right()
    worker = running.cluster.worker_of(frozen)
    worker.thaw()
    eventually(
        lambda: frozen not in {each.pid for each in worker.executors()}, WAIT_S, "the executor that was replaced ends"
    )
    running.burst((0, 3_000))
    running.require_right()


def test_the_driver_is_killed_in_the_middle_of_a_fire(running: Running) -> None:
    running.cluster.trap.arm(BEFORE_COMMIT, FREEZE, LEAST)
    running.burst((3_000, 6_000))
    frozen = running.cluster.trap.sprung(WAIT_S)
    os.killpg(running.driver.pid, signal.SIGKILL)
    running.driver.wait()
    running.cluster.worker_of(frozen).thaw()
    running.start()
    running.require_right()
    assert running.driver.stop(90) == 0

"""The network between sidecars and brokers is slow, cuts connections or swallows bytes; the ledger's way is good."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from sidecar.clock import SystemClock
from sidecar.devbroker.local_cluster import LocalCluster
from tests.deploy import tools
from tests.integration.cluster.faults import LONG_S, load, settle, two_share
from tests.integration.cluster.toxiproxy import DOWN, UP, Toxiproxy, proxied_cluster
from tests.integration.ledger import Ledger
from tests.integration.sidecars import Sidecars, Stage, set_stage
from tests.waiting import eventually

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(900)]

SESSIONS_S = 15.0
"""Two and a half sessions of the instances."""
RESETS = 30


@pytest.fixture(scope="module")
def world() -> Iterator[tuple[LocalCluster, Toxiproxy]]:
    with proxied_cluster(tools.find("toxiproxy", target="toxiproxy")) as made:
        yield made


@pytest.fixture
def proxies(world: tuple[LocalCluster, Toxiproxy]) -> Toxiproxy:
    """The proxies through which the sidecars of this test connect."""
    return world[1]


@pytest.fixture
def stage(world: tuple[LocalCluster, Toxiproxy]) -> Stage:
    """Topics of this test; clients that use the stage's address connect directly."""
    return set_stage(world[0].bootstrap_servers)


def test_200_ms_of_latency_delay_and_lose_nothing(stage: Stage, sidecars: Sidecars, proxies: Toxiproxy) -> None:
    instances = two_share(stage, sidecars, BOOTSTRAP_SERVERS=proxies.bootstrap_servers)
    ledger = Ledger(stage)
    with load(ledger) as witness, proxies.toxic("latency", DOWN, latency=200):
        witness.await_more(1_200)
    settle(ledger, *instances)


def test_one_connection_in_a_hundred_is_cut_every_second(stage: Stage, sidecars: Sidecars, proxies: Toxiproxy) -> None:
    instances = two_share(stage, sidecars, BOOTSTRAP_SERVERS=proxies.bootstrap_servers)
    ledger, pause = Ledger(stage), threading.Event()
    with load(ledger) as witness:
        for _ in range(RESETS):
            with proxies.toxic("reset_peer", DOWN, toxicity=0.01, timeout=0):
                pause.wait(1)
        witness.await_more()
    settle(ledger, *instances)


@pytest.mark.parametrize("stream", [UP, DOWN])
def test_one_way_is_silent_for_longer_than_the_session(
    stream: str, stage: Stage, sidecars: Sidecars, proxies: Toxiproxy
) -> None:
    one, two = two_share(stage, sidecars, BOOTSTRAP_SERVERS=proxies.bootstrap_servers)
    ledger, clock = Ledger(stage), SystemClock()
    with load(ledger) as witness:
        witness.await_more()
        with proxies.toxic("timeout", stream, timeout=0):
            until_s = clock.monotonic_s() + SESSIONS_S
            eventually(lambda: not one.ready() and not two.ready(), LONG_S, "none of them is ready")
            eventually(lambda: clock.monotonic_s() > until_s, SESSIONS_S + LONG_S, "the session is over")
            assert (one.get("/livez")[0], two.get("/livez")[0]) == (200, 200)
        witness.await_more()
    settle(ledger, one, two)


def test_200_kilobytes_a_second_delay_and_lose_nothing(stage: Stage, sidecars: Sidecars, proxies: Toxiproxy) -> None:
    instances = two_share(stage, sidecars, BOOTSTRAP_SERVERS=proxies.bootstrap_servers)
    ledger = Ledger(stage)
    with proxies.toxic("bandwidth", UP, rate=200), load(ledger, per_second=300) as witness:
        witness.await_more(6_000)
    settle(ledger, *instances)

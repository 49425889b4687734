"""Nodes of a cluster of three fail under load: nothing is lost, twice or early, and two nodes are enough to go on."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource

from sidecar.devbroker.local_broker import LocalBroker
from sidecar.devbroker.local_cluster import LocalCluster
from sidecar.errors import BrokerUnavailable
from tests.broker import create_topic
from tests.integration.cluster.faults import LONG_S, freeze, heal, load, settle, survive, two_share
from tests.integration.cluster.roles import (
    GROUPS,
    TRANSACTIONS,
    group_coordinator,
    leader,
    out_of_sync,
    transaction_coordinator,
)
from tests.integration.ledger import Ledger
from tests.integration.sidecars import Sidecars, Stage
from tests.waiting import eventually

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(900)]

KINDS = ("input", "changelog", "origin", "dlq", "status")


def topic_of(stage: Stage, kind: str) -> str:
    """Return the name of the stage's topic of a kind."""
    return str(getattr(stage, kind if kind == "origin" else f"{kind}_topic"))


def test_a_killed_leader_and_a_controller_that_leaves_lose_nothing(
    cluster: LocalCluster, stage: Stage, sidecars: Sidecars
) -> None:
    one, two = two_share(stage, sidecars)

    def the_leader_of_a_changelog_crashes() -> None:
        leader(cluster, stage.changelog_topic, 0).kill()

    def the_active_controller_leaves() -> None:
        cluster.active_controller().shut_down()

    survive(cluster, Ledger(stage), (one, two), the_leader_of_a_changelog_crashes, the_active_controller_leaves)
    assert [one.stop(LONG_S), two.stop(LONG_S)] == [0, 0]


@pytest.mark.parametrize("end", [LocalBroker.kill, LocalBroker.shut_down], ids=["kill-9", "in-order"])
def test_each_node_in_turn(
    end: Callable[[LocalBroker], None], cluster: LocalCluster, stage: Stage, sidecars: Sidecars
) -> None:
    instances = two_share(stage, sidecars)
    survive(cluster, Ledger(stage), instances, *(partial(end, node) for node in cluster.nodes))


@pytest.mark.parametrize("kind", KINDS)
def test_the_leader_of_a_topic_crashes(kind: str, cluster: LocalCluster, stage: Stage, sidecars: Sidecars) -> None:
    instances = two_share(stage, sidecars)
    survive(cluster, Ledger(stage), instances, lambda: leader(cluster, topic_of(stage, kind), 0).kill())


def test_the_coordinator_of_the_group_crashes(cluster: LocalCluster, stage: Stage, sidecars: Sidecars) -> None:
    instances = two_share(stage, sidecars)
    survive(cluster, Ledger(stage), instances, lambda: group_coordinator(cluster, stage.group_id).kill())


def test_the_coordinator_of_the_transactions_crashes(cluster: LocalCluster, stage: Stage, sidecars: Sidecars) -> None:
    instances = two_share(stage, sidecars)
    survive(
        cluster,
        Ledger(stage),
        instances,
        lambda: transaction_coordinator(cluster, f"{stage.app_id}-one").kill(),
        lambda: transaction_coordinator(cluster, f"{stage.app_id}-two").kill(),
    )


def test_the_active_controller_crashes(cluster: LocalCluster, stage: Stage, sidecars: Sidecars) -> None:
    instances = two_share(stage, sidecars)
    before = cluster.active_controller()

    def crash() -> None:
        before.kill()

        def another_leads() -> bool:
            try:
                return cluster.active_controller() is not before
            except BrokerUnavailable:  # an election is under way
                return False

        eventually(another_leads, LONG_S, "another node leads the controllers")

    survive(cluster, Ledger(stage), instances, crash)


def test_a_node_that_is_frozen_until_it_is_given_up(cluster: LocalCluster, stage: Stage, sidecars: Sidecars) -> None:
    instances = two_share(stage, sidecars)

    def frozen() -> None:
        node = leader(cluster, stage.changelog_topic, 0)
        freeze(node)
        others = [each for each in cluster.nodes if each is not node]
        eventually(lambda: one_leads(others, stage.changelog_topic), LONG_S, "another node leads the changelog")

    survive(cluster, Ledger(stage), instances, frozen)


@pytest.mark.parametrize("whose", ["ours", "kafkas"])
def test_below_the_least_number_of_replicas_all_waits_and_then_goes_on(
    whose: str, cluster: LocalCluster, stage: Stage, sidecars: Sidecars
) -> None:
    one, two = two_share(stage, sidecars)
    topics = [topic_of(stage, kind) for kind in KINDS] if whose == "ours" else [GROUPS, TRANSACTIONS]
    ledger = Ledger(stage)
    with load(ledger) as witness:
        witness.await_more()
        require_in_sync(cluster, topics, 3)
        leader(cluster, stage.changelog_topic, 0).kill()
        eventually(lambda: not one.ready() and not two.ready(), LONG_S, "none of them is ready")
        assert (one.get("/livez")[0], two.get("/livez")[0]) == (200, 200)
        heal(cluster)
        witness.await_more()
    settle(ledger, one, two)
    require_in_sync(cluster, topics, 2)


@pytest.mark.parametrize("count", [2, 3])
def test_most_nodes_crash_at_once(count: int, cluster: LocalCluster, stage: Stage, sidecars: Sidecars) -> None:
    one, two = two_share(stage, sidecars)
    ledger = Ledger(stage)
    with load(ledger) as witness:
        witness.await_more()
        for node in cluster.nodes[:count]:
            node.kill()
        eventually(lambda: not one.ready() and not two.ready(), LONG_S, "none of them is ready")
        heal(cluster)
        witness.await_more()
    settle(ledger, one, two)


def one_leads(nodes: list[LocalBroker], topic: str) -> bool:
    """Tell whether partition 0 of a topic is led by one of these, as they say."""
    asked = AdminClient({"bootstrap.servers": ",".join(each.bootstrap_servers for each in nodes)})
    return asked.list_topics(topic, timeout=10).topics[topic].partitions[0].leader in {each.node_id for each in nodes}


def require_in_sync(cluster: LocalCluster, topics: list[str], count: int) -> None:
    """Set `min.insync.replicas` of these topics."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    entry = ConfigEntry("min.insync.replicas", str(count), incremental_operation=AlterConfigOpType.SET)
    changes = [ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry]) for topic in topics]
    for answer in admin.incremental_alter_configs(changes).values():
        answer.result(30)


def test_the_cluster_says_who_does_what(cluster: LocalCluster, topic_name: str) -> None:
    heal(cluster)
    create_topic(cluster.bootstrap_servers, topic_name, 3)
    assert {leader(cluster, topic_name, number).node_id for number in range(3)} == {1, 2, 3}
    assert cluster.active_controller() in cluster.nodes
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})

    def replicas() -> list[int]:
        found = admin.list_topics(topic_name, timeout=15).topics[topic_name]
        return [len(each.replicas) for each in found.partitions.values()]

    eventually(lambda: replicas() == [3, 3, 3], LONG_S, "every node knows it")
    assert not out_of_sync(cluster)

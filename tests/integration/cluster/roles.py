"""Which node of a cluster does what."""

from __future__ import annotations

from typing import Final

from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._metadata import ClusterMetadata

from sidecar.devbroker.local_broker import LocalBroker
from sidecar.devbroker.local_cluster import LocalCluster
from tests.waiting import eventually

GROUPS: Final = "__consumer_offsets"
TRANSACTIONS: Final = "__transaction_state"
_REQUEST_S: Final = 10.0


def leader(cluster: LocalCluster, topic: str, partition: int) -> LocalBroker:
    """Return the node that leads a partition, also of a topic that not every node knows yet."""
    known = eventually(
        lambda: _metadata(cluster, topic).topics[topic].partitions.get(partition), _REQUEST_S, f"{topic} is known"
    )
    assert known
    found = known.leader
    assert found > 0, f"partition {partition} of {topic} has no leader"
    return cluster.nodes[found - 1]


def group_coordinator(cluster: LocalCluster, group_id: str) -> LocalBroker:
    """Return the node that coordinates a group; the cluster has had a group before."""
    return _coordinator(cluster, GROUPS, group_id)


def transaction_coordinator(cluster: LocalCluster, transactional_id: str) -> LocalBroker:
    """Return the node that coordinates a transactional id; the cluster has had one before."""
    return _coordinator(cluster, TRANSACTIONS, transactional_id)


def out_of_sync(cluster: LocalCluster) -> list[str]:
    """Return `topic/partition` of what has fewer replicas in sync than replicas."""
    return [
        f"{name}/{number}"
        for name, topic in _metadata(cluster).topics.items()
        for number, partition in topic.partitions.items()
        if len(partition.isrs) < len(partition.replicas)
    ]


def java_hash(text: str) -> int:
    """Return the number by which a coordinator is chosen: the amount of Java's `String.hashCode`."""
    number = 0
    units = text.encode("utf-16-be")
    for at in range(0, len(units), 2):
        number = (number * 31 + int.from_bytes(units[at : at + 2], "big")) & 0xFFFFFFFF
    # Java's least integer has no amount; Kafka takes 0 for it.
    return min(number, 2**32 - number) & 0x7FFFFFFF


def _coordinator(cluster: LocalCluster, topic: str, name: str) -> LocalBroker:
    partitions = _metadata(cluster, topic).topics[topic].partitions
    return leader(cluster, topic, java_hash(name) % len(partitions))


def _metadata(cluster: LocalCluster, topic: str | None = None) -> ClusterMetadata:
    bootstrap = ",".join(node.bootstrap_servers for node in cluster.running)
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 0}).list_topics(topic, timeout=_REQUEST_S)

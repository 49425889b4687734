"""The errors of a local cluster before it starts anything, and Kafka's choice of coordinators."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from sidecar.cli.broker import broker
from sidecar.devbroker.local_broker import LocalBroker
from sidecar.devbroker.local_cluster import LocalCluster
from sidecar.errors import CommandFailed
from tests.integration.cluster.roles import java_hash


@pytest.mark.parametrize(
    ("text", "hashed"),
    [
        ("", 0),
        ("hello", 99_162_322),
        ("connect-kafka-retry", 1_007_138_014),
        ("polygenelubricants", 0),
        ("größe", 98_762_257),
    ],
)
def test_the_hash_of_a_coordinator_is_javas(text: str, hashed: int) -> None:
    assert java_hash(text) == hashed


@pytest.mark.parametrize("nodes", ["0", "2", "5", "many"])
def test_a_number_of_nodes_that_cannot_be_is_refused(nodes: str) -> None:
    result = CliRunner().invoke(broker, ["--nodes", nodes])
    assert result.exit_code == 2
    assert f"Invalid value for '--nodes': '{nodes}' is not one of '1', '3'." in result.output


def test_the_last_node_needs_a_port_too() -> None:
    result = CliRunner().invoke(broker, ["--nodes", "3", "--port", "65534"])
    assert result.exit_code == 2
    assert "Invalid value for --port: 3 nodes need a port each; at most 65533" in result.output


def test_the_folder_of_a_cluster_is_refused_by_a_broker_alone(tmp_path: Path) -> None:
    (tmp_path / "node-1").mkdir()
    with pytest.raises(CommandFailed, match="holds a cluster of several nodes; start it with --nodes 3"):
        LocalBroker(data_dir=tmp_path).start()
    assert list(tmp_path.iterdir()) == [tmp_path / "node-1"]


def test_the_folder_of_a_broker_alone_is_refused_by_a_cluster(tmp_path: Path) -> None:
    (tmp_path / "topics").mkdir()
    with pytest.raises(CommandFailed, match="holds a broker that is alone; start it with --nodes 1"):
        LocalCluster(data_dir=tmp_path).start()
    assert list(tmp_path.iterdir()) == [tmp_path / "topics"]


def test_each_node_has_a_port_and_a_folder_for_itself(tmp_path: Path) -> None:
    cluster = LocalCluster(9092, tmp_path)
    assert cluster.bootstrap_servers == "127.0.0.1:9092,127.0.0.1:9093,127.0.0.1:9094"
    assert [node.data_dir for node in cluster.nodes] == [tmp_path / f"node-{number}" for number in (1, 2, 3)]
    free = LocalCluster()
    assert len({node.port for node in free.nodes}) == 3
    assert len({node.data_dir for node in free.nodes}) == 3
    assert [node.keep for node in (*cluster.nodes, *free.nodes)] == [True] * 3 + [False] * 3

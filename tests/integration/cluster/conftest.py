"""A cluster of three nodes, whole again before each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sidecar.devbroker.local_cluster import LocalCluster
from tests import broker as broker_of_tests
from tests.integration.cluster.faults import heal
from tests.integration.sidecars import Stage, set_stage


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """Three nodes for this module, any of which a test may stop, kill or freeze."""
    with broker_of_tests.local_cluster() as made:
        yield made


@pytest.fixture
def stage(cluster: LocalCluster) -> Stage:
    """Topics of this test's own on the cluster."""
    heal(cluster)
    return set_stage(cluster.bootstrap_servers)

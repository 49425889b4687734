"""A restore or a start that lacks a permission says which, and goes on by itself once it is granted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclOperation
from confluent_kafka.admin._resource import ResourceType

from tests.broker import unique
from tests.integration.messages import Given, World, native, one_sidecar
from tests.integration.permissions import broker_with_permissions, deny, give_back
from tests.integration.sidecars import Sidecars, set_stage
from tests.waiting import eventually

pytestmark = pytest.mark.broker

TOKEN = "a-token-of-the-tests"
WAIT_S = 60.0


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with (
        broker_with_permissions() as bootstrap,
        one_sidecar(bootstrap, tmp_path_factory.mktemp("permissions"), partitions=1, API_TOKEN=TOKEN) as world,
    ):
        yield world


@pytest.fixture
def admin(world: World) -> AdminClient:
    return AdminClient({"bootstrap.servers": world.stage.bootstrap})


def restore_anew(world: World) -> None:
    path = f"/connectors/{world.stage.app_id}/restart?includeTasks=true"
    assert world.sidecar.call("POST", path, None, {"authorization": f"Bearer {TOKEN}"})[0] == 202


def said(world: World) -> str:
    """Return why the partition does not run."""
    status, body = world.sidecar.get("/readyz")
    reasons = body["reasons"] if status == 503 else []
    return next((each for each in reasons if each.startswith("partition 0 is ")), "")


def runs(world: World) -> None:
    eventually(world.sidecar.ready, WAIT_S, "it is ready again")
    marker = unique("m").encode()
    world.send(Given(headers=native(world.stage, marker, 1)))
    assert len(world.fired(marker)) == 1


def test_a_group_that_may_not_be_described_is_named_until_it_may(world: World, admin: AdminClient) -> None:
    group = world.stage.group_id
    runs(world)
    deny(admin, ResourceType.GROUP, group, AclOperation.DESCRIBE)
    restore_anew(world)
    words = f"partition 0 is assigned: committed offsets of group {group}: "
    eventually(lambda: said(world).startswith(words), WAIT_S, "readyz says why")
    assert "authorization failed" in said(world).lower()
    assert world.sidecar.log.count("offsets_not_told") == 1
    give_back(admin, ResourceType.GROUP, group)
    runs(world)


def test_a_changelog_that_may_not_be_read_is_named_until_it_may(world: World, admin: AdminClient) -> None:
    world.send(Given(headers=native(world.stage, b"waits", 3_600_000)))
    eventually(lambda: world.sidecar.pending() == 1, WAIT_S, "there is something to restore")
    assert world.sidecar.stop() == 0
    world.sidecar.forget_state()
    deny(admin, ResourceType.TOPIC, world.stage.changelog_topic, AclOperation.READ)
    world.sidecar.start()
    eventually(lambda: said(world).startswith("partition 0 is restoring: "), WAIT_S, "readyz says why")
    assert "authorization failed" in said(world).lower()
    assert "changelog_not_read" in world.sidecar.log
    give_back(admin, ResourceType.TOPIC, world.stage.changelog_topic)
    runs(world)
    eventually(lambda: world.sidecar.pending() == 1, WAIT_S, "what was restored waits")


def test_a_group_that_may_not_be_joined_is_named_until_it_may(world: World, admin: AdminClient) -> None:
    assert world.sidecar.stop() == 0
    deny(admin, ResourceType.GROUP, world.stage.group_id, AclOperation.READ)
    world.sidecar.start()
    words = "it has not joined the consumer group yet: "
    eventually(lambda: words in str(world.sidecar.get("/readyz")[1]), WAIT_S, "readyz says why")
    give_back(admin, ResourceType.GROUP, world.stage.group_id)
    runs(world)


def test_a_start_waits_for_each_permission_that_it_lacks(world: World, admin: AdminClient, sidecars: Sidecars) -> None:
    stage = set_stage(world.stage.bootstrap, 1)
    deny(admin, ResourceType.TOPIC, stage.dlq_topic, AclOperation.DESCRIBE_CONFIGS)
    deny(admin, ResourceType.GROUP, stage.group_id, AclOperation.READ)
    one = sidecars.make("one", stage)
    one.start()

    def waits_for(*words: str) -> bool:
        status, body = one.get("/readyz")
        return status == 503 and any(all(word in reason for word in words) for reason in body["reasons"])

    grant = f"--operation DescribeConfigs --topic {stage.dlq_topic}"
    eventually(lambda: waits_for("the permission DescribeConfigs is missing", grant), WAIT_S, "it names the first")
    give_back(admin, ResourceType.TOPIC, stage.dlq_topic)
    grant = f"--operation Read --topic {stage.input_topic} --group {stage.group_id}"
    eventually(lambda: waits_for("cannot commit", grant), WAIT_S, "it names the second")
    assert one.get("/livez")[0] == 200
    give_back(admin, ResourceType.GROUP, stage.group_id)
    one.await_ready(WAIT_S)
    assert one.stop() == 0

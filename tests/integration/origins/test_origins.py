"""Origins and a DLQ that vanish, refuse or come back: nothing else waits, nothing is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclOperation
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType

from tests.broker import create_topic, read_committed, unique
from tests.integration.messages import Given, Pairs, World, marked, native, noise, one_sidecar, scrape
from tests.integration.permissions import RPC_S, broker_with_permissions, deny, give_back
from tests.integration.sidecars import LOG_APPEND_TIME
from tests.waiting import eventually

pytestmark = pytest.mark.broker


@pytest.fixture(scope="module")
def guarded_broker() -> Iterator[str]:
    with broker_with_permissions() as bootstrap:
        yield bootstrap


@pytest.fixture(scope="module")
def world(guarded_broker: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with one_sidecar(guarded_broker, tmp_path_factory.mktemp("origins")) as world:
        yield world


@pytest.fixture
def topic(world: World) -> str:
    """A further origin of this test's own."""
    made = f"{world.stage.app_id}-{unique('origin')}"
    create_topic(world.stage.bootstrap, made, 2, LOG_APPEND_TIME)
    return made


@pytest.fixture
def admin(world: World) -> AdminClient:
    return AdminClient({"bootstrap.servers": world.stage.bootstrap})


def to(topic: str, marker: bytes, delay_ms: int) -> Pairs:
    return [("retry-origin-topic", topic.encode()), ("retry-delay-ms", b"%d" % delay_ms), ("test", marker)]


def deny_writes(admin: AdminClient, topic: str) -> None:
    deny(admin, ResourceType.TOPIC, topic, AclOperation.WRITE)


def allow_writes(admin: AdminClient, topic: str) -> None:
    give_back(admin, ResourceType.TOPIC, topic)


def limit_messages(admin: AdminClient, topic: str, size: int) -> None:
    entry = ConfigEntry("max.message.bytes", str(size), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(RPC_S)


def in_state(world: World, topic: str, state: str) -> bool:
    return f'retry_sidecar_origin_state{{origin="{topic}",state="{state}"}} 1.0' in scrape(world.sidecar)


def reasons(world: World) -> str:
    status, body = world.sidecar.get("/readyz")
    return " ".join(body["reasons"]) if status == 503 else ""


def others_fire(world: World) -> bool:
    marker = unique("m").encode()
    world.send(*(Given(headers=native(world.stage, marker, 1), partition=n) for n in range(2)))
    fired = world.fired(marker, 2)
    return max(record.timestamp_ms - int(record.header("retry-was-due-ms") or 0) for record in fired) < 10_000


def test_an_origin_deleted_while_messages_wait_delays_no_other_and_gets_them_when_it_is_back(
    world: World, admin: AdminClient, topic: str, marker: bytes
) -> None:
    world.send(*(Given(b"%d" % n, headers=to(topic, marker, 8_000), partition=n % 2) for n in range(20)))
    eventually(lambda: world.sidecar.pending() >= 20, 20, "they wait")
    admin.delete_topics([topic])[topic].result(RPC_S)
    eventually(lambda: in_state(world, topic, "vanished"), 40, "the metrics say that it vanished")
    assert others_fire(world)
    eventually(lambda: world.sidecar.pending() == 20, 20, "they wait on")
    assert world.sidecar.ready()
    create_topic(world.stage.bootstrap, topic, 2, LOG_APPEND_TIME)
    fired = world.fired(marker, 20, topic, 120)
    assert sorted(int(record.value or 0) for record in fired) == list(range(20))
    eventually(lambda: world.sidecar.pending() == 0, 20, "nothing waits")
    assert f'retry_sidecar_fired_total{{origin="{topic}"}} 20.0' in scrape(world.sidecar)
    # Deleted again it takes them with it: they are fired, so they are nowhere else.
    admin.delete_topics([topic])[topic].result(RPC_S)
    eventually(lambda: topic not in admin.list_topics(timeout=RPC_S).topics, RPC_S, "it is gone again")
    create_topic(world.stage.bootstrap, topic, 2, LOG_APPEND_TIME)
    assert read_committed(world.stage.bootstrap, [topic]) == []
    assert marked(read_committed(world.stage.bootstrap, [world.stage.dlq_topic]), marker) == []
    assert world.sidecar.pending() == 0


def test_an_origin_that_may_not_be_written_delays_no_other_and_gets_them_when_it_may(
    world: World, admin: AdminClient, topic: str, marker: bytes
) -> None:
    world.send(Given(b"first", headers=to(topic, marker, 1)))
    world.fired(marker, 1, topic)
    deny_writes(admin, topic)
    world.send(*(Given(b"%d" % n, headers=to(topic, marker, 1), partition=n % 2) for n in range(20)))
    eventually(lambda: in_state(world, topic, "unauthorised"), 40, "the metrics say that it is unauthorised")
    assert others_fire(world)
    allow_writes(admin, topic)
    fired = world.fired(marker, 21, topic, 120)
    values = [record.value or b"" for record in fired]
    values.remove(b"first")  # nobody reads two partitions in order
    assert sorted(map(int, values)) == list(range(20))


def _dlq_refuses_then_takes(world: World, marker: bytes, letter: Given, fix: Callable[[], object]) -> None:
    world.send(Given(b"stored", headers=native(world.stage, marker, 8_000), partition=1))
    eventually(lambda: world.sidecar.pending() == 1, 20, "one waits")
    world.send(letter)
    world.send(Given(b"behind", headers=native(world.stage, marker, 1)))
    eventually(lambda: f"the DLQ {world.stage.dlq_topic} cannot be written" in reasons(world), 40, "readyz says why")
    assert [record.value for record in world.fired(marker, 1)] == [b"stored"]
    fix()
    assert sorted(record.value or b"" for record in world.fired(marker, 2)) == [b"behind", b"stored"]
    assert len(world.dead(marker)) == 1
    eventually(world.sidecar.ready, 30, "it is ready again")


def test_a_dlq_that_may_not_be_written_holds_ingest_while_pending_messages_fire(
    world: World, admin: AdminClient, marker: bytes
) -> None:
    deny_writes(admin, world.stage.dlq_topic)
    letter = Given(b"bad", headers=[("test", marker)])
    _dlq_refuses_then_takes(world, marker, letter, lambda: allow_writes(admin, world.stage.dlq_topic))


def test_a_dlq_that_refuses_even_coordinates_holds_ingest_while_pending_messages_fire(
    world: World, admin: AdminClient, marker: bytes
) -> None:
    limit_messages(admin, world.stage.dlq_topic, 200)
    letter = Given(b"bad", headers=[("test", marker)])
    fix = partial(limit_messages, admin, world.stage.dlq_topic, 1_000_000)
    _dlq_refuses_then_takes(world, marker, letter, fix)


def test_a_deleted_dlq_holds_ingest_until_it_is_back(world: World, admin: AdminClient, marker: bytes) -> None:
    topic = world.stage.dlq_topic
    admin.delete_topics([topic])[topic].result(RPC_S)
    eventually(lambda: topic not in admin.list_topics(timeout=RPC_S).topics, 20, "the DLQ is gone")
    letter = Given(b"bad", headers=[("test", marker)])
    _dlq_refuses_then_takes(world, marker, letter, lambda: create_topic(world.stage.bootstrap, topic))


def test_a_timer_that_is_due_for_a_dlq_that_may_not_be_written_delays_no_other(
    world: World, admin: AdminClient, topic: str, marker: bytes
) -> None:
    world.send(Given(noise(5_000), headers=to(topic, marker, 12_000)))
    eventually(lambda: world.sidecar.pending() == 1, 20, "it waits")
    limit_messages(admin, topic, 3_000)
    deny_writes(admin, world.stage.dlq_topic)
    eventually(lambda: f"the DLQ {world.stage.dlq_topic} cannot be written" in reasons(world), 40, "readyz says why")
    world.send(*(Given(b"%d" % n, headers=native(world.stage, marker, 1), partition=n % 2) for n in range(20)))
    assert len(world.fired(marker, 20)) == 20
    allow_writes(admin, world.stage.dlq_topic)
    (dead,) = world.dead(marker)
    assert dead.header("retry-dlq-reason") == b"too-large"
    eventually(world.sidecar.ready, 30, "it is ready again")

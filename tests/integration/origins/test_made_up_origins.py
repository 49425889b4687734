"""Thousands of origins that do not exist, or that the sidecar may not even look at: asked for together."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType

from sidecar.clock import SystemClock
from sidecar.kafka.admin.catalogue import FORBIDDEN_AFTER_S
from tests.broker import create_topic, unique
from tests.integration.messages import Given, Pairs, World, native, one_sidecar, scrape
from tests.integration.permissions import RPC_S, USER, broker_with_permissions, give_back
from tests.integration.sidecars import LOG_APPEND_TIME
from tests.waiting import eventually

pytestmark = pytest.mark.broker

NAMES = 5_000
LENGTH = 249


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("made-up")
    with broker_with_permissions() as bootstrap, one_sidecar(bootstrap, folder, ORIGIN_TOPICS="*") as world:
        yield world


def to(topic: str, marker: bytes, delay_ms: int = 1) -> Pairs:
    return [("retry-origin-topic", topic.encode()), ("retry-delay-ms", b"%d" % delay_ms), ("test", marker)]


def forbid(bootstrap: str, prefix: str) -> None:
    """Forbid every user to describe topics whose names begin with this."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    every = (AclOperation.ALL, AclPermissionType.DENY)
    rule = AclBinding(ResourceType.TOPIC, prefix, ResourcePatternType.PREFIXED, USER, "*", *every)
    for future in admin.create_acls([rule]).values():
        future.result(RPC_S)


def made_up(prefix: str) -> list[str]:
    return [f"{prefix}-{n:05}-".ljust(LENGTH, "x") for n in range(NAMES)]


def test_thousands_of_topics_that_do_not_exist_are_found_missing_at_a_thousand_a_second_and_more(
    world: World, marker: bytes
) -> None:
    world.send(*(Given(headers=to(name, marker)) for name in made_up(unique())))
    began_s = SystemClock().monotonic_s()
    world.send(Given(b"behind", headers=native(world.stage, marker, 1)))
    assert [record.value for record in world.fired(marker)] == [b"behind"]
    took_s = SystemClock().monotonic_s() - began_s
    dead = world.dead(marker, NAMES)
    assert {record.header("retry-dlq-reason") for record in dead} == {b"origin-unknown"}
    assert took_s < NAMES / 132, "they are not asked for one by one"


def test_thousands_of_topics_that_may_not_be_looked_at_are_dead_lettered_and_hold_nothing_up(
    world: World, marker: bytes
) -> None:
    prefix = unique("secret")
    forbid(world.stage.bootstrap, prefix)
    world.send(*(Given(headers=to(name, marker, 1_000), partition=1) for name in made_up(prefix)))
    world.send(*(Given(b"%d" % n, headers=native(world.stage, marker, 1), partition=n) for n in range(2)))
    assert {record.value for record in world.fired(marker, 2)} == {b"0", b"1"}
    dead = world.dead(marker, NAMES)
    assert {record.header("retry-dlq-reason") for record in dead} == {b"origin-not-allowed"}
    assert b"Describe and Write" in (dead[0].header("retry-dlq-detail") or b"")
    assert prefix not in scrape(world.sidecar)
    eventually(lambda: world.sidecar.pending() == 0, 20, "nothing waits")
    eventually(world.sidecar.ready, 20, "it is ready")


def test_an_origin_whose_right_to_be_looked_at_is_missing_for_a_while_gets_everything_later(
    world: World, marker: bytes
) -> None:
    topic = unique("guarded")
    create_topic(world.stage.bootstrap, topic, 1, LOG_APPEND_TIME)
    world.send(Given(b"first", headers=to(topic, marker)))
    world.fired(marker, 1, topic)
    forbid(world.stage.bootstrap, topic)
    world.send(Given(b"second", headers=to(topic, marker, 3_000)))
    closed = f'retry_sidecar_origin_state{{origin="{topic}",state="unauthorised"}} 1.0'
    eventually(lambda: closed in scrape(world.sidecar), 40, "the metrics say that it is unauthorised")
    told_s = SystemClock().monotonic_s()
    world.send(Given(b"third", headers=to(topic, marker, 1)))
    eventually(
        lambda: world.sidecar.pending() == 2 and SystemClock().monotonic_s() - told_s > 2 * FORBIDDEN_AFTER_S,
        40,
        "both wait, and go on waiting",
    )
    give_back(AdminClient({"bootstrap.servers": world.stage.bootstrap}), ResourceType.TOPIC, topic)
    fired = world.fired(marker, 3, topic, 120)
    assert {record.value for record in fired} == {b"first", b"second", b"third"}

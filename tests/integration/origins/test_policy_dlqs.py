"""Policies with a DLQ of their own, on a real broker."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from sidecar.runtime.partitions.buffer import BUFFER_ITEMS_MAX
from tests.broker import create_topic, read_committed, unique
from tests.integration.dlq.test_dlq import read
from tests.integration.messages import Given, Pairs, World, one_sidecar
from tests.integration.sizes.test_sizes_of_our_topics import configure
from tests.waiting import eventually

pytestmark = pytest.mark.broker

WAIT_S = 60.0


def fatal(world: World, marker: bytes, *more: tuple[str, bytes]) -> Pairs:
    origin = ("retry-origin-topic", world.stage.origin.encode())
    return [origin, ("retry-exception", b"com.acme.Fatal"), ("test", marker), *more]


def keys_on(world: World, topic: str, count: int) -> list[bytes | None]:
    return [
        each.key
        for each in read_committed(world.stage.bootstrap, [topic], WAIT_S, until=lambda seen: len(seen) >= count)
    ]


def test_each_policy_has_its_dlq_and_one_that_takes_nothing_holds_only_what_must_go_there(
    bootstrap: str, tmp_path: Path
) -> None:
    own, marker = unique("own-dlq"), unique("m").encode()
    policies = f"{{slow: {{dlq_topic: {own}}}}}"
    with one_sidecar(
        bootstrap, tmp_path, FATAL_EXCEPTION="com.acme.Fatal", POLICIES=policies, CREATE_TOPICS="true"
    ) as world:
        slow = ("retry-policy", b"slow")
        named = fatal(world, marker, slow)
        world.send(Given(b"v", b"plain", fatal(world, marker)), Given(b"v", b"named", named))
        assert keys_on(world, world.stage.dlq_topic, 1) == [b"plain"]
        assert keys_on(world, own, 1) == [b"named"], "the sidecar has created it, and writes to it"
        assert read(world.sidecar, "/dlq?reason=fatal")["topics"] == [world.stage.dlq_topic, own]
        other = read(world.sidecar, f"/dlq/messages?topic={own}")
        assert [each["reason"] for each in other["messages"]] == ["fatal"]

        configure(bootstrap, own, max_message_bytes="100")
        world.send(Given(b"v", b"held", named), Given(b"v", b"other", fatal(world, marker), partition=1))
        eventually(
            lambda: f"the DLQ {own} cannot be written" in str(world.sidecar.get("/readyz")), WAIT_S, "it says so"
        )
        plain: Pairs = [("retry-origin-topic", world.stage.origin.encode()), ("retry-delay-ms", b"0"), ("test", marker)]
        world.send(Given(b"v", b"beside", plain, partition=1), Given(b"v", b"late", fatal(world, marker), partition=1))
        assert [each.key for each in world.fired(marker)] == [b"beside"]
        assert keys_on(world, world.stage.dlq_topic, 3) == [b"plain", b"other", b"late"]
        configure(bootstrap, own, max_message_bytes="100000")
        assert keys_on(world, own, 2) == [b"named", b"held"]
        eventually(world.sidecar.ready, 90, "it is ready")


def test_a_partition_full_of_letters_for_a_deleted_dlq_holds_up_no_other_partition(
    bootstrap: str, tmp_path: Path
) -> None:
    own, marker = unique("own-dlq"), unique("m").encode()
    letters = BUFFER_ITEMS_MAX + 2_000
    policies = f"{{slow: {{dlq_topic: {own}}}}}"
    with one_sidecar(
        bootstrap, tmp_path, FATAL_EXCEPTION="com.acme.Fatal", POLICIES=policies, CREATE_TOPICS="true"
    ) as world:
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.delete_topics([own])[own].result(WAIT_S)
        named = fatal(world, marker, ("retry-policy", b"slow"))
        due: Pairs = [
            ("retry-origin-topic", world.stage.origin.encode()),
            ("retry-delay-ms", b"5000"),
            ("test", marker),
        ]
        world.send(Given(b"v", b"due", due), *[Given(b"v", b"letter", named)] * letters)
        eventually(
            lambda: f"the DLQ {own} cannot be written" in str(world.sidecar.get("/readyz")), WAIT_S, "it says so"
        )
        plain: Pairs = [("retry-origin-topic", world.stage.origin.encode()), ("retry-delay-ms", b"0"), ("test", marker)]
        for number in range(20):
            world.send(Given(b"v", b"%d" % number, plain, partition=1))
        fired = [each.key for each in world.fired(marker, 21)]
        assert sorted(fired, key=str) == sorted([b"due", *(b"%d" % number for number in range(20))], key=str)
        assert "cannot be written" in str(world.sidecar.get("/readyz")), "all the while"
        create_topic(bootstrap, own, 1)
        assert keys_on(world, own, letters) == [b"letter"] * letters
        eventually(world.sidecar.ready, 90, "it is ready")

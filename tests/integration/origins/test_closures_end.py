"""A closure has an end: what an origin was once, long ago, sends nothing to the DLQ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from tests.broker import create_topic, unique
from tests.integration.messages import Given, World, native, now_ms, one_sidecar, scrape
from tests.integration.permissions import RPC_S
from tests.integration.sidecars import LOG_APPEND_TIME, Sidecar
from tests.waiting import eventually

pytestmark = pytest.mark.broker

HOUR_MS = 3_600_000
ORIGIN_TIMEOUT_MS = 20_000


def state_of(sidecar: Sidecar, topic: str) -> str:
    page = scrape(sidecar).splitlines()
    rows = [line for line in page if line.startswith(f'retry_sidecar_origin_state{{origin="{topic}"')]
    return " ".join(rows)


def delete(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([topic])[topic].result(RPC_S)
    eventually(lambda: topic not in admin.list_topics(timeout=RPC_S).topics, RPC_S, "the topic is gone")


def start_without_the_topic(world: World, topic: str) -> None:
    """Take the topic away while no sidecar looks, so that the next one sees it closed from its start on."""
    world.sidecar.stop()
    delete(world.stage.bootstrap, topic)
    world.sidecar.start()
    world.sidecar.await_ready()
    eventually(lambda: closed(world, topic), 20, "a checkpoint names it")


def closed(world: World, topic: str) -> bool:
    """Tell whether a checkpoint says so: what is sent to the other origin makes partition 1 write one."""
    marker = unique("m").encode()
    world.send(Given(headers=native(world.stage, marker, 1), partition=1))
    world.fired(marker)
    return "vanished" in state_of(world.sidecar, topic)


def test_a_closure_that_is_over_leaves_an_idle_partition_and_does_not_count_for_the_next_one(
    bootstrap: str, tmp_path: Path
) -> None:
    with one_sidecar(bootstrap, tmp_path, ORIGIN_TIMEOUT=str(ORIGIN_TIMEOUT_MS)) as world:
        topic, due_ms = f"{world.stage.app_id}-twice", now_ms() + HOUR_MS
        create_topic(bootstrap, topic, 1, LOG_APPEND_TIME)
        headers: Any = [("retry-origin-topic", topic.encode()), ("retry-due-ms", b"%d" % due_ms)]
        (sent,) = world.send(Given(headers=headers, partition=1))
        eventually(lambda: world.sidecar.pending() == 1, 20, "it waits")

        start_without_the_topic(world, topic)
        first_over_ms = now_ms() + ORIGIN_TIMEOUT_MS
        create_topic(bootstrap, topic, 1, LOG_APPEND_TIME)
        eventually(lambda: "open" in state_of(world.sidecar, topic), 40, "nothing was due, and the checkpoint knows")

        eventually(lambda: now_ms() > first_over_ms, 2 * ORIGIN_TIMEOUT_MS / 1000, "the first closure would be over")
        start_without_the_topic(world, topic)
        path = f"/pending/messages/1-{sent.offset}-{due_ms}"
        status, body = world.sidecar.change("PATCH", path, {"delay_ms": 0}, {})
        assert (status, body["result"]) == (200, "rescheduled"), body
        assert world.sidecar.pending() == 1, "it is put off: ORIGIN_TIMEOUT counts from the second time"

"""The HTTP answers of a running sidecar, which slow clients do not delay."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from sidecar.metrics import DECLARATIONS, PREFIX
from tests.broker import unique
from tests.integration.messages import Given, World, native, now_ms, one_sidecar, scrape
from tests.waiting import eventually

pytestmark = pytest.mark.broker

LATE_MS = 12_000
"""Less than the server bears with a client (EXCHANGE_S)."""
SOON_MS = 55_000
"""Within a minute, and not within 5 s for long."""


@pytest.fixture(scope="module")
def world(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with one_sidecar(bootstrap, tmp_path_factory.mktemp("http")) as world:
        yield world


@pytest.fixture
def marker() -> bytes:
    return unique("m").encode()


def pending(world: World, query: str = "") -> Any:
    status, body = world.sidecar.get(f"/pending{query}")
    assert status == 200
    return body


def test_pending_has_exactly_the_shape_of_the_contract(world: World, marker: bytes) -> None:
    eventually(lambda: world.sidecar.pending() == 0, 30, "nothing waits")
    (soon, *_) = world.send(
        Given(headers=native(world.stage, marker, SOON_MS)),
        Given(headers=native(world.stage, marker, 1_800_000), partition=1),
        Given(headers=native(world.stage, marker, 172_800_000), partition=1),
    )
    eventually(lambda: world.sidecar.pending() == 3, 20, "three wait")
    eventually(lambda: pending(world)["complete"], 20, "it is complete")
    body = pending(world)
    next_due_ms = soon.timestamp_ms + SOON_MS
    assert (body["total"], body["overdue"], body["next_due_ms"]) == (3, 0, next_due_ms)
    assert body["by_origin"] == {world.stage.origin: 3}
    assert body["by_partition"] == {"0": 1, "1": 2}
    assert body["due_within"] == {"5s": 0, "1m": 1, "5m": 1, "1h": 2, "1d": 2, "later": 1}
    assert abs(body["as_of_ms"] - now_ms()) < 60_000
    assert set(body) == {
        *("total", "by_origin", "by_partition", "due_within", "overdue"),
        *("next_due_ms", "as_of_ms", "complete", "partitions"),
    }
    assert [set(each) for each in body["partitions"]] == [
        {"partition", "state", "owner", "pending", "watermark_ms", "restored"}
    ] * 2
    assert [(each["state"], each["restored"], each["pending"]) for each in body["partitions"]] == [
        ("running", 1.0, 1),
        ("running", 1.0, 2),
    ]
    assert pending(world, f"?origin={world.stage.origin}") == {"total": 3, "by_partition": {"0": 1, "1": 2}}
    assert pending(world, "?partition=1")["total"] == 2
    assert pending(world, "?origin=nobody")["total"] == 0


def test_every_metric_of_the_contract_is_there_when_it_has_something_to_say(world: World, marker: bytes) -> None:
    world.send(Given(headers=native(world.stage, marker, 1)), Given(headers=[("test", marker)]))
    world.fired(marker)
    world.dead(marker)
    series = {
        f'retry_sidecar_fired_total{{origin="{world.stage.origin}"}}',
        'retry_sidecar_dead_lettered_total{reason="missing-header"}',
        'retry_sidecar_state{partition="0",state="running"} 1.0',
    }

    def missing() -> set[str]:
        text = scrape(world.sidecar)
        families = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE ")}
        named = families | {name + "_total" for name in families} | {name + "_info" for name in families}
        expected = {PREFIX + each.name for each in DECLARATIONS}
        return (expected - named) | {each for each in series if each not in text}

    # What is committed is counted a moment later than it can be read.
    eventually(lambda: not missing(), 30, "every metric is there")


def test_health_says_the_same_in_every_dialect(world: World) -> None:
    assert world.sidecar.get("/health")[1]["status"] == "healthy"
    assert world.sidecar.get("/actuator/health")[1]["status"] == "UP"
    assert world.sidecar.get("/readyz") == (200, {"status": "ok", "reasons": []})
    assert world.sidecar.get("/livez") == (200, {"status": "ok", "reasons": []})
    assert world.sidecar.get("/nothing")[0] == 404


def test_slow_and_hostile_clients_delay_no_message(world: World, marker: bytes) -> None:
    """A hundred connections that send half a request, never read, or send nonsense."""
    port = world.sidecar.port
    opened = []
    for number in range(100):
        client = socket.create_connection(("127.0.0.1", port), timeout=10)
        client.sendall((b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 50, b"GET /pend", b"\x00\xff" * 100)[number % 3])
        opened.append(client)
    try:
        world.send(*(Given(headers=native(world.stage, marker, 1_000 + 10 * n), partition=n % 2) for n in range(200)))
        fired = world.fired(marker, 200)
        late = [record.timestamp_ms - int(record.header("retry-was-due-ms") or 0) for record in fired]
        assert min(late) >= 0
        assert max(late) < LATE_MS
        assert world.sidecar.ready()
    finally:
        for client in opened:
            client.close()


def test_openapi_names_every_path_that_is_served(world: World) -> None:
    status, document = world.sidecar.get("/openapi.json")
    assert status == 200
    assert {"/pending", "/health", "/livez", "/readyz", "/actuator/health", "/metrics"} <= set(document["paths"])
    assert json.dumps(document)

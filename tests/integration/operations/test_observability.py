"""Traces of a running sidecar, and its report of an open transaction that holds back its input."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from tests.broker import unique
from tests.integration.messages import Given, World, native, one_sidecar, scrape
from tests.waiting import eventually

pytestmark = pytest.mark.broker

STUCK = "retry_sidecar_last_stable_offset_stuck_seconds"


@pytest.fixture(scope="module")
def world(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("OTEL_TRACES_EXPORTER", "console")
        environment.setenv("OTEL_BSP_SCHEDULE_DELAY", "200")
        with one_sidecar(
            bootstrap, tmp_path_factory.mktemp("seen"), partitions=1, CLIENT_STATISTICS_INTERVAL_MS="200"
        ) as world:
            yield world


def value(world: World, metric: str) -> float:
    """Return the one value of a metric; -1 while it has none."""
    lines = [line for line in scrape(world.sidecar).splitlines() if line.startswith(metric)]
    return float(lines[0].rpartition(" ")[2]) if lines else -1.0


def test_trace_headers_come_back_byte_for_byte_and_the_span_links_to_their_trace(world: World) -> None:
    """Even headers that no tracing library writes."""
    trace = [
        ("traceparent", b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
        ("tracestate", b"rojo=00f067aa0ba902b7,  congo = t61rcWkgMzE"),
        ("baggage", b"user=%C3%A4, x = \xff;p"),
        ("baggage", b""),
        ("TraceParent", b"00-not-ours"),
    ]
    marker = unique("m").encode()
    world.send(Given(b"v", b"k", [*trace, *native(world.stage, marker, 1)]))
    (fired,) = world.fired(marker)
    assert list(fired.headers[: len(trace)]) == trace

    def linked() -> bool:
        log = world.sidecar.log
        return '"name": "retry_sidecar.transaction"' in log and "0x4bf92f3577b34da6a3ce929d0e0e4736" in log

    eventually(linked, 30, "a span with the link is exported")


def test_the_gauges_of_the_alerts_have_values(world: World) -> None:
    assert value(world, "retry_sidecar_ready ") == 1
    assert value(world, "retry_sidecar_store_free_bytes ") > 0
    eventually(
        lambda: value(world, "retry_sidecar_partitions_without_owner ") == 0, 30, "the partition is seen to have one"
    )


def test_an_open_transaction_on_the_input_shows_how_long_it_holds_the_reading_back(world: World) -> None:
    eventually(lambda: value(world, STUCK) == 0, 30, "nothing is held back")
    producer = Producer({"bootstrap.servers": world.stage.bootstrap, "transactional.id": unique("open")})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(world.stage.input_topic, b"v", headers=dict(native(world.stage, b"open", 1)))
    producer.flush(30)
    eventually(lambda: value(world, STUCK) > 1, 30, "the time counts")
    producer.abort_transaction(30)
    eventually(lambda: value(world, STUCK) == 0, 30, "reading goes on")

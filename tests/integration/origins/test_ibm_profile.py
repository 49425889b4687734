"""IBM's kafka-retry users change the image and nothing else: their settings, their headers, their order of checks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.messages import Given, World, now_ms, one_sidecar, scrape
from tests.waiting import eventually

pytestmark = pytest.mark.broker


@pytest.fixture(scope="module")
def world(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with one_sidecar(
        bootstrap,
        tmp_path_factory.mktemp("ibm"),
        FIRST_DELAY_MS="300",
        SECOND_DELAY_MS="600",
        THIRD_DELAY_MS="900",
        RETRIABLE_EXCEPTION="com.ibm.Retriable",
        FATAL_EXCEPTION="com.ibm.Fatal",
        DROPPABLE_EXCEPTION="com.ibm.Droppable",
        PUNCTUATION_INTERVAL_MS="50",
    ) as world:
        yield world


def ibm(
    world: World, marker: bytes, exception: bytes, base_ms: int, *more: tuple[str, bytes | None]
) -> list[tuple[str, bytes | None]]:
    return [
        ("x-ibm-retry-origin-topic", world.stage.origin.encode()),
        ("x-ibm-retry-exception-type", exception),
        ("x-ibm-retry-timestamp-ms", b"%d" % base_ms),
        ("test", marker),
        *more,
    ]


@pytest.mark.parametrize(("attempts", "delay_ms"), [(None, 300), (b"0", 300), (b"1", 600), (b"2", 900)])
def test_a_retriable_message_fires_after_the_delay_of_its_attempt_counted_from_its_own_timestamp(
    world: World, marker: bytes, attempts: bytes | None, delay_ms: int
) -> None:
    base_ms = now_ms()
    came = ibm(world, marker, b"com.ibm.Retriable", base_ms, ("foreign", None), ("foreign", b"2"))
    counted = [] if attempts is None else [("x-ibm-retry-attempts", attempts)]
    world.send(Given(b"\x00\xff", b"k", [*came, *counted]))
    (fired,) = world.fired(marker)
    made = int(attempts or 0)
    assert list(fired.headers) == [*came, ("x-ibm-retry-attempts", b"%d" % (made + 1))]
    assert (fired.key, fired.value) == (b"k", b"\x00\xff")
    assert fired.timestamp_ms >= base_ms + delay_ms


@pytest.mark.parametrize(
    ("exception", "attempts", "reason"),
    [
        (b"com.ibm.Fatal", b"0", b"fatal"),
        (b"com.ibm.Retriable", b"3", b"attempts-exhausted"),
        (b"com.ibm.Other", b"0", b"unknown-exception"),
        (b"com.ibm.Retriable", b"three", b"bad-header"),
    ],
)
def test_what_cannot_be_retried_goes_to_the_dlq_as_it_came(
    world: World, marker: bytes, exception: bytes, attempts: bytes, reason: bytes
) -> None:
    came = ibm(world, marker, exception, now_ms(), ("x-ibm-retry-attempts", attempts))
    world.send(Given(b"v", b"k", came))
    (dead,) = world.dead(marker)
    assert dead.header("retry-dlq-reason") == reason
    assert list(dead.headers[: len(came)]) == came
    assert dead.header("__connect.errors.exception.class.name") == exception


def test_droppable_ones_and_those_whose_origin_is_the_dlq_are_dropped_and_counted(world: World, marker: bytes) -> None:
    def dropped() -> int:
        return next(
            int(float(line.split()[-1]))
            for line in scrape(world.sidecar).splitlines()
            if line.startswith('retry_sidecar_received_total{verdict="dropped"}')
        )

    before = dropped()
    from_the_dlq = ibm(world, marker, b"com.ibm.Retriable", now_ms())
    from_the_dlq[0] = ("x-ibm-retry-origin-topic", world.stage.dlq_topic.encode())
    last = ibm(world, marker, b"com.ibm.Retriable", now_ms() - 10_000)
    world.send(
        Given(headers=ibm(world, marker, b"com.ibm.Droppable", now_ms())),
        Given(headers=from_the_dlq),
        Given(b"last", headers=last),
    )
    assert [record.value for record in world.fired(marker)] == [b"last"]
    eventually(lambda: dropped() == before + 2, 10, "both are counted")


def test_ibms_names_of_the_settings_keep_working(bootstrap: str, tmp_path: Path, marker: bytes) -> None:
    with one_sidecar(
        bootstrap, tmp_path, LOG_LEVEL_IBM="DEBUG", LOG_LEVEL_APACHE="WARN", DEFAULT_KEY_SERDE="String"
    ) as world:
        assert "DEFAULT_KEY_SERDE" in world.sidecar.log
        body = world.sidecar.get("/actuator/health")
        assert (body[0], body[1]["status"]) == (200, "UP")

"""Messages in the headers of other programs, encoded as their sources do it, through one sidecar and back."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from sidecar.contract import DIALECTS
from tests.broker import unique
from tests.integration.messages import Given, World, names, now_ms, one_sidecar
from tests.waiting import eventually

pytestmark = pytest.mark.broker

CUSTOM = "{origin: x-topic, due: x-at, due_unit: s, delay: x-wait, delay_unit: s, attempt: x-tries}"
TOKEN = "a-token-of-the-tests"
FAR_S = 3_600


SETTINGS: dict[str, Any] = {
    "PROFILES": ",".join(DIALECTS),
    "CUSTOM_HEADERS": CUSTOM,
    "DELAYS": "300ms,300ms",
    "API_TOKEN": TOKEN,
}


@pytest.fixture(scope="module")
def world(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with one_sidecar(bootstrap, tmp_path_factory.mktemp("dialects"), **SETTINGS) as world:
        yield world


@pytest.fixture
def marker() -> bytes:
    return unique("m").encode()


def soon_s() -> int:
    """Return the next whole second in epoch seconds."""
    return now_ms() // 1000 + 1


def test_spring_returns_to_the_original_topic_at_the_backoff_timestamp(world: World, marker: bytes) -> None:
    due_ms = now_ms() + 700
    came: list[tuple[str, bytes | None]] = [
        ("test", marker),
        ("kafka_original-topic", world.stage.origin.encode()),
        ("kafka_original-partition", b"\0\0\0\1"),
        ("kafka_exception-cause-fqcn", b"com.acme.Busy"),
        ("retry_topic-attempts", b"\0\0\0\2"),
        ("retry_topic-backoff-timestamp", due_ms.to_bytes(6, "big")),
    ]
    world.send(Given(b"\xff", b"k", came))
    (fired,) = world.fired(marker)
    assert (fired.key, fired.value) == (b"k", b"\xff")
    assert fired.timestamp_ms >= due_ms
    assert list(fired.headers) == [*came[:4], ("retry_topic-attempts", b"\0\0\0\2")]


def test_spring_dead_letters_are_counted_until_they_are_exhausted(world: World, marker: bytes) -> None:
    came: list[tuple[str, bytes | None]] = [
        ("test", marker),
        ("kafka_dlt-original-topic", world.stage.origin.encode()),
    ]
    world.send(Given(headers=came))
    (first,) = world.fired(marker)
    assert first.header("retry_topic-attempts") == b"\0\0\0\2"
    world.send(Given(headers=list(first.headers)))
    fired = world.fired(marker, 2)  # of two partitions, which nobody reads in order
    second = max(fired, key=lambda each: each.header("retry_topic-attempts") or b"")
    world.send(Given(headers=list(second.headers)))
    (dead,) = world.dead(marker)
    assert dead.header("retry-dlq-reason") == b"attempts-exhausted"


def test_schedules_of_karafka_and_etf1_reach_their_target_under_its_key(world: World, marker: bytes) -> None:
    epoch, topic = b"%d" % soon_s(), world.stage.origin.encode()
    karafka: list[tuple[str, bytes | None]] = [
        ("test", marker),
        ("schedule_schema_version", b"1.0.0"),
        ("schedule_target_epoch", epoch),
        ("schedule_source_type", b"schedule"),
        ("schedule_target_topic", topic),
        ("schedule_target_key", b"by-karafka"),
        ("schedule_target_partition", b"1"),
    ]
    etf1: list[tuple[str, bytes | None]] = [
        ("test", marker),
        ("scheduler-epoch", epoch),
        ("scheduler-target-topic", topic),
        ("scheduler-target-key", b"by-etf1"),
    ]
    world.send(Given(b"1", b"schedule-1", karafka), Given(b"2", b"schedule-2", etf1))
    fired = {each.key: each for each in world.fired(marker, 2)}
    assert fired.keys() == {b"by-karafka", b"by-etf1"}
    assert fired[b"by-karafka"].partition == 1
    assert fired[b"by-karafka"].header("schedule_source_key") == b"schedule-1"
    assert fired[b"by-etf1"].header("scheduler-key") == b"schedule-2"
    assert min(each.timestamp_ms for each in fired.values()) >= int(epoch) * 1000


def test_timebridge_sky_and_custom_reach_their_target(world: World, marker: bytes) -> None:
    topic = world.stage.origin
    when = datetime.fromtimestamp(soon_s(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    envelope = {
        "time": now_ms() + 500,
        "topic": topic,
        "key": b64encode(b"by-sky").decode(),
        "value": b64encode(b"\0\xff").decode(),
        "headers": {"test": b64encode(marker).decode()},
    }
    world.send(
        Given(
            b"1", b"a", [("test", marker), ("X-Timebridge-When", when.encode()), ("X-Timebridge-Where", topic.encode())]
        ),
        Given(json.dumps(envelope).encode(), b"schedule-3", [("own", b"1")]),
        Given(b"3", b"c", [("test", marker), ("x-topic", topic.encode()), ("x-wait", b"1"), ("x-tries", b"1")]),
    )
    fired = {each.key: each for each in world.fired(marker, 3)}
    assert list(fired[b"a"].headers) == [("test", marker)]
    assert (fired[b"by-sky"].value, list(fired[b"by-sky"].headers)) == (b"\0\xff", [("test", marker)])
    assert list(fired[b"c"].headers) == [("test", marker), ("x-topic", topic.encode()), ("x-tries", b"2")]


def test_a_schedule_of_the_same_key_replaces_and_a_tombstone_cancels_though_a_token_is_set(
    world: World, marker: bytes
) -> None:
    def schedule(epoch: int) -> list[tuple[str, bytes | None]]:
        return [
            ("test", marker),
            ("scheduler-epoch", b"%d" % epoch),
            ("scheduler-target-topic", world.stage.origin.encode()),
        ]

    def pending() -> int:
        shown = world.sidecar.group()
        return -1 if shown is None else int(shown["total"])

    # What other tests sent is gone, in whatever order they run.
    eventually(lambda: pending() == 0, 60, "nothing is pending")
    key, far = unique("id").encode(), soon_s() + FAR_S
    world.send(Given(b"1", key, schedule(far)), Given(b"2", key, schedule(far + 1)))
    eventually(lambda: pending() == 1, 60, "the second one is in place of the first")
    world.send(Given(None, key, []))
    eventually(lambda: pending() == 0, 60, "it is cancelled")
    assert world.dead(marker, 0) == []


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ([("schedule_source_type", b"schedule"), ("schedule_schema_version", b"1.0.0")], "schedule_target_epoch"),
        ([("scheduler-epoch", b"1893456000000"), ("scheduler-target-topic", b"a")], "looks like milliseconds"),
        ([("x-topic", b"a"), ("x-at", b"1893456000000")], "looks like milliseconds"),
        (
            [("kafka_original-topic", b"a"), ("retry_topic-backoff-timestamp", b"\x6b\x01\x48\x75")],
            "looks like seconds",
        ),
    ],
)
def test_a_mistake_in_the_unit_is_a_dead_letter_that_says_so(
    world: World, marker: bytes, headers: list[tuple[str, bytes | None]], said: str
) -> None:
    world.send(Given(b"v", b"key", [("test", marker), *headers]))
    (dead,) = world.dead(marker)
    assert dead.key == b"key"
    assert said in (dead.header("retry-dlq-detail") or b"").decode()
    assert "retry-dlq-reason" in names(dead)

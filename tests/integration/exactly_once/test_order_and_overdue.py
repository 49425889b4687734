"""The order of firing, and messages that are overdue when they arrive."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest

from tests.broker import unique
from tests.integration.messages import Given, Pairs, World, native, now_ms, one_sidecar
from tests.waiting import eventually

pytestmark = pytest.mark.broker


@pytest.fixture(scope="module")
def world(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with one_sidecar(bootstrap, tmp_path_factory.mktemp("order")) as world:
        yield world


@pytest.fixture
def marker() -> bytes:
    return unique("m").encode()


def due_at(world: World, marker: bytes, due_ms: int) -> Pairs:
    return [
        ("retry-origin-topic", world.stage.origin.encode()),
        ("retry-due-ms", b"%d" % due_ms),
        ("retry-origin-partition", b"0"),
        ("test", marker),
    ]


def test_messages_of_one_due_fire_in_the_order_in_which_they_came(world: World, marker: bytes) -> None:
    headers = due_at(world, marker, now_ms() + 3_000)
    world.send(*(Given(b"%d" % n, b"key %d" % (n % 7), headers) for n in range(500)))
    assert [record.value for record in world.fired(marker, 500)] == [b"%d" % n for n in range(500)]


def test_messages_fire_by_due_whatever_the_order_in_which_they_came(world: World, marker: bytes) -> None:
    base_ms = now_ms() + 3_000
    spread = [(n * 7919) % 1000 for n in range(300)]
    world.send(*(Given(b"%d" % after_ms, None, due_at(world, marker, base_ms + after_ms)) for after_ms in spread))
    fired = [int(record.value or 0) for record in world.fired(marker, 300)]
    assert fired == sorted(spread)


def test_nothing_fires_early(world: World, marker: bytes) -> None:
    base_ms = now_ms()
    world.send(
        *(Given(headers=due_at(world, marker, base_ms + 17 * n), partition=n % 2) for n in range(300)),
    )
    fired = world.fired(marker, 300)
    assert min(record.timestamp_ms - int(record.header("retry-was-due-ms") or 0) for record in fired) >= 0


@pytest.mark.parametrize("due_ms", [0, 1, 1_000_000], ids=["epoch", "one", "long ago"])
def test_what_is_overdue_at_arrival_fires_at_once_and_keeps_the_due_that_was_asked_for(
    world: World, marker: bytes, due_ms: int
) -> None:
    (sent,) = world.send(Given(headers=due_at(world, marker, due_ms)))
    (fired,) = world.fired(marker)
    assert fired.header("retry-was-due-ms") == b"%d" % due_ms
    assert fired.header("retry-timer-id") == b"0-%d-%d" % (sent.offset, due_ms)
    assert fired.timestamp_ms - sent.timestamp_ms < 5_000


def test_overdue_messages_of_one_batch_fire_in_the_order_in_which_they_came(world: World, marker: bytes) -> None:
    world.send(*(Given(b"%d" % n, None, due_at(world, marker, 1_000)) for n in range(200)))
    fired = [int(record.value or 0) for record in world.fired(marker, 200)]
    assert fired == sorted(fired)


def test_a_message_that_is_not_due_is_not_held_up_by_one_that_fires_at_once(world: World, marker: bytes) -> None:
    due_ms = now_ms() + 2_500
    world.send(Given(b"later", None, due_at(world, marker, due_ms)), Given(b"now", None, due_at(world, marker, 0)))
    now, later = world.fired(marker, 2)
    assert (now.value, later.value) == (b"now", b"later")
    assert now.timestamp_ms < due_ms <= later.timestamp_ms


def test_dues_around_the_ends_of_slots_fire_in_order(world: World, marker: bytes) -> None:
    """One slot is a second wide: the ends, and the milliseconds beside them, are where a wheel goes wrong."""
    base_ms = (now_ms() // 1000 + 3) * 1000
    dues = sorted(base_ms + second * 1000 + beside for second in range(3) for beside in (-1, 0, 1))
    world.send(*(Given(b"%d" % due_ms, None, due_at(world, marker, due_ms)) for due_ms in reversed(dues)))
    fired = world.fired(marker, len(dues))
    assert [int(record.value or 0) for record in fired] == dues
    assert all(one.timestamp_ms <= other.timestamp_ms for one, other in pairwise(fired))


def test_replace_takes_all_waiting_ones_of_the_id_away(world: World, marker: bytes) -> None:
    eventually(lambda: world.sidecar.pending() == 0, 30, "nothing waits")
    old = native(world.stage, marker, 3_600_000, ("retry-id", b"order 7"))
    new = native(world.stage, marker, 500, ("retry-id", b"order 7"), ("retry-replace", b"true"))
    other = native(world.stage, marker, 1_500, ("retry-id", b"order 8"))
    world.send(Given(b"old", headers=old), Given(b"old", headers=old), Given(b"other", headers=other))
    eventually(lambda: world.sidecar.pending() == 3, 10, "three wait")
    world.send(Given(b"new", headers=new))
    assert sorted(record.value or b"" for record in world.fired(marker, 2)) == [b"new", b"other"]
    eventually(lambda: world.sidecar.pending() == 0, 10, "the old ones are gone")

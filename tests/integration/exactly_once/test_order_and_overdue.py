"""The order of firing, and messages that are overdue when they arrive."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from tests.integration.killable import command, set_clock
from tests.integration.messages import Given, Launch, Pairs, World, native, now_ms, one_sidecar
from tests.integration.sidecars import READY_S
from tests.waiting import eventually

pytestmark = pytest.mark.broker

SOON_MS = 12_000
"""Longer than the broker and the sidecar take to have all messages, on a machine that stands still meanwhile."""
AT_ONCE_MS = 30_000
"""The same of what is not to wait at all."""
FAR_MS = 3_600_000


@pytest.fixture(scope="module")
def world(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with one_sidecar(bootstrap, tmp_path_factory.mktemp("order")) as world:
        yield world


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


def test_messages_fire_by_due_whatever_the_order_in_which_they_came(
    bootstrap: str, tmp_path: Path, marker: bytes
) -> None:
    """Its sidecar's clock steps on when all wait, and is not set back: what comes later would be late."""
    offset = tmp_path / "offset"
    launch = Launch(command(clock_offset=offset), READY_S)
    with one_sidecar(bootstrap, tmp_path, launch=launch, MAX_CLOCK_SKEW="1d") as world:
        base_ms = now_ms() + FAR_MS
        spread = [(n * 7919) % 1000 for n in range(300)]
        world.send(*(Given(b"%d" % after_ms, None, due_at(world, marker, base_ms + after_ms)) for after_ms in spread))
        eventually(lambda: world.sidecar.pending() == 300, 60, "all wait")
        set_clock(offset, 2 * FAR_MS)
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
    assert fired.timestamp_ms - sent.timestamp_ms < AT_ONCE_MS


def test_overdue_messages_of_one_batch_fire_in_the_order_in_which_they_came(world: World, marker: bytes) -> None:
    world.send(*(Given(b"%d" % n, None, due_at(world, marker, 1_000)) for n in range(200)))
    fired = [int(record.value or 0) for record in world.fired(marker, 200)]
    assert fired == sorted(fired)


def test_a_message_that_is_not_due_is_not_held_up_by_one_that_fires_at_once(world: World, marker: bytes) -> None:
    later = native(world.stage, marker, FAR_MS, ("retry-id", marker))
    world.send(Given(b"later", None, later), Given(b"now", None, due_at(world, marker, 0)))
    assert [record.value for record in world.fired(marker)] == [b"now"]
    instead = native(world.stage, marker, 0, ("retry-id", marker), ("retry-replace", b"true"))
    world.send(Given(b"instead", None, instead))
    assert sorted(record.value or b"" for record in world.fired(marker, 2)) == [b"instead", b"now"]


def test_dues_around_the_ends_of_slots_fire_in_order(world: World, marker: bytes) -> None:
    """One slot is a second wide: the ends, and the milliseconds beside them, are where a wheel goes wrong."""
    base_ms = (now_ms() + SOON_MS) // 1000 * 1000
    dues = sorted(base_ms + second * 1000 + beside for second in range(3) for beside in (-1, 0, 1))
    world.send(*(Given(b"%d" % due_ms, None, due_at(world, marker, due_ms)) for due_ms in reversed(dues)))
    fired = world.fired(marker, len(dues))
    assert [int(record.value or 0) for record in fired] == dues
    assert all(one.timestamp_ms <= other.timestamp_ms for one, other in pairwise(fired))


def test_replace_takes_all_waiting_ones_of_the_id_away(world: World, marker: bytes) -> None:
    eventually(lambda: world.sidecar.pending() == 0, 30, "nothing waits")
    old, other = (native(world.stage, marker, FAR_MS, ("retry-id", name)) for name in (b"order 7", b"order 8"))
    new, last = (
        native(world.stage, marker, 500, ("retry-id", name), ("retry-replace", b"true"))
        for name in (b"order 7", b"order 8")
    )
    world.send(Given(b"old", headers=old), Given(b"old", headers=old), Given(b"other", headers=other))
    eventually(lambda: world.sidecar.pending() == 3, 30, "three wait")
    world.send(Given(b"new", headers=new))
    assert [record.value for record in world.fired(marker)] == [b"new"]
    eventually(lambda: world.sidecar.pending() == 1, 30, "the old ones are gone, and no other")
    world.send(Given(b"last", headers=last))
    assert sorted(record.value or b"" for record in world.fired(marker, 2)) == [b"last", b"new"]
    eventually(lambda: world.sidecar.pending() == 0, 30, "nothing waits")

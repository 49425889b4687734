"""A wall clock that is stepped under the sidecar: never early, held when it cannot be trusted, and saying so."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.killable import command, set_clock
from tests.integration.messages import Given, World, native, now_ms
from tests.integration.sidecars import Sidecar, Sidecars, Stage
from tests.waiting import eventually

pytestmark = pytest.mark.broker


def reasons(sidecar: Sidecar) -> str:
    status, body = sidecar.get("/readyz")
    return " ".join(body["reasons"]) if status == 503 else ""


@pytest.fixture
def offset(tmp_path: Path) -> Path:
    return tmp_path / "offset"


@pytest.fixture
def world(stage: Stage, sidecars: Sidecars, offset: Path) -> World:
    one = sidecars.make("one", stage, MAX_CLOCK_SKEW="20s")
    one.start(command(clock_offset=offset))
    one.await_ready()
    return World(stage, one)


def test_small_steps_back_and_forth_fire_nothing_before_its_time_on_the_stepped_clock(
    world: World, offset: Path, marker: bytes
) -> None:
    """Within MAX_CLOCK_SKEW the clock is trusted: a message is early or late by its error at most, never lost."""
    began_ms = now_ms()
    world.send(*(Given(b"%d" % n, headers=native(world.stage, marker, 25 * n), partition=n % 4) for n in range(400)))
    steps = [8_000, -8_000, 4_000, -12_000, 0]
    for step_ms in steps:
        set_clock(offset, step_ms)
        passed_ms = now_ms() + 1_500
        eventually(lambda until_ms=passed_ms: now_ms() > until_ms, 10, "the clock runs like this for a while")  # type: ignore[misc]
    fired = world.fired(marker, 400)
    eventually(lambda: world.sidecar.pending() == 0, 30, "nothing waits")
    assert sorted(int(record.value or 0) for record in fired) == list(range(400))
    early = [record.timestamp_ms - int(record.header("retry-was-due-ms") or 0) for record in fired]
    assert min(early) >= -max(steps)
    assert all(int(record.header("retry-was-due-ms") or 0) >= began_ms for record in fired)


def test_a_clock_that_was_stepped_back_fires_late_and_never_early(world: World, offset: Path, marker: bytes) -> None:
    world.send(Given(b"before", headers=native(world.stage, marker, 500)))
    world.fired(marker)
    set_clock(offset, -6_000)
    world.send(Given(b"after", headers=native(world.stage, marker, 1_000)))
    (after,) = (record for record in world.fired(marker, 2) if record.value == b"after")
    late_ms = after.timestamp_ms - int(after.header("retry-was-due-ms") or 0)
    assert 5_000 <= late_ms < 45_000


@pytest.mark.parametrize("off_ms", [3_600_000, -3_600_000], ids=["an hour ahead", "an hour behind"])
def test_beyond_the_allowed_skew_nothing_fires_and_readyz_says_so_until_the_clock_is_right_again(
    world: World, offset: Path, marker: bytes, off_ms: int
) -> None:
    world.send(*(Given(b"waits", headers=native(world.stage, marker, 600_000), partition=n) for n in range(4)))
    eventually(lambda: world.sidecar.pending() == 4, 60, "four wait")
    set_clock(offset, off_ms)
    eventually(lambda: "MAX_CLOCK_SKEW allows 20000 ms" in reasons(world.sidecar), 30, "readyz says why")
    world.send(Given(b"due", headers=native(world.stage, marker, 1)))
    later_ms = now_ms() + 7_000
    eventually(lambda: now_ms() > later_ms, 15, "the clock was measured anew at least once")
    assert "MAX_CLOCK_SKEW" in reasons(world.sidecar)
    set_clock(offset, 0)
    eventually(world.sidecar.ready, 60, "it is ready again")
    (fired,) = world.fired(marker)
    assert fired.value == b"due"
    eventually(lambda: world.sidecar.pending() == 4, 60, "the four wait, and no other")

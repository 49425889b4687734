"""The state folder is a cache of the changelog: old, foreign or damaged, it is updated or rebuilt."""

from __future__ import annotations

import shutil

import pytest

from tests.integration.messages import Given, Pairs, World, native, now_ms
from tests.integration.sidecars import Sidecar, Sidecars, Stage
from tests.waiting import eventually

pytestmark = pytest.mark.broker


def due_at(stage: Stage, marker: bytes, due_ms: int) -> Pairs:
    origin, _, *rest = native(stage, marker, 0)
    return [origin, ("retry-due-ms", b"%d" % due_ms), *rest]


def wait_for_pending(sidecar: Sidecar, count: int) -> None:
    eventually(lambda: sidecar.pending() == count, 30, f"{count} wait")


def test_a_folder_of_another_application_on_the_cluster_is_set_aside_and_rebuilt(
    bootstrap: str, stage: Stage, sidecars: Sidecars, marker: bytes
) -> None:
    """Another changelog topic, or another cluster: the rows are of no use, and none of them may fire."""
    from tests.integration.sidecars import set_stage

    elsewhere = set_stage(bootstrap)
    foreign = sidecars.start("foreign", elsewhere)
    due_ms = now_ms() + 10_000
    World(elsewhere, foreign).send(
        *(Given(b"foreign", headers=due_at(elsewhere, marker, due_ms), partition=n % 4) for n in range(8))
    )
    wait_for_pending(foreign, 8)
    assert foreign.stop() == 0
    one = sidecars.make("one", stage)
    shutil.copytree(foreign.state_dir, one.state_dir)
    one.start()
    one.await_ready()
    assert one.pending() == 0
    world = World(stage, one)
    world.send(Given(b"own", headers=due_at(stage, marker, max(due_ms, now_ms()) + 2_000)))
    assert [record.value for record in world.fired(marker)] == [b"own"]
    assert (one.state_dir / "rocksdb.quarantined").is_dir()


def test_a_damaged_folder_is_set_aside_and_rebuilt_and_nothing_is_lost(
    stage: Stage, sidecars: Sidecars, marker: bytes
) -> None:
    one = sidecars.start("one", stage)
    world = World(stage, one)
    headers = due_at(stage, marker, now_ms() + 25_000)  # none is due before it has stopped
    world.send(*(Given(bytes(500) + b"%d" % n, headers=headers, partition=n % 4) for n in range(2_000)))
    wait_for_pending(one, 2_000)
    assert one.stop() == 0
    files = sorted((one.state_dir / "rocksdb").glob("*.sst"))
    assert files
    for file in files:
        content = bytearray(file.read_bytes())
        middle = len(content) // 2
        content[middle : middle + 200] = bytes(byte ^ 0xFF for byte in content[middle : middle + 200])
        file.write_bytes(content)
    one.start()
    fired = world.fired(marker, 2_000)
    wait_for_pending(one, 0)
    assert sorted(int((record.value or b"")[500:]) for record in fired) == list(range(2_000))
    assert one.get("/health")[1]["details"]["quarantines"] == 1
    assert (one.state_dir / "rocksdb.quarantined").is_dir()
    assert "store_quarantined" in one.log or "damaged" in one.log


def test_a_folder_in_use_by_another_process_stops_the_start_with_what_to_do(stage: Stage, sidecars: Sidecars) -> None:
    one = sidecars.start("one", stage)
    other = sidecars.make("other", stage, STATE_DIR=str(one.state_dir))
    other.start()
    assert other.wait() == 1
    assert "in use by another process" in other.log
    assert "STATE_DIR" in other.log
    assert one.ready()


def test_a_folder_that_cannot_be_written_stops_the_start_with_what_to_do(stage: Stage, sidecars: Sidecars) -> None:
    (sidecars.folder / "file").write_text("no folder")
    one = sidecars.make("one", stage, STATE_DIR=str(sidecars.folder / "file" / "state"))
    one.start()
    assert one.wait() == 1
    assert "STATE_DIR" in one.log
    assert "Traceback" not in one.log


def test_a_folder_that_goes_away_under_a_running_sidecar_is_made_again_from_the_changelog(
    stage: Stage, sidecars: Sidecars, marker: bytes
) -> None:
    one = sidecars.start("one", stage)
    world = World(stage, one)
    world.send(*(Given(b"%d" % n, headers=native(stage, marker, 8_000), partition=n % 4) for n in range(40)))
    wait_for_pending(one, 40)
    shutil.rmtree(one.state_dir)
    eventually(lambda: "cannot be reached" in str(one.get("/readyz")), 30, "readyz says why")
    one.await_ready()
    assert sorted(int(record.value or 0) for record in world.fired(marker, 40)) == list(range(40))
    wait_for_pending(one, 0)
    assert len(world.fired(marker, 40)) == 40

"""The changelog is deleted and made anew, while all run or while none does: nothing is wiped, and it is rebuilt.

The command's own part, reading and writing topics, is tested with a broker; here its rules meet whole processes.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from unittest.mock import patch

import pytest

from sidecar.changelog.offset_mark import OffsetMark
from sidecar.engine.partition import State
from sidecar.engine.restore import ChangelogRead
from sidecar.engine.rewrite import Present, rewriting, rewritten
from sidecar.engine.rows import NOT_RESTORED, Identity, Meta, Rows, decode_meta
from sidecar.engine.wholeness import Log, missing, replaces
from sidecar.runtime.transaction import pace
from tests.simulation.fakes.local import Disk
from tests.simulation.fakes.logs import Row
from tests.simulation.limits import BYTES_MAX, small_limits
from tests.simulation.shell import faults
from tests.simulation.shell.process import CLUSTER_ID, Process
from tests.simulation.shell.story import quiet
from tests.simulation.shell.world import CHANGELOG, Mode, World

WORLDS = 24
ACTS = 25
SOUND_S = 60.0
"""After so long without faults all partitions run."""
NOTICED_S = 20.0


@pytest.mark.parametrize("seed", range(WORLDS))
def test_a_changelog_that_is_made_anew_stops_partitions_until_it_is_rebuilt(seed: int, tmp_path: Path) -> None:
    with small_limits(), patch.object(pace, "BYTES_MAX", BYTES_MAX), quiet():
        world = World(seed, [], tmp_path)
        world.mode = Mode.FAULTY
        _live(world)
        _become_sound(world)
        while_running = seed % 2 == 0
        if not while_running:
            _stop(world)
        _make_anew(world)
        before = _pending(world)
        for process in world.processes:
            process.start()
        if world.rng.random() < 0.7:
            world.send_good()
        world.wait(NOTICED_S)
        _check_stopped(world)
        _stop(world)
        after = _pending(world)
        assert all(after[number] >= before[number] for number in before), "nothing is wiped"
        _rebuild(world)
        for process in world.processes:
            process.start()
        _live(world)
        world.finish()


def _live(world: World) -> None:
    for _ in range(ACTS):
        act = world.rng.choice([World.send_good, World.send_good, World.send_hostile, faults.rebalance, faults.kill])
        act(world)
        world.rounds(world.rng.choice([1, 10, 60]))


def _become_sound(world: World) -> None:
    """End all faults and let every partition run."""
    world._heal(all_of_it=True)
    for process in world.processes:
        process.start()
    world.wait(SOUND_S)
    running = [each for each in _owned(world).values() if each is State.RUNNING]
    assert len(running) == len(world.cluster.topics[CHANGELOG].logs)


def _owned(world: World) -> dict[int, State]:
    return {
        number: partition.state
        for process in world.processes
        if process.loop is not None
        for number, partition in process.loop._assignment.partitions.items()
    }


def _stop(world: World) -> None:
    for process in world.processes:
        process.stop()
    world.rounds(10)


def _make_anew(world: World) -> None:
    old = world.cluster.topics[CHANGELOG]
    world.cluster.delete(CHANGELOG)
    world.wait(world.rng.choice([0.0, 0.5, 5.0]))
    world.cluster.create(CHANGELOG, len(old.logs), old.max_bytes, compacted=True)
    world.say("the changelog was made anew")


def _check_stopped(world: World) -> None:
    """All partitions stop which had committed anything; they say what to decide."""
    for process in world.processes:
        assert process.loop is not None
        for number, partition in process.loop._assignment.partitions.items():
            if number in world.cluster.group.offsets:
                assert partition.state is State.STOPPED, number
                assert "rebuild-changelog" in partition.reason


def _pending(world: World) -> dict[int, int]:
    """Return by partition how many timer rows the disk has that knows most of it."""
    found = {}
    for number in range(len(world.cluster.topics[CHANGELOG].logs)):
        best = _best(world, number)
        rows = Rows(number)
        found[number] = 0 if best is None else sum(row.startswith(rows.timer) for row in _disk(best[0]).rows)
    return found


def _disk(process: Process) -> Disk:
    assert isinstance(process.disk, Disk)
    return process.disk


def _best(world: World, number: int) -> tuple[Process, Meta] | None:
    """Return the process whose disk knows most of a partition."""
    found = []
    for process in world.processes:
        value = _disk(process).get(Rows(number).meta)
        if value is not None and (meta := decode_meta(value)).changelog_offset != NOT_RESTORED:
            found.append((meta.checkpoint.sequence, process.name, process, meta))
    if not found:
        return None
    _, _, process, meta = max(found, key=lambda each: each[:2])
    return process, meta


def _rebuild(world: World) -> None:
    """Do what `state rebuild-changelog` does."""
    topic, group = world.cluster.topics[CHANGELOG], world.cluster.group
    identity = Identity(CLUSTER_ID, topic.id, CHANGELOG)
    for number, log in enumerate(topic.logs):
        if (best := _best(world, number)) is None:
            continue
        process, meta = best
        mark = OffsetMark.parse(group.metadata.get(number, ""))
        entries, _ = log.read(0, 1_000_000)
        present = Present()
        present.add(ChangelogRead(each.offset, each.row.key, each.row.value) for each in entries)
        at = Log(identity, log.start, log.end)
        if not meta.checkpoint.sequence and mark is None:
            continue
        assert missing(present.last, at, mark) or not replaces(present.last, at, meta)
        plan = rewriting(meta, present, mark, topic.id, world.rng.getrandbits(63) | 1)
        assert not plan.behind
        records = rewritten(_disk(process), number, present, plan.checkpoint, topic.max_bytes, itertools.count())
        log.append([Row(key, value, []) for key, value in records], world.timeline.now_ms(), None)
        world.say("rebuilt", number, "from", process.name)

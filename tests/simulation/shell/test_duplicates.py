"""Two processes with one identity: exactly one of them ends, at whatever pace the two go."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulation.limits import small_limits
from tests.simulation.shell.process import Process
from tests.simulation.shell.story import quiet
from tests.simulation.shell.world import Mode, World

WORLDS = 30
ALONE_S = 20.0
BOTH_S = 900.0
AFTERWARDS_S = 120.0


@pytest.mark.parametrize("seed", range(WORLDS))
def test_the_one_that_started_first_ends_and_the_other_goes_on(seed: int, tmp_path: Path) -> None:
    with small_limits(), quiet():
        world = World(seed, [], tmp_path)
        world.mode = Mode.FAULTY  # frozen for a while, it is late
        first, *others = world.processes
        for other in others:
            other.stop()
        world.processes = [first]
        world.wait(ALONE_S)
        second = world.process("second", first.instance_id)
        world.processes.append(second)
        for process in world.processes:
            process.supervise = lambda *_: None  # nobody starts it again
        second.start()
        _go_on(world, BOTH_S, until_one_ends=True)
        if not first.is_static and world.cluster.group.partitions == 1:
            assert [first.is_up, second.is_up] == [True, True], "the one without a partition fences nobody"
            return
        assert [first.is_up, second.is_up] == [False, True]
        _go_on(world, AFTERWARDS_S, until_one_ends=False)
        assert second.is_up
        world.processes = [second]
        world.finish()


def _go_on(world: World, seconds: float, *, until_one_ends: bool) -> None:
    """Let messages come and both go round, each of them at a pace of its own and with pauses."""
    rng, end_s = world.rng, world.timeline.now_s + seconds
    slow: Process = rng.choice(world.processes)
    while world.timeline.now_s < end_s and not (until_one_ends and not all(each.is_up for each in world.processes)):
        if rng.random() < 0.2:
            world.send_good()
        if rng.random() < 0.1:
            slow.freeze(rng.choice([0.3, 3.0, 10.0]))
        world.rounds(10)

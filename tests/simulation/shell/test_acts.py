"""What may happen in a world excuses as much as it does, and nothing else goes wrong by it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulation.limits import small_limits
from tests.simulation.shell import faults, operators
from tests.simulation.shell.story import quiet
from tests.simulation.shell.world import World

ANY_SEED = 3


def test_what_an_operator_named_before_the_group_was_stopped_waits_for_it_too(tmp_path: Path) -> None:
    with small_limits(), quiet():
        world = World(ANY_SEED, [], tmp_path)
        out, waiting, named = (world.senders.good(world.timeline.now_ms()) for _ in range(3))
        for sent in (out, waiting, named):
            world.write(sent)
        out.out.append((out.origin, 0.0))
        named.is_touched = True
        operators.stop_group(world)
        assert all(each.is_good for each in (out, waiting, named))
        for _, resume in world.healing:
            resume()
        assert [each.is_good for each in (out, waiting, named)] == [True, False, False]


@pytest.mark.parametrize("seed", range(4))
def test_a_store_is_built_anew_in_place_of_a_damaged_one_that_nobody_has_read(seed: int, tmp_path: Path) -> None:
    with small_limits(), quiet():
        world = World(seed, [], tmp_path)
        for process in world.processes:
            process.freeze(1_000.0)
            process.disk.is_corrupt = True
        faults.rebuild(world)
        assert any(each.is_up for each in world.processes)

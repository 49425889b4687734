"""The whole runtime holds in random worlds: nothing is lost, fired twice or early, or stands behind what is bad."""

from __future__ import annotations

import pytest

from tests.simulation.shell.story import run

WORLDS = 1_000
WORLDS_A_TEST = 50


@pytest.mark.parametrize("first", range(0, WORLDS, WORLDS_A_TEST))
def test_nothing_is_lost_twice_early_or_stopped_in_any_world(first: int) -> None:
    worlds = [run(seed) for seed in range(first, first + WORLDS_A_TEST)]
    assert sum(each.ledger.fired for each in worlds) > 10 * WORLDS_A_TEST, "the worlds stand still"
    assert sum(each.ledger.dead for each in worlds) > WORLDS_A_TEST


def test_a_seed_gives_the_same_world_again() -> None:
    first, second = run(7), run(7)
    assert first.trace == second.trace
    assert first.ledger.sent == second.ledger.sent

"""The engine holds in random worlds, and the simulation catches each mistake that is made on purpose."""

from __future__ import annotations

import pytest

from tests.simulation.__main__ import STEPS
from tests.simulation.mutations import MUTATIONS, Mutation
from tests.simulation.running import run

WORLDS = 900
WORLDS_A_TEST = 100
OF_EACH_CHANGE = 300
"""The others are for the night."""
ENOUGH = 400
"""Each mistake shows within so many worlds; most within ten."""


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(first, marks=() if first < OF_EACH_CHANGE else pytest.mark.slow)
        for first in range(0, WORLDS, WORLDS_A_TEST)
    ],
)
def test_nothing_is_lost_fired_twice_or_early_in_any_world(first: int) -> None:
    for seed in range(first, first + WORLDS_A_TEST):
        run(seed, STEPS[seed % len(STEPS)])


def test_a_seed_gives_the_same_world_again() -> None:
    assert run(11, 90).trace == run(11, 90).trace


@pytest.mark.parametrize("mutation", MUTATIONS, ids=[mutation.name for mutation in MUTATIONS])
def test_each_rule_taken_away_is_caught(mutation: Mutation) -> None:
    with mutation.applied():
        failure = _first_failure()
    assert failure is not None, f"{mutation.name}: not caught in {ENOUGH} worlds"
    assert not isinstance(failure, TypeError | NameError), "the mutation is no program"


def test_applying_before_the_commit_is_caught() -> None:
    assert _first_failure(apply_before_commit=True) is not None


def test_a_failure_says_how_to_replay_it() -> None:
    failure = _first_failure(apply_before_commit=True)
    assert failure is not None
    *_, replay, seed, steps = failure.__notes__[-1].split()
    assert replay == "tests.simulation"
    with pytest.raises(type(failure)) as again:
        run(int(seed), int(steps), apply_before_commit=True)
    assert str(again.value) == str(failure)


def _first_failure(*, apply_before_commit: bool = False) -> Exception | None:
    for seed in range(ENOUGH):
        try:
            run(seed, STEPS[seed % len(STEPS)], apply_before_commit=apply_before_commit)
        except Exception as failure:  # noqa: BLE001 - a mistake shows as a false ledger, an invariant, a KeyError
            return failure
    return None

"""The whole runtime holds in random worlds: nothing is lost, fired twice or early, or stands behind what is bad."""

from __future__ import annotations

import pytest

from tests.simulation.shell.mutations import DEFECTS, Defect
from tests.simulation.shell.story import run

WORLDS = 1_000
WORLDS_A_TEST = 50
OF_EACH_CHANGE = 200
"""The others are for the night."""


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(first, marks=() if first < OF_EACH_CHANGE else pytest.mark.slow)
        for first in range(0, WORLDS, WORLDS_A_TEST)
    ],
)
def test_nothing_is_lost_twice_early_or_stopped_in_any_world(first: int) -> None:
    worlds = [run(seed) for seed in range(first, first + WORLDS_A_TEST)]
    assert sum(each.ledger.fired for each in worlds) > 10 * WORLDS_A_TEST, "the worlds stand still"
    assert sum(each.ledger.dead for each in worlds) > WORLDS_A_TEST


def test_a_seed_gives_the_same_world_again() -> None:
    first, second = run(7), run(7)
    assert first.trace == second.trace
    assert first.ledger.sent == second.ledger.sent


@pytest.mark.parametrize("defect", DEFECTS, ids=[each.mutation.name for each in DEFECTS])
def test_each_defect_made_again_is_found(defect: Defect) -> None:
    with defect.made():
        failure = _first_failure(defect)
    assert failure is not None, f"{defect.mutation.name}: not found in {WORLDS} worlds"
    assert not isinstance(failure, TypeError | NameError), "the mutation is no program"


def test_a_failure_says_how_to_replay_it() -> None:
    with DEFECTS[0].made():
        failure = _first_failure(DEFECTS[0])
        assert failure is not None
        *_, replay, seed = failure.__notes__[-1].split()
        assert replay == "tests.simulation.shell"
        with pytest.raises(type(failure)) as again:
            run(int(seed))
    assert str(again.value) == str(failure)


def _first_failure(defect: Defect) -> Exception | None:
    for seed in (*defect.seeds, *range(WORLDS)):
        try:
            run(seed)
        except Exception as failure:  # noqa: BLE001 - a defect shows as a false ledger, an invariant, a KeyError
            return failure
    return None

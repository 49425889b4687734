"""The whole runtime holds in random worlds: nothing is lost, fired twice or early, or stands behind what is bad."""

from __future__ import annotations

import pytest

from tests.simulation.shell.mutations import DEFECTS, Defect, first_failure
from tests.simulation.shell.story import run

WORLDS = 1_000
WORLDS_A_TEST = 50
OF_EACH_CHANGE = (0, 100)
"""Plain worlds and rich ones; the others are for the night."""
ENOUGH = 50
"""When the seeds of a defect do not find it any more, so many are tried: rarely that needs a search by hand."""


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(first, marks=() if first in OF_EACH_CHANGE else pytest.mark.slow)
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
        failure = first_failure((*defect.seeds, *range(ENOUGH)))
    search = f'python -m tests.simulation.shell --defect "{defect.mutation.name}"'
    assert failure is not None, f"{search} finds another seed"
    assert not isinstance(failure, TypeError | NameError), "the mutation is no program"


def test_a_failure_says_how_to_replay_it() -> None:
    with DEFECTS[0].made():
        failure = first_failure(DEFECTS[0].seeds)
        assert failure is not None
        *_, replay, seed = failure.__notes__[-1].split()
        assert replay == "tests.simulation.shell"
        with pytest.raises(type(failure)) as again:
            run(int(seed))
    assert str(again.value) == str(failure)

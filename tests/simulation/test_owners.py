"""Two owners of one partition: exactly once holds in every schedule, and each mistake is caught."""

from __future__ import annotations

import pytest

from tests.simulation.owners import MISTAKES, run

SCHEDULES = 300
ENOUGH = 700


def test_every_message_is_fired_exactly_once_by_any_owner_of_the_partition() -> None:
    for seed in range(SCHEDULES):
        run(seed)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_each_mistake_in_the_transaction_or_the_reset_is_caught(mistake: str) -> None:
    failure = _first_failure(mistake)
    assert failure is not None, MISTAKES[mistake]
    assert not isinstance(failure, TypeError | NameError), "the mistake is no program"


def _first_failure(mistake: str) -> Exception | None:
    for seed in range(ENOUGH):
        try:
            run(seed, mistake)
        except Exception as failure:  # noqa: BLE001 - it shows as a false ledger or as an invariant
            return failure
    return None

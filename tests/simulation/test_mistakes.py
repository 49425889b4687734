"""Each plausible mistake is found: in what is compiled, restores, lanes, cut writes, recovery or the commit order."""

from __future__ import annotations

import pytest

from sidecar.engine import hot
from tests.simulation.mistakes import MISTAKES, Mistake

WORLDS = 400

pytestmark = pytest.mark.skipif(not hot.COMPILED, reason="the hot path is not compiled here: it needs a C compiler")


@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("mistake", MISTAKES, ids=[each.mutation.name for each in MISTAKES])
def test_each_plausible_mistake_is_found(mistake: Mistake) -> None:
    with mistake.mutation.applied():
        failure = _first_failure(mistake)
    assert failure is not None, f"{mistake.mutation.name}: not found in {WORLDS} worlds"
    assert not isinstance(failure, TypeError | NameError), "the mutation is no program"


def _first_failure(mistake: Mistake) -> Exception | None:
    for seed in (*mistake.seeds, *range(WORLDS)):
        try:
            mistake.finder(seed)
        except Exception as failure:  # noqa: BLE001 - a mistake shows as a false ledger, an invariant, a difference
            return failure
    return None

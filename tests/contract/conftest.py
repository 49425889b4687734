"""The two sides that each contract suite runs on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.fake_side import FakeSide
from tests.contract.real_side import RealSide
from tests.contract.side import Side


@pytest.fixture(params=["fake", "real"])
def side(request: pytest.FixtureRequest) -> Iterator[Side]:
    """A cluster with one process on it: the simulated one, and a real broker with the real adapters."""
    made: Side = FakeSide() if request.param == "fake" else RealSide(request.getfixturevalue("bootstrap"))
    try:
        yield made
    finally:
        made.close()

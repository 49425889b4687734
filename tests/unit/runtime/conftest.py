from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.runtime.harness import LoopHarness


@pytest.fixture
def harness() -> Iterator[LoopHarness]:
    made = LoopHarness()
    yield made
    made.jobs.close()

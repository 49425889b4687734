from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.runtime.parts import LoopParts


@pytest.fixture
def parts() -> Iterator[LoopParts]:
    made = LoopParts()
    yield made
    made.jobs.close()

"""The deliberate mistakes that tests on a broker make in child processes still find the code that they change."""

from __future__ import annotations

import pytest

from tests.integration.killable import OF_THE_RUNTIME
from tests.simulation.mutations import Mutation


@pytest.mark.parametrize("mutation", OF_THE_RUNTIME, ids=lambda mutation: mutation.place)
def test_a_mistake_can_be_made(mutation: Mutation) -> None:
    with mutation.applied():
        pass  # it asserts that its text is there, and compiles the other one

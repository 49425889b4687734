"""Fixtures of the tests that run sidecars against a broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.broker import unique
from tests.integration.sidecars import Sidecars, Stage, set_stage


@pytest.fixture
def stage(bootstrap: str) -> Stage:
    """Topics of this test's own on the shared broker: four input partitions, a DLQ, one origin."""
    return set_stage(bootstrap)


@pytest.fixture
def marker() -> bytes:
    """What marks the messages of this test alone."""
    return unique("m").encode()


@pytest.fixture
def sidecars(tmp_path: Path) -> Iterator[Sidecars]:
    """Starts sidecars; whatever is left of them ends with the test, and their logs are shown when it failed."""
    started = Sidecars(tmp_path)
    try:
        yield started
    finally:
        started.end()

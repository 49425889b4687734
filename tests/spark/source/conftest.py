"""No test leaves the reader of this process to the next one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sidecar.spark.source import readers


@pytest.fixture(autouse=True)
def no_reader_is_left() -> Iterator[None]:
    yield
    readers.forget()

"""Limits of the engine that a few timers reach."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final
from unittest.mock import patch

from sidecar.engine import lanes, overlay, records, restore
from sidecar.engine.overlay import Overlay
from sidecar.runtime.partitions import buffer, recovery
from sidecar.runtime.transaction import pace
from sidecar.store import rocks
from tests.simulation import memory_store

BYTES_MAX: Final = 48_000
"""Of a transaction: as many as a few hundred headers."""


@contextmanager
def small_limits() -> Iterator[None]:
    """Make every limit so small that a few timers reach it."""
    with ExitStack() as stack:
        stack.enter_context(patch.object(records, "BLOCK_BYTES_MAX", 260))
        stack.enter_context(patch.object(records, "TOMBSTONES_MAX", 2))
        stack.enter_context(patch.object(overlay, "RANGE_DELETE_MIN", 2))
        stack.enter_context(patch.object(restore, "SETTLE_ROWS_MAX", 3))
        stack.enter_context(patch.object(restore, "SETTLE_BYTES_MAX", 300))
        stack.enter_context(patch.object(lanes, "READ_ROWS", 1))
        # Ids are exact here; which timer a sender means by an input offset is for the tests of the plan to say.
        stack.enter_context(patch.object(Overlay, "find_meant", Overlay.find))
        yield


@contextmanager
def small_runtime_limits(*, is_rich: bool, small_buffers: bool) -> Iterator[None]:
    """The same for the runtime and the stores.

    Args:
        is_rich: A few timers are a file of a restore, and a few rows a batch of a write.
        small_buffers: A few messages fill the buffer.
    """
    with ExitStack() as stack:
        stack.enter_context(patch.object(pace, "BYTES_MAX", BYTES_MAX))
        if is_rich:
            stack.enter_context(patch.object(recovery, "BUFFER_BYTES_MAX", 600))
            stack.enter_context(patch.object(rocks, "INGEST_STEP_ROWS", 2))
            stack.enter_context(patch.object(rocks, "WRITE_ROWS", memory_store.WRITE_ROWS))
        if small_buffers:
            stack.enter_context(patch.object(buffer, "BUFFER_ITEMS_MAX", 5))
            stack.enter_context(patch.object(buffer, "BUFFER_BYTES_MAX", 4_000))
            stack.enter_context(patch.object(buffer, "AMPLE_ITEMS", 3))
            stack.enter_context(patch.object(buffer, "AMPLE_BYTES", 2_500))
            stack.enter_context(patch.object(buffer, "WAITING_BYTES_MAX", 2_000))
        yield

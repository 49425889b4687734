"""Limits of the engine that a few timers reach."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

from sidecar.engine import lanes, records, restore
from sidecar.engine import plan as planning
from sidecar.engine.overlay import Overlay


@contextmanager
def small_limits() -> Iterator[None]:
    """Make every limit so small that a few timers reach it."""
    with ExitStack() as stack:
        stack.enter_context(patch.object(records, "BLOCK_BYTES_MAX", 260))
        stack.enter_context(patch.object(records, "TOMBSTONES_MAX", 2))
        stack.enter_context(patch.object(planning, "RANGE_DELETE_MIN", 2))
        stack.enter_context(patch.object(restore, "SETTLE_ROWS_MAX", 3))
        stack.enter_context(patch.object(restore, "SETTLE_BYTES_MAX", 300))
        stack.enter_context(patch.object(lanes, "READ_ROWS", 1))
        # Ids are exact here; which timer a sender means by an input offset is for the tests of the plan to say.
        stack.enter_context(patch.object(Overlay, "find_meant", Overlay.find))
        yield

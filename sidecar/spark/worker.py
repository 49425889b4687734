"""The interpreter of a Python worker process, which Spark starts and reuses."""

from __future__ import annotations

import gc
from typing import Final

THRESHOLDS: Final = (200_000, 50, 100)
"""As in the embedded engine: a step makes tens of thousands of small objects that reference counting frees. With the
interpreter's own thresholds the collector took half of the time of a step that fires, and two thirds of decoding."""


def collect_rarely() -> None:
    """Collect garbage rarely, and never look at what the process began with; once in a process."""
    if gc.get_threshold() != THRESHOLDS:
        gc.freeze()
        gc.set_threshold(*THRESHOLDS)

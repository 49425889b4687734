"""Settings of the interpreter for work on batches of tens of thousands of small objects."""

from __future__ import annotations

import gc
import sys
from typing import Final

SWITCH_S: Final = 0.001
THRESHOLDS: Final = (200_000, 50, 100)
"""A batch makes tens of thousands of small objects that reference counting frees. With the interpreter's own thresholds
the collector takes half of the time of a Spark step that fires, and two thirds of decoding."""
BURST_OBJECTS: Final = 500_000
"""The first threshold where the loop runs. A transaction and what is read ahead for the next one are 200,000 objects,
and in the middle of it the collector takes 70 ms, in which no thread runs."""


def tune_interpreter() -> None:
    """Collect garbage rarely and switch threads quickly.

    The commit thread needs the interpreter briefly between two waits for the broker; each time it would wait a whole
    switch interval for the loop.
    """
    sys.setswitchinterval(SWITCH_S)
    collect_rarely()
    gc.set_threshold(BURST_OBJECTS, *THRESHOLDS[1:])


def collect_rarely() -> None:
    """Collect garbage rarely, and never look at what the process began with; once in a process."""
    if gc.get_threshold()[1:] != THRESHOLDS[1:]:
        gc.freeze()
        gc.set_threshold(*THRESHOLDS)

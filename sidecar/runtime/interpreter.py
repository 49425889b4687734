"""Settings of the interpreter for work on batches of tens of thousands of small objects."""

from __future__ import annotations

import gc
import sys
from typing import Final

SWITCH_S: Final = 0.001


def tune_interpreter() -> None:
    """Collect garbage rarely and switch threads quickly.

    A batch is tens of thousands of small objects that reference counting frees. The commit thread needs the interpreter
    briefly between two waits for the broker; each time it would wait a whole switch interval for the loop.
    """
    sys.setswitchinterval(SWITCH_S)
    gc.freeze()
    gc.set_threshold(200_000, 50, 100)

"""What is set in a process that works on batches."""

from __future__ import annotations

import gc

from sidecar.interpreter import THRESHOLDS, collect_rarely


def test_a_process_collects_rarely_and_is_set_up_once() -> None:
    before = gc.get_threshold()
    try:
        collect_rarely()
        assert gc.get_threshold() == THRESHOLDS
        frozen = gc.get_freeze_count()
        assert frozen > 0
        collect_rarely()
        assert gc.get_freeze_count() == frozen
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)

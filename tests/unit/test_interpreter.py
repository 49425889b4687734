"""What is set in a process that works on batches."""

from __future__ import annotations

import gc
import sys

from sidecar.interpreter import BURST_OBJECTS, THRESHOLDS, collect_rarely, tune_interpreter


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


def test_the_loop_is_not_interrupted_by_the_collector_in_a_burst() -> None:
    before, switch_s = gc.get_threshold(), sys.getswitchinterval()
    try:
        tune_interpreter()
        assert gc.get_threshold() == (BURST_OBJECTS, *THRESHOLDS[1:])
        frozen = gc.get_freeze_count()
        tune_interpreter()
        assert gc.get_threshold() == (BURST_OBJECTS, *THRESHOLDS[1:])
        assert gc.get_freeze_count() == frozen, "it is set up once"
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)
        sys.setswitchinterval(switch_s)

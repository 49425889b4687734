"""What is set in a process that works on batches."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator

import pytest

from sidecar.interpreter import BURST_OBJECTS, THRESHOLDS, collect_rarely, tune_interpreter


@pytest.fixture(autouse=True)
def fresh_process() -> Iterator[None]:
    """Begin as a process does, and leave what was set before."""
    thresholds, switch_s = gc.get_threshold(), sys.getswitchinterval()
    gc.set_threshold(700, 10, 10)
    gc.unfreeze()
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)
    sys.setswitchinterval(switch_s)


def test_a_process_collects_rarely_and_is_set_up_once() -> None:
    before: list[object] = []
    collect_rarely()
    assert gc.get_threshold() == THRESHOLDS
    assert not _is_collected(before)
    after: list[object] = []
    collect_rarely()
    assert _is_collected(after)


def _is_collected(container: list[object]) -> bool:
    """Tell whether the collector looks at this object; it does not look at frozen ones."""
    return any(each is container for each in gc.get_objects())


def test_the_loop_is_not_interrupted_by_the_collector_in_a_burst() -> None:
    for _ in range(2):
        tune_interpreter()
        assert gc.get_threshold() == (BURST_OBJECTS, *THRESHOLDS[1:])

"""Skips the tests that need PySpark or Java where one is missing, and says why."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.errors import CommandFailed
from sidecar.spark.java import find_java
from tests.integration.sidecars import Sidecars, Stage, set_stage

OF_PYSPARK = [
    "test_ahead_steps.py",
    "test_batch.py",
    "test_clock_check.py",
    "test_figures.py",
    "test_first_offsets.py",
    "test_manifest.py",
    "test_map_state.py",
    "test_notify.py",
    "test_processor.py",
    "test_progress.py",
    "test_redrive_task.py",
    "test_repair_timers.py",
    "test_running.py",
    "test_setup.py",
    "test_sink.py",
    "test_start_again.py",
    "test_stream.py",
    "test_unfinished.py",
]
"""Modules in any folder that import PySpark or its libraries themselves."""
collect_ignore_glob = [] if importlib.util.find_spec("pyspark") else [f"*{name}" for name in OF_PYSPARK]


@pytest.fixture(scope="session")
def java() -> Path:
    """The home of a JDK that Spark runs on; skips without one, or without PySpark."""
    if importlib.util.find_spec("pyspark") is None:
        pytest.skip("PySpark is not installed: pip install -e '.[spark]'")
    try:
        home = find_java()
    except CommandFailed as error:
        pytest.skip(str(error))
    return home


@pytest.fixture
def stage(bootstrap: str) -> Stage:
    """New topics for one test: two input partitions, a DLQ, one origin."""
    return set_stage(bootstrap, 2)


@pytest.fixture
def sidecars(tmp_path: Path) -> Iterator[Sidecars]:
    """Starts processes, which end with the test at the latest."""
    started = Sidecars(tmp_path)
    try:
        yield started
    finally:
        started.end()

"""A changelog is read as compaction would leave it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(180)


def test_a_record_that_was_written_again_or_deleted_is_not_read_a_second_time(java: Path) -> None:
    printed = subprocess.run(
        [sys.executable, "-m", "tests.spark.handover.compacted"],
        capture_output=True,
        text=True,
        check=True,
        timeout=150,
    )
    assert json.loads(printed.stdout.splitlines()[-1]) == [
        [0, "b1", "new"],
        [0, "b2", "only"],
        [0, "b3", None],
        [1, "b1", "of another partition"],
    ]

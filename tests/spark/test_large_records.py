"""Spark's source bounds a micro-batch by records, not by bytes: what reaches Python at once is bounded all the same."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.sidecars import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

BATCH_BYTES = 16 * 1024 * 1024


def test_large_records_reach_python_in_batches_of_bounded_bytes(java: Path) -> None:
    answer = subprocess.run(
        [sys.executable, "-m", "tests.spark.large_records"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
        timeout=400,
    )
    assert answer.returncode == 0, answer.stderr
    sizes = json.loads(answer.stdout.splitlines()[-1])
    assert sum(rows for rows, _ in sizes) == 300
    assert max(size for _, size in sizes) < BATCH_BYTES + 2 * 1_000_000

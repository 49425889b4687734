"""The progress of micro-batches: each is passed on once, however fast they come and whenever they are read."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.sidecars import ROOT

pytestmark = pytest.mark.slow


def test_each_micro_batch_is_passed_on_once_however_many_wait(java: Path, tmp_path: Path) -> None:
    """Spark itself remembers two of them, and a query is stopped and started again in between."""
    answer = subprocess.run(
        [sys.executable, "-m", "tests.spark.stream.many_batches", f"file://{tmp_path}"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
        timeout=280,
    )
    assert answer.returncode == 0, answer.stderr
    found = json.loads(answer.stdout.splitlines()[-1])
    numbers = [number for number, _ in found["told"]]
    assert numbers == list(range(len(numbers)))
    assert min(found["runs"]) >= 10
    assert [values for _, values in found["told"]] == [[2 * n, 2 * n + 1] for n in numbers]

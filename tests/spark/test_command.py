"""The commands where PySpark is not installed."""

from __future__ import annotations

import subprocess
import sys

import pytest

WITHOUT = """
import sys
sys.modules.update(dict.fromkeys(['pyspark', 'pyarrow', 'pandas']))
from sidecar.cli import main
main()
"""


@pytest.mark.parametrize(
    "command",
    [["run", "--checkpoint", "x"], ["export", "--checkpoint", "x"], ["audit"], ["report"], ["redrive", "--dry-run"]],
)
def test_each_command_says_how_to_get_pyspark(command: list[str]) -> None:
    answer = subprocess.run(
        [sys.executable, "-c", WITHOUT, "spark", *command], capture_output=True, text=True, check=False, timeout=60
    )
    assert answer.returncode == 1
    assert "pip install '.[spark]'" in answer.stderr
    assert "Traceback" not in answer.stderr

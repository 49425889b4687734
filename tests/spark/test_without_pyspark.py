"""Without PySpark all other tests of this folder are still collected."""

from __future__ import annotations

import subprocess
import sys

from tests.spark.conftest import OF_PYSPARK


def test_the_modules_that_need_pyspark_are_left_out_and_no_others() -> None:
    command = [sys.executable, "-m", "tests.spark.without_pyspark"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert sorted(printed.stdout.split()) == OF_PYSPARK

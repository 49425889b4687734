"""The package that executors get from the driver: the driver's own, with the modules that are compiled."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sidecar.engine import hot
from sidecar.spark.session import needs_package
from tests.integration.sidecars import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.mark.parametrize(
    ("master", "needs"),
    [("local", False), ("local[2]", False), ("k8s://https://one:443", False)]
    + [(master, True) for master in ("spark://one:7077", "yarn", "local-cluster[2,1,1024]")],
)
def test_executors_on_other_machines_get_the_package_unless_an_image_has_it(master: str, *, needs: bool) -> None:
    assert needs_package(master) is needs


def test_an_executor_uses_the_package_of_the_driver_with_its_compiled_modules(java: Path) -> None:
    answer = subprocess.run(
        [sys.executable, "-m", "tests.spark.packed"], capture_output=True, text=True, cwd=ROOT, check=False, timeout=240
    )
    assert answer.returncode == 0, answer.stderr
    file, kind = json.loads(answer.stdout.splitlines()[-1])
    assert Path(file) != ROOT / "sidecar" / "__init__.py"
    assert Path(file).parent.name == "sidecar", "unpacked: Python loads no compiled modules from an archive"
    assert kind == hot.KIND

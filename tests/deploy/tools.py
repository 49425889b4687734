"""Programs that the tests of deploy/ need besides Python."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NoReturn

import pytest

REPOSITORY: Final = Path(__file__).resolve().parents[2]
DEPLOY: Final = REPOSITORY / "deploy"
REQUIRED: Final = "SIDECAR_REQUIRE_DEPLOY_TOOLS"
"""When set, a missing program is a failure and no skip."""

_CACHE: Final = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "retry-sidecar" / "bin"
_LONGEST_S: Final = 60


def find(name: str, *, target: str, is_required: bool = True) -> Path:
    """Return where a program is: in the cache of `make`, else in the PATH.

    Without it the test is skipped; it fails instead if all required programs must be there.
    """
    cached = [path for path in (_CACHE / name, *sorted(_CACHE.glob(f"{name}-*/{name}"))) if path.is_file()]
    if cached:
        return cached[-1]
    installed = shutil.which(name)
    if installed is None:
        _missing(f"{name} is not here: `make {target}` gets it", is_required)
    return Path(installed)


def _missing(why: str, is_required: bool) -> NoReturn:
    if is_required and os.environ.get(REQUIRED):
        pytest.fail(why)
    pytest.skip(why)


def run(program: Path, arguments: Sequence[str], folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a program to its end; its answer is text."""
    return subprocess.run(
        [str(program), *arguments], capture_output=True, text=True, cwd=folder, timeout=_LONGEST_S, check=False
    )

"""What a run of the tests leaves behind: processes, and files in its own folder for temporary files.

The run's folder is the `TMPDIR` of every process that it starts, by which those that outlive it are known.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psutil

END_S: Final = 20.0
"""How long processes may take to end that were told to, such as a broker's watchdog."""


class Leftovers:
    """Gives a run its folder, and finds what is left when it is over."""

    def __init__(self) -> None:
        # Where pytest keeps the folders of failed tests, which people look at afterwards.
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
        self.folder = Path(tempfile.mkdtemp(prefix="sidecar-tests-"))
        os.environ["TMPDIR"] = str(self.folder)
        tempfile.tempdir = None

    def find(self) -> list[str]:
        """Return a line for each process and each file that is left, and remove them."""
        _, left = psutil.wait_procs(list(self._processes()), END_S)
        lines = [f"process {each.pid}: {_command(each)}" for each in left]
        for each in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        lines += [f"file {path}" for path in sorted(self.folder.iterdir())]
        shutil.rmtree(self.folder, ignore_errors=True)
        return lines

    def _processes(self) -> Iterator[psutil.Process]:
        for each in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if each.pid != os.getpid() and each.environ().get("TMPDIR") == str(self.folder):
                    yield each


def _command(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline())[:200]
    return "it has ended by now"

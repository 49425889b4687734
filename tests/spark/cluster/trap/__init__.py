"""A trap in the executors' Python: the process that gets to a point first ends or freezes with its whole executor.

The clocks of these processes are ahead of the broker's and the driver's.

The folder of this package is on the executors' PYTHONPATH, so that each Python there runs `sitecustomize`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import ClassVar

from tests.waiting import eventually

BEFORE_COMMIT = "before-commit"
AFTER_COMMIT = "after-commit"
KILL = "kill"
FREEZE = "freeze"
CLOCK_AHEAD_MS = 800
"""By how much the wall clocks of executors are ahead."""


class Trap:
    """Armed by a test, sprung by one process.

    Args:
        folder: Where the files are by which test and executors speak.
    """

    VARIABLE: ClassVar[str] = "SIDECAR_TEST_TRAP"
    """The environment variable with the folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)

    def arm(self, point: str, action: str, least: int) -> None:
        """Wait for the first transaction that has at least so many deliveries."""
        (self.folder / "sprung").unlink(missing_ok=True)
        whole = self.folder / "arming"
        whole.write_text(json.dumps({"point": point, "action": action, "least": least}))
        whole.rename(self.folder / "armed")

    def sprung(self, deadline_s: float) -> int:
        """Return the process that it caught, once it did."""
        file = self.folder / "sprung"
        return int(eventually(lambda: file.exists() and file.read_text(), deadline_s, "the trap springs"))


def folder_of_trap() -> Path | None:
    """Return the folder in the environment; None where there is no trap."""
    name = os.environ.get(Trap.VARIABLE)
    return Path(name) if name else None

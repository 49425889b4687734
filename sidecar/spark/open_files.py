"""Counts the open files of a process, sockets included, as Linux shows them below /proc."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DRIVER: Final = "driver"
DRIVER_JVM: Final = "driver-jvm"
EXECUTOR_JVM: Final = "executor-jvm"
WORKER: Final = "worker"
_GENERATIONS: Final = 3
"""A Python worker is forked by a daemon, which the JVM has started."""


class OpenFiles(NamedTuple):
    """The open files of a process."""

    open: int
    most: int
    """The number at which the process can open no more."""


def of_process(pid: int) -> OpenFiles | None:
    """Return the open files of a process of this user; None where the system does not say."""
    try:
        found = sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
        most, _ = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    except OSError:
        return None
    return OpenFiles(found, sys.maxsize if most == resource.RLIM_INFINITY else most)


def of_driver(jvm: int) -> Mapping[str, OpenFiles]:
    """Return the open files of this driver and its JVM, as far as the system says."""
    return _known({DRIVER: of_process(os.getpid()), DRIVER_JVM: of_process(jvm)})


def of_worker() -> Mapping[str, OpenFiles]:
    """Return the open files of this Python worker and its executor's JVM, as far as the system says."""
    jvm = _jvm_above(os.getpid())
    return _known({WORKER: of_process(os.getpid()), EXECUTOR_JVM: None if jvm is None else of_process(jvm)})


def jvm_of(session: SparkSession) -> int:
    """Return the process id of a driver's JVM."""
    jvm: Any = session._jvm  # noqa: SLF001 - there is no setting for it
    return int(jvm.java.lang.ProcessHandle.current().pid())


def _known(found: Mapping[str, OpenFiles | None]) -> Mapping[str, OpenFiles]:
    return {name: each for name, each in found.items() if each is not None}


@cache
def _jvm_above(pid: int) -> int | None:
    try:
        for _ in range(_GENERATIONS):
            # The name before it is in brackets, and may have spaces.
            pid = int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])
            if Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip() == "java":
                return pid
    except OSError:
        return None
    return None

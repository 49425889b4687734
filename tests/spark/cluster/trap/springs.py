"""What the trap does in an executor."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any

import psutil

from sidecar.clock import SystemClock
from sidecar.kafka.producer import TransactionalProducer
from tests.spark.cluster.trap import AFTER_COMMIT, BEFORE_COMMIT, CLOCK_AHEAD_MS, KILL, folder_of_trap

_deliveries = 0
"""The deliveries of this process's transaction."""


def install() -> None:
    """Watch the commits of this process, and set its clock ahead."""
    folder = folder_of_trap()
    if folder is not None:
        clock: Any = SystemClock
        wall_ms = clock.wall_ms
        clock.wall_ms = lambda self: wall_ms(self) + CLOCK_AHEAD_MS
        wrapped: Any = TransactionalProducer
        wrapped.write_outgoing = _counted(wrapped.write_outgoing)
        wrapped.commit = _watched(wrapped.commit, folder)


def _counted(write: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(write)
    def counted(self: Any, partition: int, records: Iterable[Any], **more: Any) -> Any:
        global _deliveries  # noqa: PLW0603 - one producer at a time writes in a process
        held = list(records)
        _deliveries += len(held)
        return write(self, partition, held, **more)

    return counted


def _watched(commit: Callable[..., Any], folder: Path) -> Callable[..., Any]:
    @wraps(commit)
    def watched(self: Any, *args: Any, **more: Any) -> Any:
        global _deliveries
        deliveries, _deliveries = _deliveries, 0
        # The records are at the broker, in a transaction that is open.
        self._producer.flush(10)
        _reached(BEFORE_COMMIT, folder, deliveries)
        done = commit(self, *args, **more)
        _reached(AFTER_COMMIT, folder, deliveries)
        return done

    return watched


def _reached(point: str, folder: Path, deliveries: int) -> None:
    armed = folder / "armed"
    try:
        trap = json.loads(armed.read_text())
    except FileNotFoundError:
        return
    if trap["point"] != point or deliveries < trap["least"]:
        return
    try:
        # One process takes it.
        armed.rename(folder / f"taken-{os.getpid()}")
    except FileNotFoundError:
        return
    executor = next(each for each in psutil.Process().parents() if "java" in each.name())
    whole = folder / "springing"
    whole.write_text(str(executor.pid))
    whole.rename(folder / "sprung")
    if trap["action"] == KILL:
        _all([executor, *executor.children(recursive=True)], signal.SIGKILL)
    else:
        # With its worker, as a machine that stands still: itself last.
        worker = executor.parent()
        assert worker is not None
        mine = [each for each in worker.children(recursive=True) if each.pid != os.getpid()]
        _all([worker, *mine, psutil.Process()], signal.SIGSTOP)


def _all(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    for each in processes:
        with suppress(psutil.NoSuchProcess):
            each.send_signal(number)

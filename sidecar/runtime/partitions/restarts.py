"""Restart requests for partitions: made by any thread, processed by the loop."""

from __future__ import annotations

from collections.abc import Mapping
from queue import SimpleQueue

import structlog

from sidecar.engine.partition import Partition, State

log = structlog.get_logger(__name__)


class Restarts:
    """A queue of restart requests."""

    def __init__(self) -> None:
        self._asked: SimpleQueue[bool] = SimpleQueue()

    def ask(self, only_failed: bool) -> None:
        """Request a restart of all partitions of this process, or only of stopped ones; returns at once."""
        self._asked.put(only_failed)

    def take(self, partitions: Mapping[int, Partition]) -> set[int]:
        """Return the partitions to recover, and take those that are stopped out of that state; for the loop only.

        Args:
            partitions: The owned ones.
        """
        chosen: set[int] = set()
        while not self._asked.empty():
            only_failed = self._asked.get()
            stopped = {number for number, each in partitions.items() if each.state is State.STOPPED}
            chosen |= stopped if only_failed else set(partitions)
        for number in chosen:
            if partitions[number].state is State.STOPPED:
                partitions[number].transition_to(State.ASSIGNED)
        if chosen:
            log.info("partitions_restarted", partitions=sorted(chosen))
        return chosen

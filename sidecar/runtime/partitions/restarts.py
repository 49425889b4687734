"""Partitions that a person wants restored anew: asked for by any thread, taken by the loop."""

from __future__ import annotations

from collections.abc import Mapping
from queue import SimpleQueue

import structlog

from sidecar.engine.partition import Partition, State

log = structlog.get_logger(__name__)


class Restarts:
    """What was asked for and is not taken yet."""

    def __init__(self) -> None:
        self._asked: SimpleQueue[bool] = SimpleQueue()

    def ask(self, only_failed: bool) -> None:
        """Ask for all partitions of this process, or only for those that are stopped; returns at once."""
        self._asked.put(only_failed)

    def take(self, partitions: Mapping[int, Partition]) -> set[int]:
        """Return the partitions to reset, and let go on those of them that are stopped; for the loop alone.

        Args:
            partitions: Those that are owned.
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

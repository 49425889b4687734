"""What Spark tells of micro-batches, handed from its own thread to the one that asks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.streaming.listener import StreamingQueryListener

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

LAST_S: Final = 10.0
"""So long Spark may take to tell the rest when a query has ended."""


class Batches(StreamingQueryListener):
    """Keeps each micro-batch until it is asked for, so none is missed and none is seen twice.

    Spark calls in order, from a thread of its own, and waits meanwhile: so nothing is done there.

    Args:
        progressed: Told of each one, as Spark's progress in JSON form, by the thread that passes it on.
    """

    def __init__(self, progressed: Callable[[Mapping[str, Any]], None]) -> None:
        self._progressed = progressed
        self._told: SimpleQueue[Mapping[str, Any] | str] = SimpleQueue()

    def pass_on(self) -> int:
        """Hand over all that came since; return how many that were."""
        count = 0
        while not self._told.empty():
            told = self._told.get()
            if isinstance(told, Mapping):
                self._progressed(told)
                count += 1
        return count

    def pass_on_rest(self, run: str) -> int:
        """Hand over all of a run that has ended; return how many came since."""
        count = 0
        while (told := self._next()) not in (None, run):
            if isinstance(told, Mapping):
                self._progressed(told)
                count += 1
        return count

    def _next(self) -> Mapping[str, Any] | str | None:
        try:
            return self._told.get(timeout=LAST_S)
        except Empty:
            # A JVM that has gone tells nothing any more.
            return None

    # Called by Spark

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - the name is Spark's
        """Nothing: who started it knows."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - as above
        self._told.put(event.progress)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - as above
        """Nothing: no micro-batch was needed."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - as above
        self._told.put(str(event.runId))

"""The progress of micro-batches, passed from Spark's listener thread to the caller's."""

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
"""The time that Spark has to report the rest when a query has ended."""


class Batches(StreamingQueryListener):
    """Queues the progress of each micro-batch, so none is missed and none is counted twice.

    Spark calls in order, from one thread, and waits for the return: so these calls only queue.

    Args:
        progressed: Called with the progress of each micro-batch, as in Spark's JSON, by the thread that passes it on.
    """

    def __init__(self, progressed: Callable[[Mapping[str, Any]], None]) -> None:
        self._progressed = progressed
        self._events: SimpleQueue[Mapping[str, Any] | str] = SimpleQueue()

    def pass_on(self) -> int:
        """Pass on all micro-batches since the last call; return their number."""
        count = 0
        while not self._events.empty():
            event = self._events.get()
            if isinstance(event, Mapping):
                self._progressed(event)
                count += 1
        return count

    def pass_on_rest(self, run: str) -> int:
        """Pass on all micro-batches of a run that has ended; return their number."""
        count = 0
        while (event := self._next()) not in (None, run):
            if isinstance(event, Mapping):
                self._progressed(event)
                count += 1
        return count

    def _next(self) -> Mapping[str, Any] | str | None:
        try:
            return self._events.get(timeout=LAST_S)
        except Empty:
            # A JVM that has ended reports nothing more.
            return None

    # Called by Spark

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - the name is Spark's
        """Do nothing: the caller started it."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - as above
        self._events.put(event.progress)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - as above
        """Do nothing: no micro-batch was needed."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - as above
        self._events.put(str(event.runId))

"""What a micro-batch did, from Spark's progress into the same metrics as the embedded engine's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sidecar.metrics import Metrics
from sidecar.model import Reason
from sidecar.spark.stream.query import OBSERVATION
from sidecar.spark.stream.wire import Tally, decode_tally


def start_at_zero(metrics: Metrics) -> None:
    """Show what can happen before it does."""
    metrics.start_at_zero(
        verdicts=("stored", "dropped", "dead-lettered", "control"),
        reasons=[reason.value for reason in Reason],
        outcomes=("committed",),
    )


def tallies(progress: Mapping[str, Any]) -> list[Tally]:
    """Return what each partition did in a micro-batch."""
    observed = progress.get("observedMetrics", {}).get(OBSERVATION)
    return [] if observed is None else [decode_tally(text) for text in observed[_TALLIES] or ()]


def count(metrics: Metrics, progress: Mapping[str, Any]) -> list[Tally]:
    """Add a micro-batch to the metrics, and return what each partition did in it.

    A fire is handed to the broker within its micro-batch, whose length is added to how late the turn found it: what the
    histogram says is an upper bound.
    """
    took_ms = int(progress["durationMs"].get("triggerExecution", 0))
    found = tallies(progress)
    for tally in found:
        for origin, fired in tally.fired.items():
            metrics.fired.labels(origin).inc(fired)
        for reason, dead in tally.dead.items():
            metrics.dead_lettered.labels(reason).inc(dead)
        for origin, deferred in tally.deferred.items():
            metrics.deferred.labels(origin).inc(deferred)
        metrics.received.labels("stored").inc(tally.stored)
        metrics.received.labels("dropped").inc(tally.dropped)
        metrics.received.labels("dead-lettered").inc(tally.rejected)
        metrics.received.labels("control").inc(tally.controls)
        metrics.cancelled.inc(tally.cancelled)
        metrics.lateness.observe(took_ms, [-late_ms for late_ms, fires in tally.late.items() for _ in range(fires)])
    if found:
        metrics.commit_seconds.observe(took_ms / 1000)
        metrics.transactions.labels("committed").inc()
    return found


_TALLIES: Final = "tallies"

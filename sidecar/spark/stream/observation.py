"""Counts the work of a micro-batch, from Spark's progress into the metrics of the embedded engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

from sidecar.metrics import VERDICTS, Metrics
from sidecar.model import Reason
from sidecar.spark.stream.query import OBSERVATION
from sidecar.spark.stream.wire import Tally, decode_tally


def start_at_zero(metrics: Metrics) -> None:
    """Create all series with the value 0."""
    metrics.start_at_zero(
        verdicts=VERDICTS,
        reasons=[reason.value for reason in Reason],
        outcomes=("committed",),
    )


def tallies(progress: Mapping[str, Any]) -> list[Tally]:
    """Return the tally of each partition in a micro-batch."""
    observed = progress.get("observedMetrics", {}).get(OBSERVATION)
    return [] if observed is None else [decode_tally(text) for text in observed[_TALLIES] or ()]


def spent_ms(counted: Iterable[Tally]) -> dict[str, float]:
    """Return what each part of the partition steps has taken, all of them together."""
    total: Counter[str] = Counter()
    for tally in counted:
        total.update(tally.spent_us)
    return {name: round(took_us / 1000, 1) for name, took_us in total.items()}


def count(metrics: Metrics, progress: Mapping[str, Any]) -> list[Tally]:
    """Add a micro-batch to the metrics, and return the tally of each partition.

    A delivery is sent within its micro-batch, whose length is added to its lateness in the partition step: the
    histogram shows an upper bound. What was handed out ahead counts as sent with its plan.
    """
    took_ms = int(progress["durationMs"].get("triggerExecution", 0))
    found = tallies(progress)
    for tally in found:
        metrics.count_plan(
            fired=tally.fired,
            dead_lettered=tally.dead,
            deferred=tally.deferred,
            held=tally.held,
            stored=tally.stored,
            dropped=tally.dropped,
            rejected=tally.rejected,
            controls=tally.controls,
            cancelled=tally.cancelled,
        )
        for base_ms, late in ((took_ms, tally.late), (0, tally.late_ahead)):
            metrics.lateness.observe(base_ms, [-late_ms for late_ms, number in late.items() for _ in range(number)])
    if found:
        metrics.commit_seconds.observe(took_ms / 1000)
        metrics.transactions.labels("committed").inc()
    return found


_TALLIES: Final = "tallies"

"""Counts what a committed transaction did."""

from __future__ import annotations

from collections import Counter

import structlog

from sidecar.metrics import Metrics
from sidecar.runtime.commit import Result

log = structlog.get_logger(__name__)


def tally(metrics: Metrics, result: Result) -> None:
    """Add a committed transaction to the metrics, and log what was dropped, a line for each partition."""
    metrics.transactions.labels("committed").inc()
    metrics.commit_seconds.observe(result.seconds)
    for part in result.work.plan.parts:
        metrics.lateness.observe(result.fired_ms, [outgoing.due_ms for outgoing in part.fires])
        for topic, count in Counter(outgoing.topic for outgoing in part.fires).items():
            metrics.fired.labels(topic).inc(count)
        for reason, count in Counter(reason for reason, _ in part.dead_letters).items():
            metrics.dead_lettered.labels(reason.value).inc(count)
        for origin, count in part.deferred.items():
            metrics.deferred.labels(origin).inc(count)
        metrics.received.labels("stored").inc(part.stored)
        metrics.received.labels("dropped").inc(len(part.dropped))
        metrics.received.labels("dead-lettered").inc(part.rejected)
        metrics.cancelled.inc(part.cancelled)
        metrics.changelog_bytes.inc(sum(len(key) + len(value or b"") for key, value in part.records))
        if part.dropped:
            first = part.dropped[0]
            log.info(
                "records_dropped",
                partition=part.number,
                records=len(part.dropped),
                first_offset=first.offset,
                reason=first.detail,
            )

"""Counts what a committed transaction did."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from typing import Final

import structlog

from sidecar.engine.group.activity import LATE_MS, Minute
from sidecar.metrics import Metrics
from sidecar.runtime.reporting.spans import Spans
from sidecar.runtime.transaction.commit import Result

log = structlog.get_logger(__name__)

COMMITTED: Final = "committed"
LOGGED_MAX: Final = 100
"""Most control records of a transaction and partition that are logged one by one."""


def tally_ended(metrics: Metrics, spans: Spans | None, result: Result, outcome: str) -> None:
    """Count a transaction by how it ended, and make its span."""
    metrics.transactions.labels(outcome).inc()
    if spans is not None:
        spans.transaction(result, outcome)


def tally(metrics: Metrics, spans: Spans | None, result: Result) -> None:
    """Add a committed transaction to metrics and last hour, and log what was dropped and what control records did."""
    tally_ended(metrics, spans, result, COMMITTED)
    metrics.commit_seconds.observe(result.seconds)
    for part in result.work.plan.parts:
        dues_ms = part.fired_dues_ms
        metrics.lateness.observe(result.fired_ms, dues_ms)
        done = Minute(len(dues_ms), len(part.dead_letters), bisect_left(dues_ms, result.fired_ms - LATE_MS))
        partition = result.work.partitions[part.number]
        partition.activity = partition.activity.plus(result.fired_ms, done)
        metrics.count_plan(
            fired=part.fired,
            dead_lettered=Counter(reason.value for reason, _ in part.dead_letters),
            deferred=part.deferred,
            stored=part.stored,
            dropped=len(part.dropped),
            rejected=part.rejected,
            controls=len(part.answers),
            cancelled=part.cancelled,
        )
        metrics.changelog_bytes.inc(sum(len(key) + len(value or b"") for key, value in part.records))
        if len(part.answers) > LOGGED_MAX:
            log.info("controls_answered", partition=part.number, records=len(part.answers), logged=LOGGED_MAX)
        for answer in part.answers[:LOGGED_MAX]:
            log.info(
                "control_answered",
                partition=part.number,
                offset=answer.offset,
                control_id=answer.control_id,
                outcome=answer.outcome.value,
                count=answer.timers,
                target=answer.target,
                detail=answer.detail,
            )
        if part.dropped:
            first = part.dropped[0]
            log.info(
                "records_dropped",
                partition=part.number,
                records=len(part.dropped),
                first_offset=first.offset,
                reason=first.detail,
            )

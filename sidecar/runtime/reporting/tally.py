"""Counts and logs what a committed transaction did."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from typing import TYPE_CHECKING, Final

import structlog

from sidecar.engine.group.activity import LATE_MS, Minute
from sidecar.metrics import Metrics
from sidecar.runtime.transaction.commit import Result

if TYPE_CHECKING:
    from sidecar.runtime.reporting.spans import Spans

log = structlog.get_logger(__name__)

COMMITTED: Final = "committed"
LOGGED_MAX: Final = 100
"""Most control records of a transaction and partition that are logged individually."""


def tally_ended(metrics: Metrics, spans: Spans | None, result: Result, outcome: str) -> None:
    """Count a transaction by its outcome and create its span."""
    metrics.transactions.labels(outcome).inc()
    if spans is not None:
        spans.transaction(result, outcome)


def tally(metrics: Metrics, spans: Spans | None, result: Result) -> None:
    """Add a committed transaction to the metrics and the activity; log dropped records and control outcomes."""
    tally_ended(metrics, spans, result, COMMITTED)
    metrics.commit_seconds.observe(result.seconds)
    for partition_plan in result.work.plan.partition_plans:
        dues_ms = partition_plan.fired_dues_ms
        metrics.lateness.observe(result.fired_ms, dues_ms)
        done = Minute(len(dues_ms), len(partition_plan.dead_letters), bisect_left(dues_ms, result.fired_ms - LATE_MS))
        partition = result.work.partitions[partition_plan.number]
        partition.activity = partition.activity.plus(result.fired_ms, done)
        metrics.count_plan(
            fired=partition_plan.fired,
            dead_lettered=Counter(reason.value for reason, _ in partition_plan.dead_letters),
            deferred=partition_plan.deferred,
            held=partition_plan.held,
            put_behind=partition_plan.put_behind,
            delivered_before=partition_plan.delivered_before,
            stored=partition_plan.stored,
            dropped=len(partition_plan.dropped),
            rejected=partition_plan.rejected,
            controls=len(partition_plan.control_outcomes),
            cancelled=partition_plan.cancelled,
        )
        metrics.changelog_bytes.inc(sum(len(key) + len(value or b"") for key, value in partition_plan.records))
        if len(partition_plan.control_outcomes) > LOGGED_MAX:
            log.info(
                "controls_answered",
                partition=partition_plan.number,
                records=len(partition_plan.control_outcomes),
                logged=LOGGED_MAX,
            )
        for answer in partition_plan.control_outcomes[:LOGGED_MAX]:
            log.info(
                "control_answered",
                partition=partition_plan.number,
                offset=answer.offset,
                control_id=answer.control_id,
                outcome=answer.outcome.value,
                count=answer.timers,
                target=answer.target,
                detail=answer.detail,
            )
        if partition_plan.delivered_before:
            log.info("delivered_before", partition=partition_plan.number, origins=dict(partition_plan.delivered_before))
        if partition_plan.dropped:
            first = partition_plan.dropped[0]
            log.info(
                "records_dropped",
                partition=partition_plan.number,
                records=len(partition_plan.dropped),
                first_offset=first.offset,
                reason=first.detail,
            )

"""Counts the work of a micro-batch, from Spark's progress into the metrics of the embedded engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from sidecar.engine.group.activity import LATE_MS, Minute
from sidecar.metrics import VERDICTS, Metrics
from sidecar.model import Reason
from sidecar.spark.open_files import EXECUTOR_JVM, WORKER
from sidecar.spark.stream.query import OBSERVATION
from sidecar.spark.stream.wire import Tally, decode_tally


def start_at_zero(metrics: Metrics) -> None:
    """Create all series with the value 0."""
    metrics.start_at_zero(
        verdicts=VERDICTS,
        reasons=[reason.value for reason in Reason],
        outcomes=("committed", "aborted", "fenced"),
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
            put_behind={},  # this engine keeps no order
            stored=tally.stored,
            dropped=tally.dropped,
            rejected=tally.rejected,
            controls=tally.controls,
            cancelled=tally.cancelled,
        )
        for base_ms, late in ((took_ms, tally.late), (0, tally.late_ahead)):
            metrics.lateness.observe(base_ms, [-late_ms for late_ms, number in late.items() for _ in range(number)])
    for name in (WORKER, EXECUTOR_JVM):
        if told := [tally.open_files[name] for tally in found if name in tally.open_files]:
            metrics.show_open_files(name, *max(told))
    if found:
        metrics.commit_seconds.observe(took_ms / 1000)
        metrics.transactions.labels("committed").inc()
    if (size := state_bytes(progress)) is not None:
        metrics.store_bytes.set(size)
    return found


def count_failure(metrics: Metrics, reason: str) -> None:
    """Count a micro-batch that failed: its transactions were aborted, or another query has fenced them."""
    metrics.transactions.labels("fenced" if "fenced" in reason.lower() else "aborted").inc()


def state_bytes(progress: Mapping[str, Any]) -> int | None:
    """Return the size of the state's files on the executors, None where Spark does not say."""
    of_operators = [each.get("customMetrics") or {} for each in progress.get("stateOperators") or ()]
    sizes = [int(each[_STATE_BYTES]) for each in of_operators if _STATE_BYTES in each]
    return sum(sizes) if sizes else None


def lags(progress: Mapping[str, Any]) -> dict[int, int]:
    """Return the records of each input partition that no micro-batch has read; empty where Spark does not say."""
    found: dict[int, int] = {}
    for source in progress.get("sources") or ():
        ends, latest = _by_partition(source.get("endOffset")), _by_partition(source.get("latestOffset"))
        found |= {number: max(0, end - ends[number]) for number, end in latest.items() if number in ends}
    return found


def minute_of(found: Sequence[Tally]) -> Minute:
    """Return what a micro-batch did, for the last hour."""
    late = sum(number for tally in found for late_ms, number in tally.late.items() if late_ms > LATE_MS)
    return Minute(
        sum(sum(tally.fired.values()) for tally in found), sum(sum(tally.dead.values()) for tally in found), late
    )


def _by_partition(offsets: Any) -> dict[int, int]:
    """Return the offsets of a position by partition, as JSON or as what it says; none of one that is unknown."""
    if isinstance(offsets, str):
        try:
            offsets = msgspec.json.decode(offsets)
        except msgspec.DecodeError:
            return {}
    offsets = offsets.get("offsets") if isinstance(offsets, Mapping) else None
    if not isinstance(offsets, Mapping):
        return {}
    return {int(number): each for number, each in offsets.items() if str(number).isdigit() and isinstance(each, int)}


def records_read(progress: Mapping[str, Any]) -> int:
    """Return the number of offsets that a micro-batch has read: a row of Spark has many records."""
    total = 0
    for source in progress.get("sources") or ():
        starts, ends = _by_partition(source.get("startOffset")), _by_partition(source.get("endOffset"))
        total += sum(end - starts.get(number, 0) for number, end in ends.items() if starts)
    return total


_TALLIES: Final = "tallies"
_STATE_BYTES: Final = "rocksdbSstFileSize"

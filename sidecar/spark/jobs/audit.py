"""`spark audit`: checks that every accepted message is in exactly one place, and names those that are not.

It joins the retry topic, the origins, the DLQ, and the pending timers of the changelog or of a Spark checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from sidecar.contract import dialects_of
from sidecar.kafka.admin.cluster import Admin
from sidecar.model import Record
from sidecar.policy import Policy
from sidecar.settings import Settings
from sidecar.spark.handover.import_export import read_changelog
from sidecar.spark.jobs.arrow import batch_of, schema_of
from sidecar.spark.jobs.dispositions import OFFENCES, RecordKind, dead_of, disposition_of, fired_of, outcome_of, sent_of
from sidecar.spark.source.batch import LogReading, Step, log_ranges, read_log
from sidecar.spark.state.timers import TIMER, metas, pending_in_changelog, pending_in_state, read_state, watermarks
from sidecar.spark.stream.step import Rules

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

SHOWN_MAX: Final = 100
_POSITION: Final = "partition int, offset long"
_SENT: Final = (
    f"{_POSITION}, kind string, origin string, retry_id binary, ends long, ends_id binary, "
    "ends_origin string, trusted boolean, ends_all boolean, taken boolean, stamp long"
)
_DEAD: Final = f"{_POSITION}, died long"
_OUTCOME: Final = f"{_POSITION}, acted boolean"
_FIRED: Final = f"{_POSITION}, early_ms long"
_DISPOSITION: Final = f"{_POSITION}, kind string, origin string, fate string"


@dataclass(frozen=True, slots=True)
class Audit:
    """The result of an audit."""

    counts: Mapping[str, int]
    """The number of messages by disposition."""
    offenders: list[dict[str, Any]]
    """The first offenders, at most SHOWN_MAX."""
    offences: int

    @property
    def clean(self) -> bool:
        return not self.offences


@dataclass(frozen=True, slots=True)
class AuditInputs:
    """The inputs of an audit."""

    session: SparkSession
    settings: Settings
    rules: Rules
    admin: Admin
    committed: Mapping[int, int]
    """The group's offsets."""
    watermarks: Mapping[int, bytes]
    """The watermark of each partition in the changelog."""
    bases: Mapping[int, int]
    """The offset base of each partition in the changelog."""
    existing: frozenset[str]
    """The topics that exist."""
    query_folder: str | None = None
    """The folder of a Spark checkpoint, which has the pending timers; None: the changelog has them."""
    state_lost: bool = False
    """Whether there is no state: nothing is pending."""


def audit(dispositions: DataFrame, out: str | None) -> Audit:
    """Return the result, and write every message with its disposition as Parquet.

    Args:
        dispositions: Every message with its disposition.
        out: The folder of the Parquet files, on any file system that Hadoop supports.
    """
    from pyspark.sql import functions as f  # noqa: PLC0415 - PySpark is an extra

    if out is not None:
        dispositions.write.mode("overwrite").parquet(out)
    counts = {row["fate"]: row["count"] for row in dispositions.groupBy("fate").count().collect()}
    offending = dispositions.filter(f.col("fate").isin([each.value for each in OFFENCES]))
    shown = [row.asDict() for row in offending.orderBy("partition", "offset").limit(SHOWN_MAX).collect()]
    return Audit(counts, shown, sum(counts.get(each, 0) for each in OFFENCES))


def judged(inputs: AuditInputs) -> DataFrame:
    """Return every message with its disposition.

    A message can move between two reads while the sidecar works. So offenders are checked twice, and only what offends
    both times is named.
    """
    from pyspark.sql import functions as f  # noqa: PLC0415 - PySpark is an extra

    dispositions = _dispositions(inputs).cache()
    offences = [each.value for each in OFFENCES]
    offending = dispositions.filter(f.col("fate").isin(offences))
    if offending.head(1):
        again = _dispositions(inputs).select("partition", "offset", f.col("fate").alias("now"))
        dispositions = (
            dispositions.join(again, ["partition", "offset"], "left")
            .withColumn(
                "fate", f.when(f.col("fate").isin(offences), f.coalesce("now", "fate")).otherwise(f.col("fate"))
            )
            .drop("now")
            .cache()
        )
    return dispositions


def _dispositions(inputs: AuditInputs) -> DataFrame:
    """Return each message with its disposition: one aggregation brings together all that is known of a position."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - as above

    settings = inputs.settings
    sent = read_topics(inputs, [settings.input_topic], _Sent(inputs.rules, inputs.committed), _SENT).cache()
    messages = sent.filter(~f.col("kind").isin([RecordKind.CANCEL.value, RecordKind.CONTROL.value]))
    found = [
        messages.select(*_known("kind", "origin")),
        _in_topic(inputs, _pending(inputs)).withColumn("pending", f.lit(1)).select(*_known("pending")),
        _dead(inputs, messages).withColumn("dead", f.lit(1)).select(*_known("dead")),
        _cancelled(inputs, sent).withColumn("cancelled", f.lit(1)).select(*_known("cancelled")),
    ]
    if origins := _origins(inputs, messages):
        fired = _in_topic(inputs, read_topics(inputs, origins, _fired, _FIRED))
        found.append(fired.withColumn("fired", f.lit(1)).select(*_known("fired", "early_ms")))
    values = found[0]
    for each in found[1:]:
        values = values.unionByName(each)
    counted = values.groupBy("partition", "offset").agg(
        *(f.max(name).alias(name) for name in ("kind", "origin")),
        *(f.sum(name).alias(name) for name in ("fired", "dead", "pending")),
        *(f.max(name).alias(name) for name in ("early_ms", "cancelled")),
    )
    # Deliveries and dead letters of messages that the retry topic has deleted have no kind.
    return counted.filter(f.col("kind").isNotNull()).mapInArrow(_Classify(inputs.committed).__call__, _DISPOSITION)


_VALUES: Final = {
    "kind": None,
    "origin": None,
    "fired": 0,
    "early_ms": 0,
    "dead": 0,
    "pending": 0,
    "cancelled": 0,
}


def _known(*names: str) -> list[Column]:
    """Return the columns of a position with these values, and nothing in the others."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - as above

    types = {"kind": "string", "origin": "string"}
    values = [
        (f.col(name) if name in names else f.lit(nothing)).cast(types.get(name, "long")).alias(name)
        for name, nothing in _VALUES.items()
    ]
    return [f.col("partition"), f.col("offset"), *values]


def _origins(inputs: AuditInputs, messages: DataFrame) -> list[str]:
    """Return the existing topics that messages name: senders can make up any number of names."""
    existing = inputs.session.createDataFrame([(name,) for name in sorted(inputs.existing)], "origin string")
    named = existing.join(messages.select("origin").distinct(), ["origin"], "left_semi").collect()
    return sorted(row["origin"] for row in named)


def _cancelled(inputs: AuditInputs, sent: DataFrame) -> DataFrame:
    """Return the messages that a cancel or a replacing message has ended.

    Of each id the last such record counts, so an id that is used very often costs as much as many ids.
    """
    from pyspark.sql import functions as f  # noqa: PLC0415 - as above

    ends = sent.filter("taken and (ends is not null or ends_id is not null or ends_all)").select(
        "partition", "offset", "ends", "ends_id", "ends_origin", "trusted", "ends_all"
    )
    if inputs.settings.status_topic in inputs.existing:
        status = read_topics(inputs, [inputs.settings.status_topic], _outcomes, _OUTCOME)
        outcomes = status.groupBy("partition", "offset").agg(f.max("acted").alias("acted"))
        ends = ends.join(outcomes, ["partition", "offset"], "left")
    else:
        ends = ends.withColumn("acted", f.lit(None).cast("boolean"))
    # Outcomes are kept for a day: without one a cancel counts if it is valid.
    ends = ends.filter(f.coalesce("acted", "trusted"))
    last = f.max("offset").alias("behind")
    timers = ends.filter("ends is not null").select("partition", f.col("ends").alias("timer"), "offset")
    timers = timers.select("partition", f.col("timer").alias("offset"), f.col("offset").alias("behind"))
    # An id has the offset of the timer, or that of a delivery report.
    timers = timers.unionByName(_in_topic(inputs, timers))
    by_timer = timers.groupBy("partition", "offset").agg(f.max("behind").alias("behind"))
    by_name = ends.filter("ends_id is not null").groupBy("partition", f.col("ends_id").alias("retry_id"), "ends_origin")
    position = ["partition", "offset"]
    named = (
        sent.filter("retry_id is not null")
        .select(*position, "retry_id", "origin")
        .join(by_name.agg(last), ["partition", "retry_id"])
        .filter("ends_origin is null or ends_origin = origin")
    )
    by_filter = ends.filter("ends_all").groupBy("partition", "ends_origin").agg(last)
    filtered = (
        sent.filter(f.col("kind") == RecordKind.MESSAGE.value)
        .select(*position, "origin")
        .join(by_filter, "partition")
        .filter("ends_origin is null or ends_origin = origin")
    )
    found = by_timer.select(*position, "behind")
    for each in (named, filtered):
        found = found.unionByName(each.select(*position, "behind"))
    return found.filter("behind > offset")


def _dead(inputs: AuditInputs, messages: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f  # noqa: PLC0415 - as above

    position = ["partition", "offset"]
    # A policy may name a DLQ that no dead letter has needed yet.
    main, *others = inputs.settings.dlq_topics
    dlqs = [main, *(each for each in others if each in inputs.existing)]
    dead = read_topics(inputs, dlqs, _Dead(inputs.settings.input_topic), _DEAD)
    if any(inputs.bases.values()):
        # Those of a former topic name the same positions; their messages had other timestamps.
        same = f.col("died").isNull() | (f.col("died") == f.col("stamp"))
        dead = dead.join(messages.select(*position, "stamp"), position).filter(same)
    return dead.select(*position)


def _in_topic(inputs: AuditInputs, timers: DataFrame) -> DataFrame:
    """Return timers with their offsets in the retry topic, without those of a former topic."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - as above

    bases = {number: base for number, base in inputs.bases.items() if base}
    if not bases:
        return timers
    known = f.create_map(*(f.lit(each) for pair in bases.items() for each in pair))
    base = f.coalesce(f.element_at(known, f.col("partition")), f.lit(0))
    return timers.withColumn("offset", f.col("offset") - base).filter("offset >= 0")


def _pending(inputs: AuditInputs) -> DataFrame:
    if inputs.state_lost:
        return inputs.session.createDataFrame([], TIMER)
    if inputs.query_folder is not None:
        state = read_state(inputs.session, inputs.query_folder)
        passed = watermarks({number: meta.checkpoint for number, meta in metas(state).items()})
        return pending_in_state(state, passed, entries=False)
    changelog = read_changelog(inputs.session, inputs.settings, inputs.admin)
    return pending_in_changelog(changelog, inputs.watermarks)


def read_topics(inputs: AuditInputs, topics: Sequence[str], step: Step, schema: str) -> DataFrame:
    """Return what a step makes of all records of topics."""
    ranges = [each for topic in topics for each in log_ranges(inputs.admin, topic)]
    reading = LogReading(settings=inputs.settings, ranges=ranges, step=step, schema=schema, skips_deleted=False)
    return read_log(inputs.session, reading)


class _Sent:
    def __init__(self, rules: Rules, committed: Mapping[int, int]) -> None:
        self._rules = rules
        self._committed = committed

    def __call__(self, slices: Iterator[Sequence[Record]]) -> Iterator[pa.RecordBatch]:
        rules = self._rules
        policy, dialects = Policy(rules.policy), dialects_of(rules.profiles)
        for records in slices:
            rows = []
            for record in records:
                topic = rules.policy.input_topic
                sent = sent_of(record, policy, dialects, input_topic=topic, token=rules.api_token)
                taken = record.offset < self._committed.get(record.partition, 0)
                rows.append((record.partition, record.offset, *sent, taken, record.timestamp_ms))
            yield from batch_of(rows, _SENT_ARROW)


def _outcomes(slices: Iterator[Sequence[Record]]) -> Iterator[pa.RecordBatch]:
    for records in slices:
        found = (outcome_of(record) for record in records)
        yield from batch_of([each for each in found if each is not None], _OUTCOME_ARROW)


def _fired(slices: Iterator[Sequence[Record]]) -> Iterator[pa.RecordBatch]:
    for records in slices:
        found = (fired_of(record) for record in records)
        yield from batch_of([tuple(each) for each in found if each is not None], _FIRED_ARROW)


class _Dead:
    def __init__(self, input_topic: str) -> None:
        self._input_topic = input_topic

    def __call__(self, slices: Iterator[Sequence[Record]]) -> Iterator[pa.RecordBatch]:
        for records in slices:
            found = (dead_of(record, self._input_topic) for record in records)
            yield from batch_of([each for each in found if each is not None], _DEAD_ARROW)


class _Classify:
    def __init__(self, committed: Mapping[int, int]) -> None:
        self._committed = committed

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = []
            for row in batch.to_pylist():
                disposition = disposition_of(
                    row["kind"],
                    ingested=row["offset"] < self._committed.get(row["partition"], 0),
                    fired=row["fired"],
                    early_ms=row["early_ms"],
                    dead=row["dead"],
                    pending=row["pending"],
                    cancelled=bool(row["cancelled"]),
                )
                rows.append((row["partition"], row["offset"], row["kind"], row["origin"], disposition.value))
            yield from batch_of(rows, _DISPOSITION_ARROW)


_SENT_ARROW: Final = schema_of(_SENT)
_FIRED_ARROW: Final = schema_of(_FIRED)
_DEAD_ARROW: Final = schema_of(_DEAD)
_OUTCOME_ARROW: Final = schema_of(_OUTCOME)
_DISPOSITION_ARROW: Final = schema_of(_DISPOSITION)

"""`spark audit`: every accepted message is in exactly one place; the others are named.

Joins the retry topic, the origins, the DLQ, and what is pending by the changelog or by a Spark checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pandas as pd
import pyarrow as pa

from sidecar.changelog.codec import BlockKey, decode_block, decode_key, decode_removed
from sidecar.changelog.entry import KEY
from sidecar.contract import DIALECTS
from sidecar.policy import Policy
from sidecar.settings import Settings
from sidecar.spark.arrow import batch_of, schema_of
from sidecar.spark.exchange import read_cells, state_of
from sidecar.spark.fates import OFFENCES, Kind, dead_of, fate_of, fired_of, sent_of
from sidecar.spark.handover import pending_entries
from sidecar.spark.intake import records_of
from sidecar.spark.jobs import read_log
from sidecar.spark.turn import Rules

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SHOWN_MAX: Final = 100
_COLUMNS: Final = ("partition", "offset", "timestamp", "key", "value", "headers")
_PLACE: Final = "partition int, offset long"
_SENT: Final = (
    f"{_PLACE}, kind string, origin string, retry_id binary, replaces boolean, target string, target_id binary"
)
_FIRED: Final = f"{_PLACE}, early_ms long"
_HELD: Final = f"{_PLACE}, due long, removed boolean"
_FATE: Final = f"{_PLACE}, kind string, origin string, fate string"


@dataclass(frozen=True, slots=True)
class Audit:
    """What an audit found."""

    counts: Mapping[str, int]
    """Messages by fate."""
    offenders: list[dict[str, Any]]
    """At most SHOWN_MAX of them."""
    offences: int

    @property
    def clean(self) -> bool:
        return not self.offences


@dataclass(frozen=True, slots=True)
class Ledger:
    """What is audited."""

    session: SparkSession
    settings: Settings
    rules: Rules
    source: Mapping[str, str]
    """Options of the Kafka source."""
    committed: Mapping[int, int]
    """The group's offsets."""
    watermarks: Mapping[int, int]
    """Due part of each partition's watermark, by the changelog."""
    existing: frozenset[str]
    """Topics that there are."""
    query_folder: str | None = None
    """Of a Spark checkpoint: what is pending is there, and not in the changelog."""


def audit(ledger: Ledger, out: str | None) -> Audit:
    """Return what is found, and write every message with its fate as Parquet.

    While messages come and go one can be between two looks. So offenders are looked at twice, and only what offends
    both times is named.

    Args:
        ledger: What is audited.
        out: Folder of the Parquet files, on any file system that Hadoop knows.
    """
    from pyspark.sql import functions as f  # noqa: PLC0415 - PySpark is an extra

    fates = _fates(ledger).cache()
    offences = [each.value for each in OFFENCES]
    offending = fates.filter(f.col("fate").isin(offences))
    if offending.head(1):
        again = _fates(ledger).select("partition", "offset", f.col("fate").alias("now"))
        fates = (
            fates.join(again, ["partition", "offset"], "left")
            .withColumn(
                "fate", f.when(f.col("fate").isin(offences), f.coalesce("now", "fate")).otherwise(f.col("fate"))
            )
            .drop("now")
            .cache()
        )
        offending = fates.filter(f.col("fate").isin(offences))
    if out is not None:
        fates.write.mode("overwrite").parquet(out)
    counts = {row["fate"]: row["count"] for row in fates.groupBy("fate").count().collect()}
    shown = [row.asDict() for row in offending.orderBy("partition", "offset").limit(SHOWN_MAX).collect()]
    return Audit(counts, shown, sum(counts.get(each, 0) for each in offences))


def _fates(ledger: Ledger) -> DataFrame:
    from pyspark.sql import functions as f  # noqa: PLC0415 - as above

    sent = _read(ledger, ledger.settings.input_topic).mapInArrow(_Sent(ledger.rules).__call__, _SENT).cache()
    messages = sent.filter(~f.col("kind").isin([Kind.CANCEL.value, Kind.CONTROL.value]))
    origins = {row["origin"] for row in messages.select("origin").distinct().collect()} & ledger.existing
    place = ["partition", "offset"]
    joined = messages.select(*place, "kind", "origin")
    pending = _pending(ledger).groupBy(*place).agg(f.count("*").alias("pending"))
    joined = joined.join(pending, place, "left")
    if origins:
        fired = _read(ledger, ",".join(sorted(origins))).mapInArrow(_fired, _FIRED)
        totals = fired.groupBy(*place).agg(f.count("*").alias("fired"), f.max("early_ms").alias("early_ms"))
        joined = joined.join(totals, place, "left")
    else:
        joined = joined.withColumn("fired", f.lit(0)).withColumn("early_ms", f.lit(0))
    dead = _read(ledger, ledger.settings.dlq_topic).mapInArrow(_Dead(ledger.settings.input_topic).__call__, _PLACE)
    joined = joined.join(dead.groupBy(*place).agg(f.count("*").alias("dead")), place, "left")
    joined = joined.join(_cancelled(sent).withColumn("cancelled", f.lit(1)), place, "left")
    filled = joined.fillna(0, ["pending", "fired", "early_ms", "dead", "cancelled"])
    return filled.mapInArrow(_Judge(ledger.committed).__call__, _FATE)


def _cancelled(sent: DataFrame) -> DataFrame:
    """Return the messages that a cancel or a replacing message behind them names."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - as above

    by_timer = sent.filter(f.col("target").isNotNull()).select(
        f.split("target", "-").getItem(0).cast("int").alias("partition"),
        f.split("target", "-").getItem(1).cast("long").alias("offset"),
    )
    behind = sent.filter(f.col("target_id").isNotNull() | f.col("replaces")).select(
        f.col("partition").alias("at"),
        f.col("offset").alias("behind"),
        f.coalesce("target_id", "retry_id").alias("named"),
    )
    matching = (f.col("at") == f.col("partition")) & (f.col("named") == f.col("retry_id"))
    by_name = sent.join(behind, matching & (f.col("behind") > f.col("offset"))).select("partition", "offset")
    return by_timer.unionByName(by_name).distinct()


def _pending(ledger: Ledger) -> DataFrame:
    from pyspark.sql import functions as f  # noqa: PLC0415 - as above

    if ledger.query_folder is not None:
        return read_cells(ledger.session, ledger.query_folder).groupBy("key").applyInPandas(_pending_in_state, _PLACE)
    held = _read(ledger, ledger.settings.changelog_topic).mapInArrow(_Held(ledger.watermarks).__call__, _HELD)
    removed = held.filter("removed").select("partition", "offset", "due")
    timers = held.filter(~f.col("removed")).select("partition", "offset", "due")
    return timers.join(removed, ["partition", "offset", "due"], "left_anti").select("partition", "offset").distinct()


def _read(ledger: Ledger, topics: str) -> DataFrame:
    bounds = {"subscribe": topics, "startingOffsets": "earliest", "endingOffsets": "latest", "failOnDataLoss": "true"}
    return read_log(ledger.session, ledger.source, **bounds).select(*_COLUMNS)


class _Sent:
    def __init__(self, rules: Rules) -> None:
        self._rules = rules

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        policy, dialects = Policy(self._rules.policy), [DIALECTS[name] for name in self._rules.profiles]
        for batch in batches:
            rows = [
                (record.partition, record.offset, *sent_of(record, policy, dialects)) for record in records_of(batch)
            ]
            yield from batch_of(rows, _SENT_ARROW)


def _fired(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        found = (fired_of(record) for record in records_of(batch))
        yield from batch_of([tuple(each) for each in found if each is not None], _FIRED_ARROW)


class _Dead:
    def __init__(self, input_topic: str) -> None:
        self._input_topic = input_topic

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            found = (dead_of(record, self._input_topic) for record in records_of(batch))
            yield from batch_of([each for each in found if each is not None], _PLACE_ARROW)


class _Held:
    """Timers of blocks that the watermark has not passed, and removed dues."""

    def __init__(self, watermarks: Mapping[int, int]) -> None:
        self._watermarks = watermarks

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows: list[tuple[object, ...]] = []
            columns = [batch.column(name).to_pylist() for name in ("partition", "key", "value")]
            for partition, key, value in zip(*columns, strict=True):
                decoded = decode_key(key)
                if decoded is None or value is None:
                    continue
                if not isinstance(decoded, BlockKey):
                    rows += [(partition, decoded.offset, due_ms, True) for due_ms in decode_removed(decoded, value)]
                    continue
                for entry in decode_block(value).entries:
                    due_ms, offset = KEY.unpack_from(entry)
                    if due_ms > self._watermarks.get(partition, 0):
                        rows.append((partition, offset, due_ms, False))
            yield from batch_of(rows, _HELD_ARROW)


class _Judge:
    def __init__(self, committed: Mapping[int, int]) -> None:
        self._committed = committed

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = []
            for row in batch.to_pylist():
                fate = fate_of(
                    row["kind"],
                    taken_in=row["offset"] < self._committed.get(row["partition"], 0),
                    fired=row["fired"],
                    early_ms=row["early_ms"],
                    dead=row["dead"],
                    pending=row["pending"],
                    cancelled=bool(row["cancelled"]),
                )
                rows.append((row["partition"], row["offset"], row["kind"], row["origin"], fate.value))
            yield from batch_of(rows, _FATE_ARROW)


def _pending_in_state(frame: pd.DataFrame) -> pd.DataFrame:
    partition, cells = state_of(frame)
    offsets = [int.from_bytes(entry[8:16], "big") for entry in pending_entries(partition, cells)]
    numbers = pd.Series([partition] * len(offsets), dtype="int32")
    return pd.DataFrame({"partition": numbers, "offset": pd.Series(offsets, dtype="int64")})


_SENT_ARROW: Final = schema_of(_SENT)
_FIRED_ARROW: Final = schema_of(_FIRED)
_PLACE_ARROW: Final = schema_of(_PLACE)
_HELD_ARROW: Final = schema_of(_HELD)
_FATE_ARROW: Final = schema_of(_FATE)

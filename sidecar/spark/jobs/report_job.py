"""`spark report` as a job: counts on the executors, adds up in Spark, and collects the greatest on the driver."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from sidecar.contract import dialects_of
from sidecar.contract.dialects.registry import Profile
from sidecar.dlq.reader import require_topic
from sidecar.kafka.admin.cluster import Admin
from sidecar.model import Record
from sidecar.policy import Policy, PolicyConfig
from sidecar.settings import Settings
from sidecar.spark.jobs.arrow import batch_of, schema_of
from sidecar.spark.jobs.job import job_session
from sidecar.spark.jobs.report import HOURS_MAX, Dimension, Kind, NameCounts, Report, death_of, retry_of
from sidecar.spark.source.batch import LogReading, log_ranges, read_log

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NAME_CHARS: Final = 300
_KEYS: Final = ("kind", "origin", "exception", "attempt", "hour_ms", "reason")
_GROUP: Final = "kind string, origin string, exception string, attempt long, hour_ms long, reason string, count long"


@dataclass(frozen=True, slots=True)
class Scope:
    """The scope of a report."""

    since_ms: int | None
    """The start: the first record of each partition with this timestamp or later; None: the beginning."""
    until_ms: int | None
    """The end, exclusive: the first record with this timestamp or later; None: the end of the partition."""
    most: int
    """The names of each dimension that are shown."""
    out: str | None
    """The folder of the Parquet files with all counts, on any file system that Hadoop supports."""
    now_ms: int
    """The present: timestamps after it are made up by senders."""


class _Counting:
    """Counts the records of a topic slice by slice, and yields one row for each key."""

    def __init__(self, kind: Kind, policy: PolicyConfig, profiles: Sequence[Profile]) -> None:
        self._kind = kind
        self._policy = policy
        self._profiles = tuple(profiles)

    def __call__(self, slices: Iterator[Sequence[Record]]) -> Iterator[pa.RecordBatch]:
        policy, dialects = Policy(self._policy), dialects_of(self._profiles)
        schema = schema_of(_GROUP)
        for records in slices:
            if self._kind is Kind.DEAD:
                counts = Counter(death_of(record, dialects) for record in records)
            else:
                found = (retry_of(record, policy, dialects) for record in records)
                counts = Counter(group for group in found if group is not None)
            yield from batch_of(((*group, count) for group, count in counts.items()), schema)


def run_report(
    settings: Settings,
    policy: PolicyConfig,
    scope: Scope,
    *,
    master: str | None,
    conf: Mapping[str, str],
) -> Report:
    """Count what is on the retry topic and on the DLQs.

    Args:
        settings: The effective settings.
        policy: The policy of these settings: it decides which records become timers.
        scope: The scope of the report.
        master: The Spark master, as in `open_session`.
        conf: The user's properties, as in `open_session`.

    Raises:
        SidecarError: The report is not possible; the text says what to do.
    """
    admin = Admin(settings)
    topics = {Kind.RETRY: (settings.input_topic,), Kind.DEAD: settings.dlq_topics}
    for topic in chain(*topics.values()):
        require_topic(admin, topic, "READ")
    with job_session(f"{settings.streams_app_id}-report", master, conf) as session:
        retries, dead = (
            read_log(
                session,
                LogReading(
                    settings=settings,
                    ranges=[
                        part
                        for name in names
                        for part in log_ranges(admin, name, since_ms=scope.since_ms, until_ms=scope.until_ms)
                    ],
                    step=_Counting(kind, policy, settings.dialects),
                    schema=_GROUP,
                ),
            )
            for kind, names in topics.items()
        )
        return report_of(retries.unionByName(dead), scope)


def report_of(counted: DataFrame, scope: Scope) -> Report:
    """Add up counts, whose keys may repeat; write all of them as Parquet, and return the greatest."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - as above

    groups = counted.groupBy(*_KEYS).agg(f.sum("count").alias("count")).persist()
    if scope.out is not None:
        hour = f.timestamp_millis("hour_ms").alias("hour")
        written = groups.select("kind", "origin", "exception", "attempt", hour, "reason", "count")
        written.write.mode("overwrite").parquet(scope.out)
    every = [f.count_distinct(_text(each)).alias(each.value) for each in Dimension]
    sums = groups.groupBy("kind").agg(f.sum("count").alias("total"), *every).collect()
    greatest = _greatest(groups, scope)
    by = {
        dimension: {
            Kind(row["kind"]): _names(
                dimension, greatest.get((dimension, row["kind"]), []), row[dimension.value], row["total"]
            )
            for row in sums
            if dimension is not Dimension.REASON or row["kind"] == Kind.DEAD
        }
        for dimension in Dimension
    }
    return Report({Kind(row["kind"]): row["total"] for row in sums}, by)


def _text(dimension: Dimension) -> Any:
    from pyspark.sql import functions as f  # noqa: PLC0415 - as above

    return f.coalesce(f.col(dimension.column).cast("string"), f.lit(""))


def _greatest(groups: DataFrame, scope: Scope) -> dict[tuple[str, str], list[tuple[str, int]]]:
    """Return, by dimension and kind, the most frequent names, or the latest hours, with their counts."""
    # One job for all dimensions.
    ranked = reduce(lambda some, more: some.unionByName(more), [_ranked(groups, each, scope) for each in Dimension])
    found: dict[tuple[str, str], list[tuple[str, int]]] = {}
    for row in ranked.collect():
        found.setdefault((row["dimension"], row["kind"]), []).append((_short(row["name"]), row["count"]))
    return found


def _ranked(groups: DataFrame, dimension: Dimension, scope: Scope) -> DataFrame:
    from pyspark.sql import Window  # noqa: PLC0415 - as above
    from pyspark.sql import functions as f  # noqa: PLC0415 - as above

    sums = groups.groupBy("kind", f.col(dimension.column).alias("name")).agg(f.sum("count").alias("count"))
    if dimension is Dimension.HOUR:
        order = [f.when(f.col("name") > scope.now_ms, 1).otherwise(0), f.desc_nulls_last("name")]
    else:
        order = [f.desc("count"), f.asc_nulls_first("name")]
    most = HOURS_MAX if dimension is Dimension.HOUR else scope.most
    rank = f.row_number().over(Window.partitionBy("kind").orderBy(*order))
    name = f.coalesce(f.substring(f.col("name").cast("string"), 1, NAME_CHARS + 1), f.lit(""))
    return (
        sums.withColumn("rank", rank)
        .filter(f.col("rank") <= most)
        .select(f.lit(dimension.value).alias("dimension"), "kind", name.alias("name"), "count")
    )


def _short(name: str) -> str:
    return name if len(name) <= NAME_CHARS else f"{name[:NAME_CHARS]}…"


def _names(dimension: Dimension, greatest: list[tuple[str, int]], every: int, total: int) -> NameCounts:
    """Return the names in their order, and the rest."""
    if dimension in (Dimension.HOUR, Dimension.ATTEMPT):
        greatest.sort(key=lambda each: (len(each[0]), each[0]))
    else:
        greatest.sort(key=lambda each: (-each[1], each[0]))
    return NameCounts(greatest, every - len(greatest), total - sum(count for _, count in greatest))

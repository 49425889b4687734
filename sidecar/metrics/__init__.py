"""Every metric of the sidecar, declared once: the registry, the help texts and the reference page come from one table.

Two kinds of sources. Events (a commit, a fired batch) are counted where they happen. What has a current value per
partition is read at scrape time from the latest published views: a scrape costs the size of its answer,
never a look at the timers.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from heapq import nlargest
from typing import Final, Literal, Protocol

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

PREFIX = "retry_sidecar_"

LATENESS_BUCKETS_S = (
    *(0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
    *(60.0, 300.0, 900.0, 3600.0, 21600.0, 86400.0),
)
ORIGINS_MAX = 1_000
"""Most origins with label values of their own, in any metric."""
OTHERS = "(others)"
"""The label of all further ones; no topic can be called so."""
COMMIT_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0)
RESTORE_BUCKETS_S = (0.01, 0.05, 0.25, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0)


@dataclass(frozen=True, slots=True)
class Declaration:
    """One metric as users see it, without the prefix."""

    name: str
    kind: Literal["counter", "gauge", "histogram", "info"]
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


DECLARATIONS = (
    Declaration("pending", "gauge", "Pending messages.", ("partition", "origin")),
    Declaration(
        "due_backlog", "gauge", "Messages that are due and not yet fired, as of the last scan.", ("partition",)
    ),
    Declaration("received_total", "counter", "Records ingested from the input topic, by verdict.", ("verdict",)),
    Declaration("input_lost_total", "counter", "Input records that retention deleted unread.", ("partition",)),
    Declaration(
        "input_lag",
        "gauge",
        "Records of the input topic that are not ingested yet, by the last known end of the log; on Spark, at the end "
        "of the last micro-batch.",
        ("partition",),
    ),
    Declaration("fired_total", "counter", "Messages delivered to their origin topic.", ("origin",)),
    Declaration("dead_lettered_total", "counter", "Dead letters written to the DLQ, by retry-dlq-reason.", ("reason",)),
    Declaration(
        "notify_requests_total", "counter", "Requests to NOTIFY_URL, by outcome: accepted, failed.", ("outcome",)
    ),
    Declaration(
        "notify_dead_letters_total",
        "counter",
        "Dead letters for NOTIFY_URL, by outcome: announced, dropped when the process ended.",
        ("outcome",),
    ),
    Declaration(
        "dlq_records",
        "gauge",
        "Records in the DLQ that retention has not deleted, redriven ones and markers of transactions included. "
        "Each instance looks once a minute: take the maximum. Absent until the first look, and on Spark.",
        ("topic",),
    ),
    Declaration("cancelled_total", "counter", "Messages removed before they were due, by cancel or replace."),
    Declaration(
        "lateness_seconds",
        "histogram",
        "Time from a message's due time until its record is handed to the broker.",
        buckets=LATENESS_BUCKETS_S,
    ),
    Declaration(
        "commit_seconds", "histogram", "Duration of a transaction, from begin to commit.", buckets=COMMIT_BUCKETS_S
    ),
    Declaration("transactions_total", "counter", "Transactions, by outcome.", ("outcome",)),
    Declaration(
        "restore_seconds",
        "histogram",
        "Time from the assignment of a partition until its state is restored.",
        buckets=RESTORE_BUCKETS_S,
    ),
    Declaration(
        "restore_remaining", "gauge", "Changelog records left to read before the partition can fire.", ("partition",)
    ),
    Declaration("state", "gauge", "1 for the partition's current state.", ("partition", "state")),
    Declaration(
        "origin_state",
        "gauge",
        "1 for the origin's state as partitions of this instance see it: open, or why it is closed.",
        ("origin", "state"),
    ),
    Declaration("deferred_total", "counter", "Messages deferred because their origin is closed.", ("origin",)),
    Declaration("held_total", "counter", "Messages held until their turn under the rate of their origin.", ("origin",)),
    Declaration(
        "put_behind_total",
        "counter",
        "Messages put behind an earlier one of their key (ORDER=key); again for each move of the one ahead.",
        ("origin",),
    ),
    Declaration("held_messages", "gauge", "Messages that are held until their turn.", ("partition", "origin")),
    Declaration(
        "clock_skew_seconds", "gauge", "This machine's clock minus the broker's; NaN until the first measurement."
    ),
    Declaration(
        "watermark_lag_seconds",
        "gauge",
        "How long the oldest unfired message has been due; 0 when none is due. Grows when nothing fires.",
        ("partition",),
    ),
    Declaration("store_bytes", "gauge", "Size of the local store's live files."),
    Declaration("store_free_bytes", "gauge", "Free space on the disk of the state folder; NaN on Spark."),
    Declaration(
        "open_files",
        "gauge",
        "Only on Spark: open files of a process, sockets included: driver (Python) and driver-jvm; of the executors' "
        "JVMs (executor-jvm) and Python workers (worker) the most in the last micro-batch that counted any.",
        ("process",),
    ),
    Declaration(
        "open_files_max",
        "gauge",
        "Only on Spark: open files at which the process can open no more.",
        ("process",),
    ),
    Declaration("changelog_bytes_total", "counter", "Bytes of record keys and values written to the changelog."),
    Declaration(
        "changelog_rolled_back_total", "counter", "Committed transactions that the changelog lacks.", ("partition",)
    ),
    Declaration(
        "delivered_before_total",
        "counter",
        "Messages that were not delivered again: the changelog lacked the transaction, their origin had them.",
        ("origin",),
    ),
    Declaration("reloads_total", "counter", "Reloads of the policies: accepted, or rejected.", ("outcome",)),
    Declaration(
        "last_reload_successful",
        "gauge",
        "0 if the settings of the last reload were rejected and the former ones still apply, otherwise 1.",
    ),
    Declaration("ready", "gauge", "1 while /readyz answers 200, otherwise 0."),
    Declaration(
        "partitions_without_owner",
        "gauge",
        "Input partitions that no instance has reported as its own in the last 10 s; NaN while unknown.",
    ),
    Declaration(
        "last_stable_offset_stuck_seconds",
        "gauge",
        "How long an open transaction of any producer has blocked reading the input; 0 when none does.",
        ("partition",),
    ),
    Declaration(
        "build_info",
        "info",
        "Always 1; the labels are the running version, and whether the hot path is compiled.",
        ("version", "hot_path"),
    ),
)
DECLARED: Mapping[str, Declaration] = {declaration.name: declaration for declaration in DECLARATIONS}


class GaugeView(Protocol):
    """The figures of one partition that the gauges need; `sidecar.engine.group.view.PartitionView` is one."""

    @property
    def partition(self) -> int: ...
    @property
    def state(self) -> str: ...
    @property
    def by_origin(self) -> Mapping[str, int]: ...
    @property
    def held_by_origin(self) -> Mapping[str, int]: ...
    @property
    def lag(self) -> int | None: ...
    @property
    def due_backlog(self) -> int: ...
    @property
    def restore_remaining(self) -> int: ...
    @property
    def next_due_ms(self) -> int | None: ...
    @property
    def closed_origins(self) -> Mapping[str, tuple[str, int]]: ...


class BatchHistogram(Collector):
    """A histogram of lateness that takes a whole fired batch at once.

    The library's histogram takes a lock per value, which costs more than firing the message. A batch is nearly in due
    order, so that sorting it and one bisection per bucket replace a Python call per message.
    """

    def __init__(self, declaration: Declaration) -> None:
        self._declaration = declaration
        self._bounds_ms = tuple(round(bound * 1000) for bound in declaration.buckets)
        self._lock = threading.Lock()
        self._at_most = [0] * len(self._bounds_ms)
        self._count = 0
        self._sum_ms = 0

    def observe(self, now_ms: int, dues_ms: Iterable[int]) -> None:
        """Count `now_ms - due` for each due time of the batch. An empty batch counts nothing."""
        dues = sorted(dues_ms)
        at_most = [len(dues) - bisect_left(dues, now_ms - bound) for bound in self._bounds_ms]
        with self._lock:
            self._at_most = [old + new for old, new in zip(self._at_most, at_most, strict=True)]
            self._count += len(dues)
            self._sum_ms += now_ms * len(dues) - sum(dues)

    def describe(self) -> Iterator[Metric]:
        yield HistogramMetricFamily(PREFIX + self._declaration.name, self._declaration.help)

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            at_most, count, sum_ms = self._at_most, self._count, self._sum_ms
        buckets = [(str(bound), float(n)) for bound, n in zip(self._declaration.buckets, at_most, strict=True)]
        yield HistogramMetricFamily(
            PREFIX + self._declaration.name,
            self._declaration.help,
            buckets=[*buckets, ("+Inf", float(count))],
            sum_value=sum_ms / 1000,
        )


class ByPartition(Collector):
    """A gauge whose values are replaced together, so that a released partition leaves no value behind."""

    def __init__(self, declaration: Declaration) -> None:
        self._declaration = declaration
        self._values: Mapping[int, float] = {}

    def publish(self, values: Mapping[int, float]) -> None:
        """Replace all values. They must not change afterwards."""
        self._values = values

    def collect(self) -> Iterator[Metric]:
        declared = self._declaration
        family = GaugeMetricFamily(PREFIX + declared.name, declared.help, labels=declared.labels)
        for partition, value in self._values.items():
            family.add_metric((str(partition),), value)
        yield family


class ByOrigin:
    """A counter with separate values for the first ORIGINS_MAX origins. Used by one thread."""

    def __init__(self, counter: Counter) -> None:
        self._counter = counter
        self._named: set[str] = set()

    def labels(self, origin: str) -> Counter:
        """Return the child counter of an origin."""
        if len(self._named) < ORIGINS_MAX:
            self._named.add(origin)
        return self._counter.labels(origin if origin in self._named else OTHERS)


class ViewGauges(Collector):
    """The gauges per partition, made at scrape time from the views published last."""

    NAMES = (
        "pending",
        "held_messages",
        "input_lag",
        "due_backlog",
        "restore_remaining",
        "state",
        "origin_state",
        "watermark_lag_seconds",
    )

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._views: tuple[GaugeView, ...] = ()

    def publish(self, views: Sequence[GaugeView]) -> None:
        """Replace all views at once; a scrape under way goes on with those it began with."""
        self._views = tuple(views)

    def describe(self) -> Iterator[Metric]:
        yield from self._families().values()

    def collect(self) -> Iterator[Metric]:
        views, now_ms = self._views, self._now_ms()
        family, named = self._families(), _named(views)
        for view in views:
            partition = str(view.partition)
            for origin, count in _by_label(view.by_origin, named).items():
                family["pending"].add_metric((partition, origin), count)
            for origin, count in _by_label(view.held_by_origin, named).items():
                family["held_messages"].add_metric((partition, origin), count)
            if view.lag is not None:
                family["input_lag"].add_metric((partition,), view.lag)
            family["due_backlog"].add_metric((partition,), view.due_backlog)
            family["restore_remaining"].add_metric((partition,), view.restore_remaining)
            family["state"].add_metric((partition, view.state), 1)
            late_ms = 0 if view.next_due_ms is None else max(0, now_ms - view.next_due_ms)
            family["watermark_lag_seconds"].add_metric((partition,), late_ms / 1000)
        states = {(origin if origin in named else OTHERS, state) for origin, state in _origin_states(views)}
        for labels in sorted(states):
            family["origin_state"].add_metric(labels, 1)
        yield from family.values()

    def _families(self) -> dict[str, GaugeMetricFamily]:
        return {
            name: GaugeMetricFamily(PREFIX + name, DECLARED[name].help, labels=DECLARED[name].labels)
            for name in self.NAMES
        }


def _named(views: Iterable[GaugeView]) -> Set[str]:
    """Return the origins that get their own labels: those with the most pending messages."""
    pending: dict[str, int] = {}
    for view in views:
        pending.update(dict.fromkeys(view.closed_origins.keys() - pending.keys(), 0))
        for origin, count in view.by_origin.items():
            pending[origin] = pending.get(origin, 0) + count
    if len(pending) <= ORIGINS_MAX:
        return pending.keys()
    return set(nlargest(ORIGINS_MAX, pending, key=lambda origin: (pending[origin], origin)))


def _by_label(by_origin: Mapping[str, int], named: Set[str]) -> Mapping[str, int]:
    found: dict[str, int] = {}
    for origin, count in by_origin.items():
        label = origin if origin in named else OTHERS
        found[label] = found.get(label, 0) + count
    return found


def _origin_states(views: Iterable[GaugeView]) -> set[tuple[str, str]]:
    """Return every (origin, state) that some partition sees; partitions may differ for a moment."""
    found: set[tuple[str, str]] = set()
    for view in views:
        found.update((origin, state) for origin, (state, _) in view.closed_origins.items())
        found.update((origin, "open") for origin in view.by_origin if origin not in view.closed_origins)
    return found


VERDICTS: Final = ("stored", "dropped", "dead-lettered", "control")
"""The results that a received record may have."""


class Metrics:
    """The registry of one sidecar. All members may be used from any thread.

    Args:
        version: of the distribution, for `build_info`.
        hot_path: `compiled` or `python`, for the same.
        now_ms: wall time, epoch milliseconds.
    """

    def __init__(self, *, version: str, now_ms: Callable[[], int], hot_path: str = "python") -> None:
        # The `_created` series double the page and say what `process_start_time_seconds` says once.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self.received = self._counter("received_total")
        self.input_lost = self._counter("input_lost_total")
        self.fired = ByOrigin(self._counter("fired_total"))
        self.dead_lettered = self._counter("dead_lettered_total")
        self.notify_requests = self._counter("notify_requests_total")
        self.notify_dead_letters = self._counter("notify_dead_letters_total")
        self.cancelled = self._counter("cancelled_total")
        self.transactions = self._counter("transactions_total")
        self.deferred = ByOrigin(self._counter("deferred_total"))
        self.held = ByOrigin(self._counter("held_total"))
        self.put_behind = ByOrigin(self._counter("put_behind_total"))
        self.changelog_bytes = self._counter("changelog_bytes_total")
        self.changelog_rolled_back = self._counter("changelog_rolled_back_total")
        self.delivered_before = ByOrigin(self._counter("delivered_before_total"))
        self.commit_seconds = self._histogram("commit_seconds")
        self.restore_seconds = self._histogram("restore_seconds")
        self.clock_skew_seconds = self._gauge("clock_skew_seconds")
        self.clock_skew_seconds.set(float("nan"))
        self.store_bytes = self._gauge("store_bytes")
        self.ready = self._gauge("ready")
        self.dlq_records = self._gauge("dlq_records")
        self.reloads = self._counter("reloads_total")
        self.last_reload_successful = self._gauge("last_reload_successful")
        self.last_reload_successful.set(1)
        self.partitions_without_owner = self._gauge("partitions_without_owner")
        self.store_free_bytes = self._gauge("store_free_bytes")
        self.store_free_bytes.set(float("nan"))
        self._open_files = self._gauge("open_files")
        self._open_files_max = self._gauge("open_files_max")
        self.stable_offset_stuck_seconds = ByPartition(DECLARED["last_stable_offset_stuck_seconds"])
        self.registry.register(self.stable_offset_stuck_seconds)
        self.lateness = BatchHistogram(DECLARED["lateness_seconds"])
        self.registry.register(self.lateness)
        self._gauges = ViewGauges(now_ms)
        self.registry.register(self._gauges)
        build = Info(PREFIX + "build", DECLARED["build_info"].help, registry=self.registry)
        build.info({"version": version, "hot_path": hot_path})
        ProcessCollector(registry=self.registry)

    def publish(self, views: Sequence[GaugeView]) -> None:
        """Make these views the source of all gauges per partition. They must not change afterwards."""
        self._gauges.publish(views)

    def show_open_files(self, process: str, count: int, most: int) -> None:
        """Show how many files a process of the Spark engine has open, and how many it may."""
        self._open_files.labels(process).set(count)
        self._open_files_max.labels(process).set(most)

    def count_plan(
        self,
        *,
        fired: Mapping[str, int],
        dead_lettered: Mapping[str, int],
        deferred: Mapping[str, int],
        held: Mapping[str, int],
        put_behind: Mapping[str, int],
        stored: int,
        dropped: int,
        rejected: int,
        controls: int,
        cancelled: int,
        delivered_before: Mapping[str, int] = {},
    ) -> None:
        """Count what a committed plan did, in the words of `PartitionPlan`; dead letters by reason."""
        by_label: list[Counter | ByOrigin] = [self.fired, self.dead_lettered, self.deferred, self.held]
        by_label += [self.put_behind, self.delivered_before]
        counted = fired, dead_lettered, deferred, held, put_behind, delivered_before
        for counter, counts in zip(by_label, counted, strict=True):
            for label, count in counts.items():
                counter.labels(label).inc(count)
        for verdict, count in zip(VERDICTS, (stored, dropped, rejected, controls), strict=True):
            self.received.labels(verdict).inc(count)
        self.cancelled.inc(cancelled)

    def start_at_zero(
        self, *, verdicts: Iterable[str] = (), reasons: Iterable[str] = (), outcomes: Iterable[str] = ()
    ) -> None:
        """Show these label values as 0 before they happen first, so that the first one is seen as a rise."""
        known = (self.received, verdicts), (self.dead_lettered, reasons), (self.transactions, outcomes)
        for counter, values in (*known, (self.reloads, ("accepted", "rejected"))):
            for value in values:
                counter.labels(value)

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """Return the page and its content type, in the format that the Accept header asks for."""
        encoder, content_type = choose_encoder(accept)
        return encoder(self.registry), content_type

    def _counter(self, name: str) -> Counter:
        declaration = DECLARED[name]
        return Counter(PREFIX + name, declaration.help, declaration.labels, registry=self.registry)

    def _gauge(self, name: str) -> Gauge:
        declaration = DECLARED[name]
        return Gauge(PREFIX + name, declaration.help, declaration.labels, registry=self.registry)

    def _histogram(self, name: str) -> Histogram:
        metric = DECLARED[name]
        return Histogram(PREFIX + name, metric.help, metric.labels, registry=self.registry, buckets=metric.buckets)

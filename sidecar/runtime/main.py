"""Builds the sidecar, runs it and shuts it down."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import structlog

from sidecar import __version__, log
from sidecar.clock import Clock, SystemClock
from sidecar.contract import dialects_of
from sidecar.engine import hot
from sidecar.engine.ingest import Ingest
from sidecar.engine.partition import Partition
from sidecar.engine.rows import Identity
from sidecar.errors import InvariantViolated
from sidecar.interpreter import tune_interpreter
from sidecar.kafka import config
from sidecar.kafka.admin.catalogue import Catalogue
from sidecar.kafka.admin.cluster import Admin
from sidecar.kafka.admin.dlq_size import DlqSize
from sidecar.kafka.admin.marker_watch import MarkerWatch
from sidecar.kafka.admin.offsets import Brokers
from sidecar.kafka.admin.topic_watch import TopicWatch
from sidecar.kafka.admin.topics import TopicFacts, grant_command, grow_internal
from sidecar.kafka.changelog import ChangelogReader
from sidecar.kafka.clock_guard import ClockGuard
from sidecar.kafka.fences import Fences
from sidecar.kafka.input import InputConsumer, Rebalanced
from sidecar.kafka.lso_monitor import LsoMonitor
from sidecar.kafka.origin_search import OriginSearch
from sidecar.kafka.producer import TransactionalProducer
from sidecar.kafka.tokens import tokens_of
from sidecar.kafka.writer import Writer
from sidecar.metrics import VERDICTS, Metrics
from sidecar.model import Reason
from sidecar.notify.notifier import Notifier, open_notifier
from sidecar.policy import Policy
from sidecar.runtime.components import Components
from sidecar.runtime.drain import Drain
from sidecar.runtime.loop import Loop
from sidecar.runtime.origins import ClosedOrigins
from sidecar.runtime.partitions.inheritance import Inheritance
from sidecar.runtime.partitions.leftovers import Leftovers
from sidecar.runtime.partitions.recovery import Recovery
from sidecar.runtime.partitions.restarts import Restarts
from sidecar.runtime.partitions.search import Searches
from sidecar.runtime.partitions.start_offsets import Topics
from sidecar.runtime.reloads import Reloads
from sidecar.runtime.reporting.snapshot import Snapshots
from sidecar.runtime.reporting.starts import OwnStart
from sidecar.runtime.reporting.status import StatusPublisher
from sidecar.runtime.start import await_cluster
from sidecar.runtime.state import LocalState
from sidecar.runtime.stop import Stop
from sidecar.runtime.transaction.commit import Committer, Observe, unobserved
from sidecar.serving.address import advertised_url
from sidecar.serving.control_calls import LazyCommands
from sidecar.serving.group_view import ClusterView, GroupSource, follow
from sidecar.serving.http import Http, start_server
from sidecar.settings import Settings
from sidecar.settings.policy import policy_config
from sidecar.store.folder import StateFolder

if TYPE_CHECKING:
    from sidecar.runtime.reporting.spans import Spans

logger = structlog.get_logger(__name__)

HTTP_STOP_S: Final = 2.0


def run(
    settings: Settings,
    *,
    clock: Clock | None = None,
    observe: Observe = unobserved,
    drain: bool = False,
    drain_timeout_ms: int | None = None,
    reread: Callable[[], Settings] | None = None,
) -> int:
    """Run until SIGTERM or SIGINT; return the exit status.

    Args:
        settings: The effective ones.
        clock: The tests' own.
        observe: Called at each step of the commit order; the tests kill the process there.
        drain: Ingest nothing and end when nothing is left to fire; any status but 0 means that something is left.
        drain_timeout_ms: Longest time for a drain.
        reread: Reads the settings again, for SIGHUP and `POST /policies/reload`; None: they stay as they are.

    Raises:
        SidecarError: The sidecar cannot start or continue; the text says what to do.
    """
    clock = clock or SystemClock()
    stop = Stop()
    stop.listen()
    stop.listen_for_reloads()
    tune_interpreter()
    config.validate_client_properties(settings)
    state = LocalState(StateFolder(settings.state_dir), clock)
    metrics = _metrics(clock, state)
    snapshots = Snapshots(clock)
    instance_id = settings.instance_id or state.instance_id
    cluster = follow(settings, clock, instance_id)
    notifier = open_notifier(settings, instance_id, clock, metrics)
    source = GroupSource(snapshots, cluster, instance_id)
    restarts, reloads = Restarts(), Reloads(settings, reread or (lambda: settings), metrics)
    server, commands = start_server(
        *(settings, clock, source, metrics, lambda: state.store, instance_id, restarts.ask, reloads.reload)
    )
    try:
        cluster.start()
        show = partial(_show_waiting, server, snapshots)
        found = await_cluster(settings, clock, stop.within, show, drains=drain)
        if found is None:
            logger.info("sidecar_stopped")
            return int(drain)
        admin, facts = found
        snapshots.wait_for(())
        snapshots.set_cluster(facts.cluster_id, facts.partitions)
        url = advertised_url(settings, server.url)
        loop = build(
            *(settings, clock, admin, facts, state, snapshots, metrics, cluster),
            restarts=restarts,
            observe=observe,
            url=url,
            ingests=not drain,
            notifier=notifier,
        )
        logger.info("sidecar_started", version=__version__, input_topic=settings.input_topic, url=server.url)
        draining = Drain(source, instance_id, clock, drain_timeout_ms) if drain else None
        status = _turn(loop, stop, server, settings.shutdown_timeout_ms / 1000, draining, reloads)
        logger.info("sidecar_stopped")
    except InvariantViolated:
        # What is wrong may be in the store too, and would be found there again.
        state.distrust()
        raise
    finally:
        _end(notifier, server, cluster, commands)
    return status


def _end(notifier: Notifier | None, server: Http, cluster: ClusterView, commands: LazyCommands) -> None:
    if notifier is not None:
        notifier.stop()
    server.stop(HTTP_STOP_S)
    cluster.stop(HTTP_STOP_S)
    commands.close()


def _metrics(clock: Clock, state: LocalState) -> Metrics:
    """Return the metrics, with every label value that is known beforehand at zero."""
    metrics = Metrics(version=__version__, now_ms=clock.wall_ms, hot_path=hot.KIND)
    metrics.store_free_bytes.set_function(lambda: state.free_bytes)
    metrics.start_at_zero(
        verdicts=VERDICTS,
        reasons=[reason.value for reason in Reason],
        outcomes=("committed", "aborted", "unknown", "fenced"),
    )
    return metrics


def _turn(
    loop: Loop, stop: Stop, server: Http, shutdown_timeout_s: float, drain: Drain | None, reloads: Reloads
) -> int:
    """Run the loop until it is asked to stop; return the exit status."""
    try:
        while not stop.asked:
            if stop.take_reload():
                reloads.reload_on_signal()
            if (policies := reloads.take()) is not None:
                loop.use(Policy(policies))
            loop.run_once()
            if loop.under_way:
                server.open()
            if drain is not None and (status := drain.look()) is not None:
                return status
        return 0 if drain is None else 1
    finally:
        logger.info("sidecar_stopping", at_most_s=shutdown_timeout_s)
        loop.stop(shutdown_timeout_s)


def _show_waiting(server: Http, snapshots: Snapshots, reasons: Sequence[str]) -> None:
    """Show at /readyz what the start waits for, and that the process is alive."""
    server.open()
    snapshots.wait_for(reasons)


def build(
    settings: Settings,
    clock: Clock,
    admin: Admin,
    facts: TopicFacts,
    state: LocalState,
    snapshots: Snapshots,
    metrics: Metrics,
    cluster: ClusterView,
    *,
    restarts: Restarts,
    observe: Observe,
    url: str | None,
    ingests: bool = True,
    notifier: Notifier | None = None,
) -> Loop:
    """Wire the loop."""
    client_log: dict[str, Any] = {"logger": log.librdkafka_logger()}
    instance_id = settings.instance_id or state.instance_id
    catalogue, guard = Catalogue(admin), ClockGuard(clock, settings.max_clock_skew_ms)
    start = OwnStart(cluster, instance_id)
    fences = Fences(clock, settings.instance_id, config.transaction_timeout_s(settings), start.is_outrun)
    loop: Loop
    brokers = Brokers(admin, {**config.committed_reader(settings), **client_log})
    ingest = _ingest(settings, catalogue)
    recovery = _recovery(
        *(settings, clock, facts, brokers, metrics, _searches(settings, clock, ingest), client_log),
        running=lambda partition, next_offset: loop.running(partition, next_offset),  # noqa: PLW0108 - made below
    )
    loop = Loop(
        Components(
            settings=settings,
            clock=clock,
            facts=facts,
            state=state,
            catalogue=catalogue,
            closed=ClosedOrigins(catalogue),
            ingest=ingest,
            recovery=recovery,
            guard=guard,
            fences=fences,
            status=_status(settings, clock, guard, start, client_log),
            snapshots=snapshots,
            metrics=metrics,
            inheritance=Inheritance(cluster, clock),
            leftovers=Leftovers(cluster, clock, instance_id),
            restarts=restarts,
            topic_watch=TopicWatch(brokers.topics, clock, settings.input_topic, settings.changelog_topic),
            marker_watch=MarkerWatch(brokers.bounds, clock, settings.changelog_topic),
            look_at_dlq=_dlq_sizes(settings, admin, clock, metrics),
            open_consumer=partial(_open_consumer, settings, clock, metrics, fences, client_log),
            make_producer=partial(_make_producer, settings, instance_id, clock, client_log),
            make_executor=partial(Committer, clock),
            grow_topics=partial(grow_internal, admin, settings),
            instance_id=instance_id,
            url=url,
            ingests=ingests,
            observe=observe,
            spans=_spans(),
            notifier=notifier,
            login_blocker=_login_blocker(settings),
        )
    )
    return loop


def _recovery(
    settings: Settings,
    clock: Clock,
    facts: TopicFacts,
    brokers: Brokers,
    metrics: Metrics,
    searches: Searches,
    client_log: Mapping[str, Any],
    *,
    running: Callable[[Partition, int], None],
) -> Recovery:
    return Recovery(
        brokers,
        ChangelogReader({**config.changelog_reader(settings), **client_log}, settings.changelog_topic),
        clock,
        Topics(settings.input_topic, settings.changelog_topic, settings.group_id),
        Identity(facts.cluster_id, facts.changelog_topic_id, settings.changelog_topic),
        searches,
        running=running,
        restored=metrics.restore_seconds.observe,
        input_lost=lambda partition, records: metrics.input_lost.labels(partition).inc(records),
        rolled_back=lambda partition: metrics.changelog_rolled_back.labels(partition).inc(),
    )


def _searches(settings: Settings, clock: Clock, ingest: Ingest) -> Searches:
    def may_be_searched(topic: str) -> bool:
        return ingest.policy.origin_allowed(topic)

    return Searches(
        partial(OriginSearch, config.origin_reader(settings), settings.input_topic, may_be_searched),
        clock,
        settings.max_clock_skew_ms,
        lambda topic: grant_command(settings, "Read", f"--topic {topic}"),
    )


def _login_blocker(settings: Settings) -> Callable[[], str | None]:
    tokens = tokens_of(settings)
    return (lambda: None) if tokens is None else tokens.blocker


def _dlq_sizes(settings: Settings, admin: Admin, clock: Clock, metrics: Metrics) -> Callable[[], None]:
    def publish(topic: str, records: int) -> None:
        metrics.dlq_records.labels(topic).set(records)

    sizes = [DlqSize(admin, topic, clock, publish) for topic in settings.dlq_topics]

    def advance() -> None:
        for size in sizes:
            size.advance()

    return advance


def _make_producer(
    settings: Settings,
    instance_id: str,
    clock: Clock,
    client_log: Mapping[str, Any],
    batch_bytes: int,
    message_timeout_ms: int,
) -> TransactionalProducer:
    transactional_id = settings.transactional_id_prefix + instance_id
    properties = config.transactional_producer(settings, transactional_id, batch_bytes, message_timeout_ms)
    return TransactionalProducer({**properties, **client_log}, clock)


def _spans() -> Spans | None:
    if not any(name.startswith("OTEL_") for name in os.environ):
        return None
    # Most processes create no spans, and the import takes as long as those of half the sidecar.
    from sidecar.runtime.reporting.spans import spans_of_environment  # noqa: PLC0415

    return spans_of_environment()


def _open_consumer(
    settings: Settings,
    clock: Clock,
    metrics: Metrics,
    fences: Fences,
    client_log: Mapping[str, Any],
    listener: Rebalanced,
) -> InputConsumer:
    properties = {**config.input_consumer(settings, settings.instance_id), **client_log}
    lso_monitor = LsoMonitor(settings.input_topic, clock, metrics.stable_offset_stuck_seconds.publish)
    return InputConsumer(properties, settings.input_topic, listener, fences, lso_monitor)


def _status(
    settings: Settings, clock: Clock, guard: ClockGuard, start: OwnStart, client_log: Mapping[str, Any]
) -> StatusPublisher:
    writer = Writer({**config.status_producer(settings), **client_log})
    return StatusPublisher(writer, settings.status_topic, clock, guard, settings.api_token, start=start)


def _ingest(settings: Settings, catalogue: Catalogue) -> Ingest:
    return Ingest(
        Policy(policy_config(settings)),
        dialects_of(settings.dialects),
        catalogue.origins,
        catalogue.unknown,
        input_topic=settings.input_topic,
        app_id=settings.streams_app_id,
        api_token=settings.api_token,
        forbidden=catalogue.forbidden,
        compressed=config.compresses(settings),
    )

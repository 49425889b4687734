"""One sidecar process in a simulated world: the real loop, wired as `runtime.main` does it, on fakes of its ports."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from sidecar.contract import dialects_of
from sidecar.engine.ingest import Ingest
from sidecar.engine.rows import Identity
from sidecar.errors import DuplicateInstance, StoreFailed, TopicsInvalid
from sidecar.kafka import config
from sidecar.kafka.admin.catalogue import Catalogue
from sidecar.kafka.admin.marker_watch import MarkerWatch
from sidecar.kafka.admin.topic_watch import TopicWatch
from sidecar.kafka.admin.topics import TopicFacts
from sidecar.kafka.clock_guard import ClockGuard
from sidecar.kafka.fences import Fences
from sidecar.kafka.input import Rebalanced
from sidecar.kafka.origin_search import Wanted
from sidecar.metrics import Metrics
from sidecar.policy import Policy
from sidecar.runtime.components import Components
from sidecar.runtime.loop import Loop
from sidecar.runtime.origins import ClosedOrigins
from sidecar.runtime.partitions.inheritance import Inheritance
from sidecar.runtime.partitions.leftovers import Leftovers
from sidecar.runtime.partitions.recovery import Recovery
from sidecar.runtime.partitions.restarts import Restarts
from sidecar.runtime.partitions.search import Searches
from sidecar.runtime.partitions.start_offsets import Topics
from sidecar.runtime.ports import Producer
from sidecar.runtime.reporting.snapshot import Snapshots
from sidecar.runtime.reporting.starts import OwnStart
from sidecar.runtime.reporting.status import StatusPublisher
from sidecar.runtime.transaction.commit import Step
from sidecar.settings import Settings
from sidecar.settings.policy import policy_config
from tests.simulation.fakes.asking import FakeBrokers, FakeChangelogReader
from tests.simulation.fakes.cluster import Cluster, Link
from tests.simulation.fakes.consumer import FakeConsumer
from tests.simulation.fakes.local import Disk, FakeAdmin, FakeExecutor, FakeStarts, FakeWriter, Killed, Strangers
from tests.simulation.fakes.producer import FakeProducer
from tests.simulation.fakes.rocks import RocksDisk
from tests.simulation.fakes.searching import FakeSearch
from tests.simulation.fakes.timeline import InstanceClock

CLUSTER_ID: Final = "cluster"
SHUTDOWN_S: Final = 10.0
RESTARTED_S: Final = 5.0
"""After so long a process that has exited is started again."""


class Process:
    """A machine on which a sidecar runs, or does not: its disk, clock and network outlive each run."""

    def __init__(
        self,
        name: str,
        cluster: Cluster,
        settings: Settings,
        idle_takes_s: float,
        supervise: Callable[[float, Callable[[], None]], None],
        disk: Disk | RocksDisk,
        *,
        instance_id: str,
        is_static: bool,
    ) -> None:
        self.name = name
        self.instance_id = instance_id
        """Part of the transactional id. Another process with the same one is a duplicate by mistake."""
        self.is_static = is_static
        """INSTANCE_ID is set, so the membership is static."""
        self.cluster = cluster
        self.settings = settings
        self.disk = disk
        self.link = Link()
        self.clock = InstanceClock(cluster.timeline)
        self.loop: Loop | None = None
        self.frozen_until_s = self._round_at_s = 0.0
        self.is_acting = False
        """Its loop goes round now."""
        self.dies_at: Step | None = None
        self.restarts = Restarts()
        self.supervise = supervise
        self.is_gone = False
        """Nobody starts it again."""
        self.producer: FakeProducer | None = None
        self.consumer: FakeConsumer | None = None
        self._idle_takes_s = idle_takes_s
        self._executors: list[FakeExecutor] = []
        self._runs = 0

    @property
    def is_up(self) -> bool:
        return self.loop is not None

    # Life

    def start(self) -> None:
        """Start as `run` does once the topics were looked at, unless it runs."""
        if self.loop is not None or self.is_gone:
            return
        self._runs += 1
        self.dies_at = None
        settings, cluster, clock = self.settings, self.cluster, self.clock
        try:
            state = self.disk.state(clock)
        except StoreFailed:
            self.supervise(RESTARTED_S, self.start)
            return
        catalogue = Catalogue(FakeAdmin(cluster, self.link))  # type: ignore[arg-type]  # as much of it as is used
        guard = ClockGuard(clock, settings.max_clock_skew_ms)
        start = OwnStart(FakeStarts(cluster, settings.status_topic, self.instance_id), self.instance_id)
        timeout_s = config.transaction_timeout_s(settings)
        self._fences = fences = Fences(clock, self._static_id, timeout_s, start.is_outrun)
        metrics = Metrics(version="0", now_ms=clock.wall_ms)
        facts = self._facts()
        brokers = FakeBrokers(cluster, self.link)
        own = FakeBrokers(cluster, self.link, random.Random(self._runs))  # what it asks does not change a seed's story
        ingest = _ingest(settings, catalogue)
        recovery = Recovery(
            brokers,
            FakeChangelogReader(cluster, self.link, settings.changelog_topic),
            clock,
            Topics(settings.input_topic, settings.changelog_topic, settings.group_id),
            Identity(CLUSTER_ID, facts.changelog_topic_id, settings.changelog_topic),
            self._searches(ingest),
            running=lambda partition, next_offset: self._loop.running(partition, next_offset),  # noqa: PLW0108 - made below
            restored=metrics.restore_seconds.observe,
            input_lost=lambda partition, records: metrics.input_lost.labels(partition).inc(records),
            rolled_back=lambda partition: metrics.changelog_rolled_back.labels(partition).inc(),
        )
        self.loop = Loop(
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
                status=StatusPublisher(
                    FakeWriter(cluster, self.link), settings.status_topic, clock, guard, start=start
                ),
                snapshots=Snapshots(clock),
                metrics=metrics,
                inheritance=Inheritance(Strangers(), clock),
                leftovers=Leftovers(Strangers(), clock, self.instance_id),
                restarts=self.restarts,
                topic_watch=TopicWatch(brokers.topics, clock, settings.input_topic, settings.changelog_topic),
                marker_watch=MarkerWatch(own.bounds, clock, settings.changelog_topic),
                open_consumer=self._open_consumer,
                make_producer=self._make_producer,
                make_executor=self._make_executor,
                grow_topics=self._grow,
                instance_id=self.instance_id,
                observe=self._observe,
            )
        )

    @property
    def _static_id(self) -> str | None:
        return self.instance_id if self.is_static else None

    @property
    def _loop(self) -> Loop:
        assert self.loop is not None
        return self.loop

    def next_round_s(self) -> float:
        """Return when the loop goes round next."""
        return max(self._round_at_s, self.frozen_until_s) if self.loop is not None else float("inf")

    def round(self) -> None:
        """Let the loop go round once."""
        assert self.loop is not None
        self.is_acting = True
        try:
            self.loop.run_once()
        except Killed:
            self.kill()
        except DuplicateInstance:
            self.kill()
            self.supervise(RESTARTED_S, self.start)
        finally:
            self.is_acting = False
        self._round_at_s = self.cluster.timeline.now_s + (self.consumer.waits_s if self.consumer else 0.0)

    def heartbeat(self) -> None:
        """Do the background work of the client library."""
        if self.consumer is not None and self.loop is not None and self.cluster.timeline.now_s >= self.frozen_until_s:
            self.consumer.heartbeat()

    def kill(self) -> None:
        """End at once: what the store has not flushed is gone, the brokers hear nothing of it."""
        self._forget()
        self.disk.crash()

    def freeze(self, seconds: float) -> None:
        """Stand still, with all threads."""
        self.frozen_until_s = self.cluster.timeline.now_s + seconds
        for executor in self._executors:
            executor.freeze(seconds)

    def stop(self) -> None:
        """End as after SIGTERM."""
        if self.loop is not None:
            self.loop.stop(SHUTDOWN_S)
        self._forget()
        self.disk.crash()  # it did not close the store if its transaction hangs

    def _forget(self) -> None:
        for executor in self._executors:
            executor.kill()
        self._executors.clear()
        self.loop = self.producer = self.consumer = None

    # Ports

    def _open_consumer(self, listener: Rebalanced) -> FakeConsumer:
        name = f"{self.name}.{self._runs}"
        self.consumer = FakeConsumer(
            *(self.cluster, self.link, self.settings.input_topic, name, listener, self._fences, self._static_id)
        )
        self.consumer.idle_takes_s = self._idle_takes_s
        return self.consumer

    def _searches(self, ingest: Ingest) -> Searches:
        rng = random.Random(self._runs)  # what it asks does not change a seed's story

        def ask(wanted: Sequence[Wanted]) -> FakeSearch:
            allowed = ingest.policy.origin_allowed
            return FakeSearch(self.cluster, self.link, rng, self.settings.input_topic, allowed, wanted)

        return Searches(ask, self.clock, self.settings.max_clock_skew_ms, str)

    def _make_producer(self, batch_bytes: int, message_timeout_ms: int) -> Producer:
        transactional_id = self.settings.transactional_id_prefix + self.instance_id
        self.producer = FakeProducer(
            *(self.cluster, self.link, self.clock, self.settings, transactional_id, batch_bytes, message_timeout_ms)
        )
        return self.producer

    def _make_executor(self) -> FakeExecutor:
        executor = FakeExecutor(self.cluster.timeline)
        self._executors.append(executor)
        return executor

    def _observe(self, step: Step) -> None:
        if self.dies_at is step:
            raise Killed

    def _grow(self) -> TopicFacts:
        settings, topics = self.settings, self.cluster.topics
        if settings.input_topic not in topics:
            raise TopicsInvalid(f"topic {settings.input_topic}: does not exist")
        partitions = len(topics[settings.input_topic].logs)
        for name in (settings.changelog_topic, settings.status_topic):
            topics[name].grow(partitions)
        return self._facts()

    def _facts(self) -> TopicFacts:
        settings, topics = self.settings, self.cluster.topics
        inputs, changelog = topics[settings.input_topic], topics[settings.changelog_topic]
        dlq, status = topics[settings.dlq_topic], topics[settings.status_topic]
        return TopicFacts(
            CLUSTER_ID,
            len(inputs.logs),
            min(len(inputs.logs), len(changelog.logs), len(status.logs)),
            inputs.id,
            changelog.id,
            inputs.max_bytes,
            dlq.max_bytes,
            changelog.max_bytes,
            status.max_bytes,
            {name: topics[name].max_bytes for name in settings.dlq_topics[1:]},
        )


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


def settings_of(**given: Any) -> Settings:
    """Return settings with these values."""
    return replace(Settings(streams_app_id="app"), **given)

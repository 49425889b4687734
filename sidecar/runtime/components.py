"""The components of the loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sidecar.clock import Clock
from sidecar.engine.ingest import Ingest
from sidecar.kafka.admin.topics import TopicFacts
from sidecar.kafka.clock_guard import ClockGuard
from sidecar.kafka.fences import Fences
from sidecar.metrics import Metrics
from sidecar.notify.notifier import Notifier
from sidecar.runtime.origins import ClosedOrigins
from sidecar.runtime.partitions.inheritance import Inheritance
from sidecar.runtime.partitions.leftovers import Leftovers
from sidecar.runtime.partitions.restarts import Restarts
from sidecar.runtime.ports import (
    Catalogue,
    MakeExecutor,
    MakeProducer,
    MarkerWatch,
    OpenConsumer,
    Recoveries,
    State,
    Status,
    TopicWatch,
)
from sidecar.runtime.reporting.snapshot import Snapshots
from sidecar.runtime.transaction.commit import Observe, unobserved
from sidecar.settings import Settings

if TYPE_CHECKING:
    from sidecar.runtime.reporting.spans import Spans


@dataclass(frozen=True, slots=True)
class Components:
    """What `main.py` builds and the loop uses."""

    settings: Settings
    clock: Clock
    facts: TopicFacts
    state: State
    catalogue: Catalogue
    closed: ClosedOrigins
    ingest: Ingest
    recovery: Recoveries
    guard: ClockGuard
    fences: Fences
    status: Status
    snapshots: Snapshots
    metrics: Metrics
    inheritance: Inheritance
    leftovers: Leftovers
    restarts: Restarts
    topic_watch: TopicWatch
    marker_watch: MarkerWatch
    open_consumer: OpenConsumer
    make_producer: MakeProducer
    make_executor: MakeExecutor
    grow_topics: Callable[[], TopicFacts]
    instance_id: str
    url: str | None = None
    ingests: bool = True
    """False: fire what is pending and do not read the input topic."""
    observe: Observe = unobserved
    look_at_dlq: Callable[[], None] = lambda: None
    """Looks at the size of the DLQ when it is time; never waits."""
    spans: Spans | None = None
    """None: tracing is off."""
    notifier: Notifier | None = None
    """None: dead letters are not announced."""
    login_blocker: Callable[[], str | None] = lambda: None
    """Returns why the clients cannot log in, None while they can."""

"""What the loop is made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sidecar.clock import Clock
from sidecar.engine.ingest import Intake
from sidecar.kafka.catalogue import Catalogue
from sidecar.kafka.clock_guard import ClockGuard
from sidecar.kafka.fences import Fences
from sidecar.kafka.producer import TransactionalProducer
from sidecar.kafka.topics import TopicFacts
from sidecar.metrics import Metrics
from sidecar.runtime.origins import ClosedOrigins
from sidecar.runtime.partitions.inheritance import Inheritance
from sidecar.runtime.partitions.leftovers import Leftovers
from sidecar.runtime.partitions.reset import Reset
from sidecar.runtime.partitions.restarts import Restarts
from sidecar.runtime.reporting.snapshot import Snapshots
from sidecar.runtime.reporting.spans import Spans
from sidecar.runtime.reporting.status import StatusPublisher
from sidecar.runtime.state import LocalState
from sidecar.runtime.transaction.commit import Observe, unobserved
from sidecar.settings import Settings


@dataclass(frozen=True, slots=True)
class Parts:
    """Put together by `main.py`."""

    settings: Settings
    clock: Clock
    facts: TopicFacts
    state: LocalState
    catalogue: Catalogue
    closed: ClosedOrigins
    intake: Intake
    reset: Reset
    guard: ClockGuard
    fences: Fences
    status: StatusPublisher
    snapshots: Snapshots
    metrics: Metrics
    inheritance: Inheritance
    leftovers: Leftovers
    restarts: Restarts
    make_producer: Callable[[int, int], TransactionalProducer]
    """From bytes of a batch and ms for a record."""
    grow_topics: Callable[[], TopicFacts]
    instance_id: str
    url: str | None = None
    takes_in: bool = True
    """False: the input topic is not read; what waits is fired."""
    observe: Observe = unobserved
    spans: Spans | None = None
    """None: nobody asked for any."""

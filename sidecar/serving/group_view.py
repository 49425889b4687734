"""The view of the whole group from the status topic, which a separate thread follows, and the source of the API.

Only that thread reads the topic. It replaces the view as a whole, so callers never wait for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Final, Protocol

import structlog

from sidecar.api.source import Health, Source
from sidecar.clock import Clock
from sidecar.contract import status
from sidecar.contract.status import OutcomeRecord, parse_outcome_key
from sidecar.engine.group.activity import Activity
from sidecar.engine.group.merge import BrokerTime, Outcomes, Published, Standing, Start, StatusPosition, group_views
from sidecar.engine.group.view import FIGURE_AGE_MAX_MS, PartitionView
from sidecar.errors import KafkaFailed, printable
from sidecar.kafka import config
from sidecar.kafka.status_reader import StatusRead, StatusReader
from sidecar.log import librdkafka_logger
from sidecar.settings import Settings

log = structlog.get_logger(__name__)

READ_S: Final = 0.2
AGAIN_S: Final = 1.0
FIRST_READ_S: Final = 15.0
"""How long the first read of the topic may take before incomplete answers are given."""
NAMED_MAX: Final = 10
OWNER_CHARS_MAX: Final = 100


class StatusSource(Protocol):
    """The part of `kafka.status_reader.StatusReader` that is needed here."""

    input_partitions: int | None
    cluster_id: str | None

    @property
    def error(self) -> str: ...

    @property
    def caught_up(self) -> bool: ...

    def read(self, timeout_s: float) -> Sequence[StatusRead]: ...

    def close(self) -> None: ...


class ClusterView:
    """Follows the status topic.

    Args:
        make_reader: Opens the topic at its start; called again after a fatal error.
        clock: The clock of this machine.
        topic: The name of the status topic, which is part of signatures.
        token: API_TOKEN; when set, records without its signature are ignored.
        instance_id: Of this process, whose starts are noted; empty when it never owns a partition.
    """

    def __init__(
        self,
        make_reader: Callable[[], StatusSource],
        clock: Clock,
        *,
        topic: str,
        token: str | None,
        instance_id: str = "",
    ) -> None:
        self._make_reader = make_reader
        self._clock = clock
        self._topic = topic
        self._token = token
        self._start_key = status.start_key(instance_id) if instance_id else None
        self.last_start: Start | None = None
        """The last start under the identity of this process."""
        self._standings: Mapping[int, Standing] = {}
        self._time = BrokerTime()
        self._outcomes = Outcomes()
        self._outcomes_came = threading.Condition()
        self._began_s = clock.monotonic_s()
        self._first_read = False
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="status", daemon=True)
        self.partitions_total: int | None = None
        """Number of input partitions; None while unknown."""
        self.cluster_id: str | None = None
        self.error = ""
        """Why nothing can be read, for people."""
        self._said = ""
        self.refused = 0
        """Number of records without a valid signature."""
        self._instance_id = instance_id
        self._unverified: dict[int, tuple[str, int]] = {}
        """By partition: who says to own it in the last record without a valid signature, and when it was stamped."""

    # Called by any thread

    def views(self, own: Sequence[PartitionView] = (), instance_id: str = "") -> list[PartitionView]:
        """Return one view for each input partition; see `group_views`."""
        now_ms = self._clock.wall_ms()
        return group_views(
            self._standings,
            own,
            instance_id=instance_id,
            partitions_total=self.partitions_total,
            broker_ms=self._time.now_ms(self._clock.monotonic_s(), now_ms),
            now_ms=now_ms,
        )

    def outcomes(self, control_id: str) -> dict[int, OutcomeRecord]:
        """Return the outcomes of a control record by input partition; empty while there are none."""
        return self._outcomes.of(control_id)

    def await_outcomes(
        self, control_id: str, partitions: Collection[int], timeout_s: float
    ) -> dict[int, OutcomeRecord]:
        """Return a control record's outcomes once all these partitions have one, or those known after the timeout."""
        with self._outcomes_came:
            self._outcomes_came.wait_for(lambda: self.outcomes(control_id).keys() >= set(partitions), timeout_s)
        return self.outcomes(control_id)

    def activity(self, partition: int) -> Activity | None:
        """Return the activity of a partition as published by its owners; None when there is none."""
        return self._standings.get(partition, Standing()).activity

    def unverified(self) -> list[str]:
        """Return other instances whose latest records have no valid signature, as they call themselves."""
        broker_ms = self._time.now_ms(self._clock.monotonic_s(), self._clock.wall_ms())
        recent = dict(self._unverified).values()
        return sorted({owner for owner, stamped_ms in recent if broker_ms - stamped_ms < FIGURE_AGE_MAX_MS})[:NAMED_MAX]

    def unread(self) -> str | None:
        """Return why there is no view of the group yet; None once the topic was read, or took too long."""
        if self._first_read or self._clock.monotonic_s() - self._began_s >= FIRST_READ_S:
            return None
        return "the status topic has not been read to its end yet" + (f": {self.error}" if self.error else "")

    @property
    def alive(self) -> bool:
        """Whether the thread has not ended."""
        return self._thread.ident is None or self._thread.is_alive()

    # Lifecycle

    def start(self) -> None:
        """Start to read; returns at once."""
        self._began_s = self._clock.monotonic_s()
        self._thread.start()

    def stop(self, deadline_s: float) -> None:
        """End the thread; after the deadline let it die with the process."""
        self._end.set()
        if self._thread.is_alive():
            self._thread.join(deadline_s)

    def _run(self) -> None:
        while not self._end.is_set():
            try:
                with closing(self._make_reader()) as reader:
                    while not self._end.is_set():
                        self.step(reader, READ_S)
            except KafkaFailed as error:
                self.error = str(error)
                log.warning("status_reader_failed", topic=self._topic, reason=self.error)
                self._end.wait(AGAIN_S)

    def step(self, reader: StatusSource, timeout_s: float) -> None:
        """Read once and add what has arrived. Raises KafkaFailed when a new reader is needed."""
        records = reader.read(timeout_s)
        self.error = reader.error
        if self.unread() is None and self.error != self._said:
            # Before that, the topic may be about to be created.
            self._said = self.error
            if self.error:
                log.warning("status_not_read", topic=self._topic, reason=self.error)
        self.partitions_total = reader.input_partitions
        self.cluster_id = reader.cluster_id
        if records:
            self.add(records)
        self._first_read = self._first_read or reader.caught_up

    def add(self, records: Iterable[StatusRead]) -> None:
        """Add records of the topic, in any order; ignores other kinds of keys."""
        standings = dict(self._standings)
        arrived_s = self._clock.monotonic_s()
        for record in records:
            if record.live:
                self._time.heard(record.stamped_ms, arrived_s)
            if record.key == status.partition_key(record.partition):
                self._add_view(record, standings)
            elif record.key == self._start_key:
                self._add_start(record)
            elif (found := parse_outcome_key(record.key)) is not None:
                outcome = OutcomeRecord.from_json(record.value)
                if outcome is not None and outcome.partition == record.partition and self._is_signed(record):
                    self._outcomes.add(*found, outcome, record.stamped_ms)
        self._standings = standings
        with self._outcomes_came:
            self._outcomes_came.notify_all()

    def _add_view(self, record: StatusRead, standings: dict[int, Standing]) -> None:
        if not self._is_signed(record):
            self._refuse(record)
            return
        view = PartitionView.from_json(record.value)
        if view is not None and view.partition == record.partition:
            before = standings.get(record.partition, Standing())
            standings[record.partition] = before.joined(
                Published(view, StatusPosition(record.stamped_ms, record.offset))
            )

    def _refuse(self, record: StatusRead) -> None:
        self.refused += 1
        view = PartitionView.from_json(record.value)
        owner = "" if view is None else printable(view.owner[:OWNER_CHARS_MAX])
        place = {"topic": self._topic, "partition": record.partition, "offset": record.offset}
        if self.refused == 1:
            log.warning("status_refused", owner=owner, **place)
        if owner and owner != self._instance_id:
            self._unverified[record.partition] = (owner, record.stamped_ms)

    def _add_start(self, record: StatusRead) -> None:
        start = Start(StatusPosition(record.stamped_ms, record.offset), record.value)
        is_last = self.last_start is None or start.position > self.last_start.position
        if is_last and record.partition == status.START_PARTITION and self._is_signed(record):
            self.last_start = start

    def _is_signed(self, record: StatusRead) -> bool:
        return record.is_signed(self._topic, self._token)


def follow(settings: Settings, clock: Clock, instance_id: str = "") -> ClusterView:
    """Return the view of the group of these settings; it reads once it is started.

    Args:
        settings: The effective ones.
        clock: The clock of this machine.
        instance_id: As in `ClusterView`.
    """
    properties = {**config.status_reader(settings), "logger": librdkafka_logger()}

    def make_reader() -> StatusReader:
        return StatusReader(properties, settings.status_topic, settings.input_topic, clock)

    topic, token = settings.status_topic, settings.api_token
    return ClusterView(make_reader, clock, topic=topic, token=token, instance_id=instance_id)


class GroupSource:
    """The source of the API: health and own views of this process, everything else from the status topic.

    Args:
        own: This process's snapshots.
        cluster: The view of the group.
        instance_id: Id of this process; empty when it never owns a partition.
    """

    def __init__(self, own: Source, cluster: ClusterView, instance_id: str = "") -> None:
        self._own = own
        self._cluster = cluster
        self._instance_id = instance_id

    def views(self) -> Sequence[PartitionView]:
        return self._cluster.views(self._own.views(), self._instance_id)

    def partitions_total(self) -> int | None:
        return self._cluster.partitions_total

    def unread(self) -> str | None:
        return self._cluster.unread()

    def outcomes(self, control_id: str) -> Mapping[int, OutcomeRecord]:
        """Return the outcomes of a control record by input partition; empty while there are none."""
        return self._cluster.outcomes(control_id)

    def await_outcomes(
        self, control_id: str, partitions: Collection[int], timeout_s: float
    ) -> Mapping[int, OutcomeRecord]:
        """Return the outcomes once all these partitions have one, or those known after the timeout."""
        return self._cluster.await_outcomes(control_id, partitions, timeout_s)

    def partitions_without_owner(self) -> float:
        """Return the number of input partitions without an owner; NaN while unknown."""
        if self.partitions_total() is None or self.unread() is not None:
            return float("nan")
        return sum(not view.owner for view in self.views())

    def health(self) -> Health:
        health = self._own.health()
        if not self._cluster.alive:
            reasons = ("the reader of the status topic has ended", *health.reasons)
            return replace(health, live=False, ready=False, reasons=reasons)
        if (unread := self._cluster.unread()) is not None:
            return replace(health, ready=False, reasons=(*health.reasons, unread))
        if names := self._cluster.unverified():
            # Whoever may write to the topic can bring this about, so it must not take the instance out of service.
            text = (
                f"the status records of {', '.join(names)} are not signed with a token of API_TOKEN here, so it is not "
                "shown as an owner: give all instances the same tokens, see Rotate API_TOKEN in the runbook"
            )
            return replace(
                health,
                reasons=(*health.reasons, text),
                details={**health.details, "unverified_instances": [*names]},
            )
        return health

    def now_ms(self) -> int:
        return self._own.now_ms()

    def cluster_id(self) -> str | None:
        return self._own.cluster_id() or self._cluster.cluster_id

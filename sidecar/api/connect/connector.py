"""The sidecar seen as a connector of Kafka Connect: one connector, and a task for each instance that owns partitions.

All of it is worked out from the views of the whole group, so every process tells the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from sidecar.api.connect.bodies import (
    ConnectorInfo,
    ConnectorState,
    ConnectorStateInfo,
    ConnectorStatus,
    SinkOffset,
    SinkPartition,
    SinkPlace,
    TaskId,
    TaskInfo,
    TaskStateName,
    TaskStatus,
)
from sidecar.api.instances import Others
from sidecar.changelog.codec import Closure
from sidecar.contract.control import EVERY_ORIGIN
from sidecar.engine.group.view import STOPPED, PartitionView
from sidecar.engine.partition import State

CONNECTOR_CLASS: Final = "io.retrysidecar.RetrySidecarConnector"
TASK_CLASS: Final = "io.retrysidecar.RetrySidecarTask"
CONNECT_VERSION: Final = "4.3.1"
"""Tools choose by it what they call: this one has all that is answered here."""


@dataclass(frozen=True, slots=True)
class Worker:
    """The process that answers."""

    name: str
    """The name of the connector: the app id."""
    instance_id: str
    """Empty for a process that never owns a partition."""
    topic: str
    """The input topic."""
    config: Mapping[str, str]
    """Settings of this process, without secrets."""
    version: str
    """The version of the distribution."""
    others: Others
    restart: Callable[[bool], None]
    """Restores the partitions of this process again; with True, only the stopped ones. Returns at once; may be called
    by any thread."""


@dataclass(frozen=True, slots=True)
class Task:
    """An instance with its partitions, or all partitions without an owner."""

    number: int
    owner: str
    """Instance id; empty when the partitions have no owner."""
    url: str | None
    views: tuple[PartitionView, ...]

    @property
    def worker_id(self) -> str:
        """Host and port of the instance, in Connect's format."""
        return (urlsplit(self.url).netloc if self.url else "") or self.owner

    @property
    def version(self) -> str:
        """Version of retry-sidecar at the instance; empty when it is not known."""
        return self.views[0].release if self.owner else ""

    @property
    def state(self) -> TaskStateName:
        """The worst state of any of its partitions."""
        states = {view.state for view in self.views}
        if not self.owner:
            return "UNASSIGNED"
        if State.STOPPED in states:
            return "FAILED"
        if states & {State.ASSIGNED, State.RESTORING}:
            return "RESTARTING"
        return "PAUSED" if all(map(is_paused, self.views)) else "RUNNING"

    @property
    def partitions(self) -> list[int]:
        """Numbers of its partitions."""
        return [view.partition for view in self.views]

    def status(self) -> TaskStatus:
        """Return the status of the task."""
        state = self.state
        said = [
            f"partition {view.partition} is stopped: {view.reason or f'the log of {self.owner} says why'}"
            for view in self.views
            if view.state == State.STOPPED
        ]
        trace = "\n".join(said) if state == "FAILED" else None
        return TaskStatus(
            id=self.number, state=state, worker_id=self.worker_id, version=self.version or None, trace=trace
        )


def is_paused(view: PartitionView) -> bool:
    """Return whether a partition fires nothing because the whole group is paused or stopped."""
    return _group_state(view) in {Closure.PAUSED, STOPPED}


def is_stopped(views: Collection[PartitionView]) -> bool:
    """Return whether the group is stopped, in all its partitions."""
    return bool(views) and all(_group_state(view) == STOPPED for view in views)


def _group_state(view: PartitionView) -> str:
    state, _ = view.closed_origins.get(EVERY_ORIGIN, ("", 0))
    return state


def tasks_of(views: Iterable[PartitionView]) -> list[Task]:
    """Return the tasks: one for each instance in the order of ids, then one for partitions without an owner, if any."""
    by_owner: dict[str, list[PartitionView]] = {}
    for view in views:
        by_owner.setdefault(view.owner, []).append(view)
    owners = sorted(by_owner, key=lambda owner: (not owner, owner))
    return [
        Task(number, owner, next((view.url for view in by_owner[owner] if view.url), None), tuple(by_owner[owner]))
        for number, owner in enumerate(owners)
    ]


def info_of(worker: Worker, tasks: Sequence[Task], partitions_total: int | None) -> ConnectorInfo:
    """Return the connector's description."""
    return ConnectorInfo(
        name=worker.name,
        config=config_of(worker, tasks, partitions_total),
        tasks=[TaskId(connector=worker.name, task=task.number) for task in tasks],
        type="sink",
    )


def config_of(worker: Worker, tasks: Sequence[Task], partitions_total: int | None) -> dict[str, str]:
    """Return the settings of the process, and what tools look for in a connector's; all values are text."""
    return {
        **worker.config,
        "name": worker.name,
        "connector.class": CONNECTOR_CLASS,
        "tasks.max": str(partitions_total or len(tasks) or 1),
        "topics": worker.topic,
        "kafka.topic": worker.topic,
    }


def status_of(
    worker: Worker, views: Sequence[PartitionView], tasks: Iterable[Task], restarted: Iterable[int] = ()
) -> ConnectorStateInfo:
    """Return the status of the connector.

    Args:
        worker: The process that answers.
        views: The partitions of the whole group.
        tasks: The tasks that are listed.
        restarted: Numbers of tasks that are restarting, which their views do not show yet.
    """
    first = next((task for task in tasks_of(views) if task.owner), None)
    state: ConnectorState = "RUNNING"
    if is_stopped(views):
        state = "STOPPED"
    elif first is None:
        state = "UNASSIGNED"
    elif all(map(is_paused, views)):
        state = "PAUSED"
    begun = set(restarted)
    statuses = [
        task.status().model_copy(update={"state": "RESTARTING", "trace": None} if task.number in begun else {})
        for task in tasks
    ]
    connector = ConnectorStatus(
        state=state,
        worker_id="" if first is None else first.worker_id,
        version=None if first is None else first.version or None,
    )
    return ConnectorStateInfo(name=worker.name, connector=connector, tasks=statuses, type="sink")


def task_info(worker: Worker, task: Task) -> TaskInfo:
    """Return the configuration of a task."""
    config = {
        "task.class": TASK_CLASS,
        "topics": worker.topic,
        "partitions": ",".join(map(str, task.partitions)),
        "instance.id": task.owner,
    }
    return TaskInfo(id=TaskId(connector=worker.name, task=task.number), config=config)


def offsets_of(worker: Worker, views: Iterable[PartitionView]) -> list[SinkOffset]:
    """Return the next offset of each partition, as far as it is known."""
    return [
        SinkOffset(
            partition=SinkPartition(kafka_topic=worker.topic, kafka_partition=view.partition),
            offset=SinkPlace(kafka_offset=view.next_input_offset),
        )
        for view in views
        if view.next_input_offset is not None
    ]

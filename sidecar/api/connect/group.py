"""The connector as its routes share it: its name, its tasks, and the errors for unknown ones."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import Path
from starlette.exceptions import HTTPException

from sidecar.api.connect.bodies import ConnectorInfo, ConnectorStateInfo
from sidecar.api.connect.connector import Task, Worker, info_of, status_of, tasks_of
from sidecar.api.figures import require_known
from sidecar.api.source import Source

CONNECTOR: Final = "/connectors/{connector}"
TASK: Final = f"{CONNECTOR}/tasks/{{task}}"
ConnectorName = Annotated[str, Path(description="Name of the connector: the app id.", examples=["kafka-retry"])]
TaskNumber = Annotated[int, Path(description="Number of the task, from 0.", examples=[0], ge=0, le=2**31 - 1)]


def example(value: object, status: int = 200) -> dict[int | str, dict[str, object]]:
    """Return the documentation of an answer by an example."""
    return {status: {"content": {"application/json": {"example": value}}}}


class ConnectGroup:
    """The connector as the group's views show it now."""

    def __init__(self, source: Source, worker: Worker) -> None:
        self.source = source
        self.worker = worker

    def check(self, connector: str, words: str = "Connector {} not found") -> None:
        """Raise HTTPException 404 for a connector that does not exist."""
        if connector != self.worker.name:
            raise HTTPException(404, words.format(connector[:300]))

    def tasks(self) -> list[Task]:
        """Return the tasks. Raises HTTPException 503 while nothing is known."""
        require_known(self.source)
        return tasks_of(self.source.views())

    def task(self, number: int, words: str) -> Task:
        """Return a task. Raises HTTPException 404 in these words when there is none of this number."""
        tasks = self.tasks()
        if number >= len(tasks):
            raise HTTPException(404, words.format(f"{self.worker.name}-{number}"))
        return tasks[number]

    def info(self) -> ConnectorInfo:
        """Return the description of the connector."""
        return info_of(self.worker, self.tasks(), self.source.partitions_total())

    def status(self) -> ConnectorStateInfo:
        """Return the status of the connector."""
        return status_of(self.worker, self.tasks())

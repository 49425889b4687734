"""The connector as its routes share it: its name, its tasks, and the errors for unknown ones."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Annotated, Final

from fastapi import Path
from pydantic import BeforeValidator
from starlette.exceptions import HTTPException

from sidecar.api.connect.bodies import ConnectorInfo, ConnectorStateInfo
from sidecar.api.connect.connector import Task, Worker, info_of, is_stopped, status_of, tasks_of
from sidecar.api.figures import require_known
from sidecar.api.source import Source
from sidecar.engine.group.view import PartitionView

CONNECTOR: Final = "/connectors/{connector}"
TASK: Final = f"{CONNECTOR}/tasks/{{task}}"
ConnectorName = Annotated[str, Path(description="Name of the connector: the app id.", examples=["kafka-retry"])]
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,10}")


def _task_number(text: str) -> int:
    """Return the number. Raises HTTPException 404, as Connect answers, for a text that is no 32-bit number."""
    if not _NUMBER.fullmatch(text) or not -(2**31) <= int(text) < 2**31:
        raise HTTPException(404, "HTTP 404 Not Found")
    return int(text)


TaskNumber = Annotated[
    int, BeforeValidator(_task_number), Path(description="Number of the task, from 0.", examples=[0])
]


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

    def views(self) -> Sequence[PartitionView]:
        """Return the partitions of the group. Raises HTTPException 503 while nothing is known."""
        require_known(self.source)
        return self.source.views()

    def tasks(self) -> list[Task]:
        """Return the tasks: none while the group is stopped. Raises HTTPException 503 while nothing is known."""
        views = self.views()
        return [] if is_stopped(views) else tasks_of(views)

    def task(self, number: int, words: str) -> Task:
        """Return a task. Raises HTTPException 404 in these words when there is none of this number."""
        tasks = self.tasks()
        if not 0 <= number < len(tasks):
            raise HTTPException(404, words.format(f"{self.worker.name}-{number}"))
        return tasks[number]

    def info(self) -> ConnectorInfo:
        """Return the description of the connector."""
        return info_of(self.worker, self.tasks(), self.source.partitions_total())

    def status(self, restarted: Iterable[int] = ()) -> ConnectorStateInfo:
        """Return the status of the connector.

        Args:
            restarted: Numbers of tasks that are restarting, which their views do not show yet.
        """
        return status_of(self.worker, self.views(), self.tasks(), restarted)

"""Restarts of tasks: the partitions of an instance are reset and restored, as after a rebalance."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final
from urllib.parse import quote, urlencode

import structlog
from anyio import CapacityLimiter, to_thread
from fastapi import Request
from starlette.exceptions import HTTPException

from sidecar.api.connect.connector import Task, Worker
from sidecar.api.instances import FORWARDED
from sidecar.api.messages.changes import caller
from sidecar.api.problems import NotNow
from sidecar.errors import CommandFailed

log = structlog.get_logger(__name__)

RESTARTS_AT_A_TIME: Final = 2


class Restarter:
    """Restarts tasks, here or through the instance that owns their partitions, and logs each restart."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._limiter = CapacityLimiter(RESTARTS_AT_A_TIME)

    async def restart(self, request: Request, tasks: Iterable[Task], *, only_failed: bool) -> None:
        """Restart tasks.

        Args:
            request: The HTTP request.
            tasks: The tasks to restart.
            only_failed: Restart only their stopped partitions.

        Raises:
            HTTPException: 409 when partitions have no owner, 503 when an owner does not answer; other tasks restart.
        """
        who = caller(request)
        failed = [
            said
            for task in tasks
            if (said := await to_thread.run_sync(self._restart, who, task, only_failed, limiter=self._limiter))
        ]
        if failed:
            status, text = max(status for status, _ in failed), "; ".join(text for _, text in failed)
            raise NotNow(text, applied="unknown") if status == 503 else HTTPException(status, text)

    def restart_own(self, request: Request, wanted: str, *, only_failed: bool) -> None:
        """Carry out a restart that another instance forwarded, if this instance is the target."""
        if wanted != self._worker.instance_id:
            raise HTTPException(409, f"An instance other than {wanted[:300]} answers here; try again in a moment.")
        self._worker.restart(only_failed)
        log.info(
            "api_change", who=caller(request), what="restart", target=wanted, only_failed=only_failed, outcome="asked"
        )

    def _restart(self, who: str, task: Task, only_failed: bool) -> tuple[int, str] | None:
        """Return status and message when it fails. Logged here, in the thread: the client may be gone."""
        said = self._ask(task, only_failed)
        log.info(
            "api_change",
            who=who,
            what="restart",
            target=f"{self._worker.name}-{task.number}",
            instance=task.owner,
            only_failed=only_failed,
            outcome="failed" if said else "asked",
        )
        return said

    def _ask(self, task: Task, only_failed: bool) -> tuple[int, str] | None:
        partitions = ", ".join(map(str, task.partitions))
        if not task.owner:
            return 409, f"No instance owns partition {partitions} (a rebalance is in progress); try again in a moment."
        if task.owner == self._worker.instance_id:
            self._worker.restart(only_failed)
            return None
        if task.url is None:
            return 503, f"{task.owner}, which owns partition {partitions}, does not report its URL."
        query = urlencode({"instance": task.owner, "onlyFailed": json.dumps(only_failed)})
        path = f"/connectors/{quote(self._worker.name, safe='')}/tasks/{task.number}/restart?{query}"
        try:
            status, _ = self._worker.others.send("POST", task.url, path)
        except CommandFailed as cause:
            return 503, str(cause)
        if status == 204:
            return None
        return (409 if status == 409 else 503), f"{task.owner} at {task.url} answers {status}"


def is_passed_on(request: Request) -> bool:
    """Return whether another instance forwarded the call."""
    return FORWARDED in request.headers

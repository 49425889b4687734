"""Control records for the API: one client, created when first needed."""

from __future__ import annotations

import threading
from typing import Final

from sidecar.clock import Clock
from sidecar.contract.control import ControlKind, Outcome, Target
from sidecar.control.client import DEADLINE_S, ControlClient, ControlResult, added_up, found_result
from sidecar.kafka.admin.cluster import Deadline
from sidecar.model import Scope
from sidecar.serving.group_view import GroupSource
from sidecar.settings import Settings

LOOKUP_S: Final = 5.0


class LazyCommands:
    """Implements `sidecar.api.messages.changes.Commands`. Used by any number of threads.

    Args:
        settings: The effective ones.
        clock: Stamps control ids and signatures.
        source: Has the outcomes of the last hour.
    """

    def __init__(self, settings: Settings, clock: Clock, source: GroupSource) -> None:
        self._settings = settings
        self._clock = clock
        self._source = source
        self._lock = threading.Lock()
        self._client: ControlClient | None = None

    def act(
        self, kind: ControlKind, target: Target, due_ms: int | None, scope: Scope, control_id: str | None
    ) -> ControlResult:
        """Send a control record and wait for its outcome. Raises ValueError and CommandFailed."""
        client = self._made()
        if self._source.unread() is not None:
            return client.act(kind, target, due_ms=due_ms, scope=scope, control_id=control_id)
        deadline = Deadline(DEADLINE_S, self._clock)
        sent = client.post(kind, target, due_ms=due_ms, scope=scope, control_id=control_id, deadline_s=DEADLINE_S)
        answers = self._source.await_outcomes(sent.control_id, sent.offsets, deadline.left_s)
        possible = {kind.done, Outcome.NOT_PENDING, Outcome.ORIGIN_PAUSED, Outcome.BAD_REQUEST}
        if any(each.target != sent.target or each.outcome not in possible for each in answers.values()):
            raise ValueError(
                "control_id: another command had this id in the last hour, so it is not known whether this one acted: "
                "use an id once"
            )
        return added_up(sent.control_id, sent.target, sent.offsets, answers)

    def lookup(self, control_id: str) -> ControlResult | None:
        """Return the result of a control record, None while unknown. Raises CommandFailed."""
        known, total = self._source.outcomes(control_id), self._source.partitions_total()
        found = None if total is None else found_result(control_id, known, total)
        if found is not None and not found.missing:
            return found
        return self._made().lookup(control_id, deadline_s=LOOKUP_S)

    def close(self) -> None:
        """Close the client."""
        with self._lock:
            if self._client is not None:
                self._client.close()

    def _made(self) -> ControlClient:
        with self._lock:
            if self._client is None:
                self._client = ControlClient(self._settings, self._clock)
            return self._client

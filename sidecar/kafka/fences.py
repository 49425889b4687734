"""Tells a duplicate instance, another process with the same identity, from brokers that were silent for too long.

Brokers fence in both cases with the same error. A duplicate instance fences repeatedly, and it fences members whose
session is alive and transactions that are young. Initialisations of this process that brokers did not answer fence it
too, when the brokers process them after a later one. The client library repeats each, so there is no saying how often.

Two duplicates fence each other in turn. The one that started first ends, and both find the same one to be that
(`runtime/reporting/starts.py`): the other goes on, however often it is fenced.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog

from sidecar.clock import Clock
from sidecar.errors import DuplicateInstance

log = structlog.get_logger(__name__)

FENCES_MAX: Final = 3
FENCES_WITHIN_S: Final = 600.0
"""On a busy machine each of the two may take a minute to join again."""
SAY_EVERY_S: Final = 60.0
EXPLAINED_S: Final = 60.0
"""How long an initialisation that failed explains fences."""


class Fences:
    """Counts the fences that silent brokers cannot explain; used by one thread."""

    def __init__(
        self,
        clock: Clock,
        instance_id: str | None,
        transaction_timeout_s: float,
        started_later: Callable[[], bool],
    ) -> None:
        """Args:
        instance_id: INSTANCE_ID, if set.
        transaction_timeout_s: After it the broker fences a producer with an open transaction.
        started_later: Returns whether another process with the identity of this one is known to have started later.
        """
        self._clock = clock
        self._instance_id = instance_id
        self._transaction_timeout_s = transaction_timeout_s
        self._started_later = started_later
        self._counted: list[float] = []
        self._explained_until_s = 0.0
        self._said_s = float("-inf")

    def init_failed(self) -> None:
        """Note that the initialisation of a producer failed: for a minute the brokers may process it late."""
        self._explained_until_s = self._clock.monotonic_s() + EXPLAINED_S

    def producer_fenced(self, transaction_s: float) -> None:
        """Note a fenced transaction and its age. Raises DuplicateInstance when this process must end."""
        explained = self._clock.monotonic_s() < self._explained_until_s
        if not explained and transaction_s < self._transaction_timeout_s:
            self._count()

    def member_fenced(self, *, session_over: bool) -> None:
        """Note that the static member was fenced. Raises DuplicateInstance when this process must end.

        Args:
            session_over: Its session had timed out. Then its own join requests, which silent brokers answer late and
                all at once, fence each other.
        """
        if not session_over:
            self._count()

    def _count(self) -> None:
        now_s = self._clock.monotonic_s()
        self._counted = [*(each for each in self._counted if now_s - each < FENCES_WITHIN_S), now_s]
        if len(self._counted) < FENCES_MAX:
            return
        if not self._started_later():
            if now_s - self._said_s >= SAY_EVERY_S:
                self._said_s = now_s
                log.warning("duplicate_outlasted", fences=len(self._counted))
            self._counted = self._counted[1 - FENCES_MAX :]
            return
        if self._instance_id is not None:
            text = f"has INSTANCE_ID {self._instance_id} too; give every running instance a different INSTANCE_ID"
        else:
            text = "uses the same transactional id; give every running instance a different STATE_DIR or INSTANCE_ID"
        raise DuplicateInstance(f"fenced {FENCES_MAX} times: a process that started later {text}")

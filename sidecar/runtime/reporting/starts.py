"""Which of several processes with one identity started last: that one goes on, and the others end.

Each writes its own random id to partition 0 of the status topic when it starts, under a key of the identity. The
broker orders these records and stamps them by its clock, so all readers agree on the last one. A process that has not
read it yet goes on for the time being; the last one itself can read none that is later.
"""

from __future__ import annotations

import secrets
from typing import Protocol

from sidecar.contract.status import start_key
from sidecar.engine.group.merge import Start, StatusPosition
from sidecar.kafka.writer import Written


class GroupStarts(Protocol):
    """The part of `serving.group_view.ClusterView` that is needed here."""

    @property
    def last_start(self) -> Start | None: ...


class OwnStart:
    """The start of this process.

    Args:
        group: Knows the last start under the same identity.
        instance_id: The identity.
    """

    def __init__(self, group: GroupStarts, instance_id: str) -> None:
        self._group = group
        self.key = start_key(instance_id)
        self.value = secrets.token_hex(8).encode()
        self._position: StatusPosition | None = None

    @property
    def is_written(self) -> bool:
        """Whether the broker has it."""
        return self._position is not None

    def written(self, written: Written) -> None:
        """Note where the broker has put it."""
        self._position = StatusPosition(written.broker_ms or 0, written.offset)

    def is_outrun(self) -> bool:
        """Return whether another process with this identity is known to have started later."""
        last = self._group.last_start
        return (
            last is not None
            and self._position is not None
            and last.process != self.value
            and last.position > self._position
        )

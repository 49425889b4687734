"""Takes over a partition's activity of the last hour from its former owner; it is not part of the changelog."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

from sidecar.clock import Clock
from sidecar.engine.group.activity import Activity
from sidecar.engine.partition import Partition

LAST_WORD_S: Final = 1.0
"""How long the former owner's last status record may take to arrive."""


class GroupActivity(Protocol):
    """The part of `serving.group_view.ClusterView` that is needed here."""

    def unread(self) -> str | None: ...

    def activity(self, partition: int) -> Activity | None: ...


class Inheritance:
    """Adds the former owner's activity to each partition once, before this instance publishes its own."""

    def __init__(self, group: GroupActivity, clock: Clock) -> None:
        self._group = group
        self._clock = clock
        self._since_s: dict[int, float] = {}

    def join(self, running: Iterable[Partition]) -> None:
        """Join the former owner's activity for partitions that have just started to run; never waits."""
        waiting = [each for each in running if not each.activity_whole]
        now_s = self._clock.monotonic_s()
        self._since_s = {each.number: self._since_s.get(each.number, now_s) for each in waiting}
        if not waiting or self._group.unread() is not None:
            return
        for partition in waiting:
            if now_s - self._since_s[partition.number] >= LAST_WORD_S:
                former = self._group.activity(partition.number)
                partition.activity = partition.activity.joined(former or Activity())
                partition.activity_whole = True

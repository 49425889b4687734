"""Watches that the brokers end committed transactions in the changelog.

Brokers can report a commit and never write its marker to a partition that had no leader at that moment. That part is
then rolled back by the next failing transaction of the same producer there, unless the partition recovers before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

import structlog

from sidecar.clock import Clock
from sidecar.engine.partition import Partition
from sidecar.kafka.admin.offsets import Bounds

log = structlog.get_logger(__name__)

ASK_EVERY_S: Final = 1.0
UNENDED_S: Final = 3.0
"""A marker that is not in the log so long after its commit is taken for a lost one; recovery proves it."""


class Question(Protocol):
    """A query that is sent when it is created: `admin.offsets.LogBounds`."""

    @property
    def errors(self) -> Mapping[int, str]:
        """By partition, why it has no answer; empty text while nothing but waiting is needed."""
        ...

    def done(self) -> bool:
        """Return whether there is an answer, including a refusal. Never waits."""
        ...

    def result(self) -> Mapping[tuple[str, int], Bounds]:
        """Return bounds by topic and partition, of those that are answered."""
        ...


class _Commit(NamedTuple):
    """The last commit of a partition whose marker is not seen yet."""

    changelog_offset: int
    """Behind its last record: the marker is there or later."""
    at_s: float


class MarkerWatch:
    """Sends one query at a time, in the background, and none while all markers are seen; used by one thread.

    Args:
        ask: Queries the bounds of partitions, by topic.
        clock: The clock of this machine.
        changelog: The changelog.
    """

    def __init__(self, ask: Callable[[Mapping[str, Sequence[int]]], Question], clock: Clock, changelog: str) -> None:
        self._ask = ask
        self._clock = clock
        self._changelog = changelog
        self._unseen: dict[int, _Commit] = {}
        self._asked: Mapping[int, _Commit] = {}
        self._asked_s = float("-inf")
        self._question: Question | None = None

    def committed(self, partitions: Iterable[Partition]) -> None:
        """Note the partitions of a transaction that was reported as committed."""
        now_s = self._clock.monotonic_s()
        self._unseen.update({each.number: _Commit(each.changelog_offset, now_s) for each in partitions})

    def missing(self, running: Iterable[Partition]) -> set[int]:
        """Return the partitions whose last commit the brokers have not ended in time. Never waits.

        Args:
            running: The running partitions. Others recover, and look for themselves.
        """
        offsets = {each.number: each.changelog_offset for each in running}
        self._unseen = {
            number: each for number, each in self._unseen.items() if offsets.get(number) == each.changelog_offset
        }
        question, now_s = self._question, self._clock.monotonic_s()
        if question is None:
            if self._unseen and now_s - self._asked_s >= ASK_EVERY_S:
                self._asked, self._asked_s = dict(self._unseen), now_s
                self._question = self._ask({self._changelog: sorted(self._asked)})
            return set()
        if not question.done():
            return set()
        self._question = None
        return self._judge(question)

    def _judge(self, question: Question) -> set[int]:
        bounds = question.result()
        missing: set[int] = set()
        for number, commit in self._asked.items():
            if self._unseen.get(number) != commit:
                continue  # it committed again, or recovers
            found = bounds.get((self._changelog, number))
            if found is not None and found.end > commit.changelog_offset:
                del self._unseen[number]
            elif self._asked_s - commit.at_s >= UNENDED_S and (found is not None or question.errors.get(number)):
                missing.add(number)
        for number in missing:
            log.warning("marker_missing", partition=number, changelog_offset=self._unseen.pop(number).changelog_offset)
        return missing

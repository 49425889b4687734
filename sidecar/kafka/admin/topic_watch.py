"""Watches the ids of input topic and changelog, to notice when one is deleted and made again while it is used.

The client library reads on at its position when the new log is longer than that, and writes on in any case, and reports
nothing. What lies below the position then stays unread, and what the former changelog had is missing in the new one,
unless the partitions recover.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

import structlog

from sidecar.clock import Clock
from sidecar.engine.partition import Partition

log = structlog.get_logger(__name__)

ASK_EVERY_S: Final = 1.0


class Question(Protocol):
    """A query that is sent when it is created: `admin.offsets.TopicsNow`."""

    def done(self) -> bool:
        """Return whether there is an answer, including a refusal. Never waits."""
        ...

    def id_of(self, topic: str) -> str:
        """Return the id of a topic; empty when unknown."""
        ...


class TopicWatch:
    """Sends one query at a time, in the background; used by one thread.

    Args:
        ask: Queries the ids of topics.
        clock: The clock of this machine.
        input_topic: The input topic.
        changelog: The changelog.
    """

    def __init__(
        self, ask: Callable[[Sequence[str]], Question], clock: Clock, input_topic: str, changelog: str
    ) -> None:
        self._ask = ask
        self._clock = clock
        self._topics = (input_topic, changelog)
        self._question: Question | None = None
        self._ask_at_s = clock.monotonic_s() + ASK_EVERY_S

    def topic_ids(self) -> tuple[str, str]:
        """Return the ids of input topic and changelog, if an answer has arrived since the last call. Never waits.

        A topic that does not exist at the moment has empty text as its id: the next answer counts.
        """
        question = self._question
        if question is None:
            now_s = self._clock.monotonic_s()
            if now_s >= self._ask_at_s:
                self._ask_at_s = now_s + ASK_EVERY_S
                self._question = self._ask(self._topics)
            return "", ""
        if not question.done():
            return "", ""
        self._question = None
        input_id, changelog_id = map(question.id_of, self._topics)
        return input_id, changelog_id

    def replaced(self, partitions: Iterable[Partition]) -> set[int]:
        """Return the partitions whose offsets, or whose changelog, belong to a former topic of the same name.

        Never waits.

        An outdated answer costs a recovery, which queries again before it decides.

        Args:
            partitions: The running ones.
        """
        input_id, changelog_id = self.topic_ids()
        checkpoints = {each.number: each.checkpoint for each in partitions}
        replaced = {number for number, each in checkpoints.items() if input_id and not each.meets(input_id)}
        if replaced:
            log.warning("input_topic_replaced", partitions=sorted(replaced), topic_id=input_id)
        known = {"", changelog_id}
        lost = {number for number, each in checkpoints.items() if changelog_id and each.changelog_topic_id not in known}
        if lost:
            log.error("changelog_replaced", partitions=sorted(lost), topic_id=changelog_id)
        return replaced | lost

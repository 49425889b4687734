"""Watches the id of the input topic, to notice when the topic is deleted and made again while it is read.

The client library reads on at its position when the new log is longer than that, and reports nothing. What lies below
the position then stays unread, unless the partitions recover.
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
        topic: The input topic.
    """

    def __init__(self, ask: Callable[[Sequence[str]], Question], clock: Clock, topic: str) -> None:
        self._ask = ask
        self._clock = clock
        self._topic = topic
        self._question: Question | None = None
        self._ask_at_s = clock.monotonic_s() + ASK_EVERY_S

    def topic_id(self) -> str:
        """Return the topic's id if an answer has arrived since the last call, else empty text. Never waits.

        A topic that does not exist at the moment has no id: the next answer counts.
        """
        question = self._question
        if question is None:
            now_s = self._clock.monotonic_s()
            if now_s >= self._ask_at_s:
                self._ask_at_s = now_s + ASK_EVERY_S
                self._question = self._ask((self._topic,))
            return ""
        if not question.done():
            return ""
        self._question = None
        return question.id_of(self._topic)

    def replaced(self, partitions: Iterable[Partition]) -> set[int]:
        """Return the partitions whose offsets belong to a former topic of the same name. Never waits.

        An outdated answer costs a recovery, which queries again before it decides.

        Args:
            partitions: The running ones.
        """
        topic_id = self.topic_id()
        replaced = {each.number for each in partitions if topic_id and not each.checkpoint.meets(topic_id)}
        if replaced:
            log.warning("input_topic_replaced", partitions=sorted(replaced), topic_id=topic_id)
        return replaced
